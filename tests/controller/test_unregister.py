"""A broker that is gone for good is forgotten."""

import pytest

from rayka.errors import BrokerIdNotRegistered, InvalidRequest
from rayka.metadata.metadata_records import UnregisterBrokerRecord
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    Reassignment,
    UnregisterBrokerRequest,
)
from tests.controller.admin_support import cluster, create, fence, report_isr


def test_a_fenced_broker_without_replicas_is_forgotten_with_its_configuration() -> None:
    machine = cluster(2)
    change = ConfigChange("log.segment.bytes", AlterConfigOp.SET, "2000")
    machine.handle(IncrementalAlterConfigsRequest((AlteredResource(ResourceType.BROKER, "2", (change,)),)))
    fence(machine, 2)
    epoch = machine.image.brokers[2].broker_epoch
    written = machine.written_by(UnregisterBrokerRequest(2))
    assert written[-1] == UnregisterBrokerRecord(broker_id=2, broker_epoch=epoch)
    assert (list(machine.image.brokers), dict(machine.image.broker_configs(2))) == ([1], {})


def test_it_can_come_back_as_a_new_one() -> None:
    machine = cluster(2)
    fence(machine, 2)
    machine.handle(UnregisterBrokerRequest(2))
    machine.start(2)
    assert machine.image.brokers[2].is_active


def test_a_broker_that_runs_is_not_forgotten() -> None:
    with pytest.raises(InvalidRequest, match=r"broker 2 runs: .* stop it first"):
        cluster(2).handle(UnregisterBrokerRequest(2))


def test_a_broker_that_holds_replicas_is_not_forgotten_until_they_are_moved() -> None:
    machine = cluster(3)
    create(machine, (1, 2))
    fence(machine, 2)
    with pytest.raises(
        InvalidRequest, match="broker 2 holds replicas of 1 partitions, expected none; reassign them"
    ):
        machine.handle(UnregisterBrokerRequest(2))
    machine.handle(AlterPartitionReassignmentsRequest((Reassignment("orders", 0, (1, 3)),)))
    report_isr(machine, 1, 3)
    machine.handle(UnregisterBrokerRequest(2))
    assert 2 not in machine.image.brokers


def test_an_unknown_broker_cannot_be_forgotten() -> None:
    with pytest.raises(BrokerIdNotRegistered, match=r"broker 9 is not registered; those that are: \[1, 2\]"):
        cluster(2).handle(UnregisterBrokerRequest(9))
