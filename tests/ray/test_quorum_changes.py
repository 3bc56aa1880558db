"""How the voters of a quorum become those of a spec, step by step. Needs no Ray."""

from collections.abc import Collection
from uuid import UUID

import pytest

from rayka.actors.quorum_changes import ALIVE_MS, VoterStep, controllers_without_vote, next_step
from rayka.client.admin.admin_results import QuorumInfo, ReplicaState
from rayka.ids import ZERO_ID, ReplicaKey
from rayka.raft.voters import VoterSet


def directory(node_id: int) -> UUID:
    return UUID(int=node_id)


def replica_key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, directory(node_id))


def replica(node_id: int, ago_ms: int = 100, directory_id: UUID | None = None) -> ReplicaState:
    id = directory(node_id) if directory_id is None else directory_id
    return ReplicaState(node_id, id, 10, 0, ago_ms, ago_ms)


def quorum(
    voters: Collection[int], observers: Collection[int] = (), leader: int = 3001, dead: Collection[int] = ()
) -> QuorumInfo:
    def state(node_id: int) -> ReplicaState:
        return replica(node_id, ALIVE_MS + 1 if node_id in dead else -1 if node_id == leader else 100)

    return QuorumInfo(leader, 7, 10, tuple(map(state, voters)), tuple(map(state, observers)))


def test_votes_are_given_before_others_are_taken_one_at_a_time_and_the_leader_goes_last() -> None:
    voters, observers = [3001, 3002, 3003], [3004, 3005]
    done = []
    while step := next_step(quorum(voters, observers), [3004, 3005], [3001, 3003]):
        assert not step.waits_for
        done.append((step.node_id, step.is_added))
        before = VoterSet(tuple(replica_key(each) for each in sorted(voters)))
        for_it = (observers, voters) if step.is_added else (voters, observers)
        for_it[0].remove(step.node_id)
        for_it[1].append(step.node_id)
        after = VoterSet(tuple(replica_key(each) for each in sorted(voters)))
        assert before.has_overlapping_majority(after)
    assert done == [(3004, True), (3005, True), (3003, False), (3001, False)]
    assert sorted(voters) == [3002, 3004, 3005]


def test_a_controller_gets_its_vote_when_it_follows_with_its_directory() -> None:
    step = next_step(quorum([3001], [3002], dead=[3002]), [3002], [])
    assert step is not None
    assert step.waits_for == "it does not follow the metadata"
    broker = QuorumInfo(3001, 7, 10, (replica(3001),), (replica(3002, directory_id=ZERO_ID),))
    assert (found := next_step(broker, [3002], [])) is not None
    assert found.waits_for
    assert next_step(quorum([3001], [3002]), [3002], []) == VoterStep(3002, directory(3002), True)
    second = next_step(quorum([3001], [3002, 3003], dead=[3002]), [3002, 3003], [])
    assert second == VoterStep(3003, directory(3003), True), "one that is slow holds up no other"


@pytest.mark.parametrize(
    ("voters", "dead", "removed", "waits"),
    [
        ([3001, 3002, 3003], [3003], [3003], False),  # the dead one
        ([3001, 3002, 3003], [3003], [3002], True),  # of 3001 and 3003 only one would be there
        ([3001, 3002, 3003], [], [3002], False),
        ([3001, 3002], [3002], [3002], False),
        ([3001, 3002, 3003, 3004, 3005], [3005], [3004], False),
        ([3001, 3002, 3003, 3004, 3005], [3004, 3005], [3003], True),
    ],
)
def test_no_vote_is_taken_where_those_left_have_no_majority_that_is_there(
    voters: list[int], dead: list[int], removed: list[int], waits: bool
) -> None:
    step = next_step(quorum(voters, dead=dead), [], removed)
    assert step is not None
    assert bool(step.waits_for) is waits, step


def test_dead_voters_lose_their_votes_first() -> None:
    step = next_step(quorum([3001, 3002, 3003], dead=[3003]), [], [3002, 3003])
    assert step == VoterStep(3003, directory(3003), False)


def test_a_leader_without_a_vote_of_its_own_is_counted_with_none() -> None:
    """It leads until the others have the record that takes its vote (A57)."""
    step = next_step(quorum([3002, 3003], leader=3001), [], [3001])
    assert step is None


def test_only_controllers_that_follow_lack_a_vote_or_those_that_were_just_added() -> None:
    info = quorum([3001, 3003], [3002, 3004, 1], dead=[3004])
    assert controllers_without_vote(info, [3001, 3002, 3003, 3004, 3005]) == (3002,)
    assert controllers_without_vote(info, [3001, 3002, 3005], added=[3005]) == (3002, 3005)
