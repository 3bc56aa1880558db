"""Which candidates get a vote: the decision as a truth table, the checks in their order, and the count of answers."""

import itertools

import pytest

from rayka.errors import ErrorCode
from rayka.ids import NO_NODE, ReplicaKey
from rayka.protocol.quorum_messages import VoteRequest, VoteResponse
from rayka.raft.election_state import (
    EPOCH_MAX,
    ElectionState,
    Elector,
    LogPosition,
    VoteTally,
    can_grant_vote,
)
from rayka.raft.voters import VoterSet
from tests.raft.support import CLUSTER_ID, ME, OTHER, THIRD, Node, granted, key

ROLES = ("Unattached", "Prospective", "Candidate", "Leader", "Follower", "Resigned")
HERE = LogPosition(3, 10)


def elector(role: str = "Unattached", *, leader: bool = False, fetched: bool = False, voted: ReplicaKey | None = None
            ) -> Elector:  # fmt: skip
    return Elector(role, leader, fetched, voted, HERE)


@pytest.mark.parametrize(
    ("role", "leader", "fetched", "voted"),
    list(itertools.product(ROLES, (False, True), (False, True), (None, OTHER, THIRD))),
)
def test_which_nodes_grant_a_vote_and_which_a_pre_vote(
    role: str, leader: bool, fetched: bool, voted: ReplicaKey | None
) -> None:  # A18, A19
    given = elector(role, leader=leader, fetched=fetched, voted=voted)
    is_free = role in ("Unattached", "Prospective") and not leader and voted != THIRD
    assert can_grant_vote(given, OTHER, HERE, is_pre_vote=False) == is_free
    grants_pre_vote = role in ("Unattached", "Prospective", "Candidate", "Resigned") or (
        role == "Follower" and not fetched
    )
    assert can_grant_vote(given, OTHER, HERE, is_pre_vote=True) == grants_pre_vote


@pytest.mark.parametrize("is_pre_vote", [False, True])
@pytest.mark.parametrize(
    ("last_epoch", "end_offset", "is_enough"),
    [(3, 10, True), (3, 11, True), (4, 1, True), (3, 9, False), (2, 99, False)],
)
def test_a_log_behind_gets_no_vote(
    last_epoch: int, end_offset: int, is_enough: bool, is_pre_vote: bool
) -> None:  # A16, A18, A19
    position = LogPosition(last_epoch, end_offset)
    assert can_grant_vote(elector(), OTHER, position, is_pre_vote=is_pre_vote) == is_enough


# ---- Tally -----------------------------------------------------------------------------------------------------------


def test_an_election_is_won_by_a_majority_and_lost_when_none_is_possible() -> None:  # A20
    tally = VoteTally(VoterSet((ME, OTHER, THIRD)), ME)
    assert (tally.is_won, tally.is_lost, tally.unanswered) == (False, False, (OTHER, THIRD))
    tally.record(OTHER, is_granted=False)
    assert (tally.is_won, tally.is_lost) == (False, False)
    tally.record(THIRD, is_granted=False)
    assert (tally.is_won, tally.is_lost, tally.granting) == (False, True, (ME,))


def test_a_voter_counts_once_and_others_do_not() -> None:  # A20
    tally = VoteTally(VoterSet((ME, OTHER, THIRD, key(5), key(6))), ME)
    for voter, is_granted in ((OTHER, True), (OTHER, False), (key(2, 9), True), (key(4), True)):
        tally.record(voter, is_granted=is_granted)
    assert (tally.granting, tally.is_won) == ((ME, OTHER), False)


# ---- Request ---------------------------------------------------------------------------------------------------------


def vote_request(
    epoch: int, *, candidate: ReplicaKey = OTHER, voter: ReplicaKey = ME, last_epoch: int = 0, end_offset: int = 0,
    is_pre_vote: bool = False, cluster_id: str = CLUSTER_ID,
) -> VoteRequest:  # fmt: skip
    return VoteRequest(cluster_id, candidate, epoch, voter, last_epoch, end_offset, is_pre_vote)


def voter(stored: ElectionState | None = None) -> Node:
    return Node(voters=(ME, OTHER, THIRD), stored=stored or ElectionState(5))


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (vote_request(5, cluster_id="another", end_offset=-1), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (vote_request(4, end_offset=-1), ErrorCode.INVALID_REQUEST),
        (vote_request(4, last_epoch=-1), ErrorCode.INVALID_REQUEST),
        (vote_request(6, last_epoch=6), ErrorCode.INVALID_REQUEST),
        (vote_request(6, last_epoch=7, is_pre_vote=True), ErrorCode.INVALID_REQUEST),
        (vote_request(EPOCH_MAX + 1), ErrorCode.INVALID_REQUEST),
        (vote_request(EPOCH_MAX + 1, is_pre_vote=True), ErrorCode.INVALID_REQUEST),
        (vote_request(4, voter=key(1, 9)), ErrorCode.FENCED_LEADER_EPOCH),
        (vote_request(5, voter=key(1, 9)), ErrorCode.INVALID_VOTER_KEY),
        (vote_request(6, last_epoch=6, is_pre_vote=True), ErrorCode.NONE),
        (vote_request(6, last_epoch=5), ErrorCode.NONE),
        (vote_request(EPOCH_MAX), ErrorCode.NONE),
    ],
)
def test_a_vote_request_is_checked_in_order(request_: VoteRequest, error: ErrorCode) -> None:  # A17
    response = voter().quorum.elections.handle_vote(request_, 0)
    assert (response.error_code, response.is_granted) == (error, error is ErrorCode.NONE)


def test_in_the_epoch_after_the_last_that_another_may_name_a_replica_still_leads() -> None:  # A24
    node = Node(voters=(ME,))
    node.quorum.elections.handle_vote(vote_request(EPOCH_MAX), 0)
    node.settle(10_000)
    assert (node.role, node.log.latest_epoch) == ("Leader", EPOCH_MAX + 1)


@pytest.mark.parametrize("is_pre_vote", [False, True])
def test_a_higher_epoch_is_adopted_before_anything_is_decided(is_pre_vote: bool) -> None:  # A17
    node = voter(ElectionState(5, 3002))
    response = node.quorum.elections.handle_vote(vote_request(8, voter=key(1, 9), is_pre_vote=is_pre_vote), 0)
    assert response == VoteResponse(NO_NODE, 8, is_granted=False, error_code=ErrorCode.INVALID_VOTER_KEY)
    assert node.quorum.election == ElectionState(8)


def test_one_vote_in_an_epoch_and_the_same_again_for_the_candidate_that_has_it() -> None:  # A4, A19
    node = voter()
    assert node.quorum.elections.handle_vote(vote_request(6), 0).is_granted
    assert not node.quorum.elections.handle_vote(vote_request(6, candidate=THIRD), 0).is_granted
    assert not node.quorum.elections.handle_vote(vote_request(6, candidate=key(2, 9)), 0).is_granted
    assert node.quorum.elections.handle_vote(vote_request(6), 0).is_granted
    assert node.quorum.election == ElectionState(6, -1, OTHER)


def test_a_vote_must_be_durable_before_anything_is_sent() -> None:  # A8, A19
    node = voter()
    before = node.quorum.election_count
    node.quorum.elections.handle_vote(vote_request(5), 0)
    assert node.quorum.election_count == before + 1
    assert node.quorum.requests(0) == []


def test_the_vote_is_kept_over_a_restart() -> None:  # A4, A9 (v)
    node = voter()
    node.quorum.elections.handle_vote(vote_request(6), 0)
    node.persist()
    again = node.restarted()
    assert not again.quorum.elections.handle_vote(vote_request(6, candidate=THIRD), 0).is_granted


def test_a_pre_vote_changes_nothing() -> None:  # A18
    node = voter()
    before = (node.quorum.election_count, node.quorum.next_poll_ms(0), node.role)
    assert node.quorum.elections.handle_vote(vote_request(5, is_pre_vote=True), 900).is_granted
    assert (node.quorum.election_count, node.quorum.next_poll_ms(0), node.role) == before


def test_a_follower_that_was_only_told_of_its_leader_gives_a_pre_vote() -> None:  # A18
    node = voter(ElectionState(5, 3002))
    assert node.quorum.elections.handle_vote(vote_request(5, candidate=THIRD, is_pre_vote=True), 0).is_granted
    node.quorum.role.on_fetched(2_000)  # type: ignore[union-attr]
    assert not node.quorum.elections.handle_vote(
        vote_request(5, candidate=THIRD, is_pre_vote=True), 0
    ).is_granted


def test_a_candidate_need_not_be_a_voter_here() -> None:  # A6
    assert voter().quorum.elections.handle_vote(vote_request(6, candidate=key(9)), 0).is_granted


def test_a_prospective_votes_for_another_and_stays_prospective() -> None:  # A2, A19
    node = voter()
    node.quorum.poll(2_000)
    assert node.quorum.elections.handle_vote(vote_request(5), 2_000).is_granted
    assert (node.role, node.quorum.election.voted_key) == ("Prospective", OTHER)


@pytest.mark.parametrize(
    "stored", [ElectionState(5, 3001, ME), ElectionState(5, -1, ME), ElectionState(5, 3002)]
)
def test_no_vote_in_the_epoch_of_a_candidacy_or_of_a_leader(stored: ElectionState) -> None:  # A9, A19
    node = voter(stored)
    assert not node.quorum.elections.handle_vote(vote_request(5), 0).is_granted
    assert node.quorum.elections.handle_vote(vote_request(6), 0).is_granted


def test_a_voter_that_shuts_down_still_votes() -> None:  # A19, A23
    node = voter()
    node.quorum.shut_down(0)
    assert node.quorum.elections.handle_vote(vote_request(6), 0).is_granted


# ---- Response --------------------------------------------------------------------------------------------------------


def prospective() -> tuple[Node, list[tuple[int, VoteRequest]]]:
    node = voter()
    return node, node.settle(2_000)


def test_a_prospective_asks_every_other_voter_and_only_for_what_it_would_get() -> None:  # A16
    node, requests = prospective()
    assert [(node_id, request.voter, request.is_pre_vote) for node_id, request in requests] == [
        (3002, OTHER, True),
        (3003, THIRD, True),
    ]
    assert requests[0][1].replica_epoch == node.epoch == 5


def test_a_majority_of_pre_votes_makes_a_candidate_and_one_of_votes_a_leader() -> None:  # A2
    node, [(node_id, request), *_] = prospective()
    node.quorum.on_response(node_id, request, granted(node), 2_000)
    assert (node.role, node.quorum.election) == ("Candidate", ElectionState(6, -1, ME))
    assert node.quorum.requests(2_000) == []  # its own vote is not durable yet (A8)
    [(node_id, request), *_] = node.settle(2_000)
    node.quorum.on_response(node_id, request, granted(node), 2_000)
    assert (node.role, node.quorum.election) == ("Leader", ElectionState(6, 3001, ME))


def test_a_lost_pre_vote_leads_back_to_unattached_when_no_leader_is_known() -> None:  # A2, A20
    node, requests = prospective()
    for node_id, request in requests:
        node.quorum.on_response(node_id, request, VoteResponse(-1, 5, is_granted=False), 2_000)
    assert (node.role, node.epoch) == ("Unattached", 5)
    assert node.quorum.next_poll_ms(2_000) >= 2_000


def test_a_prospective_that_has_voted_for_another_and_loses_keeps_its_vote() -> None:  # A4, A19, A20
    node, _ = prospective()
    assert node.quorum.elections.handle_vote(vote_request(5, candidate=THIRD), 2_000).is_granted
    for node_id, request in node.settle(2_000):
        node.quorum.on_response(node_id, request, VoteResponse(-1, 5, is_granted=False), 2_000)
    assert (node.role, node.quorum.election) == ("Unattached", ElectionState(5, -1, THIRD))


def test_a_lost_pre_vote_leads_back_to_the_last_leader() -> None:  # A2, A20
    node = voter(ElectionState(5, 3002))
    requests = node.settle(2_000)
    assert node.role == "Prospective"
    for node_id, request in requests:
        node.quorum.on_response(node_id, request, VoteResponse(3002, 5, is_granted=False), 2_000)
    assert (node.role, node.quorum.election.leader_id) == ("Follower", 3002)


def test_a_pre_vote_without_answers_ends_with_its_timeout() -> None:  # A2
    node, _ = prospective()
    node.quorum.poll(4_000)
    assert (node.role, node.epoch) == ("Prospective", 5)


def test_a_voter_that_does_not_know_pre_votes_makes_a_candidate_at_once() -> None:  # A20
    node, [(node_id, request), *_] = prospective()
    response = VoteResponse(-1, 5, is_granted=False, error_code=ErrorCode.UNSUPPORTED_VERSION)
    node.quorum.on_response(node_id, request, response, 2_000)
    assert node.role == "Candidate"


def test_a_candidate_that_lost_waits_for_the_rest_of_its_timeout() -> None:  # A2
    node = voter(ElectionState(5, -1, ME))
    deadline_ms = node.quorum.next_poll_ms(0)
    for node_id, request in node.settle(0):
        node.quorum.on_response(node_id, request, VoteResponse(-1, 5, is_granted=False), 0)
    node.quorum.poll(node.quorum.role.election_deadline_ms - 1)  # type: ignore[union-attr]
    assert (node.role, deadline_ms) == ("Candidate", 0)
    node.quorum.poll(node.quorum.role.election_deadline_ms)  # type: ignore[union-attr]
    assert (node.role, node.epoch) == ("Prospective", 5)


def test_a_vote_of_an_earlier_election_does_not_count() -> None:  # A20
    node, [(node_id, request), *_] = prospective()
    node.quorum.poll(4_000)  # another round of pre-votes
    node.quorum.on_response(node_id, request, granted(node), 4_000)
    assert node.role == "Prospective"


def test_an_answer_from_a_later_epoch_ends_the_election() -> None:  # A20, A28
    node, [(node_id, request), *_] = prospective()
    response = VoteResponse(3003, 9, is_granted=False, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    node.quorum.on_response(node_id, request, response, 2_000)
    assert (node.role, node.quorum.election) == ("Follower", ElectionState(9, 3003))


def test_an_answer_that_names_a_leader_ends_the_election() -> None:  # A2
    node, [(node_id, request), *_] = prospective()
    node.quorum.on_response(node_id, request, VoteResponse(3003, 5, is_granted=False), 2_000)
    assert (node.role, node.quorum.election.leader_id) == ("Follower", 3003)


def test_a_voter_with_another_directory_counts_as_a_refusal() -> None:  # A6, A20
    node, requests = prospective()
    for node_id, request in requests:
        response = VoteResponse(-1, 5, is_granted=False, error_code=ErrorCode.INVALID_VOTER_KEY)
        node.quorum.on_response(node_id, request, response, 2_000)
    assert node.role == "Unattached"


def test_a_voter_that_does_not_answer_is_asked_again_after_the_back_off() -> None:  # A11
    node, [(node_id, request), *_] = prospective()
    node.quorum.on_no_response(node_id, request, 2_100)
    assert node.quorum.requests(2_119) == []
    assert [to for to, _ in node.quorum.requests(2_120)] == [3002]


def test_a_voter_that_answers_with_an_error_is_asked_again_after_the_back_off() -> None:  # A11, A20
    node, requests = prospective()
    for node_id, request in requests:
        error = ErrorCode.INCONSISTENT_CLUSTER_ID if node_id == OTHER.node_id else ErrorCode.NONE
        response = VoteResponse(-1, 5, is_granted=False, error_code=error)
        node.quorum.on_response(node_id, request, response, 2_100)
    assert node.role == "Prospective"  # an error is no refusal
    assert node.quorum.requests(2_119) == []
    assert [to for to, _ in node.quorum.requests(2_120)] == [OTHER.node_id]


def test_a_candidate_asks_a_voter_at_once_whose_pre_vote_comes_late() -> None:  # A11, A20
    node = Node(voters=(ME, OTHER, THIRD))
    now_ms = node.quorum.next_poll_ms(0)
    pre_votes = dict(node.settle(now_ms))
    answer = granted(node)
    node.quorum.on_response(OTHER.node_id, pre_votes[OTHER.node_id], answer, now_ms)
    node.quorum.on_response(THIRD.node_id, pre_votes[THIRD.node_id], answer, now_ms)
    assert node.role == "Candidate"
    assert [node_id for node_id, _ in node.settle(now_ms)] == [OTHER.node_id, THIRD.node_id]
