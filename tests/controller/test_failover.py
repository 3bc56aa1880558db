"""Brokers with many partitions come, go and come back: which leads them then, and which may (B40-B44, H3, H6, H8)."""

from uuid import UUID

import msgspec
import pytest

from rayka.errors import StaleBrokerEpoch
from rayka.ids import TopicPartition
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from rayka.protocol.membership import (
    AlterPartitionItem,
    AlterPartitionRequest,
    HeartbeatRequest,
    IsrMember,
    LeaderRecoveryState,
)
from rayka.protocol.topics import ElectionType, ElectLeadersRequest
from rayka.shard.runtime import STEPS_PER_TURN
from tests.controller.support import SECOND_PROCESS, SESSION_MS, WITH_ELR, WITHOUT_ELR, Machine, registration
from tests.metadata.support import ORDERS, active, directory, partition, topic

FIRST_PROCESS = UUID(int=1001)  # of broker 1


def machine(*partitions: MetadataRecord, brokers: tuple[int, ...] = (1, 2, 3), min_isr: int = 1) -> Machine:
    """These brokers run in broker epoch 1."""
    made = Machine(records=[*WITH_ELR, *active(*brokers), topic(), *partitions])
    made.configure("orders", "min.insync.replicas", str(min_isr))
    return made


def change(number: int = 0, **fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=ORDERS, partition=number, **fields)  # type: ignore[arg-type]


def written(by: Machine, broker_id: int, **heartbeat: object) -> list[MetadataRecord]:
    count = len(by.records)
    by.heartbeat(broker_id, **heartbeat)
    return by.records[count:]


# ---- Fenced and back (B44) -------------------------------------------------------------------------------------------


def test_fencing_writes_what_changes_of_each_partition_and_then_of_the_broker() -> None:  # B44
    controller = machine(
        partition(0, (1, 2, 3)),  # led by it
        partition(1, (2, 3, 1)),  # in sync with another leader
        partition(2, (2, 1, 3), isr=(2, 3)),  # not in sync
        partition(3, (2, 3)),  # not there
        partition(4, (1, 2), isr=(1,)),  # alone in sync
    )
    assert written(controller, 1, want_fence=True) == [
        change(0, isr=(2, 3), leader_id=2),
        change(1, isr=(2, 3)),
        change(4, isr=(), leader_id=-1, eligible_leader_replicas=(1,), last_known_elr=(1,)),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, is_fenced=True),
    ]


def test_unfencing_elects_where_no_replica_leads_and_the_broker_may() -> None:  # B44
    controller = machine(partition(0, (1, 2)), partition(1, (1, 3), isr=(1,)), partition(2, (2, 1), isr=(2,)))
    for broker_id in (1, 2):
        controller.heartbeat(broker_id, want_fence=True)
    assert written(controller, 1) == [
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, is_fenced=False),
        # 2 was the last in sync of partition 0, and of 2, where 1 never was
        change(1, isr=(1,), leader_id=1, eligible_leader_replicas=(), last_known_elr=()),
    ]
    assert [each.leader_id for each in controller.image.topics["orders"].partitions] == [-1, 1, -1]


def test_brokers_fenced_one_after_another_stay_eligible_from_where_too_few_are_in_sync() -> None:  # B42, B44
    controller = machine(partition(0, (1, 2, 3)), min_isr=2)
    states = []
    for broker_id in (1, 2, 3):
        controller.heartbeat(broker_id, want_fence=True)
        states.append(repr(controller.partition()))
    assert states == [
        "<PartitionImage leader=2 epoch=1 isr=[2, 3] replicas=[1, 2, 3] partition_epoch=1>",
        "<PartitionImage leader=3 epoch=2 isr=[3] elr=[2] replicas=[1, 2, 3] partition_epoch=2>",
        "<PartitionImage leader=-1 epoch=3 isr=[] elr=[2, 3] replicas=[1, 2, 3] partition_epoch=3>",
    ]
    controller.heartbeat(1)
    assert controller.partition().leader_id == -1  # it left while enough were in sync without it
    controller.heartbeat(2)
    assert repr(controller.partition()) == (
        "<PartitionImage leader=2 epoch=4 isr=[2] elr=[3] replicas=[1, 2, 3] partition_epoch=4>"
    )


def test_a_broker_that_comes_back_does_not_take_the_lead_from_the_present_leader() -> None:  # B44
    controller = machine(partition(0, (1, 2)))
    controller.heartbeat(1, want_fence=True)
    written(controller, 1)
    assert (controller.partition().leader_id, controller.partition().isr) == (2, (2,))


def test_where_unclean_elections_are_allowed_any_replica_that_runs_leads() -> None:  # B40, B41
    controller = machine(partition(0, (1, 2, 3), isr=(1,)))
    controller.configure("orders", "unclean.leader.election.enable", "true")
    controller.heartbeat(1, want_fence=True)
    after = controller.partition()
    assert (after.leader_id, after.isr, after.leader_recovery_state) == (
        2,
        (2,),
        LeaderRecoveryState.RECOVERING,
    )


def test_a_broker_that_loses_one_directory_leaves_the_isrs_of_its_partitions_there() -> None:  # H4, B44
    controller = Machine(records=WITH_ELR)
    controller.start(1, directories=(directory(1, 0), directory(1, 1)))
    controller.start(2)
    second = (directory(1, 1).directory_id, directory(2).directory_id)
    controller.replay(
        topic(),
        partition(0, (1, 2)),
        msgspec.structs.replace(partition(1, (1, 2)), directories=second),
    )
    assert written(controller, 1, offline_directory_ids=(directory(1, 1).directory_id,)) == [
        change(1, isr=(2,), leader_id=2),
        BrokerRegistrationChangeRecord(
            broker_id=1, broker_epoch=2, offline_directories=(directory(1, 1).directory_id,)
        ),
    ]


# ---- Shutting down (H8) ----------------------------------------------------------------------------------------------


def test_a_broker_that_shuts_down_gives_its_leads_and_its_isrs_away_first() -> None:  # H8
    controller = machine(partition(0, (1, 2)), partition(1, (2, 1)))
    assert written(controller, 1, want_shut_down=True) == [
        change(0, isr=(2,), leader_id=2),
        change(1, isr=(2,)),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, is_in_controlled_shutdown=True),
    ]
    assert not controller.image.brokers[1].is_fenced


def test_a_follower_that_shuts_down_leaves_the_isrs_and_is_fenced_at_once() -> None:  # H5, H8
    controller = machine(partition(0, (2, 1)))
    assert written(controller, 1, want_shut_down=True) == [
        change(0, isr=(2,)),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, is_fenced=True),
    ]


def test_all_brokers_shut_down_and_the_last_to_leave_leads_when_it_is_back() -> None:  # H8, B42
    controller = machine(partition(0, (1, 2)), brokers=(1, 2))
    for broker_id in (1, 2):
        controller.heartbeat(broker_id, want_shut_down=True)
        controller.heartbeat(2)  # it has seen that 1 leads nothing any more
        assert controller.heartbeat(broker_id, want_shut_down=True).should_shut_down
    for broker_id in (1, 2):
        controller.restart(broker_id, previous_broker_epoch=1)
    controller.heartbeat(1)
    assert controller.partition().leader_id == -1
    controller.heartbeat(2)
    after = controller.partition()
    assert (after.leader_id, after.isr, after.eligible_leader_replicas) == (2, (2,), ())
    assert after.leader_recovery_state is LeaderRecoveryState.RECOVERED


# ---- Restarted (H3) --------------------------------------------------------------------------------------------------


def test_a_broker_restarted_without_loss_is_as_if_fenced() -> None:  # H3
    controller = machine(partition(0, (1, 2)), partition(1, (1, 3), isr=(1,)))
    records = controller.written_by(controller.restarted(1, previous_broker_epoch=1))
    assert records[:-1] == [
        change(0, isr=(2,), leader_id=2),
        change(1, isr=(), leader_id=-1, eligible_leader_replicas=(1,), last_known_elr=(1,)),
    ]
    assert isinstance(records[-1], RegisterBrokerRecord)
    assert records[-1].broker_epoch == len(controller.records) - 1


@pytest.mark.parametrize("previous", [-1, 0, 2])
def test_a_broker_that_may_have_lost_records_is_in_no_isr_and_no_elr(previous: int) -> None:  # H3, B42
    controller = machine(partition(0, (1, 2)), partition(1, (1, 3), isr=(1,)))
    records = controller.written_by(controller.restarted(1, previous_broker_epoch=previous))
    assert records[:-1] == [
        change(0, isr=(2,), leader_id=2),
        change(1, isr=(), leader_id=-1, last_known_elr=(1,)),
    ]


def test_a_broker_that_lost_its_disk_after_it_was_fenced_is_not_eligible_any_more() -> None:  # H3, B42
    controller = machine(partition(0, (1, 2), isr=(1,)), min_isr=2)
    controller.heartbeat(1, want_fence=True)
    assert controller.partition().eligible_leader_replicas == (1,)
    controller.restart(1)
    assert controller.partition().eligible_leader_replicas == ()
    controller.heartbeat(2)
    assert controller.partition().leader_id == -1  # 2 was never in sync


def test_where_no_replica_is_whole_the_one_that_led_last_leads_and_recovers() -> None:  # B40, B41
    controller = machine(partition(0, (1, 2), isr=(1,)))
    controller.restart(1)
    controller.heartbeat(2)
    assert controller.partition().leader_id == -1
    controller.heartbeat(1)
    after = controller.partition()
    assert (after.leader_id, after.isr, after.last_known_elr) == (1, (1,), ())
    assert after.leader_recovery_state is LeaderRecoveryState.RECOVERING


def test_without_elrs_the_last_member_of_an_isr_stays_whatever_it_lost() -> None:  # H3, B43
    controller = Machine(records=[*WITHOUT_ELR, *active(1, 2), topic(), partition(0, (1, 2), isr=(1,))])
    controller.restart(1)
    assert (controller.partition().leader_id, controller.partition().isr) == (-1, (1,))


def test_the_same_process_registers_again_and_loses_nothing() -> None:  # H3
    controller = machine(partition(0, (1, 2)))
    controller.register(1, incarnation_id=FIRST_PROCESS, host="elsewhere")
    assert repr(controller.partition()) == (
        "<PartitionImage leader=1 epoch=0 isr=[1, 2] replicas=[1, 2] partition_epoch=0>"
    )


def test_a_broker_with_a_new_disk_copies_its_replicas_anew() -> None:  # H3
    controller = machine(
        *(partition(number, (2, 1)) for number in range(3)), partition(3, (1, 2)), brokers=(1, 2)
    )
    new = (directory(1, 5), directory(1, 6))
    controller.report_exit(1, FIRST_PROCESS)
    registered = registration(1, incarnation_id=SECOND_PROCESS, directories=new)
    assert controller.written_by(registered)[:-1] == [
        change(number, directories=(directory(2).directory_id, new[number % 2].directory_id))
        for number in range(3)
    ] + [change(3, directories=(new[1].directory_id, directory(2).directory_id))]
    controller.heartbeat(1)
    state, epoch = controller.partition(), controller.image.brokers[1].broker_epoch
    members = (IsrMember(1, epoch), IsrMember(2, 1))
    item = AlterPartitionItem(ORDERS, 0, state.leader_epoch, state.partition_epoch, members)
    controller.handle(AlterPartitionRequest(2, 1, (item,)))
    assert controller.partition().isr == (1, 2)


def test_the_last_that_held_the_records_of_a_partition_keeps_its_place_on_the_lost_disk() -> None:  # B40
    controller = machine(partition(0, (1, 2), isr=(1,)), brokers=(1, 2))
    controller.report_exit(1, FIRST_PROCESS)
    controller.start(1, incarnation_id=SECOND_PROCESS, directories=(directory(1, 5),))
    after = controller.partition()
    assert (after.leader_id, after.last_known_elr) == (-1, (1,))
    assert after.directories == (directory(1).directory_id, directory(2).directory_id)


def test_a_replica_of_a_lost_disk_is_copied_anew_once_another_leads_without_it() -> None:  # H3, B46
    controller = machine(partition(0, (1, 2), isr=(1,)), brokers=(1, 2))
    controller.report_exit(1, FIRST_PROCESS)
    controller.start(1, incarnation_id=SECOND_PROCESS, directories=(directory(1, 5),))
    controller.handle(ElectLeadersRequest(ElectionType.UNCLEAN, (TopicPartition("orders", 0),)))
    after = controller.partition()
    assert (after.leader_id, after.isr) == (2, (2,))
    assert after.directories == (directory(1, 5).directory_id, directory(2).directory_id)


def test_it_is_copied_into_a_directory_that_works() -> None:  # H3, H4
    controller = machine(partition(0, (1, 2), isr=(1,)), brokers=(1, 2))
    controller.report_exit(1, FIRST_PROCESS)
    failed, working = directory(1, 5), directory(1, 6)
    controller.start(1, incarnation_id=SECOND_PROCESS, directories=(failed, working))
    controller.heartbeat(1, offline_directory_ids=(failed.directory_id,))
    controller.handle(ElectLeadersRequest(ElectionType.UNCLEAN, (TopicPartition("orders", 0),)))
    assert controller.partition().directories == (working.directory_id, directory(2).directory_id)


# ---- Ended (H6, design §4) -------------------------------------------------------------------------------------------


def test_a_broker_whose_process_ended_is_fenced_at_once() -> None:
    controller = machine(partition(0, (1, 2)))
    assert controller.report_exit(1, FIRST_PROCESS)
    assert controller.image.brokers[1].is_fenced
    assert controller.partition().leader_id == 2
    count = len(controller.records)
    assert controller.report_exit(1, FIRST_PROCESS)
    assert len(controller.records) == count


def test_the_end_of_another_process_fences_no_broker() -> None:
    controller = machine(partition(0, (1, 2)))
    assert not controller.report_exit(1, SECOND_PROCESS)
    assert not controller.report_exit(9, FIRST_PROCESS)
    assert not any(broker.is_fenced for broker in controller.image.brokers.values())
    controller.heartbeat(1)


def test_a_heartbeat_that_was_sent_before_the_end_and_comes_after_it_is_refused() -> None:
    controller = machine(partition(0, (1, 2)))
    controller.report_exit(1, FIRST_PROCESS)
    with pytest.raises(StaleBrokerEpoch, match="exit of this process was reported"):
        controller.heartbeat(1)
    assert controller.image.brokers[1].is_fenced


def test_after_the_end_the_next_process_need_not_wait_for_the_session_to_end() -> None:  # H2
    controller = machine()
    controller.heartbeat(1)
    controller.report_exit(1, FIRST_PROCESS)
    controller.start(1, incarnation_id=SECOND_PROCESS, directories=(directory(1, 5),))
    controller.now_ms = SESSION_MS - 1
    controller.sweep()
    assert not controller.image.brokers[1].is_fenced


# ---- Many ------------------------------------------------------------------------------------------------------------


def test_every_partition_of_a_broker_that_goes_gets_another_leader() -> None:  # B44, A68
    count = 2 * STEPS_PER_TURN
    controller = machine(*(partition(number, (1, 2, 3)) for number in range(count)))
    records = controller.written_by(HeartbeatRequest(1, 1, len(controller.records) - 1, True, False))
    assert records[:-1] == [change(number, isr=(2, 3), leader_id=2) for number in range(count)]
