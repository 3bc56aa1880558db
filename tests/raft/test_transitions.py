"""The roles, the legal changes between them, and what a restart makes of what was stored."""

import itertools
from collections.abc import Callable

import pytest

from rayka.raft.election_state import ElectionState, VoteTally
from rayka.raft.leader import BatchAccumulator, Leader
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.roles import (
    LEGAL_CHANGES,
    Candidate,
    EpochChange,
    Follower,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from rayka.raft.voters import VoterSet
from tests.raft.support import ME, OTHER, THIRD, Node

VOTERS = VoterSet((ME, OTHER, THIRD))
ROLES: tuple[type[Role], ...] = (Unattached, Prospective, Candidate, Leader, Follower, Resigned)
MAKERS: dict[type[Role], Callable[[], Role]] = {
    Unattached: lambda: Unattached(0),
    Prospective: lambda: Prospective(0, VoteTally(VOTERS, ME)),
    Candidate: lambda: Candidate(0, VoteTally(VOTERS, ME)),
    Leader: lambda: Leader(
        ME, BatchAccumulator(0, ()), VOTERS, QuorumConfig(), epoch_start_offset=0, now_ms=0
    ),
    Follower: lambda: Follower(3002, fetch_deadline_ms=0, next_voter_request_ms=0),
    Resigned: lambda: Resigned(0, [], ()),
}


def become(before: type[Role], after: type[Role], epoch_change: int) -> None:
    """The change alone, between two elections that contradict each other in nothing else."""
    state = Node(voters=VOTERS.voters).quorum
    state.role, state.election = MAKERS[before](), ElectionState(5)
    state._become(MAKERS[after](), ElectionState(5 + epoch_change))


@pytest.mark.parametrize(("before", "after"), list(itertools.product(ROLES, ROLES)))
def test_only_the_changes_of_the_table_are_legal(before: type[Role], after: type[Role]) -> None:  # A2
    allowed = LEGAL_CHANGES.get((before, after))
    for epoch_change in (-1, 0, 1, 2):
        if allowed is not None and allowed.allows(5, 5 + epoch_change):
            become(before, after, epoch_change)
        else:
            with pytest.raises(AssertionError, match="cannot become"):
                become(before, after, epoch_change)


def test_the_table_is_kafkas() -> None:  # A2
    assert {
        before.__name__: " ".join(
            f"{after.__name__}:{LEGAL_CHANGES[before, after].name}"
            for after in ROLES
            if (before, after) in LEGAL_CHANGES
        )
        for before in ROLES
    } == {
        "Unattached": "Unattached:NOT_LOWERED Prospective:NONE Follower:NOT_LOWERED",
        "Prospective": "Unattached:NOT_LOWERED Prospective:NONE Candidate:BY_ONE Follower:NOT_LOWERED",
        "Candidate": "Unattached:RAISED Prospective:NONE Leader:NONE Follower:NOT_LOWERED",
        "Leader": "Unattached:RAISED Follower:RAISED Resigned:NONE",
        "Follower": "Unattached:RAISED Prospective:NONE Follower:RAISED",
        "Resigned": "Unattached:RAISED Prospective:NONE Follower:RAISED",
    }


def test_no_change_lowers_the_epoch() -> None:  # A2, A3
    assert not any(change.allows(5, 4) for change in EpochChange)


def test_only_a_candidate_and_a_resigned_leader_raise_the_epoch_by_themselves() -> None:  # A3
    node = Node(voters=VOTERS.voters)
    node.quorum.poll(2_000)
    assert (node.role, node.epoch) == ("Prospective", 0)
    node.elect(2_000, OTHER)
    assert (node.role, node.epoch) == ("Leader", 1)
    node.quorum.resign(3_000)
    assert (node.role, node.epoch) == ("Resigned", 1)
    node.quorum.poll(5_000)
    assert (node.role, node.epoch) == ("Prospective", 2)  # by way of Unattached, with no time left


def test_an_observer_is_unattached_or_follows() -> None:  # A1
    observer = Node(THIRD, voters=(ME, OTHER))
    observer.quorum.poll(100_000)
    assert observer.role == "Unattached"
    observer.quorum.learn(3001, 4, 100_000)
    observer.quorum.poll(200_000)
    assert (observer.role, observer.epoch) == ("Follower", 4)
    with pytest.raises(AssertionError, match="is no voter"):
        observer.quorum.become_prospective(200_000)


def test_vote_and_leader_survive_changes_within_an_epoch() -> None:  # A4
    node = Node(voters=VOTERS.voters, stored=ElectionState(3))
    state = node.quorum
    state.give_vote(OTHER, 0)
    assert state.election == ElectionState(3, -1, OTHER)
    state.become_prospective(0)
    assert state.election == ElectionState(3, -1, OTHER)
    state.become_follower(3002, 3, 0)
    assert state.election == ElectionState(3, 3002, OTHER)
    state.become_prospective(0)
    assert state.election == ElectionState(3, 3002, OTHER)
    state.become_unattached(4, 0)
    assert state.election == ElectionState(4)


def test_a_vote_is_given_once_in_an_epoch() -> None:  # A4
    state = Node(voters=VOTERS.voters, stored=ElectionState(3, -1, OTHER)).quorum
    with pytest.raises(AssertionError, match="has voted"):
        state.give_vote(THIRD, 0)
    with pytest.raises(AssertionError, match="forget its vote"):
        state._become(Unattached(0), ElectionState(3, -1, THIRD))


def test_a_leader_once_known_is_not_exchanged_within_its_epoch() -> None:  # A4
    state = Node(voters=VOTERS.voters, stored=ElectionState(3, 3002)).quorum
    with pytest.raises(AssertionError, match="leads this epoch, too"):
        state.learn(3003, 3, 0)


def test_the_election_count_rises_with_what_must_be_durable_and_only_then() -> None:  # A8
    node = Node(voters=VOTERS.voters)
    counts = [node.quorum.election_count]
    node.quorum.poll(2_000)  # Prospective: nothing new
    counts.append(node.quorum.election_count)
    node.quorum.become_candidate(2_000)
    counts.append(node.quorum.election_count)
    assert counts == [1, 1, 2]


def test_what_was_stored_need_not_be_stored_again() -> None:  # A8
    stored = ElectionState(3, 3002)
    assert Node(voters=VOTERS.voters, stored=stored).quorum.election_count == 0


# ---- Timers ----------------------------------------------------------------------------------------------------------


def test_election_timeouts_lie_between_one_and_two() -> None:  # A10
    deadlines = [Node(voters=VOTERS.voters, seed=seed).quorum.next_poll_ms(0) for seed in range(200)]
    assert min(deadlines) >= 1_000
    assert max(deadlines) < 2_000
    assert len(dict.fromkeys(deadlines)) > 100


def test_a_higher_epoch_leaves_the_rest_of_the_election_timeout() -> None:  # A10
    state = Node(voters=VOTERS.voters).quorum
    deadline_ms = state.role.election_deadline_ms  # type: ignore[union-attr]
    state.become_unattached(7, 500)
    assert state.role.election_deadline_ms == deadline_ms  # type: ignore[union-attr]


def test_a_vote_given_begins_the_election_timeout_anew() -> None:  # A10
    state = Node(voters=VOTERS.voters).quorum
    state.give_vote(OTHER, 900)
    assert 1_900 <= state.role.election_deadline_ms < 2_900  # type: ignore[union-attr]


# ---- Restart ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "role", "election"),
    [
        (None, "Unattached", ElectionState()),
        (ElectionState(4, 3001, ME), "Resigned", ElectionState(4, 3001, ME)),
        (ElectionState(4, -1, ME), "Candidate", ElectionState(4, -1, ME)),
        (ElectionState(4, 3002, OTHER), "Follower", ElectionState(4, 3002, OTHER)),
        (ElectionState(4, 3002), "Follower", ElectionState(4, 3002)),
        (ElectionState(4, -1, OTHER), "Unattached", ElectionState(4, -1, OTHER)),
        (ElectionState(4), "Unattached", ElectionState(4)),
    ],
)
def test_a_restarted_voter_is_what_it_stored(
    stored: ElectionState | None, role: str, election: ElectionState
) -> None:  # A9
    node = Node(voters=VOTERS.voters, stored=stored)
    assert (node.role, node.quorum.election) == (role, election)


def test_a_lost_or_older_state_counts_for_less_than_the_log() -> None:  # A9 (i)
    node = Node.leading()
    assert node.epoch == 1
    for stored in (None, ElectionState(0, 3001, ME)):
        node.stored = stored
        again = node.restarted()
        assert (again.role, again.quorum.election) == ("Unattached", ElectionState(1))


def test_a_restarted_leader_neither_leads_nor_votes_in_its_epoch_again() -> None:  # A9 (ii)
    node = Node(voters=VOTERS.voters, stored=ElectionState(4, 3001, ME))
    node.settle()
    assert node.role == "Resigned"
    node.quorum.poll(5_000)
    assert node.epoch == 5
    node.elect(5_000, OTHER)
    assert node.epoch == 6


def test_a_restarted_candidate_asks_again_in_its_epoch() -> None:  # A9 (iii)
    node = Node(voters=VOTERS.voters, stored=ElectionState(4, -1, ME))
    requests = node.settle()
    assert [(node_id, request.replica_epoch, request.is_pre_vote) for node_id, request in requests] == [
        (3002, 4, False),
        (3003, 4, False),
    ]


def test_a_candidate_that_does_not_vote_any_more_is_no_candidate() -> None:  # A9 (iii)
    node = Node(THIRD, voters=(ME, OTHER), stored=ElectionState(4, -1, THIRD))
    assert (node.role, node.quorum.election) == ("Unattached", ElectionState(4, -1, THIRD))


def test_only_voters_elect_themselves_after_a_restart_without_waiting() -> None:  # A5, A9
    node = Node(stored=ElectionState(4, 3001, ME))
    node.settle()
    assert (node.role, node.epoch) == ("Leader", 5)


def test_a_wiped_node_does_not_believe_that_it_leads() -> None:  # A9, A55
    node = Node(voters=(OTHER, THIRD))
    node.quorum.learn(3001, 6, 0)
    assert (node.role, node.quorum.election) == ("Unattached", ElectionState(6))
