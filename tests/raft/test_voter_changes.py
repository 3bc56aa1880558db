"""Adding, removing and updating voters: each refusal, what counts from when, and nodes that join by themselves."""

from typing import Any

import pytest

from rayka.errors import ErrorCode
from rayka.ids import ZERO_ID, OffsetAndEpoch, ReplicaKey
from rayka.protocol.quorum_messages import (
    AddRaftVoterRequest,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoterChangeResponse,
)
from rayka.raft.control_records import VotersRecord
from rayka.raft.election_state import ElectionState
from rayka.raft.leader import VoterChange
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.voters import VersionRange, VoterSet
from tests.raft.support import CLUSTER_ID, ME, OTHER, THIRD, Cluster, Node, key

FOURTH = key(4)


def leader(*voters: ReplicaKey) -> Node:
    """Node 3001 leads epoch 1 and has committed its three first records; 3004 is an observer and caught up."""
    node = Node(voters=voters or (ME, OTHER))
    if node.quorum.is_only_voter:
        node.settle()
    else:
        node.elect(2_000, *[voter for voter in voters or (OTHER,) if voter != ME])
        node.settle(2_000)
        for voter in (voters or (ME, OTHER))[1:]:
            node.fetched_by(voter, now_ms=2_000)
    node.fetched_by(FOURTH, now_ms=2_000)
    return node


def add(node: Node, voter: ReplicaKey = FOURTH, *, now_ms: int = 2_000, **given: Any) -> VoterChange:
    request = AddRaftVoterRequest(given.pop("cluster_id", CLUSTER_ID), voter, 1_000, **given)
    return node.quorum.changes.add_voter(request, now_ms)


def remove(node: Node, voter: ReplicaKey, cluster_id: str = CLUSTER_ID) -> VoterChange:
    return node.quorum.changes.remove_voter(RemoveRaftVoterRequest(cluster_id, voter, 1_000))


def update(node: Node, voter: ReplicaKey, lowest: int = 0, highest: int = 2, epoch: int = 1) -> VoterChange:
    return node.quorum.changes.update_voter(UpdateRaftVoterRequest(CLUSTER_ID, voter, epoch, lowest, highest))


def outcome(change: VoterChange) -> ErrorCode:
    assert change.response is not None, change
    assert bool(change.response.error_message) == (change.response.error_code is not ErrorCode.NONE)
    return change.response.error_code


# ---- Add -------------------------------------------------------------------------------------------------------------


def test_a_new_voter_counts_as_soon_as_its_record_is_appended() -> None:  # A56
    node = leader()
    change = add(node)
    node.drain()
    assert node.quorum.voters == VoterSet((ME, OTHER, FOURTH))
    assert change.response is None
    assert node.records()[-1] == VotersRecord(VoterSet((ME, OTHER, FOURTH)))


def test_an_addition_is_committed_by_a_majority_of_the_new_voters() -> None:  # A56
    node = leader()
    change = add(node)
    node.settle(2_000)
    assert change.response is None
    node.fetched_by(FOURTH)
    assert change.response == VoterChangeResponse(3001, 1)


def test_the_only_voter_cannot_commit_a_second_one_alone() -> None:  # A56
    node = leader(ME)
    change = add(node)
    node.settle(2_000)
    assert (change.response, node.quorum.high_watermark) == (None, 3)
    node.fetched_by(FOURTH)
    assert outcome(change) is ErrorCode.NONE
    assert node.quorum.high_watermark == 4


def test_a_node_that_adds_itself_is_answered_before_it_is_committed() -> None:  # A56, A60
    node = leader()
    assert outcome(add(node, ack_when_committed=False)) is ErrorCode.NONE
    node.settle(2_000)
    assert outcome(add(node, key(5))) is ErrorCode.REQUEST_TIMED_OUT


def test_a_node_that_votes_already_is_refused_whatever_its_directory() -> None:  # A56
    node = leader()
    for voter in (OTHER, key(2, 9)):
        assert outcome(add(node, voter)) is ErrorCode.DUPLICATE_VOTER


def test_a_replica_that_does_not_follow_or_lags_is_refused() -> None:  # A56
    node = leader()
    assert outcome(add(node, key(9))) is ErrorCode.REQUEST_TIMED_OUT
    node.fetched_by(key(9), 0)
    assert outcome(add(node, key(9))) is ErrorCode.REQUEST_TIMED_OUT
    node.fetched_by(key(9), 3)
    assert add(node, key(9)).response is None


def test_a_broker_which_names_no_directory_never_votes() -> None:  # A55
    node, broker = leader(), ReplicaKey(1, ZERO_ID)
    node.fetched_by(broker, 3, now_ms=2_000)
    assert outcome(add(node, broker)) is ErrorCode.INVALID_REQUEST


def test_a_replica_that_was_caught_up_an_hour_ago_is_refused() -> None:  # A56
    assert outcome(add(leader(), now_ms=2_000 + 3_600_000)) is ErrorCode.REQUEST_TIMED_OUT


# ---- Any change ------------------------------------------------------------------------------------------------------


def test_the_cluster_id_is_checked_first() -> None:  # A55
    follower = Node(voters=(ME, OTHER), stored=ElectionState(4, 3002))
    assert outcome(add(follower, cluster_id="another")) is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert outcome(remove(follower, ME, "another")) is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_only_the_leader_changes_voters() -> None:  # A55
    follower = Node(voters=(ME, OTHER), stored=ElectionState(4, 3002))
    change = add(follower)
    assert outcome(change) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert change.response is not None
    assert (change.response.leader_id, change.response.leader_epoch) == (3002, 4)
    assert outcome(remove(follower, ME)) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(ElectionState(4, 3002), "node 3002 does"), (ElectionState(4), "no leader is known; try again")],
)
def test_a_node_that_does_not_lead_names_the_leader_that_it_knows(
    stored: ElectionState, expected: str
) -> None:  # A55
    change = add(Node(voters=(ME, OTHER), stored=stored))
    assert change.response is not None
    assert change.response.error_message == f"node 3001 does not lead; {expected}"


def test_nothing_changes_before_the_leader_has_committed_in_its_epoch() -> None:  # A55
    node = Node(voters=(ME, OTHER))
    node.elect(2_000, OTHER)
    node.settle(2_000)
    change = remove(node, OTHER)
    assert outcome(change) is ErrorCode.REQUEST_TIMED_OUT
    assert change.response is not None
    assert "not committed anything yet" in change.response.error_message


def test_one_change_at_a_time() -> None:  # A55
    node = leader()
    change = add(node)
    for another in (add(node, key(5)), remove(node, OTHER), update(node, OTHER)):
        assert outcome(another) is ErrorCode.REQUEST_TIMED_OUT
    node.settle(2_000)
    assert outcome(remove(node, OTHER)) is ErrorCode.REQUEST_TIMED_OUT
    node.fetched_by(OTHER)
    assert outcome(change) is ErrorCode.NONE
    assert remove(node, OTHER).response is None


def test_voters_are_fixed_below_version_1() -> None:  # A55
    node = leader()
    node.quorum.log.history.add_kraft_version(9, 0)
    assert outcome(add(node)) is ErrorCode.UNSUPPORTED_VERSION


def test_voters_that_a_snapshot_names_may_change() -> None:  # A49, A55
    node = Node.leading()
    node.write_snapshot(OffsetAndEpoch(3, 1), b"state")
    node.log.truncate_fully_and_start_at(3)
    again = node.restarted()
    again.settle()
    again.fetched_by(FOURTH)
    assert add(again, now_ms=0).response is None  # it is under way


def test_a_leader_that_loses_the_lead_does_not_know_the_outcome() -> None:  # A55
    node = leader()
    change = add(node)
    node.quorum.learn(3002, 7, 2_000)
    assert outcome(change) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert change.response is not None
    assert (change.response.leader_id, change.response.leader_epoch) == (3002, 7)


# ---- Remove ----------------------------------------------------------------------------------------------------------


def test_a_removed_voter_is_not_counted_any_more() -> None:  # A57
    node = leader()
    change = remove(node, OTHER)
    node.settle(2_000)
    assert (outcome(change), node.quorum.voters) == (ErrorCode.NONE, VoterSet((ME,)))


@pytest.mark.parametrize("voter", [THIRD, key(2, 9)])
def test_a_node_that_is_no_voter_cannot_be_removed(voter: ReplicaKey) -> None:  # A57
    assert outcome(remove(leader(), voter)) is ErrorCode.VOTER_NOT_FOUND


def test_the_last_voter_cannot_be_removed() -> None:  # A57
    change = remove(leader(ME), ME)
    assert outcome(change) is ErrorCode.VOTER_NOT_FOUND
    assert change.response is not None
    assert "last one" in change.response.error_message


def test_a_leader_that_removes_itself_leads_until_that_is_committed() -> None:  # A57
    node = leader(ME, OTHER, THIRD)
    change = remove(node, ME)
    node.settle(2_000)
    assert (node.role, change.response, node.quorum.is_voter) == ("Leader", None, False)
    node.fetched_by(OTHER)
    assert (node.role, node.quorum.high_watermark) == ("Leader", 3)
    node.fetched_by(THIRD)
    assert (node.role, outcome(change)) == ("Resigned", ErrorCode.NONE)
    assert node.quorum.high_watermark == 4


def test_what_is_committed_before_its_removal_does_not_end_a_leader() -> None:  # A57
    node = leader(ME, OTHER, THIRD)
    node.quorum.leader_log.append([b"a"])
    remove(node, ME)
    node.settle(2_000)
    for voter in (OTHER, THIRD):
        node.fetched_by(voter, 4)
    assert (node.role, node.quorum.high_watermark) == ("Leader", 4)
    for voter in (OTHER, THIRD):
        node.fetched_by(voter, 5)
    assert (node.role, node.quorum.high_watermark) == ("Resigned", 5)


def test_check_quorum_of_a_leader_without_vote_needs_a_majority_of_the_others() -> None:  # A12, A57
    node = leader(ME, OTHER, THIRD)
    remove(node, ME)
    node.settle(2_000)
    node.fetched_by(OTHER, 3, now_ms=4_900)
    node.quorum.poll(5_000)
    assert node.role == "Resigned"


# ---- Update ----------------------------------------------------------------------------------------------------------


def test_a_voter_changes_the_versions_that_it_knows() -> None:  # A58
    node = leader()
    assert outcome(update(node, OTHER)) is ErrorCode.NONE
    node.drain()
    assert node.quorum.voters is not None
    assert node.quorum.voters.kraft_versions_of(OTHER) == VersionRange(0, 2)


def test_an_update_that_changes_nothing_writes_nothing() -> None:  # A58
    node = leader()
    assert outcome(update(node, OTHER, 1, 1)) is ErrorCode.NONE
    assert node.quorum.next_offset == 3


@pytest.mark.parametrize(
    ("voter", "versions", "epoch", "error"),
    [
        (key(2, 9), (0, 2), 1, ErrorCode.VOTER_NOT_FOUND),
        (OTHER, (2, 3), 1, ErrorCode.INVALID_REQUEST),  # does not know the finalised version
        (OTHER, (0, 2), 0, ErrorCode.FENCED_LEADER_EPOCH),
        (OTHER, (0, 2), 2, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_an_update_is_checked(
    voter: ReplicaKey, versions: tuple[int, int], epoch: int, error: ErrorCode
) -> None:  # A58
    assert outcome(update(leader(), voter, *versions, epoch)) is error


def test_a_follower_whose_entry_is_out_of_date_updates_it() -> None:  # A58
    config = QuorumConfig(kraft_versions=VersionRange(0, 1))
    node = Node(voters=(ME, OTHER), stored=ElectionState(4, 3002), config=config)
    node.quorum.log.history.add_kraft_version(0, 1)
    assert all(not isinstance(request, UpdateRaftVoterRequest) for _, request in node.settle(0))
    node.quorum.on_no_response(3002, node.quorum.request_manager._sent[3002].request, 100)
    node.quorum.role.on_fetched(9_000)  # type: ignore[union-attr]
    assert node.settle(2_000) == [(3002, UpdateRaftVoterRequest(CLUSTER_ID, ME, 4, 0, 1))]


def test_a_follower_wakes_up_to_update_its_entry() -> None:  # A58
    config = QuorumConfig(kraft_versions=VersionRange(0, 1), request_timeout_ms=50_000)
    node = Node(voters=(ME, OTHER), stored=ElectionState(4, 3002), config=config)
    node.quorum.log.history.add_kraft_version(0, 1)
    node.settle(0)
    node.quorum.role.on_fetched(90_000)  # type: ignore[union-attr]
    assert node.quorum.next_poll_ms(0) == 2_000


def test_a_follower_whose_entry_is_right_leaves_it() -> None:  # A58
    node = Node(voters=(ME, OTHER), stored=ElectionState(4, 3002))
    node.quorum.role.on_fetched(90_000)  # type: ignore[union-attr]
    assert all(not isinstance(request, UpdateRaftVoterRequest) for _, request in node.settle(50_000))


def test_a_follower_that_may_join_asks_to_and_first_that_its_former_self_goes() -> None:  # A55, A60
    config = QuorumConfig(auto_join=True, request_timeout_ms=700)
    for local, asked in (
        (FOURTH, AddRaftVoterRequest(CLUSTER_ID, FOURTH, 700, ack_when_committed=False)),
        (key(1, 9), RemoveRaftVoterRequest(CLUSTER_ID, ME, 700)),
    ):
        node = Node(local, voters=(ME, OTHER), stored=ElectionState(4, 3002), config=config)
        role = node.quorum.role
        role.on_fetched(9_000)  # type: ignore[union-attr]
        role.next_voter_request_ms = 50  # type: ignore[union-attr]
        ((_, fetch),) = node.settle(0)
        node.quorum.on_no_response(3002, fetch, 0)
        assert node.settle(50) == [(3002, asked)]
        assert role.next_voter_request_ms == 2_050  # type: ignore[union-attr]


def test_a_follower_that_knows_no_voters_asks_for_nothing() -> None:  # A55
    node = Node(FOURTH, voters=None, stored=ElectionState(4, 3002), config=QuorumConfig(auto_join=True))
    node.quorum.role.on_fetched(90_000)  # type: ignore[union-attr]
    assert [type(request).__name__ for _, request in node.settle(50_000)] == ["FetchRequest"]


# ---- In a cluster ----------------------------------------------------------------------------------------------------


def changed(cluster: Cluster, request: AddRaftVoterRequest | RemoveRaftVoterRequest) -> ErrorCode:
    """Asks the leader of the moment, until there is an outcome."""
    node = cluster.elected()
    quorum = node.quorum
    if isinstance(request, AddRaftVoterRequest):
        change = quorum.changes.add_voter(request, cluster.now_ms)
    else:
        change = quorum.changes.remove_voter(request)
    cluster.run_until(lambda: change.response is not None)
    return outcome(change)


def test_a_quorum_grows_from_one_to_three_and_shrinks_again() -> None:  # A56, A57
    cluster = Cluster(1, observers=2)
    for number in (2, 3):
        replica = key(number)
        cluster.run_until(
            lambda replica=replica: cluster.elected().quorum.role.is_caught_up(replica, cluster.now_ms)  # type: ignore[union-attr]
        )
        assert changed(cluster, AddRaftVoterRequest(CLUSTER_ID, replica, 1_000)) is ErrorCode.NONE
    cluster.run_until(lambda: all(node.quorum.is_voter for node in cluster.nodes.values()))
    assert changed(cluster, RemoveRaftVoterRequest(CLUSTER_ID, ME, 1_000)) is ErrorCode.NONE
    cluster.commit(b"a")
    assert cluster.elected().local != ME
    assert cluster.elected().quorum.voters == VoterSet((OTHER, THIRD))


def test_an_uncommitted_change_is_undone_when_another_leader_knows_nothing_of_it() -> None:  # A56, A59
    cluster = Cluster(3, observers=1)
    former = cluster.elected()
    cluster.run_until(lambda: former.quorum.role.is_caught_up(FOURTH, cluster.now_ms))  # type: ignore[union-attr]
    cluster.isolate(former.local.node_id)
    change = former.quorum.changes.add_voter(AddRaftVoterRequest(CLUSTER_ID, FOURTH, 1_000), cluster.now_ms)
    cluster.run_for(10)
    assert former.quorum.voters == VoterSet((ME, OTHER, THIRD, FOURTH))
    cluster.run_until(lambda: change.response is not None)
    assert outcome(change) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.commit(b"a")
    cluster.heal()
    cluster.run_until(lambda: former.committed() == [b"a"])
    assert former.quorum.voters == VoterSet((ME, OTHER, THIRD))


def test_a_wiped_voter_joins_again_as_another_voter() -> None:  # A55, A60
    cluster = Cluster(3, config=QuorumConfig(auto_join=True))
    cluster.commit(b"a")
    leader_id = cluster.elected().local.node_id
    number = 1 if leader_id != 3001 else 2
    cluster.kill(3000 + number)
    wiped = cluster.start(key(number, 9))
    cluster.run_until(lambda: wiped.quorum.is_voter)
    cluster.run_until(lambda: wiped.committed() == [b"a"])
    voters = cluster.elected().quorum.voters
    assert voters is not None
    assert (key(number, 9) in voters, key(number) in voters, len(voters.voters)) == (True, False, 3)


def test_an_observer_joins_by_itself_only_if_it_is_told_to() -> None:  # A60
    quiet = Cluster(1, observers=1)
    quiet.commit(b"a")
    quiet.run_for(20_000)
    assert not quiet.nodes[3002].quorum.is_voter
    joining = Cluster(1, observers=1, config=QuorumConfig(auto_join=True))
    joining.run_until(lambda: joining.nodes[3002].quorum.is_voter)
    joining.commit(b"a")
