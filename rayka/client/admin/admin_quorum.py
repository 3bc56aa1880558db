"""The metadata quorum: its leader, its voters with their lags, and changes of its voters.

Any controller may be asked: a controller that does not lead names the leader it knows. A change that the leader may
have made is never sent again, because the repetition would be refused as a duplicate. Kafka: KafkaAdminClient's
describeMetadataQuorum, addRaftVoter, removeRaftVoter (A55-A57).
"""

from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from rayka.client.admin.admin_part import NODE_TIMEOUT_MS, AdminPart
from rayka.client.admin.admin_results import QuorumInfo, ReplicaState
from rayka.client.retry import Retry
from rayka.errors import (
    ApiError,
    DuplicateVoter,
    ErrorCode,
    InvalidRequest,
    NetworkException,
    RequestTimedOut,
    UnavailableError,
    VoterNotFound,
    error_for,
)
from rayka.ids import NO_NODE, ZERO_ID, ReplicaKey, node_name, possible_controllers
from rayka.ports import Network
from rayka.protocol.active_controller import with_node_name
from rayka.protocol.membership import StatusRequest
from rayka.protocol.quorum_messages import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
)

ChangeType = type[AddRaftVoterRequest] | type[RemoveRaftVoterRequest]
_DONE, _ELSEWHERE = ErrorCode.NONE, (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_CONTROLLER)
_PASSING = (*_ELSEWHERE, ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)


async def ask_quorum(
    network: Network, node_ids: Iterable[int], timeout_ms: int
) -> tuple[DescribeQuorumResponse | None, Mapping[int, str]]:
    """Asks these nodes once for the quorum: the leader's answer, or None and the answer of each controller instead."""
    said: dict[int, str] = {}
    to_ask = possible_controllers(node_ids)
    while to_ask:
        node_id = to_ask.pop(0)
        try:
            response = await network.call(node_id, DescribeQuorumRequest(), timeout_ms)
        except ApiError as error:
            said[node_id] = str(error)
            continue
        if response.error_code is _DONE:
            return response, {}
        said[node_id] = _refusal(response)
        if response.leader_id in to_ask:
            to_ask.remove(response.leader_id)
            to_ask.insert(0, response.leader_id)
    return None, said


class AsyncQuorumAdmin(AdminPart):
    """The methods of `Admin` about the quorum, with checked arguments."""

    async def describe(self, retry: Retry | None = None) -> QuorumInfo:
        """The quorum as its leader sees it. Raises UnavailableError with each controller's answer instead."""
        retry = retry or Retry(self.timeout_ms, self._nodes.backoff)
        while True:
            node_ids = await self._nodes.network.node_ids()
            timeout_ms = min(NODE_TIMEOUT_MS, retry.remaining_ms)
            response, said = await ask_quorum(self._nodes.network, node_ids, timeout_ms)
            if response is not None:
                return QuorumInfo.of(response)
            if not await retry.pause():
                raise UnavailableError(
                    f"cluster {self._nodes.cluster_name!r} has no active controller: {_sayings(said)}"
                )

    async def add_voter(self, node_id: int, directory_id: UUID | None) -> None:
        """Makes an observer a voter. Raises like `Admin.add_raft_voter`."""
        if node_id not in possible_controllers([*await self._nodes.network.node_ids(), node_id]):
            raise InvalidRequest(f"{node_name(node_id)} cannot vote: only controllers do")
        await self._change(AddRaftVoterRequest, node_id, directory_id, _observer)

    async def remove_voter(self, node_id: int, directory_id: UUID | None) -> None:
        """Takes a vote away. Raises like `Admin.remove_raft_voter`."""
        await self._change(RemoveRaftVoterRequest, node_id, directory_id, _voter)

    async def _change(
        self,
        request_type: ChangeType,
        node_id: int,
        directory_id: UUID | None,
        choose: Callable[[QuorumInfo, int], ReplicaState],
    ) -> None:
        """Sends the change to the leader, again as long as it was surely not made.

        Retried are a node that does not lead, a node that died before the change was sent, and a leader that refuses
        for now, because an earlier change is uncommitted or the node is not caught up. A leader that has appended the
        change answers RequestTimedOut only when the whole timeout has passed, so no time is left to send it again.
        """
        retry = Retry(self.timeout_ms, self._nodes.backoff)
        first_fetch = Retry(min(NODE_TIMEOUT_MS, self.timeout_ms), self._nodes.backoff)
        while True:
            info = await self.describe(retry)
            try:
                key = ReplicaKey(node_id, directory_id or choose(info, node_id).directory_id)
            except UnavailableError:
                # A leader that was just elected has not seen the fetches of its followers yet.
                if not await first_fetch.pause():
                    raise
                continue
            try:
                return await self._send(request_type, info.leader_id, key, retry.remaining_ms)
            except DuplicateVoter as error:
                raise DuplicateVoter(_duplicate(info, key, str(error))) from error
            except ApiError as error:
                if error.code not in _PASSING or not await retry.pause():
                    raise

    async def _send(
        self, request_type: ChangeType, leader_id: int, voter: ReplicaKey, timeout_ms: int
    ) -> None:
        """Sends the change once. Raises the leader's ApiError, and UnavailableError when its answer was lost."""
        status = await self._nodes.network.call(leader_id, StatusRequest(), min(NODE_TIMEOUT_MS, timeout_ms))
        request = request_type(cluster_id=status.cluster_id, voter=voter, timeout_ms=timeout_ms)
        try:
            response = await self._nodes.network.call(leader_id, request, timeout_ms + NODE_TIMEOUT_MS)
        except (NetworkException, RequestTimedOut) as error:
            raise UnavailableError(
                f"the answer of {node_name(leader_id)} was lost, so the change of {node_name(voter.node_id)} may or "
                f"may not have been made; look with `rayka quorum status`: {error}"
            ) from error
        if response.error_code is not _DONE:
            raise error_for(response.error_code, response.error_message or response.error_code.name)


def _observer(info: QuorumInfo, node_id: int) -> ReplicaState:
    """The node's observer with the latest fetch. Raises DuplicateVoter, UnavailableError."""
    # A broker observes too, but names no directory and cannot answer a candidate.
    found = [each for each in info.observers if each.node_id == node_id and each.directory_id != ZERO_ID]
    if found:
        return min(found, key=lambda each: each.last_fetch_ago_ms)
    if (voter := _find_voter(info, node_id)) is not None:
        raise DuplicateVoter(f"{node_name(node_id)} votes already, with directory {voter.directory_id}")
    raise UnavailableError(
        f"{node_name(node_id)} does not follow the metadata, so it cannot become a voter; if it runs, try again in a "
        f"moment, else declare it in the spec and start it empty: `rayka start SPEC --replace {node_id}`"
    )


def _voter(info: QuorumInfo, node_id: int) -> ReplicaState:
    found = _find_voter(info, node_id)
    if found is None:
        voters = ", ".join(node_name(each.node_id) for each in info.voters)
        raise VoterNotFound(f"{node_name(node_id)} does not vote; voters: {voters}")
    return found


def _find_voter(info: QuorumInfo, node_id: int) -> ReplicaState | None:
    return next((each for each in info.voters if each.node_id == node_id), None)


def _duplicate(info: QuorumInfo, key: ReplicaKey, said: str) -> str:
    """The message for a duplicate voter; advises to remove the vote of a former directory of the node first."""
    former = _find_voter(info, key.node_id)
    if former is None or former.directory_id == key.directory_id:
        return said
    return (
        f"{node_name(key.node_id)} still votes with its former directory {former.directory_id}; take that vote away "
        f"first: `rayka quorum voters remove {key.node_id}`, then add it again"
    )


def _refusal(response: DescribeQuorumResponse) -> str:
    if response.error_code not in _ELSEWHERE:
        return response.error_code.name
    if response.leader_id == NO_NODE:
        return f"knows no leader in epoch {response.leader_epoch}"
    return f"says that {node_name(response.leader_id)} leads epoch {response.leader_epoch}"


def _sayings(said: Mapping[int, str]) -> str:
    return "; ".join(with_node_name(each, text) for each, text in said.items()) or "no controller is known"
