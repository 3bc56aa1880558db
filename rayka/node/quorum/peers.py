"""Which of the other replicas answer this node, which do not, and which refuse it: what a quorum without a leader, or
one that does not commit, says of itself. It decides nothing. Kafka says it in its logs only.
"""

import logging
from collections.abc import Sequence

from rayka.errors import ApiError, ErrorCode, RetriableApiError
from rayka.ids import node_name
from rayka.node.repeats import Repeats
from rayka.ports import Message
from rayka.protocol.fetch import FetchResponse
from rayka.raft.leader import Leader
from rayka.raft.quorum import Quorum
from rayka.raft.roles import Follower

_LOOKS_PER_TIMEOUT = 8  # it costs a description of the quorum
_GONE_AFTER_FAILURES = 3
_logger = logging.getLogger(__name__)

# What says that this node, or the one asked, is not the replica that it should be.
_REFUSALS = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "they belong to different clusters; check the data directories",
    ErrorCode.INVALID_VOTER_KEY: "its directory id is not the one that the voters know; it was replaced or wiped",
    ErrorCode.INVALID_REQUEST: "they do not agree on the protocol",
    ErrorCode.UNSUPPORTED_VERSION: "they run different versions",
}


class Peers:
    """The outcome of the last call to each node. A leader calls only voters that do not fetch, so a fetch of a voter
    clears its problem, too.
    """

    def __init__(self, node_id: int, quorum: Quorum, *, late_ms: int) -> None:
        self._node_id = node_id
        self._quorum = quorum
        self._late_ms = late_ms
        self._next_look_ms = 0
        self._silent: dict[int, int] = {}  # calls that failed, one after another
        self._refusals: dict[int, str] = {}
        self._failures = Repeats(_logger)

    def __repr__(self) -> str:
        return f"<Peers silent={list(self._silent)} refusing={list(self._refusals)}>"

    @property
    def state(self) -> tuple[tuple[tuple[int, bool], ...], tuple[int, ...]]:
        """Differs when something has changed."""
        silent = tuple((each, count >= _GONE_AFTER_FAILURES) for each, count in self._silent.items())
        return silent, tuple(self._refusals)

    def on_answered(self, node_id: int, response: Message) -> None:
        self._silent.pop(node_id, None)
        header = response.partitions[0] if isinstance(response, FetchResponse) else response
        code = getattr(header, "error_code", ErrorCode.NONE)
        if code in _REFUSALS:
            self._refuse(node_id, f"{code.name}: {_REFUSALS[code]}")
        else:
            self._refusals.pop(node_id, None)

    def on_failed(self, node_id: int, error: ApiError) -> None:
        """It did not answer, or refuses to."""
        if isinstance(error, RetriableApiError):
            self._refusals.pop(node_id, None)
            self._silent[node_id] = self._silent.get(node_id, 0) + 1
        else:
            self._silent.pop(node_id, None)
            self._refuse(node_id, f"{error.code.name}: {error}")

    def _refuse(self, node_id: int, reason: str) -> None:
        self._refusals[node_id] = reason
        self._failures.failed((node_id, reason), f"{self._quorum!r}: {node_name(node_id)} refuses: {reason}")

    def forget(self) -> None:
        """What was true of a leader's calls says nothing of those to come."""
        self._silent.clear()
        self._refusals.clear()

    def look(self, now_ms: int) -> None:
        """To be called now and then: a leader without its majority must know which voters were missing."""
        if now_ms >= self._next_look_ms:
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        self._next_look_ms = now_ms + self._late_ms // _LOOKS_PER_TIMEOUT
        if self._quorum.is_leader:
            not_fetching = self._not_fetching(now_ms)
            for node_id in self._other_voters():
                self._silent.pop(node_id, None)
                if node_id not in not_fetching:
                    self._refusals.pop(node_id, None)
            self._silent.update(dict.fromkeys(not_fetching, 1))

    # ---- What is wrong -----------------------------------------------------------------------------------------------

    def commit_problem(self, now_ms: int) -> str:
        """What keeps the quorum from committing, as far as this node knows; empty when nothing does."""
        role = self._quorum.role
        if isinstance(role, Follower) and role.leader_id not in self._silent:
            return ""
        parts = [] if isinstance(role, Leader) else ["no leader answers"]
        if self._quorum.voters is None:
            parts.append("the voters are not known")
        self._look(now_ms)
        missing = self.silent_voters()
        if missing:
            parts.append(f"voters that do not answer: {', '.join(map(node_name, missing))}")
        voters = self._other_voters()
        parts += [
            f"{node_name(each)} refuses: {reason}"
            for each, reason in self._refusals.items()
            if self._quorum.voters is None or each in voters
        ]
        return "; ".join(parts)

    def reachable_voters(self) -> Sequence[int]:
        """Other voters but those whose calls failed so often that they are gone.

        One failure says nothing: the first call to a process that took another's place finds the old connection.
        """
        return [each for each in self._other_voters() if self._silent.get(each, 0) < _GONE_AFTER_FAILURES]

    def silent_voters(self) -> Sequence[int]:
        """Other voters whose last call failed."""
        return [each for each in self._other_voters() if each in self._silent]

    def _not_fetching(self, now_ms: int) -> Sequence[int]:
        """Voters that have not fetched from this leader for a while."""
        described = self._quorum.leading.handle_describe_quorum(now_ms)
        return [
            each.replica.node_id
            for each in described.voters
            if each.replica.node_id != self._node_id and not 0 <= each.last_fetch_ago_ms <= self._late_ms
        ]

    def _other_voters(self) -> Sequence[int]:
        voters = self._quorum.voters
        known = voters.voters if voters is not None else ()
        return [each.node_id for each in known if each.node_id != self._node_id]
