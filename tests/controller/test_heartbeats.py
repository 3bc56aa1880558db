"""Heartbeats, fencing and leaders (H4-H6, B43, B44)."""

import pytest

from rayka.controller.controller_timers import FenceStaleBroker
from rayka.errors import BrokerIdNotRegistered, StaleBrokerEpoch
from rayka.metadata.metadata_records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
)
from rayka.protocol.membership import HeartbeatRequest
from rayka.protocol.topics import NewTopic
from tests.controller.support import SESSION_MS, WITHOUT_ELR, Machine, changes
from tests.metadata.support import active, directory, partition, topic


def test_a_broker_is_unfenced_once_it_has_applied_its_own_registration() -> None:  # H5
    machine = Machine()
    epoch = machine.register(1)
    behind = machine.heartbeat(1, current_metadata_offset=epoch - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    caught_up = machine.heartbeat(1, current_metadata_offset=epoch)
    assert (caught_up.is_caught_up, caught_up.is_fenced) == (True, False)


def test_a_broker_stays_fenced_while_it_wants_to() -> None:  # H1, H5
    machine = Machine()
    machine.register(1)
    assert machine.heartbeat(1, want_fence=True).is_fenced


def test_a_heartbeat_that_changes_nothing_is_not_written() -> None:  # H4
    machine = Machine()
    machine.start(1)
    count = len(machine.records)
    machine.heartbeat(1)
    assert len(machine.records) == count


def test_a_heartbeat_needs_a_registration() -> None:
    with pytest.raises(BrokerIdNotRegistered):
        Machine().handle(HeartbeatRequest(1, 0, 0, False, False))


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_heartbeat_of_another_process_is_stale_and_keeps_no_session_alive(difference: int) -> None:  # H3
    machine = Machine()
    machine.start(1)
    machine.now_ms = SESSION_MS
    with pytest.raises(StaleBrokerEpoch):
        machine.heartbeat(1, broker_epoch=machine.image.brokers[1].broker_epoch + difference)
    machine.sweep()
    assert machine.image.brokers[1].is_fenced


def test_a_silent_broker_is_fenced_when_its_session_ends() -> None:  # H6
    machine = Machine()
    machine.start(1)
    machine.now_ms = SESSION_MS - 1
    machine.sweep()
    assert not machine.image.brokers[1].is_fenced
    machine.now_ms = SESSION_MS
    machine.sweep()
    assert machine.image.brokers[1].is_fenced


def test_time_in_which_the_controller_stood_still_counts_for_no_session() -> None:  # H6
    machine = Machine()
    machine.start(1, 2)
    machine.now_ms = 60_000
    machine.heartbeat(2)
    machine.sweep(late_ms=59_000)
    assert not machine.image.brokers[1].is_fenced
    machine.now_ms = 59_000 + SESSION_MS
    machine.sweep()
    assert [broker.is_fenced for broker in machine.image.brokers.values()] == [True, False]
    machine.now_ms = 60_000 + SESSION_MS
    machine.sweep()
    assert machine.image.brokers[2].is_fenced, "its heartbeat came at the end of that time, not after now"


def test_each_round_fences_one_broker() -> None:  # H6
    machine = Machine()
    machine.start(1, 2, 3)
    machine.now_ms = SESSION_MS
    machine.heartbeat(2)
    epoch = machine.image.brokers[1].broker_epoch
    written = machine.written_by(FenceStaleBroker())
    assert written == [BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=epoch, is_fenced=True)]
    assert machine.sweep() == 1
    assert [broker.is_fenced for broker in machine.image.brokers.values()] == [True, False, True]


def test_a_new_controller_takes_every_broker_for_just_contacted() -> None:  # H6
    machine = Machine(records=active(1))
    machine.now_ms = 50_000
    machine.sweep()
    machine.now_ms += SESSION_MS - 1
    machine.sweep()
    assert not machine.image.brokers[1].is_fenced
    machine.now_ms += 1
    machine.sweep()
    assert machine.image.brokers[1].is_fenced


def test_without_elrs_the_last_member_of_an_isr_stays_when_it_is_fenced_and_no_replica_leads() -> None:  # B43
    machine = Machine(records=WITHOUT_ELR)
    machine.start(1)
    machine.create(NewTopic("orders", 1, 1))
    machine.heartbeat(1, want_fence=True)
    assert (
        repr(machine.partition())
        == "<PartitionImage leader=-1 epoch=1 isr=[1] replicas=[1] partition_epoch=1>"
    )


def test_an_unfenced_broker_leads_where_no_other_does() -> None:  # B44
    machine = Machine()
    machine.start(1)
    machine.create(NewTopic("orders", 1, 1))
    machine.heartbeat(1, want_fence=True)
    machine.heartbeat(1)
    assert (
        repr(machine.partition())
        == "<PartitionImage leader=1 epoch=2 isr=[1] replicas=[1] partition_epoch=2>"
    )


def test_a_fenced_broker_leaves_every_isr_and_the_next_replica_in_sync_leads() -> None:  # B40, B44
    machine = Machine(
        records=[*active(1, 2, 3), topic(), partition(0, (1, 2, 3), isr=(3, 2, 1)), partition(1, (2, 1))]
    )
    machine.heartbeat(1, want_fence=True)
    assert (
        repr(machine.partition())
        == "<PartitionImage leader=2 epoch=1 isr=[3, 2] replicas=[1, 2, 3] partition_epoch=1>"
    )
    led_by_another = "<PartitionImage leader=2 epoch=0 isr=[2] replicas=[2, 1] partition_epoch=1>"
    assert repr(machine.partition(number=1)) == led_by_another


def test_the_last_member_of_an_isr_leaves_it_for_the_elr_and_no_replica_leads() -> None:  # B42
    machine = Machine()
    machine.start(1)
    machine.create(NewTopic("orders", 1, 1))
    machine.heartbeat(1, want_fence=True)
    assert (
        repr(machine.partition())
        == "<PartitionImage leader=-1 epoch=1 isr=[] elr=[1] replicas=[1] partition_epoch=1>"
    )
    assert machine.partition().last_known_elr == (1,)


@pytest.mark.parametrize(("before", "isr", "elr"), [((), (), (1,)), (WITHOUT_ELR, (1,), ())])
def test_a_broker_outside_isr_and_elr_does_not_lead(
    before: list[MetadataRecord], isr: tuple[int, ...], elr: tuple[int, ...]
) -> None:  # B44: no unclean election
    machine = Machine(records=[*before, *active(1, 2), topic(), partition(0, (1, 2), isr=(1,))])
    machine.heartbeat(1, want_fence=True)
    left = machine.partition()
    assert (left.leader_id, left.isr, left.eligible_leader_replicas) == (-1, isr, elr)


def test_a_failed_directory_takes_its_partitions_and_no_others_out_of_the_lead() -> None:  # H4
    machine = Machine()
    machine.start(1, directories=(directory(1, 0), directory(1, 1)))
    machine.create(NewTopic("orders", 2, 1))
    failed = machine.partition(number=0).directories[0]
    machine.heartbeat(1, offline_directory_ids=(failed,))
    assert [machine.partition(number=number).leader_id for number in (0, 1)] == [-1, 1]
    assert not machine.image.brokers[1].is_fenced
    count = len(machine.records)
    machine.heartbeat(1, offline_directory_ids=(failed,))
    assert len(machine.records) == count


def test_a_directory_that_failed_stays_offline_though_an_earlier_heartbeat_comes_late() -> None:  # H4
    machine = Machine()
    machine.start(1)
    machine.create(NewTopic("orders", 1, 1))
    failed = machine.partition().directories
    machine.heartbeat(1, offline_directory_ids=failed)
    machine.heartbeat(1, offline_directory_ids=())
    assert machine.image.brokers[1].offline_directories == failed
    assert machine.partition().leader_id == -1
    machine.restart(1)  # another process tries again
    machine.heartbeat(1)
    assert machine.image.brokers[1].offline_directories == ()


def test_a_directory_that_has_room_again_is_online_and_what_is_there_is_led() -> None:  # H4, B44
    machine = Machine()
    machine.start(1)
    machine.create(NewTopic("orders", 1, 1))
    full = machine.partition().directories
    machine.heartbeat(1, offline_directory_ids=full)
    machine.heartbeat(1, recovered_directory_ids=full)
    assert machine.image.brokers[1].offline_directories == ()
    assert machine.partition().leader_id == 1
    machine.heartbeat(1, offline_directory_ids=full)  # full again
    assert machine.partition().leader_id == -1


def test_a_heartbeat_that_comes_after_a_later_one_changes_nothing() -> None:  # H4
    machine = Machine()
    machine.start(1)
    machine.create(NewTopic("orders", 1, 1))
    full = machine.partition().directories
    machine.heartbeat(1, offline_directory_ids=full, number=7)
    late = machine.heartbeat(1, recovered_directory_ids=full, want_fence=True, want_shut_down=True, number=6)
    assert (late.is_fenced, late.should_shut_down) == (False, False)
    assert machine.image.brokers[1].offline_directories == full
    machine.heartbeat(1, recovered_directory_ids=full, number=7)  # the same once more
    assert machine.image.brokers[1].offline_directories == ()


def test_a_heartbeat_that_comes_after_a_later_one_keeps_no_session_alive() -> None:  # H6
    machine = Machine()
    machine.start(1)
    machine.heartbeat(1, number=7)
    machine.now_ms = SESSION_MS
    machine.heartbeat(1, number=6)
    machine.sweep()
    assert machine.image.brokers[1].is_fenced


def test_the_next_process_of_a_broker_counts_its_heartbeats_anew() -> None:  # H3
    machine = Machine()
    machine.start(1)
    machine.heartbeat(1, number=7)
    machine.restart(1)
    assert not machine.heartbeat(1, number=1).is_fenced


def test_a_broker_says_nothing_of_the_directories_of_another() -> None:  # H4
    machine = Machine(records=[*active(1, 2), topic(), partition(0, (1, 2))])
    count = len(machine.records)
    machine.heartbeat(1, offline_directory_ids=(directory(2).directory_id,))
    assert len(machine.records) == count


def test_a_broker_back_without_the_directory_of_a_partition_does_not_lead_it() -> None:
    machine = Machine()
    machine.start(1)
    machine.create(NewTopic("orders", 1, 1))
    machine.now_ms = SESSION_MS
    machine.register(1, incarnation_id=directory(9).directory_id, directories=(directory(1, 5),))
    machine.heartbeat(1)
    assert not machine.image.brokers[1].is_fenced
    assert machine.partition().leader_id == -1


# ---- Shutting down ---------------------------------------------------------------------------------------------------


def test_a_broker_that_leads_nothing_shuts_down_at_once() -> None:  # H5
    machine = Machine()
    machine.start(1)
    response = machine.heartbeat(1, want_shut_down=True)
    assert (response.should_shut_down, response.is_fenced) == (True, True)


def test_a_fenced_broker_shuts_down_at_once() -> None:  # H5
    machine = Machine()
    machine.register(1)
    assert machine.heartbeat(1, want_shut_down=True).should_shut_down


def test_wanting_both_to_be_fenced_and_to_shut_down_is_to_shut_down() -> None:  # H5
    machine = Machine()
    machine.start(1)
    assert machine.heartbeat(1, want_fence=True, want_shut_down=True).should_shut_down


def test_a_leader_gives_its_partitions_away_and_then_shuts_down() -> None:  # H5
    machine = Machine(records=[*active(1, 2), topic(), partition(0, (1, 2))])
    first = machine.heartbeat(1, want_shut_down=True)
    assert (first.should_shut_down, first.is_fenced) == (False, False)
    assert (machine.partition().leader_id, machine.partition().isr) == (2, (2,))
    moved_offset = len(machine.records) - 1
    machine.heartbeat(2, current_metadata_offset=moved_offset - 1)
    assert not machine.heartbeat(1, want_shut_down=True).should_shut_down  # broker 2 does not know yet
    machine.heartbeat(2, current_metadata_offset=moved_offset)
    assert machine.heartbeat(1, want_shut_down=True).should_shut_down
    assert machine.image.brokers[1].is_fenced


def test_what_else_a_broker_says_while_it_shuts_down_does_not_put_its_end_off() -> None:  # H5
    machine = Machine(records=[*active(1, 2), topic(), partition(0, (1, 2))])
    machine.heartbeat(1, want_shut_down=True)
    moved_offset = len(machine.records) - 1
    machine.heartbeat(2, current_metadata_offset=moved_offset - 1)
    machine.heartbeat(1, want_shut_down=True, offline_directory_ids=(directory(1).directory_id,))
    assert len(machine.records) - 1 > moved_offset
    machine.heartbeat(2, current_metadata_offset=moved_offset)
    assert machine.heartbeat(1, want_shut_down=True).should_shut_down


@pytest.mark.parametrize(("before", "isr", "elr"), [((), (), (1,)), (WITHOUT_ELR, (1,), ())])
def test_the_only_broker_shuts_down_too_and_its_partitions_wait_for_it(
    before: list[MetadataRecord], isr: tuple[int, ...], elr: tuple[int, ...]
) -> None:  # H5, B42, B43
    machine = Machine(records=before)
    machine.start(1)
    machine.create(NewTopic("orders", 1, 1))
    assert not machine.heartbeat(1, want_shut_down=True).should_shut_down
    assert machine.heartbeat(1, want_shut_down=True).should_shut_down
    left = machine.partition()
    assert (left.leader_id, left.isr, left.eligible_leader_replicas) == (-1, isr, elr)


def test_a_broker_in_controlled_shutdown_gets_no_new_partitions() -> None:  # H8
    machine = Machine(records=[*active(1, 2), topic(), partition(0, (1, 2))])
    machine.heartbeat(1, want_shut_down=True)
    machine.create(NewTopic("payments", 4, 1))
    assert {each.replicas for each in machine.image.topics["payments"].partitions} == {(2,)}


def test_partitions_are_moved_before_the_broker_changes() -> None:
    machine = Machine(records=[*active(1, 2), topic(), partition(0, (1, 2))])
    count = len(machine.records)
    machine.heartbeat(1, want_fence=True)
    kinds = [type(record) for record in changes(machine.records[count:])]
    assert kinds == [PartitionChangeRecord, BrokerRegistrationChangeRecord]


# ---- What follows upon what (H5) -------------------------------------------------------------------------------------

ASKS_NOTHING: dict[str, bool] = {}
ASKS_FENCE, ASKS_END = {"want_fence": True}, {"want_shut_down": True}
ASKS_BOTH = ASKS_FENCE | ASKS_END
FENCED, UNFENCED, ENDING, ENDED = "fenced", "unfenced", "controlled shutdown", "shutdown now"


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize(
    ("before", "wishes", "after_leading", "after_following"),
    [
        (FENCED, ASKS_NOTHING, UNFENCED, UNFENCED),
        (FENCED, ASKS_FENCE, FENCED, FENCED),
        (FENCED, ASKS_END, ENDED, ENDED),
        (FENCED, ASKS_BOTH, ENDED, ENDED),
        (UNFENCED, ASKS_NOTHING, UNFENCED, UNFENCED),
        (UNFENCED, ASKS_FENCE, FENCED, FENCED),
        (UNFENCED, ASKS_END, ENDING, ENDED),
        (UNFENCED, ASKS_BOTH, ENDED, ENDED),
        (ENDING, ASKS_NOTHING, ENDING, ENDING),  # broker 2 has not seen yet that it leads instead
        (ENDING, ASKS_END, ENDING, ENDING),
    ],
)
def test_the_next_state_of_a_broker_follows_from_its_state_its_wishes_and_what_it_leads(
    before: str, wishes: dict[str, bool], after_leading: str, after_following: str, leads: bool
) -> None:  # H5
    machine = Machine(records=[*active(1, 2), topic(), partition(0, (1, 2) if leads else (2, 1))])
    if before == ENDING:
        change = BrokerRegistrationChangeRecord(
            broker_id=1, broker_epoch=1, is_fenced=False, is_in_controlled_shutdown=True
        )
        machine.replay(change)
    elif before == FENCED:
        machine.heartbeat(1, want_fence=True)
    response = machine.heartbeat(1, **wishes)
    broker = machine.image.brokers[1]
    after = after_leading if leads else after_following
    assert response.should_shut_down == (after == ENDED)
    assert response.is_fenced == broker.is_fenced == (after in (FENCED, ENDED))
    assert broker.is_in_controlled_shutdown == (after == ENDING)
