"""Blocks of producer ids; the cases of Kafka's ProducerIdControlManagerTest (C12)."""

import pytest

from rayka.controller.controller import PRODUCER_ID_MAX
from rayka.errors import BrokerIdNotRegistered, StaleBrokerEpoch, UnknownServerError
from rayka.metadata.metadata_records import ProducerIdsRecord
from rayka.protocol.produce import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from tests.controller.support import Machine


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.start(1, 2)
    return machine


def allocated(machine: Machine, broker_id: int, **changes: int) -> AllocateProducerIdsResponse:
    epoch = machine.image.brokers[broker_id].broker_epoch if broker_id in machine.image.brokers else 0
    fields = {"broker_id": broker_id, "broker_epoch": epoch} | changes
    response: AllocateProducerIdsResponse = machine.handle(AllocateProducerIdsRequest(**fields))
    return response


def test_each_block_is_given_once_whichever_broker_asks(machine: Machine) -> None:  # C12
    given = [allocated(machine, broker_id) for broker_id in (1, 2, 1)]
    assert [(each.producer_id_start, each.producer_id_count) for each in given] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]


def test_a_block_is_a_record_that_says_where_the_next_one_begins(machine: Machine) -> None:  # C12
    epoch = machine.image.brokers[1].broker_epoch
    records = machine.written_by(AllocateProducerIdsRequest(1, epoch))
    assert records == [ProducerIdsRecord(broker_id=1, broker_epoch=epoch, next_producer_id=1000)]
    assert machine.image.next_producer_id == 1000


def test_a_controller_that_takes_over_goes_on_where_the_last_one_was(machine: Machine) -> None:  # C12
    allocated(machine, 1)
    assert allocated(Machine(records=machine.records), 2).producer_id_start == 1000


def test_only_a_registered_broker_of_this_epoch_gets_ids(machine: Machine) -> None:  # C12, H3
    with pytest.raises(BrokerIdNotRegistered):
        allocated(machine, 7)
    with pytest.raises(StaleBrokerEpoch):
        allocated(machine, 1, broker_epoch=99)
    assert machine.image.next_producer_id == 0


def test_the_ids_end_with_the_highest_number(machine: Machine) -> None:  # C12
    used_up = ProducerIdsRecord(broker_id=1, broker_epoch=0, next_producer_id=PRODUCER_ID_MAX - 999)
    with pytest.raises(UnknownServerError, match="was given away"):
        allocated(Machine(records=[*machine.records, used_up]), 1)
