"""Fetching a snapshot: what the leader answers, what the follower does with the parts, and what interrupts it."""

from typing import Any

import numpy as np
import pytest

from rayka.errors import ErrorCode
from rayka.ids import OffsetAndEpoch, ReplicaKey
from rayka.protocol.fetch import FetchRequest
from rayka.protocol.quorum_messages import FetchSnapshotRequest, FetchSnapshotResponse
from rayka.raft.election_state import ElectionState
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.roles import Follower
from rayka.raft.voters import VoterSet
from tests.raft.support import CLUSTER_ID, ME, OTHER, THIRD, Cluster, Node, answer, write_snapshot

VOTERS = (ME, OTHER, THIRD)
SNAPSHOT_ID = OffsetAndEpoch(100, 5)


def leader() -> Node:
    """Node 3001 leads epoch 6, its log begins with the snapshot 100-5."""
    node = Node(voters=VOTERS)
    write_snapshot(node.disk, *_position(), VoterSet(VOTERS), b"x" * 500, b"y" * 500)
    node = node.restarted()
    node.elect(2_000, OTHER)
    node.settle(2_000)
    return node


def _position() -> tuple[int, int]:
    return SNAPSHOT_ID.offset, SNAPSHOT_ID.epoch


def follower(**given: Any) -> Node:
    return Node(OTHER, voters=VOTERS, stored=ElectionState(6, 3001), **given)


def snapshot_request(
    position: int = 0, snapshot_id: OffsetAndEpoch = SNAPSHOT_ID, *, max_bytes: int = 300, epoch: int = 6,
    cluster_id: str = CLUSTER_ID, replica: ReplicaKey = OTHER,
) -> FetchSnapshotRequest:  # fmt: skip
    return FetchSnapshotRequest(
        cluster_id, snapshot_id, position, max_bytes, replica.node_id, replica.directory_id, epoch
    )


# ---- On the leader ---------------------------------------------------------------------------------------------------


def test_a_part_has_the_size_of_the_whole_and_the_bytes_asked_for() -> None:  # A49
    node = leader()
    size_bytes = node.snapshots.size(SNAPSHOT_ID)
    response = node.quorum.leader_log.handle_fetch_snapshot(snapshot_request(7), 2_000)
    assert (response.size_bytes, response.position, len(response.data)) == (size_bytes, 7, 300)
    assert bytes(response.data) == node.snapshots.read(SNAPSHOT_ID, 7, 300)
    last = node.quorum.leader_log.handle_fetch_snapshot(snapshot_request(size_bytes - 1), 2_000)
    assert len(last.data) == 1


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (snapshot_request(cluster_id="another", epoch=9), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (snapshot_request(epoch=5), ErrorCode.FENCED_LEADER_EPOCH),
        (snapshot_request(epoch=7), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (snapshot_request(snapshot_id=OffsetAndEpoch(99, 5)), ErrorCode.SNAPSHOT_NOT_FOUND),
        (snapshot_request(snapshot_id=OffsetAndEpoch(0, 0)), ErrorCode.SNAPSHOT_NOT_FOUND),
        (snapshot_request(-1), ErrorCode.POSITION_OUT_OF_RANGE),
        (snapshot_request(1 << 30), ErrorCode.POSITION_OUT_OF_RANGE),
        (snapshot_request(max_bytes=0), ErrorCode.POSITION_OUT_OF_RANGE),
        (snapshot_request(epoch=-1), ErrorCode.NONE),
    ],
)
def test_a_request_for_a_snapshot_is_checked(
    request_: FetchSnapshotRequest, error: ErrorCode
) -> None:  # A28, A48, A49
    response = leader().quorum.leader_log.handle_fetch_snapshot(request_, 2_000)
    assert (response.error_code, response.leader_id, response.leader_epoch) == (error, 3001, 6)


def test_a_fetch_of_what_is_only_in_the_snapshot_is_told_so_and_where_the_log_starts() -> None:  # A28, A49
    result = leader().fetch(0, -1)
    assert result is not None
    assert (result.snapshot_id, result.log_start_offset) == (SNAPSHOT_ID, SNAPSHOT_ID.offset)


def test_a_node_that_does_not_lead_gives_no_snapshot() -> None:  # A28
    response = follower().quorum.leader_log.handle_fetch_snapshot(snapshot_request(), 0)
    assert (response.error_code, response.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 3001)


def test_a_voter_that_loads_a_snapshot_is_alive_but_holds_nothing_yet() -> None:  # A12, A50
    node = leader()
    node.quorum.leader_log.handle_fetch_snapshot(snapshot_request(), 4_000)
    assert node.quorum.high_watermark == -1
    node.quorum.poll(6_999)
    assert node.role == "Leader"
    node.quorum.poll(7_000)
    assert node.role == "Resigned"


# ---- On the follower -------------------------------------------------------------------------------------------------


def exchange(node: Node, leader: Node, now_ms: int = 0) -> Any:
    """One request of the follower, answered; the request."""
    ((node_id, request),) = node.settle(now_ms)
    node.quorum.on_response(node_id, request, answer(leader, request, now_ms, may_wait=False), now_ms)
    return request


def loading(max_bytes: int = 300) -> tuple[Node, Node]:
    """A follower that was told to load the snapshot, and its leader."""
    node, source = follower(config=QuorumConfig(fetch_max_bytes=max_bytes)), leader()
    assert isinstance(exchange(node, source), FetchRequest)
    return node, source


def test_a_follower_before_the_log_loads_the_snapshot_part_after_part_and_goes_on_from_its_end() -> (
    None
):  # A49
    node, source = loading()
    positions = []
    while not node.quorum.finished_download:
        positions.append(exchange(node, source).position)
    assert positions == list(range(0, source.snapshots.size(SNAPSHOT_ID), 300))
    assert node.settle() != []  # the driver froze it
    assert (node.quorum.log.log_start_offset, node.quorum.log.log_end_offset, node.quorum.high_watermark) == (
        100,
        100,
        100,
    )
    assert bytes(node.snapshots.content(SNAPSHOT_ID)) == bytes(source.snapshots.content(SNAPSHOT_ID))
    assert node.quorum.log.snapshots.latest == SNAPSHOT_ID
    node.quorum.on_no_response(3001, node.quorum.request_manager._sent[3001].request, 0)
    exchange(node, source, 100)
    assert node.records() == source.records()


def test_nothing_is_asked_while_the_snapshot_becomes_durable() -> None:  # A49
    node, source = loading(1 << 20)
    exchange(node, source)
    assert node.quorum.finished_download is not None
    node.persist()
    assert node.quorum.requests(0) == []


def test_each_part_restarts_the_fetch_timeout() -> None:  # A11
    node, source = loading()
    for now_ms in (1_500, 3_000):
        exchange(node, source, now_ms)
    node.quorum.poll(4_999)
    assert node.role == "Follower"


@pytest.mark.parametrize(
    "found",
    [
        {"error_code": ErrorCode.SNAPSHOT_NOT_FOUND},
        {"error_code": ErrorCode.POSITION_OUT_OF_RANGE},
        {"snapshot_id": OffsetAndEpoch(200, 6), "data": np.zeros(9, np.uint8), "size_bytes": 9},
        {"position": 17, "data": np.zeros(9, np.uint8), "size_bytes": 100},
        {"size_bytes": 100},  # no bytes
    ],
)
def test_a_snapshot_that_is_gone_or_another_is_dropped_and_the_log_asked_for_again(
    found: dict[str, Any],
) -> None:  # A49
    node, _ = loading()
    ((node_id, request),) = node.settle()
    given = {"leader_id": 3001, "leader_epoch": 6, "snapshot_id": SNAPSHOT_ID, **found}
    node.quorum.on_response(node_id, request, FetchSnapshotResponse(**given), 0)
    ((_, request),) = node.settle(20)
    assert isinstance(request, FetchRequest)
    assert not [name for name in node.disk.list("/data/__cluster_metadata-0") if name.endswith(".part")]


def test_a_part_of_a_node_that_does_not_lead_any_more_changes_nothing() -> None:  # A36, A49
    node, source = loading()
    exchange(node, source)
    role = node.quorum.role
    assert isinstance(role, Follower)
    assert role.download is not None
    before = role.download.size_bytes
    ((node_id, request),) = node.settle()
    found = {
        "snapshot_id": SNAPSHOT_ID,
        "position": before,
        "data": np.zeros(9, np.uint8),
        "size_bytes": 1 << 20,
    }
    node.quorum.on_response(node_id, request, FetchSnapshotResponse(-1, 6, **found), 0)
    assert (role.download.size_bytes, node.quorum.election.leader_id) == (before, 3001)


def test_a_download_ends_with_the_leader_it_is_from() -> None:  # A49
    node, source = loading()
    exchange(node, source)
    node.quorum.learn(3003, 9, 0)
    assert not [name for name in node.disk.list("/data/__cluster_metadata-0") if name.endswith(".part")]
    ((node_id, request),) = node.settle()
    assert (node_id, type(request)) == (3003, FetchRequest)


def test_a_snapshot_that_turns_out_damaged_is_asked_for_again() -> None:  # A49
    node, source = loading(1 << 20)
    exchange(node, source)
    download = node.quorum.finished_download
    assert download is not None
    download.abandon()
    node.quorum.fetcher.on_snapshot_damaged(0)
    node.persist()
    assert node.quorum.requests(19) == []
    ((_, request),) = node.quorum.requests(20)
    assert isinstance(request, FetchRequest)


def test_a_snapshot_that_is_being_frozen_outlives_a_change_of_leader() -> None:  # A49
    node, source = loading(1 << 20)
    exchange(node, source)
    node.quorum.learn(3003, 9, 0)
    node.settle()
    assert (node.quorum.log.log_end_offset, node.quorum.election.leader_id) == (100, 3003)


def test_no_node_stands_for_election_while_its_log_is_about_to_begin_anew() -> None:  # A49
    node, source = loading(1 << 20)
    exchange(node, source)
    assert node.quorum.finished_download is not None
    node.quorum.poll(50_000)
    assert node.role == "Follower"
    node.freeze(50_000)
    node.quorum.poll(50_000)
    assert node.role == "Prospective"


def test_the_voters_of_the_snapshot_count_from_then_on() -> None:  # A24, A49
    source = leader()
    node = Node(OTHER, voters=None, bootstrap_ids=(3001,), stored=ElectionState(6, 3001))
    for _ in range(3):
        exchange(node, source)
    node.settle()
    assert (node.quorum.voters, node.quorum.is_voter) == (VoterSet(VOTERS), True)


def test_a_cluster_whose_log_was_cleaned_takes_a_new_replica_in() -> None:  # A29, A49, A51
    cluster = Cluster(3, observers=0)
    cluster.commit(b"a", b"b")
    source = cluster.elected()
    end = OffsetAndEpoch(
        source.quorum.high_watermark, source.log.epochs.epoch_of(source.quorum.high_watermark - 1)
    )
    assert source.quorum.create_snapshot_allowed(end)
    source.write_snapshot(end, b"state")
    source.quorum.log.delete_before(end)
    cluster.commit(b"c")
    late = cluster.start(Cluster(4).keys[3])
    cluster.run_until(lambda: late.committed() == [b"c"])
    assert (late.quorum.log.log_start_offset, late.quorum.log.snapshots.latest) == (end.offset, end)
    assert late.quorum.voters == source.quorum.voters
