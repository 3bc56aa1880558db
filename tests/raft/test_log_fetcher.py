"""The follower: from which voter it fetches and when, what it takes, what it truncates, what it ignores."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.errors import ErrorCode
from rayka.ids import METADATA_TOPIC_ID, NO_OFFSET, OffsetAndEpoch
from rayka.protocol.fetch import FetchPartitionResult, FetchRequest, FetchResponse
from rayka.protocol.quorum_messages import VoteRequest
from rayka.raft.election_state import ElectionState
from tests.raft.support import CLUSTER_ID, ME, OTHER, THIRD, Cluster, Node, answer

VOTERS = (ME, OTHER, THIRD)


def leader_with(*values: bytes) -> Node:
    """Node 3001, leader of epoch 1, whose log holds its three first records and these, a batch each."""
    node = Node(voters=VOTERS)
    node.elect(2_000, OTHER)
    node.settle(2_000)
    for value in values:
        node.commit(value)
    return node


def follower(epoch: int = 1, **changed: Any) -> Node:
    """Node 3002, of leader 3001."""
    return Node(OTHER, voters=VOTERS, stored=ElectionState(epoch, 3001), **changed)


def fetched(node: Node, leader: Node, now_ms: int = 0) -> FetchPartitionResult:
    """One fetch of the node, answered by the leader, taken in and flushed."""
    ((node_id, request),) = node.settle(now_ms)
    assert isinstance(request, FetchRequest)
    response = answer(leader, request, now_ms, may_wait=False)
    node.quorum.on_response(node_id, request, response, now_ms)
    return response.partitions[0]


def result(node: Node, **found: Any) -> FetchResponse:
    """An answer of the leader that the node follows."""
    given = {"leader_id": node.quorum.election.leader_id, "leader_epoch": node.epoch, **found}
    return FetchResponse((FetchPartitionResult(METADATA_TOPIC_ID, 0, **given),))


def respond(node: Node, now_ms: int = 0, **found: Any) -> None:
    ((node_id, request),) = node.settle(now_ms)
    node.quorum.on_response(node_id, request, result(node, **found), now_ms)


# ---- Fetching --------------------------------------------------------------------------------------------------------


def test_a_follower_fetches_from_its_end_with_its_epochs_and_high_watermark() -> None:  # A27
    leader, node = leader_with(b"a"), follower()
    fetched(node, leader)
    ((node_id, request),) = node.settle()
    (partition,) = request.partitions
    assert (node_id, request.replica_id, request.replica_directory_id) == (3001, 3002, OTHER.directory_id)
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.current_leader_epoch) == (4, 1, 1)
    assert (request.cluster_id, request.max_wait_ms, partition.high_watermark) == ("cluster", 500, NO_OFFSET)


def test_the_next_fetch_waits_until_what_came_is_durable() -> None:  # A34
    leader, node = leader_with(b"a"), follower()
    fetched(node, leader)
    node.persist()
    assert node.quorum.requests(0) == []
    node.flush()
    assert len(node.quorum.requests(0)) == 1


def test_only_what_is_committed_is_read() -> None:  # A41
    leader, node = leader_with(b"a", b"b"), follower()
    leader.fetched_by(THIRD, 4)
    fetched(node, leader)
    assert (node.quorum.high_watermark, node.quorum.log.log_end_offset) == (4, 5)
    read = node.quorum.read_committed(0, max_bytes=1 << 20)
    assert read.next_offset == 4
    assert node.quorum.read_committed(4, max_bytes=1 << 20).records == b""


def test_nothing_is_fetched_before_the_election_is_durable() -> None:  # A8
    node = follower()
    node.quorum.learn(3003, 5, 0)
    assert node.flush() in (True, False)
    assert node.quorum.requests(0) == []
    node.persist()
    assert [node_id for node_id, _ in node.quorum.requests(0)] == [3003]


def test_a_follower_takes_records_and_the_high_watermark() -> None:  # A33, A35
    leader, node = leader_with(b"a", b"b"), follower()
    leader.fetched_by(THIRD)
    fetched(node, leader)
    assert node.records() == leader.records()
    assert node.quorum.high_watermark == 5


def test_the_high_watermark_of_a_follower_ends_with_its_log() -> None:  # A35
    leader, node = leader_with(b"a"), follower()
    leader.fetched_by(THIRD)
    ((node_id, request),) = node.settle()
    response = answer(leader, request, 0)
    (partition,) = response.partitions
    cut = type(partition)(
        METADATA_TOPIC_ID, 0, leader_id=3001, leader_epoch=1, high_watermark=4,
        records=partition.records[: int.from_bytes(bytes(partition.records[8:12]), "big") + 20],
    )  # fmt: skip
    node.quorum.on_response(node_id, request, FetchResponse((cut,)), 0)
    assert (node.quorum.log.log_end_offset, node.quorum.high_watermark) == (3, 3)


def test_a_new_leader_that_knows_no_high_watermark_takes_none_away() -> None:  # A35
    leader, node = leader_with(b"a"), follower()
    leader.fetched_by(THIRD)
    fetched(node, leader)
    respond(node, high_watermark=-1)
    assert node.quorum.high_watermark == 4


def test_a_high_watermark_that_falls_is_the_end() -> None:  # A35
    leader, node = leader_with(b"a"), follower()
    leader.fetched_by(THIRD)
    fetched(node, leader)
    with pytest.raises(AssertionError, match="high watermark"):
        respond(node, high_watermark=3)


# ---- Damage ----------------------------------------------------------------------------------------------------------


def test_batches_of_a_later_epoch_are_not_appended() -> None:  # A33
    leader = leader_with(b"a")
    leader.quorum.resign(2_000)
    leader.elect(5_000, OTHER)
    leader.settle(5_000)
    leader.commit(b"b")  # epoch 3
    read = leader.log.read(0, max_bytes=1 << 20, end_offset=9)
    node = follower()
    respond(node, records=np.frombuffer(read.records, np.uint8), high_watermark=0)
    assert node.log.log_end_offset == 4


def test_a_damaged_batch_and_what_follows_are_dropped_and_asked_for_again() -> None:  # A33
    leader, node = leader_with(b"a", b"b"), follower()
    content = bytearray(leader.log.read(0, max_bytes=1 << 20, end_offset=9).records)
    second = int.from_bytes(content[8:12], "big") + 12
    content[second + 70] ^= 1
    respond(node, records=np.frombuffer(bytes(content), np.uint8))
    assert node.log.log_end_offset == 3
    fetched(node, leader)
    assert node.records() == leader.records()


def test_a_leader_whose_next_batch_is_damaged_is_no_better_than_none() -> None:  # A11, A33
    leader, node = leader_with(b"a"), follower()
    content = bytearray(leader.log.read(0, max_bytes=1 << 20, end_offset=9).records)
    content[80] ^= 1
    for now_ms in (500, 1_000, 1_500):
        respond(node, now_ms, records=np.frombuffer(bytes(content), np.uint8))
        assert node.quorum.requests(now_ms) == []  # it is left alone for a moment
    node.quorum.poll(2_000)
    assert node.role == "Prospective"


@given(st.binary(max_size=300))
def test_garbage_is_not_appended(content: bytes) -> None:  # A33
    node = follower()
    respond(node, records=np.frombuffer(content, np.uint8))
    assert node.log.log_end_offset == 0


def test_a_flipped_bit_anywhere_never_crashes_a_follower_nor_gets_into_its_log() -> None:  # A33
    leader, random = leader_with(b"a", b"b"), Random(7)
    good = leader.log.read(0, max_bytes=1 << 20, end_offset=9).records
    for _ in range(200):
        content = bytearray(good)
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        node = follower()
        respond(node, records=np.frombuffer(bytes(content), np.uint8))
        records = node.records()
        assert records == leader.records()[: len(records)]


def test_epochs_do_not_fall_within_a_log() -> None:  # A33
    leader, node = leader_with(b"a"), follower(epoch=5)
    content = leader.log.read(0, max_bytes=1 << 20, end_offset=9).records
    records = bytearray(content)
    records[15] = 4  # the first batch, in epoch 4; the second is of epoch 1
    respond(node, records=np.frombuffer(bytes(records), np.uint8))
    assert (node.log.log_end_offset, node.log.epochs.epoch_of(0)) == (3, 4)


def test_records_that_leave_a_gap_are_not_appended() -> None:  # A33
    leader, node = leader_with(b"a", b"b"), follower()
    respond(
        node, records=np.frombuffer(leader.log.read(3, max_bytes=1 << 20, end_offset=9).records, np.uint8)
    )
    assert node.log.log_end_offset == 0


# ---- Divergence ------------------------------------------------------------------------------------------------------


def test_a_log_that_parted_from_the_leaders_is_cut_where_they_parted() -> None:  # A33
    cluster = Cluster(3)
    cluster.commit(b"a")
    former = cluster.elected()
    cluster.isolate(former.local.node_id)
    former.quorum.leader_log.append([b"lost"])
    cluster.run_until(lambda: not former.quorum.is_leader)
    assert b"lost" in former.records()
    cluster.commit(b"b")
    cluster.heal()
    cluster.run_until(lambda: former.committed() == [b"a", b"b"])
    assert b"lost" not in former.records()


@pytest.mark.parametrize(
    ("diverging", "end"),
    [
        (OffsetAndEpoch(4, 1), 4),  # the leader has less of epoch 1
        (OffsetAndEpoch(9, 1), 5),  # the leader has more of epoch 1 than this log
        (OffsetAndEpoch(9, 2), 5),  # this log has nothing of epoch 2: it ends with what is before
        (OffsetAndEpoch(6, 3), 6),
    ],
)
def test_a_truncation_ends_where_both_have_the_epoch(diverging: OffsetAndEpoch, end: int) -> None:  # A33
    node = two_epochs()
    respond(node, diverging_epoch=diverging)
    node.settle()
    assert node.log.log_end_offset == end


def test_while_what_stays_is_copied_nothing_is_fetched_and_no_election_begins() -> None:  # A33
    node = two_epochs()
    node.flush()
    respond(node, diverging_epoch=OffsetAndEpoch(6, 3))
    copy = node.quorum.needed_copy
    assert copy is not None
    assert (node.log.log_end_offset, list(node.quorum.requests(100_000))) == (7, [])
    node.quorum.poll(100_000)
    assert node.role == "Follower"
    node.disk.copy_prefix_now(copy.source, copy.target, copy.size_bytes)
    node.quorum.fetcher.on_copied(copy, 100_000)
    assert (node.log.log_end_offset, node.quorum.needed_copy) == (6, None)
    node.flush()
    ((_, request),) = node.quorum.requests(100_000)
    assert request.partitions[0].fetch_offset == 6


def test_a_copy_for_a_leader_that_was_followed_before_changes_nothing() -> None:  # A33
    node = two_epochs()
    node.flush()
    respond(node, diverging_epoch=OffsetAndEpoch(6, 3))
    copy = node.quorum.needed_copy
    assert copy is not None
    request = VoteRequest(CLUSTER_ID, THIRD, 9, ME, last_epoch=3, end_offset=7, is_pre_vote=False)
    node.quorum.elections.handle_vote(request, 0)
    node.disk.copy_prefix_now(copy.source, copy.target, copy.size_bytes)
    node.quorum.fetcher.on_copied(copy, 0)
    assert (node.role, node.log.log_end_offset, node.quorum.needed_copy) == ("Unattached", 7, None)


def two_epochs() -> Node:
    """A follower with epoch 1 up to 5, and epoch 3 up to 7."""
    node = leader_with(b"a", b"b")
    node.quorum.resign(2_000)
    node.quorum.poll(5_000)
    node.elect(5_000, OTHER)
    node.settle(5_000)
    node.commit(b"c")
    assert (node.log.epochs.epoch_of(4), node.log.epochs.epoch_of(5), node.log.log_end_offset) == (1, 3, 7)
    node.stored = ElectionState(7, 3002)
    return node.restarted()


def test_what_is_committed_is_never_truncated() -> None:  # A33
    leader, node = leader_with(b"a"), follower()
    leader.fetched_by(THIRD)
    fetched(node, leader)
    with pytest.raises(AssertionError, match="truncate committed"):
        respond(node, diverging_epoch=OffsetAndEpoch(3, 1))


# ---- What is ignored -------------------------------------------------------------------------------------------------


def test_an_answer_of_an_older_epoch_is_ignored() -> None:  # A36
    leader, node = leader_with(b"a"), follower()
    ((node_id, request),) = node.settle()
    response = answer(leader, request, 0)
    node.quorum.learn(3003, 4, 0)
    node.quorum.on_response(node_id, request, response, 0)
    assert (node.log.log_end_offset, node.quorum.election.leader_id) == (0, 3003)


def test_an_answer_of_a_leader_given_up_is_ignored() -> None:  # A36
    leader, node = leader_with(b"a"), follower()
    ((node_id, request),) = node.settle()
    node.quorum.poll(2_000)
    assert node.role == "Prospective"
    node.quorum.on_response(node_id, request, answer(leader, request, 0), 2_000)
    assert node.log.log_end_offset == 0


def test_an_answer_from_a_later_epoch_is_adopted_and_nothing_else_of_it() -> None:  # A28, A36
    node = follower()
    respond(node, leader_id=3003, leader_epoch=9, high_watermark=0)
    assert (node.role, node.quorum.election) == ("Follower", ElectionState(9, 3003))
    assert node.quorum.high_watermark == NO_OFFSET


def test_an_error_of_the_leader_does_not_restart_the_fetch_timeout() -> None:  # A11
    node = follower()
    respond(node, 1_000, error_code=ErrorCode.BROKER_NOT_AVAILABLE)
    node.quorum.poll(2_000)
    assert node.role == "Prospective"


def test_a_successful_fetch_restarts_the_fetch_timeout() -> None:  # A11
    node = follower()
    respond(node, 1_000)
    node.quorum.poll(2_999)
    assert node.role == "Follower"
    node.quorum.poll(3_000)
    assert node.role == "Prospective"


# ---- Finding the leader ----------------------------------------------------------------------------------------------


def test_a_node_that_knows_no_leader_asks_the_nodes_it_knows_one_at_a_time() -> None:  # A36
    node = Node(THIRD, voters=None, bootstrap_ids=(3001, 3002, 3003))
    asked: dict[int, None] = {}
    for now_ms in range(0, 10_000, 400):
        ((node_id, request),) = node.settle(now_ms)
        asked[node_id] = None
        assert node.quorum.requests(now_ms) == []
        node.quorum.on_response(node_id, request, result(node, leader_id=-1), now_ms)
    assert sorted(asked) == [3001, 3002]


def test_an_observer_whose_leader_is_silent_asks_others() -> None:  # A36
    node = Node(THIRD, voters=(ME, OTHER), stored=ElectionState(1, 3001))
    assert [node_id for node_id, _ in node.settle(0)] == [3001]
    asked = [node_id for now_ms in range(2_000, 90_000, 2_100) for node_id, _ in node.settle(now_ms)]
    assert sorted(dict.fromkeys(asked)) == [3001, 3002]
    assert (node.role, node.epoch) == ("Follower", 1)


def test_an_observer_searches_while_it_knows_no_leader_or_its_leader_is_silent() -> None:  # A36
    observer = Node(THIRD, voters=(ME, OTHER), stored=ElectionState(1, 3001))
    assert [observer.quorum.fetcher.is_searching(now_ms) for now_ms in (0, 1_999, 2_000)] == [
        False,
        False,
        True,
    ]
    assert Node(THIRD, voters=(ME, OTHER)).quorum.fetcher.is_searching(0)
    assert not follower().quorum.fetcher.is_searching(90_000)  # a voter stands for election instead


def test_an_observer_finds_the_leader_and_follows_it_and_the_next_one() -> None:  # A36
    cluster = Cluster(3, observers=1)
    cluster.commit(b"a")
    observer = cluster.nodes[3004]
    cluster.run_until(lambda: observer.committed() == [b"a"])
    former = cluster.elected().local.node_id
    cluster.kill(former)
    cluster.commit(b"b")
    cluster.run_until(lambda: observer.committed() == [b"a", b"b"])
    assert observer.quorum.election.leader_id != former
    assert not observer.quorum.is_voter
