"""A leader proposes another ISR (B13)."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from rayka.errors import BrokerIdNotRegistered, ErrorCode, StaleBrokerEpoch
from rayka.metadata.image import PartitionImage
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
)
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.membership import (
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    IsrMember,
    LeaderRecoveryState,
)
from tests.controller.support import WITH_ELR, Machine
from tests.metadata.support import ORDERS, active, directory, partition, registered, topic

RECOVERING = LeaderRecoveryState.RECOVERING
LED_BY_1 = msgspec.structs.replace(partition(0, (1, 2, 3), isr=(1, 2)), leader_epoch=5, partition_epoch=9)


def machine(*more: MetadataRecord, before: PartitionRecord = LED_BY_1) -> Machine:
    """Brokers 1 to 4 run in broker epoch 1; the partition as given."""
    return Machine(records=[*WITH_ELR, *active(1, 2, 3, 4), topic(), before, *more])


def item(isr: tuple[int, ...] = (1, 2, 3), *, broker_epoch: int = 1, **changes: Any) -> AlterPartitionItem:
    """On top of what is committed, from the process with this broker epoch; other fields as given."""
    fields: dict[str, Any] = {"topic_id": ORDERS, "partition": 0, "leader_epoch": 5, "partition_epoch": 9}
    members = tuple(IsrMember(each, broker_epoch) for each in isr)
    return AlterPartitionItem(**(fields | {"isr": members} | changes))


def propose(to: Machine, *items: AlterPartitionItem, broker_id: int = 1) -> tuple[AlterPartitionResult, ...]:
    response: AlterPartitionResponse = to.handle(AlterPartitionRequest(broker_id, 1, items))
    return response.partitions


def test_the_answer_is_the_partition_as_it_is_committed() -> None:  # B13, B14
    controller = machine()
    (result,) = propose(controller, item((1, 2, 3)))
    assert result == AlterPartitionResult(
        ORDERS, 0, leader_id=1, leader_epoch=5, isr=(1, 2, 3), partition_epoch=10
    )
    assert controller.records[-1] == PartitionChangeRecord(topic_id=ORDERS, partition=0, isr=(1, 2, 3))
    assert repr(controller.partition()) == (
        "<PartitionImage leader=1 epoch=5 isr=[1, 2, 3] replicas=[1, 2, 3] partition_epoch=10>"
    )


def test_a_proposal_of_what_is_committed_writes_nothing_and_is_answered() -> None:  # B13
    controller = machine()
    count = len(controller.records)
    (result,) = propose(controller, item((1, 2)))
    assert (result.error_code, result.isr, result.partition_epoch) == (ErrorCode.NONE, (1, 2), 9)
    assert len(controller.records) == count


def test_an_isr_that_shrinks_below_what_is_needed_leaves_its_former_members_eligible() -> None:  # B14, B42
    controller = machine()
    controller.configure("orders", "min.insync.replicas", "2")
    propose(controller, item((1,)))
    assert repr(controller.partition()) == (
        "<PartitionImage leader=1 epoch=5 isr=[1] elr=[2] replicas=[1, 2, 3] partition_epoch=10>"
    )


@pytest.mark.parametrize(
    ("proposal", "broker_id", "error"),
    [
        (item(topic_id=UUID(int=7)), 1, ErrorCode.UNKNOWN_TOPIC_ID),
        (item(partition=1), 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (item(partition=-1), 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (item(leader_epoch=6), 1, ErrorCode.NOT_CONTROLLER),
        (item(partition_epoch=10), 1, ErrorCode.NOT_CONTROLLER),
        (item(leader_epoch=4, partition_epoch=10), 1, ErrorCode.NOT_CONTROLLER),  # before all that follows
        (item(leader_epoch=4), 2, ErrorCode.FENCED_LEADER_EPOCH),
        (item(partition_epoch=8), 2, ErrorCode.INVALID_REQUEST),  # 2 does not lead
        (item((1, 9), partition_epoch=8), 1, ErrorCode.INVALID_UPDATE_VERSION),
        (item((1, 4)), 1, ErrorCode.INVALID_REQUEST),  # 4 is no replica
        (item((1, 2, 2)), 1, ErrorCode.INVALID_REQUEST),
        (item((2, 3)), 1, ErrorCode.INVALID_REQUEST),  # without the leader
        (item(()), 1, ErrorCode.INVALID_REQUEST),
        (
            item((1, 2), leader_recovery_state=RECOVERING),
            1,
            ErrorCode.INVALID_REQUEST,
        ),  # more than the leader
        (item((1,), leader_recovery_state=RECOVERING), 1, ErrorCode.INVALID_REQUEST),  # it has recovered
        (item((1, 3), broker_epoch=2), 1, ErrorCode.INELIGIBLE_REPLICA),
        (item((1, 3), broker_epoch=0), 1, ErrorCode.INELIGIBLE_REPLICA),
        (item((1, 3), broker_epoch=-1), 1, ErrorCode.NONE),
    ],
)
def test_what_is_refused_and_in_which_order(
    proposal: AlterPartitionItem, broker_id: int, error: ErrorCode
) -> None:  # B13
    controller = machine()
    count = len(controller.records)
    (result,) = propose(controller, proposal, broker_id=broker_id)
    assert result.error_code is error
    assert bool(result.error_message) == (error is not ErrorCode.NONE)
    assert (result.topic_id, result.partition) == (proposal.topic_id, proposal.partition)
    is_epoch_raised = error in (ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA)
    assert len(controller.records) - count == is_epoch_raised


@pytest.mark.parametrize(
    "change",
    [
        {"is_fenced": True},
        {"is_in_controlled_shutdown": True},
        {"offline_directories": (directory(3).directory_id,)},
    ],
)
def test_a_broker_that_does_not_run_is_not_in_sync(change: dict[str, Any]) -> None:  # B13
    controller = machine(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=1, **change))
    (result,) = propose(controller, item((1, 2, 3)))
    assert result.error_code is ErrorCode.INELIGIBLE_REPLICA
    assert "broker_id=3" in result.error_message
    assert controller.partition().isr == (1, 2)


def test_a_proposal_that_was_refused_because_of_a_member_is_not_accepted_when_it_comes_again() -> (
    None
):  # B12, B13
    fenced = BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=1, is_fenced=True)
    controller = machine(fenced)
    assert propose(controller, item((1, 2, 3)))[0].error_code is ErrorCode.INELIGIBLE_REPLICA
    controller.replay(msgspec.structs.replace(fenced, is_fenced=False))
    assert propose(controller, item((1, 2, 3)))[0].error_code is ErrorCode.INVALID_UPDATE_VERSION
    assert controller.partition().isr == (1, 2)


def test_a_broker_that_is_not_registered_is_not_in_sync() -> None:  # B13
    controller = machine(before=msgspec.structs.replace(partition(0, (1, 5)), isr=(1,)))
    (result,) = propose(controller, item((1, 5), leader_epoch=0, partition_epoch=0))
    assert result.error_code is ErrorCode.INELIGIBLE_REPLICA


def test_a_broker_that_registered_again_is_not_in_sync_before_the_leader_has_seen_it() -> None:  # B13
    controller = machine(registered(3, epoch=7, is_fenced=False))
    assert propose(controller, item((1, 2, 3)))[0].error_code is ErrorCode.INELIGIBLE_REPLICA
    now = msgspec.structs.replace(
        item(partition_epoch=10), isr=(IsrMember(1, 1), IsrMember(2, 1), IsrMember(3, 7))
    )
    assert propose(controller, now)[0].isr == (1, 2, 3)


def test_one_proposal_does_not_decide_another() -> None:  # B13
    controller = machine(partition(1, (1, 2), isr=(1,)))
    other = item((1, 2), partition=1, leader_epoch=0, partition_epoch=0)
    results = propose(controller, item((2, 3)), other)
    assert [(each.partition, each.error_code) for each in results] == [
        (0, ErrorCode.INVALID_REQUEST),
        (1, ErrorCode.NONE),
    ]


def test_the_proposer_must_be_the_process_that_is_registered() -> None:  # B13
    controller = machine()
    with pytest.raises(StaleBrokerEpoch):
        controller.handle(AlterPartitionRequest(1, 0, (item(),)))
    with pytest.raises(BrokerIdNotRegistered):
        controller.handle(AlterPartitionRequest(9, 1, (item(),)))


def test_a_leader_says_that_it_has_recovered() -> None:  # B41
    controller = machine(before=msgspec.structs.replace(LED_BY_1, isr=(1,), leader_recovery_state=RECOVERING))
    (still,) = propose(controller, item((1,), leader_recovery_state=RECOVERING))
    assert (still.leader_recovery_state, still.partition_epoch) == (RECOVERING, 9)
    (recovered,) = propose(controller, item((1,)))
    assert (recovered.leader_recovery_state, recovered.partition_epoch) == (LeaderRecoveryState.RECOVERED, 10)


def test_a_leader_proposes_nothing_before_it_knows_of_another_min_isr() -> None:  # B13, B42
    controller = machine()
    change = ConfigChange("min.insync.replicas", AlterConfigOp.SET, "2")
    controller.handle(
        IncrementalAlterConfigsRequest((AlteredResource(ResourceType.TOPIC, "orders", (change,)),))
    )
    (refused,) = propose(controller, item((1,)))
    assert refused.error_code is ErrorCode.INVALID_UPDATE_VERSION
    (result,) = propose(controller, item((1,), partition_epoch=10))
    assert (result.error_code, result.isr) == (ErrorCode.NONE, (1,))
    assert controller.partition().eligible_leader_replicas == (2,)


def reassigned(leader_id: int) -> PartitionRecord:
    """From 1, 2 to 2, 3."""
    moving = {"adding_replicas": (3,), "removing_replicas": (1,), "leader_id": leader_id}
    return msgspec.structs.replace(LED_BY_1, replicas=(2, 3, 1), directories=directories(2, 3, 1), **moving)


def directories(*broker_ids: int) -> tuple[UUID, ...]:
    return tuple(directory(each).directory_id for each in broker_ids)


def test_an_isr_that_ends_a_reassignment_ends_it() -> None:  # B45
    controller = machine(before=reassigned(leader_id=2))
    (result,) = propose(controller, item((1, 2, 3)), broker_id=2)
    assert (result.error_code, result.isr, result.leader_epoch) == (ErrorCode.NONE, (2, 3), 6)
    after = controller.partition()
    assert (after.replicas, after.adding_replicas, after.removing_replicas) == ((2, 3), (), ())


def test_a_leader_that_is_dropped_is_told_that_another_one_was_elected() -> None:  # B13, B45
    controller = machine(before=reassigned(leader_id=1))
    (result,) = propose(controller, item((1, 2, 3)))
    assert result.error_code is ErrorCode.NEW_LEADER_ELECTED
    assert "broker 2 leads" in result.error_message
    after: PartitionImage = controller.partition()
    assert (after.leader_id, after.leader_epoch, after.isr) == (2, 6, (2, 3))
