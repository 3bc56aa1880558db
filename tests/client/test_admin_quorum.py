"""The quorum through an `Admin`: which node is asked, what becomes of the answers, what a change that fails says."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from rayka import Admin
from rayka.errors import (
    DuplicateVoter,
    ErrorCode,
    InvalidRequest,
    NetworkException,
    RequestTimedOut,
    UnavailableError,
    VoterNotFound,
)
from rayka.ids import NO_NODE, ReplicaKey, Role
from rayka.protocol.membership import NodeState, StatusRequest, StatusResponse
from rayka.protocol.quorum_messages import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumReplica,
    RemoveRaftVoterRequest,
    VoterChangeResponse,
)

VOTERS = (3001, 3002, 3003)
EPOCH = 7


def directory(node_id: int, number: int = 0) -> UUID:
    return UUID(int=(node_id << 8) + number)


def replica(node_id: int, end_offset: int, number: int = 0) -> QuorumReplica:
    return QuorumReplica(ReplicaKey(node_id, directory(node_id, number)), end_offset, 10, 20)


class Controllers:
    """A `ClusterHandle` and its `Network`: three controllers and a broker that observes.

    `leads`: the node that answers as the leader; `believed`: which one the others name. `dead` ones are not reached.
    `changes`: what becomes of the next changes of the voters.
    """

    name = "scripted"

    def __init__(self, leads: int = 3002) -> None:
        self.leads = leads
        self.believed = leads
        self.dead: list[int] = []
        self.asked: list[int] = []
        self.changes: list[ErrorCode | Exception] = []
        self.changed: list[Any] = []
        self.observers = (replica(1, 90),)
        self.when_asked: Callable[[], None] = lambda: None

    def network(self, transport: str = "auto") -> "Controllers":
        return self

    async def node_ids(self) -> Sequence[int]:
        return [1, *VOTERS]

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if node_id in self.dead:
            raise NetworkException(f"node {node_id} is down")
        if isinstance(request, StatusRequest):
            return StatusResponse(node_id, (Role.CONTROLLER,), NodeState.RUNNING, 1, "", (), cluster_id="id")
        if isinstance(request, DescribeQuorumRequest):
            self.asked.append(node_id)
            described = self._described(node_id)
            self.when_asked()
            return described
        self.changed.append(request)
        outcome = self.changes.pop(0) if self.changes else ErrorCode.NONE
        if isinstance(outcome, Exception):
            raise outcome
        return VoterChangeResponse(self.leads, EPOCH, outcome, "" if outcome is ErrorCode.NONE else "as told")

    def _described(self, node_id: int) -> DescribeQuorumResponse:
        if node_id != self.leads:
            return DescribeQuorumResponse(self.believed, EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        voters = tuple(replica(each, 100 if each == node_id else 95) for each in VOTERS)
        return DescribeQuorumResponse(
            node_id, EPOCH, high_watermark=95, voters=voters, observers=self.observers
        )


@pytest.fixture
def controllers() -> Controllers:
    return Controllers()


@pytest.fixture
def admin(controllers: Controllers) -> Admin:
    return Admin(controllers, retry_backoff_ms=1, retry_backoff_max_ms=2, default_api_timeout_ms=500)


def test_the_leader_is_found_through_any_controller(controllers: Controllers, admin: Admin):
    controllers.leads = controllers.believed = 3003
    assert admin.describe_quorum().leader_id == 3003
    assert controllers.asked == [3001, 3003]  # 3001 named it; 3002 needed not to be asked


def test_a_dead_controller_and_a_stale_belief_do_not_hide_the_leader(controllers: Controllers, admin: Admin):
    controllers.dead, controllers.believed, controllers.leads = [3001], 3001, 3003
    assert admin.describe_quorum().leader_id == 3003


def test_the_quorum_is_described_with_the_lag_of_each_replica(admin: Admin):
    info = admin.describe_quorum()
    assert repr(info) == "<QuorumInfo leader=3002 epoch=7 hw=95 voters=[3001, 3002, 3003]>"
    assert [(each.node_id, each.lag) for each in info.voters] == [(3001, 5), (3002, 0), (3003, 5)]
    assert [(each.node_id, each.log_end_offset, each.lag) for each in info.observers] == [(1, 90, 10)]
    assert info.to_dict()["voters"][0]["directory_id"] == str(directory(3001))


def test_without_a_leader_the_error_says_what_each_controller_answered(
    controllers: Controllers, admin: Admin
):
    controllers.dead, controllers.leads, controllers.believed = [3002], NO_NODE, NO_NODE
    with pytest.raises(UnavailableError) as raised:
        admin.describe_quorum()
    assert "controller-3001: knows no leader in epoch 7" in str(raised.value)
    assert "controller-3002: node 3002 is down" in str(raised.value)


def test_an_observer_becomes_a_voter_with_the_directory_it_follows_with(
    controllers: Controllers, admin: Admin
):
    controllers.observers = (replica(3004, 95, number=1),)
    admin.add_raft_voter(3004)
    (request,) = controllers.changed
    assert isinstance(request, AddRaftVoterRequest)
    assert (request.cluster_id, request.voter) == ("id", ReplicaKey(3004, directory(3004, 1)))


def test_a_voter_is_removed_with_the_directory_it_votes_with(controllers: Controllers, admin: Admin):
    admin.remove_raft_voter(3003)
    (request,) = controllers.changed
    assert isinstance(request, RemoveRaftVoterRequest)
    assert request.voter == ReplicaKey(3003, directory(3003))


def test_a_node_on_a_new_disk_is_told_to_give_up_its_former_vote_first(
    controllers: Controllers, admin: Admin
):
    controllers.observers = (replica(3003, 95, number=1),)
    controllers.changes = [ErrorCode.DUPLICATE_VOTER]
    with pytest.raises(DuplicateVoter, match="rayka quorum voters remove 3003"):
        admin.add_raft_voter(3003)


@pytest.mark.parametrize(
    ("change", "expected", "message"),
    [
        (lambda admin: admin.add_raft_voter(3003), DuplicateVoter, "controller-3003 votes already"),
        (lambda admin: admin.add_raft_voter(3009), UnavailableError, "--replace 3009"),
        (lambda admin: admin.add_raft_voter(1), InvalidRequest, "broker-1 cannot vote"),
        (lambda admin: admin.add_raft_voter(1, directory(1)), InvalidRequest, "only controllers"),
        (lambda admin: admin.remove_raft_voter(3009), VoterNotFound, "voters: controller-3001, "),
        (lambda admin: admin.remove_raft_voter("3009"), TypeError, "expected int, found str"),
    ],
    ids=[
        "votes already",
        "does not follow",
        "a broker",
        "a broker's directory",
        "does not vote",
        "not a node id",
    ],
)
def test_a_change_that_cannot_be_asked_for_is_refused_here(
    controllers: Controllers,
    admin: Admin,
    change: Callable[[Admin], None],
    expected: type[Exception],
    message: str,
):
    with pytest.raises(expected, match=message):
        change(admin)
    assert controllers.changed == []


def test_a_change_that_the_leader_refuses_for_good_raises_its_error_and_is_not_repeated(
    controllers: Controllers, admin: Admin
):
    controllers.changes = [ErrorCode.VOTER_NOT_FOUND]
    with pytest.raises(VoterNotFound, match="as told"):
        admin.remove_raft_voter(3001)
    assert len(controllers.changed) == 1


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT])
def test_a_change_that_met_a_node_that_leads_no_more_or_refuses_for_now_is_sent_again(
    controllers: Controllers, admin: Admin, code: ErrorCode
):
    controllers.changes = [code]
    admin.remove_raft_voter(3001)
    assert len(controllers.changed) == 2


def test_a_leader_that_goes_on_refusing_for_now_is_believed_when_the_time_is_over(
    controllers: Controllers, admin: Admin
):
    controllers.changes = [ErrorCode.REQUEST_TIMED_OUT] * 10_000
    with pytest.raises(RequestTimedOut, match="as told"):
        admin.remove_raft_voter(3001)
    assert len(controllers.changed) > 10


def test_a_new_leader_that_an_observer_has_not_asked_yet_is_given_a_moment(
    controllers: Controllers, admin: Admin
):

    def fetch() -> None:
        if controllers.asked[-1] == controllers.leads:
            controllers.observers = (replica(3004, 95),)

    controllers.when_asked = fetch
    admin.add_raft_voter(3004)
    assert [each.voter.node_id for each in controllers.changed] == [3004]


def test_a_change_whose_answer_was_lost_is_not_repeated(controllers: Controllers, admin: Admin):
    controllers.changes = [NetworkException("lost")]
    with pytest.raises(UnavailableError, match="may or may not have been made"):
        admin.remove_raft_voter(3001)
    assert len(controllers.changed) == 1
