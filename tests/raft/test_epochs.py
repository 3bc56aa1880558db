"""How an epoch begins and ends: BeginQuorumEpoch, check quorum, EndQuorumEpoch, and the order of succession."""

import pytest

from rayka.errors import ErrorCode
from rayka.ids import ReplicaKey
from rayka.protocol.quorum_messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
)
from rayka.raft.election_state import EPOCH_MAX, ElectionState
from rayka.raft.elections import end_epoch_backoff_ms
from tests.raft.support import CLUSTER_ID, ME, OTHER, THIRD, Cluster, Node, key

VOTERS = (ME, OTHER, THIRD)


def begin(
    leader_id: int, epoch: int, *, voter: ReplicaKey = ME, cluster_id: str = CLUSTER_ID
) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(cluster_id, leader_id, epoch, voter)


def end(
    leader_id: int, epoch: int, *successors: ReplicaKey, cluster_id: str = CLUSTER_ID
) -> EndQuorumEpochRequest:
    return EndQuorumEpochRequest(cluster_id, leader_id, epoch, successors)


def voter(stored: ElectionState) -> Node:
    return Node(voters=VOTERS, stored=stored)


def leader() -> Node:
    """Of epoch 1, elected at 2000 ms, its first batch of three records flushed."""
    node = Node(voters=VOTERS)
    node.elect(2_000, OTHER)
    node.settle(2_000)
    return node


# ---- Begin -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [ElectionState(4, 3003), ElectionState(5)])
def test_a_node_that_knows_no_leader_or_an_older_one_follows_the_leader_that_begins(
    known: ElectionState,
) -> None:  # A21
    node = voter(known)
    assert node.quorum.elections.handle_begin_quorum_epoch(begin(3002, 5), 0) == BeginQuorumEpochResponse(
        3002, 5
    )
    assert (node.role, node.quorum.election) == ("Follower", ElectionState(5, 3002))


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (begin(3002, 4, cluster_id="another"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (begin(-1, 5), ErrorCode.INVALID_REQUEST),
        (begin(3002, EPOCH_MAX + 1), ErrorCode.INVALID_REQUEST),
        (begin(3002, 4), ErrorCode.FENCED_LEADER_EPOCH),
        (begin(3003, 5), ErrorCode.INVALID_REQUEST),  # there is another
        (begin(3001, 6), ErrorCode.INVALID_REQUEST),  # this node would know
        (begin(3002, 5, voter=key(1, 9)), ErrorCode.INVALID_VOTER_KEY),
        (begin(3002, 5), ErrorCode.NONE),
    ],
)
def test_a_beginning_is_checked(request_: BeginQuorumEpochRequest, error: ErrorCode) -> None:  # A6, A21
    node = voter(ElectionState(5, 3002))
    assert node.quorum.elections.handle_begin_quorum_epoch(request_, 0) == BeginQuorumEpochResponse(
        3002, 5, error
    )


def test_the_vote_of_an_epoch_ends_with_it() -> None:  # A4, A21
    node = voter(ElectionState(5, -1, OTHER))
    node.quorum.elections.handle_begin_quorum_epoch(begin(3003, 6), 0)
    assert node.quorum.election == ElectionState(6, 3003)


def test_a_node_whose_id_is_zero_may_lead() -> None:  # A21
    node = voter(ElectionState(5))
    assert node.quorum.elections.handle_begin_quorum_epoch(begin(0, 5), 0) == BeginQuorumEpochResponse(0, 5)


def test_a_beginning_restarts_the_fetch_timeout() -> None:  # A11
    node = voter(ElectionState(5, 3002))
    node.quorum.elections.handle_begin_quorum_epoch(begin(3002, 5), 1_500)
    node.quorum.poll(3_499)
    assert node.role == "Follower"
    node.quorum.poll(3_500)
    assert node.role == "Prospective"


def test_a_leader_begins_its_epoch_at_once_and_again_with_voters_that_do_not_fetch() -> None:  # A13
    node = leader()
    assert node.quorum.next_poll_ms(2_000) <= 4_000
    node.quorum.request_manager.reset()
    node.fetched_by(OTHER, now_ms=2_500)
    assert [to for to, _ in node.quorum.requests(2_999)] == []
    assert [to for to, _ in node.quorum.requests(3_000)] == [3003]
    node.quorum.request_manager.reset()
    assert [to for to, _ in node.quorum.requests(3_500)] == [3002]


def test_a_new_leader_begins_its_epoch_with_all_voters() -> None:  # A13
    node = Node(voters=VOTERS)
    node.elect(2_000, OTHER)
    sent = node.quorum.requests(2_000)
    assert sent == [(3002, begin(3001, 1, voter=OTHER)), (3003, begin(3001, 1, voter=THIRD))]


# ---- Check quorum ----------------------------------------------------------------------------------------------------


def test_a_leader_that_no_majority_fetches_from_resigns() -> None:  # A12
    node = leader()
    node.quorum.poll(4_999)
    assert node.role == "Leader"
    node.quorum.poll(5_000)
    assert (node.role, node.epoch) == ("Resigned", 1)


def test_one_fetch_of_one_of_two_others_is_a_majority_and_begins_the_time_anew() -> None:  # A12
    node = leader()
    node.fetched_by(OTHER, now_ms=4_000)
    node.quorum.poll(6_999)
    assert node.role == "Leader"
    node.quorum.poll(7_000)
    assert node.role == "Resigned"


def test_of_five_voters_two_others_must_fetch() -> None:  # A12
    voters = [key(number) for number in range(1, 6)]
    node = Node(voters=voters)
    node.elect(2_000, voters[1], voters[2])
    node.settle(2_000)
    node.fetched_by(voters[1], now_ms=3_000)
    node.fetched_by(voters[1], now_ms=4_000)
    node.fetched_by(key(9), now_ms=4_000)  # an observer
    node.quorum.poll(5_000)
    assert node.role == "Resigned"


def test_a_voter_that_fetches_from_a_diverging_position_counts_as_alive() -> None:  # A12, A31
    node = leader()
    result = node.fetch(2, 0, epoch=1, replica=OTHER, now_ms=4_000)
    assert result is not None
    assert result.diverging_epoch is not None
    node.quorum.poll(6_999)
    assert node.role == "Leader"


def test_a_fetch_of_another_epoch_does_not_count() -> None:  # A12, A28
    node = leader()
    node.fetch(3, 0, epoch=0, replica=OTHER, now_ms=4_000)
    node.quorum.poll(5_000)
    assert node.role == "Resigned"


# ---- Resigned --------------------------------------------------------------------------------------------------------


def test_a_resigned_leader_tells_every_voter_until_it_acknowledges() -> None:  # A22
    node = leader()
    node.fetched_by(THIRD, now_ms=2_000)
    node.quorum.resign(2_000)
    sent = node.quorum.requests(2_000)
    expected = end(3001, 1, THIRD, OTHER)  # the one that holds most is first
    assert sent == [(3003, expected), (3002, expected)]
    node.quorum.on_response(3003, sent[0][1], EndQuorumEpochResponse(3001, 1), 2_001)
    node.quorum.on_no_response(3002, sent[1][1], 2_001)
    assert [to for to, _ in node.quorum.requests(2_021)] == [3002]
    request = node.quorum.request_manager._sent[3002].request
    node.quorum.on_response(3002, request, EndQuorumEpochResponse(3001, 1), 2_022)
    assert node.quorum.requests(2_100) == []


def test_a_leader_that_resigns_for_others_prefers_these_to_what_voters_hold() -> None:  # A22
    node = leader()
    node.fetched_by(THIRD, now_ms=2_000)
    node.quorum.resign(2_000, [3002])
    assert node.quorum.requests(2_000) == [
        (3002, end(3001, 1, OTHER, THIRD)),
        (3003, end(3001, 1, OTHER, THIRD)),
    ]


def test_a_restarted_leader_tells_them_too() -> None:  # A9 (ii), A22
    node = voter(ElectionState(4, 3001, ME))
    assert node.settle() == [(3002, end(3001, 4)), (3003, end(3001, 4))]


def test_a_resigned_leader_waits_for_an_election_timeout() -> None:  # A22
    node = leader()
    node.quorum.resign(2_000)
    node.quorum.poll(2_999)
    assert (node.role, node.epoch) == ("Resigned", 1)
    node.quorum.poll(4_000)
    assert node.epoch == 2


def test_a_node_that_shuts_down_stands_for_no_election() -> None:  # A22, A23
    node = leader()
    node.quorum.shut_down(2_000)
    node.quorum.poll(100_000)
    assert (node.role, node.epoch) == ("Resigned", 1)
    follower = voter(ElectionState(4, 3002))
    follower.quorum.shut_down(0)
    follower.quorum.poll(100_000)
    assert follower.role == "Follower"


def test_resigning_without_leading_does_nothing() -> None:  # A22
    node = voter(ElectionState(4, 3002))
    node.quorum.resign(0)
    assert node.role == "Follower"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (end(3002, 5, cluster_id="another"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (end(-1, 5), ErrorCode.INVALID_REQUEST),
        (end(3002, EPOCH_MAX + 1), ErrorCode.INVALID_REQUEST),
        (end(3003, 5), ErrorCode.INVALID_REQUEST),
        (end(3002, 4), ErrorCode.FENCED_LEADER_EPOCH),
        (end(3002, 5), ErrorCode.NONE),
    ],
)
def test_an_end_is_checked(request_: EndQuorumEpochRequest, error: ErrorCode) -> None:  # A22
    node = voter(ElectionState(5, 3002))
    assert node.quorum.elections.handle_end_quorum_epoch(request_, 0) == EndQuorumEpochResponse(
        3002, 5, error
    )


def test_the_first_successor_stands_up_at_once_and_others_wait() -> None:  # A14, A22
    first = voter(ElectionState(5, 3002))
    first.quorum.elections.handle_end_quorum_epoch(end(3002, 5, ME, THIRD), 100)
    first.quorum.poll(100)
    assert (first.role, first.epoch) == ("Prospective", 5)
    second = voter(ElectionState(5, 3002))
    second.quorum.elections.handle_end_quorum_epoch(end(3002, 5, THIRD, ME), 100)
    assert second.quorum.next_poll_ms(100) <= 100 + 500
    second.quorum.poll(599)
    assert second.role == "Follower"
    second.quorum.poll(600)
    assert second.role == "Prospective"


def test_a_node_that_did_not_know_the_leader_that_ends_follows_it_before_it_stands_up() -> None:  # A22
    node = voter(ElectionState(4))
    node.quorum.elections.handle_end_quorum_epoch(end(3002, 5, ME), 100)
    assert (node.role, node.quorum.election.leader_id) == ("Follower", 3002)


def test_hearing_of_the_end_again_does_not_put_the_election_off() -> None:  # A14
    node = voter(ElectionState(5, 3002))
    for now_ms in (100, 500, 900):
        node.quorum.elections.handle_end_quorum_epoch(end(3002, 5), now_ms)
    node.quorum.poll(1_100)
    assert node.role == "Prospective"


def test_the_back_off_doubles_with_the_place_in_the_list() -> None:  # A14
    successors = tuple(key(number) for number in range(1, 6))
    backoffs = [end_epoch_backoff_ms(successors, each, 1_000) for each in successors]
    assert backoffs == [0, 62, 124, 248, 496]
    assert end_epoch_backoff_ms(successors, key(9), 1_000) == 1_000
    assert end_epoch_backoff_ms((), ME, 1_000) == 1_000
    assert end_epoch_backoff_ms((OTHER, ME), ME, 1_000) == 500


def test_a_controlled_stop_hands_over_within_a_few_round_trips() -> None:  # A14, A22, A23
    cluster = Cluster(3)
    former = cluster.elected()
    cluster.run_until(lambda: cluster.all_have(3))
    begun_ms = cluster.now_ms
    former.quorum.shut_down(cluster.now_ms)
    cluster.run_until(lambda: cluster.leader not in (None, former))
    assert cluster.now_ms - begun_ms < 20
    cluster.elected()
