"""The leader: the high watermark, the progress of each replica, and observers that are forgotten."""

import pytest

from rayka.errors import ErrorCode
from rayka.ids import NO_OFFSET, ZERO_ID, ReplicaKey
from rayka.protocol.quorum_messages import DescribeQuorumResponse, QuorumReplica
from rayka.raft.election_state import ElectionState
from rayka.raft.leader import BatchAccumulator, Leader
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.voters import VoterSet
from tests.raft.support import ME, OTHER, THIRD, Node, key

VOTERS = (ME, OTHER, THIRD)


def leader(*voters: int, start: int = 10) -> Leader:
    """The leader, number 1, of the voters with the given numbers."""
    voter_set = VoterSet(tuple(key(number) for number in voters))
    accumulator = BatchAccumulator(start, ())
    return Leader(ME, accumulator, voter_set, QuorumConfig(), epoch_start_offset=start, now_ms=0)


def node() -> Node:
    """Leads epoch 1 of three; three records are flushed."""
    found = Node(voters=VOTERS)
    found.elect(2_000, OTHER)
    found.settle(2_000)
    return found


# ---- High watermark --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("voters", "local", "others", "expected"),
    [
        ((1,), 15, (), 15),
        ((1, 2), 15, (12,), 12),
        ((1, 2, 3), 15, (12, NO_OFFSET), 12),
        ((1, 2, 3), 15, (NO_OFFSET, NO_OFFSET), NO_OFFSET),
        ((1, 2, 3), 11, (14, 14), 14),
        ((1, 2, 3, 4), 15, (14, 13, NO_OFFSET), 13),
        ((1, 2, 3, 4, 5), 15, (14, 13, 12, 11), 13),
        ((2, 3), 15, (12, 14), 12),  # the leader does not vote
        ((2, 3, 4), 15, (12, 14, NO_OFFSET), 12),
    ],
)
def test_the_high_watermark_is_what_a_majority_of_the_voters_holds(
    voters: tuple[int, ...], local: int, others: tuple[int, ...], expected: int
) -> None:  # A40
    found = leader(*voters)
    found.on_flushed(local)
    for number, offset in zip([each for each in voters if each != 1], others, strict=True):
        if offset != NO_OFFSET:
            found.on_fetch(key(number), offset, 15, 0)
    assert found.high_watermark == expected


def test_records_of_earlier_epochs_alone_are_not_committed() -> None:  # A24, A40
    found = leader(1, 2, 3, start=10)
    assert not found.on_flushed(10)
    assert not found.on_fetch(OTHER, 10, 10, 0)
    assert found.high_watermark == NO_OFFSET
    found.on_flushed(11)
    assert found.on_fetch(OTHER, 11, 11, 1)
    assert found.high_watermark == 11


def test_the_high_watermark_does_not_fall_when_voters_change() -> None:  # A40, A56
    found = leader(1, 2, 3)
    found.on_flushed(15)
    found.on_fetch(OTHER, 14, 15, 0)
    found.update_voters(VoterSet((ME, OTHER, THIRD, key(4))))
    assert not found.maybe_update_high_watermark()
    assert found.high_watermark == 14


def test_an_observer_that_comes_to_vote_counts_from_its_next_fetch() -> None:  # A31, A56
    found = leader(1, 2)
    found.on_flushed(15)
    found.on_fetch(THIRD, 15, 15, 0)
    found.update_voters(VoterSet(VOTERS))
    assert not found.maybe_update_high_watermark()
    assert found.on_fetch(THIRD, 15, 15, 1)


def test_only_what_the_leader_has_flushed_counts() -> None:  # A26, A40
    found = node()
    found.quorum.leader_log.append([b"a"])
    found.drain()
    assert not found.fetched_by(OTHER, 3) or found.quorum.high_watermark == 3
    assert not found.fetched_by(OTHER, 3)
    found.sync()
    assert found.quorum.high_watermark == 3
    assert found.fetched_by(OTHER, 4)


def test_what_was_written_during_a_sync_is_not_counted_with_it() -> None:  # A26
    found = Node.leading()
    found.quorum.leader_log.append([b"a"])
    found.drain()
    plan = found.log.unsynced()
    found.quorum.leader_log.append([b"b"])
    found.drain()
    found.disk.sync_now(plan.files, plan.directories)
    found.log.on_synced(plan)
    found.quorum.leader_log.on_flushed(found.log.flushed_offset, 0)
    assert (found.quorum.high_watermark, found.log.log_end_offset) == (4, 5)


def test_a_majority_of_the_others_commits_what_the_leader_has_not_flushed() -> None:  # A40
    found = node()
    found.quorum.leader_log.append([b"a"])
    found.drain()
    found.fetched_by(OTHER, 4)
    assert found.quorum.high_watermark == 3
    found.fetched_by(THIRD, 4)
    assert found.quorum.high_watermark == 4


def test_a_fetch_of_an_older_epoch_acknowledges_nothing() -> None:  # A31
    found = node()
    result = found.fetch(3, 0, epoch=0, replica=OTHER)
    assert result is not None
    assert result.error_code is ErrorCode.FENCED_LEADER_EPOCH
    found.fetch(3, 1, epoch=-1, replica=OTHER)
    assert found.quorum.high_watermark == NO_OFFSET
    assert found.fetched_by(OTHER, 3)


def test_a_fetch_from_a_diverging_position_acknowledges_nothing() -> None:  # A31
    found = node()
    result = found.fetch(9, 1, epoch=1, replica=OTHER)
    assert result is not None
    assert result.diverging_epoch is not None
    assert found.quorum.high_watermark == NO_OFFSET


def test_another_directory_of_a_voters_node_acknowledges_nothing() -> None:  # A40, A55
    found = node()
    assert not found.fetched_by(key(2, 9), 3)
    assert found.fetched_by(OTHER, 3)


def test_a_broker_gets_what_is_committed_and_nothing_else() -> None:  # A32
    found, broker = node(), ReplicaKey(1, ZERO_ID)
    found.fetched_by(OTHER, 3)
    found.quorum.leader_log.append([b"a"])
    found.drain()
    assert found.fetch(3, 1, epoch=-1, high_watermark=3, replica=broker) is None
    assert found.fetch(3, 1, epoch=1, high_watermark=3, replica=THIRD) is not None
    found.fetched_by(OTHER, 4)
    found.fetched_by(THIRD, 4)
    result = found.fetch(3, 1, epoch=-1, high_watermark=3, replica=broker)
    assert result is not None
    assert (result.next_offset, result.high_watermark) == (4, 4)


def test_a_parked_fetch_is_ended_by_the_loss_of_leadership() -> None:  # A32
    found = node()
    assert found.fetch(3, 1, epoch=1, high_watermark=9) is None
    found.quorum.resign(2_100)
    result = found.fetch(3, 1, epoch=1, high_watermark=9)
    assert result is not None
    assert (result.error_code, result.leader_epoch) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)


def test_what_was_appended_and_not_drained_goes_with_the_lead() -> None:  # A25
    found = node()
    found.quorum.leader_log.append([b"a"])
    found.quorum.resign(2_100)
    found.drain()
    assert (found.log.log_end_offset, found.quorum.next_offset) == (3, 3)


def test_a_leader_that_resigned_keeps_what_is_committed() -> None:  # A35
    found = node()
    found.fetched_by(OTHER)
    found.quorum.resign(2_100)
    assert found.quorum.high_watermark == 3


def test_a_new_epoch_begins_with_an_unknown_high_watermark() -> None:  # A24
    found = node()
    found.fetched_by(OTHER)
    found.quorum.resign(2_100)
    found.elect(5_000, OTHER)
    assert (found.quorum.is_leader, found.quorum.high_watermark) == (True, NO_OFFSET)
    found.settle(5_000)
    assert found.quorum.high_watermark == NO_OFFSET
    assert found.quorum.read_committed(0, max_bytes=1 << 20).next_offset == 3
    assert found.fetched_by(OTHER)


def test_the_leader_change_names_the_voters_that_granted_it() -> None:  # A24
    found = node()
    assert repr(found.records()[0]) == repr(
        type(found.records()[0])(3001, VOTERS, granting_voters=(ME, OTHER))  # type: ignore[call-arg, arg-type]
    )


# ---- Telling the voters ----------------------------------------------------------------------------------------------


def test_a_voter_that_does_not_fetch_is_told_at_once_and_then_once_in_an_interval() -> None:  # A13
    found = leader(1, 2, 3)
    assert found.voters_to_remind(0) == [OTHER, THIRD]
    for voter in (OTHER, THIRD):
        found.on_reminded(voter, 100)
    assert (found.voters_to_remind(1_099), found.next_reminder_ms(100)) == ([], 1_100)
    assert found.voters_to_remind(1_100) == [OTHER, THIRD]


def test_a_voter_that_fetches_is_told_when_it_has_not_for_an_interval() -> None:  # A13
    found = leader(1, 2, 3)
    found.on_fetch(OTHER, 10, 10, 300)  # before it was told: it knows already
    assert (found.voters_to_remind(1_299), found.next_reminder_ms(0)) == ([THIRD], 1_300)
    assert found.voters_to_remind(1_300) == [OTHER, THIRD]
    found.on_reminded(OTHER, 1_300)
    found.on_fetch(OTHER, 10, 10, 1_400)
    assert found.voters_to_remind(2_399) == [THIRD]
    assert found.voters_to_remind(2_400) == [OTHER, THIRD]


def test_a_leader_alone_reminds_no_voter() -> None:  # A13
    found = leader(1)
    assert (found.voters_to_remind(1 << 50), found.next_reminder_ms(0) > 1 << 50) == ([], True)


def test_the_most_advanced_of_the_others_is_to_succeed() -> None:  # A22
    found = leader(1, 2, 3, 4)
    for voter, offset in ((OTHER, 11), (THIRD, 14), (key(4), 12)):
        found.on_fetch(voter, offset, 15, 0)
    assert found.preferred_successors() == (THIRD, key(4), OTHER)


# ---- Described -------------------------------------------------------------------------------------------------------


def test_the_leader_describes_voters_and_observers() -> None:  # A15
    found = node()
    found.fetched_by(OTHER, now_ms=2_300)
    found.fetch(0, 0, epoch=1, replica=key(9), now_ms=2_400)
    assert found.quorum.leader_log.handle_describe_quorum(2_500) == DescribeQuorumResponse(
        3001,
        1,
        high_watermark=3,
        voters=(
            QuorumReplica(ME, 3, 0, 0),
            QuorumReplica(OTHER, 3, 200, 200),
            QuorumReplica(THIRD),
        ),
        observers=(QuorumReplica(key(9), 0, 100, -1),),
    )


def test_what_happened_when_the_clock_began_is_as_long_ago_as_the_clock_says() -> None:  # A15
    found = Node.leading()
    found.fetched_by(OTHER, now_ms=0)
    described = found.quorum.leader_log.handle_describe_quorum(100)
    assert described.observers == (QuorumReplica(OTHER, 3, 100, 100),)


def test_a_replica_was_caught_up_when_it_had_all_that_there_was_then() -> None:  # A56
    found = leader(1, 2)
    found.on_fetch(OTHER, 10, 12, 100)  # behind
    found.on_fetch(OTHER, 12, 15, 200)  # has what there was at 100
    assert found.replicas(300)[OTHER].last_caught_up_ms == 100
    found.on_fetch(OTHER, 15, 15, 300)
    assert found.replicas(300)[OTHER].last_caught_up_ms == 300


def test_an_observer_that_is_silent_for_five_minutes_is_forgotten() -> None:  # A15
    found = leader(1, 2)
    found.on_fetch(key(9), 10, 15, 0)
    found.on_fetch(OTHER, 10, 15, 0)
    assert key(9) in found.replicas(299_999)
    assert list(found.replicas(300_000)) == [ME, OTHER]


def test_a_node_that_does_not_lead_names_the_leader() -> None:
    follower = Node(voters=VOTERS, stored=ElectionState(4, 3002))
    assert follower.quorum.leader_log.handle_describe_quorum(0) == DescribeQuorumResponse(
        3002, 4, ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
