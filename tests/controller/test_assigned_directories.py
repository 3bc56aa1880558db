"""A broker says in which of its directories a replica is (KIP-858).

Kafka: `ReplicationControlManagerTest.testHandleAssignReplicasToDirs`.
"""

from uuid import UUID

import msgspec
import pytest

from rayka.errors import ErrorCode, StaleBrokerEpoch
from rayka.metadata.metadata_records import BrokerRegistrationChangeRecord, MetadataRecord
from rayka.protocol.membership import (
    AssignedReplica,
    AssignedReplicaResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from tests.controller.support import Machine
from tests.metadata.support import ORDERS, active, directory, partition, topic

OTHER = directory(1, 1)


def machine(*more: MetadataRecord) -> Machine:
    """Brokers 1 to 3 run; broker 1, which leads partition 0 on 1 and 2, has two directories."""
    two = (directory(1), OTHER)
    return Machine(records=[*active(2, 3), *registered_active(two), topic(), partition(0, (1, 2)), *more])


def registered_active(directories: tuple[object, ...]) -> list[MetadataRecord]:
    first, *rest = active(1)
    return [msgspec.structs.replace(first, directories=directories), *rest]


def assign(to: Machine, directory_id: UUID, number: int = 0, *, broker_id: int = 1) -> AssignedReplicaResult:
    replica = AssignedReplica(ORDERS, number, directory_id)
    response: AssignReplicasToDirsResponse = to.handle(AssignReplicasToDirsRequest(broker_id, 1, (replica,)))
    (result,) = response.replicas
    return result


def test_the_metadata_name_the_directory_that_the_broker_tells_of() -> None:
    controller = machine()
    before = controller.partition()
    assert assign(controller, OTHER.directory_id).error_code is ErrorCode.NONE
    after = controller.partition()
    assert after.directory_of(1) == OTHER.directory_id
    assert after.directory_of(2) == before.directory_of(2)
    assert (after.leader_id, after.leader_epoch, after.isr) == (1, before.leader_epoch, before.isr)


def test_what_the_metadata_name_already_writes_nothing() -> None:
    controller = machine()
    count = len(controller.records)
    assert assign(controller, directory(1).directory_id).error_code is ErrorCode.NONE
    assert len(controller.records) == count


def test_a_replica_whose_directory_is_offline_then_leads_no_more() -> None:  # B40
    offline = BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=1, offline_directories=(OTHER.directory_id,)
    )
    controller = machine(offline)
    assert assign(controller, OTHER.directory_id).error_code is ErrorCode.NONE
    after = controller.partition()
    assert (after.leader_id, after.isr) == (2, (2,))
    assert assign(controller, directory(1).directory_id).error_code is ErrorCode.NONE
    assert controller.partition().directory_of(1) == directory(1).directory_id


@pytest.mark.parametrize(
    ("number", "broker_id", "directory_id", "code"),
    [
        (9, 1, OTHER.directory_id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, 3, directory(3).directory_id, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (0, 1, directory(2).directory_id, ErrorCode.LOG_DIR_NOT_FOUND),
    ],
)
def test_what_is_not_the_brokers_to_say_is_refused(
    number: int, broker_id: int, directory_id: UUID, code: ErrorCode
) -> None:
    controller = machine()
    before = controller.partition()
    assert assign(controller, directory_id, number, broker_id=broker_id).error_code is code
    assert controller.partition() == before


def test_an_older_process_says_nothing() -> None:
    controller = machine()
    with pytest.raises(StaleBrokerEpoch):
        controller.handle(AssignReplicasToDirsRequest(1, 0, ()))
