"""What a request to a group leads to, collected step by step: timers, answers to requests that wait, records.

Kafka: `CoordinatorResult`, `CoordinatorTimer`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from rayka.coordinator.group import Member
from rayka.coordinator.group_records import GroupRecord
from rayka.errors import ApiError
from rayka.protocol.groups import OffsetCommitRequest
from rayka.shard.shard import Answer, Result
from rayka.shard.timers import Timer


class EndSession(NamedTuple):
    """A timer's request: a member has been silent for its session timeout."""

    group_id: str
    member_id: str


class EndPending(NamedTuple):
    """A timer's request: an id that was given out has not been used."""

    group_id: str
    member_id: str


class EndJoins(NamedTuple):
    """A timer's request: the next generation begins with those that have joined."""

    group_id: str


class EndSyncs(NamedTuple):
    """A timer's request: members of the generation that have not asked for their assignment are gone."""

    group_id: str
    generation_id: int


class ExpireOffsets(NamedTuple):
    """A timer's request: offsets that were kept for long enough are forgotten."""


class ForgetTopics(NamedTuple):
    """A request of the node: these topics, by name, are deleted."""

    topic_ids: Mapping[str, UUID]


class CommitTogether(NamedTuple):
    """A request of the node: commits that have come one after another are one batch of the log. The node leads in this
    epoch.
    """

    requests: tuple[OffsetCommitRequest, ...]
    leader_epoch: int


class Effects:
    """The result of one request, until `result` makes it one."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.records: list[GroupRecord] = []
        self._timers: list[Timer] = []
        self._answers: list[Answer] = []

    def __repr__(self) -> str:
        return f"<Effects {self.records} {self._timers} {self._answers}>"

    def result(self, response: Any) -> Result[GroupRecord, Any]:
        return Result(self.records, response, self._timers, self._answers)

    def after(self, delay_ms: int, request: NamedTuple) -> None:
        """Sets the timer of a request, in place of the one it had."""
        self._timers.append(Timer(_key(request), self.now_ms + delay_ms, request))

    def cancel(self, request: NamedTuple) -> None:
        self._timers.append(Timer(_key(request), 0, None))

    def begin_session(self, group_id: str, member: Member) -> None:
        """The member's session begins anew."""
        self.after(member.session_timeout_ms, EndSession(group_id, member.member_id))

    def answer_join(self, member: Member, response: Any = None, error: ApiError | None = None) -> None:
        """Ends the wait of the member's join, if one waits."""
        if member.join_token is not None:
            self._answers.append(Answer(member.join_token, response, error))
            member.join_token = None

    def answer_sync(self, token: int | None, response: Any = None, error: ApiError | None = None) -> None:
        """Ends the wait of a sync, if that is one's token."""
        if token is not None:
            self._answers.append(Answer(token, response, error))


def _key(request: NamedTuple) -> tuple[Any, ...]:
    """A group has one timer of a kind for its joins and syncs, and one for each member."""
    name = type(request).__name__
    return (name, request[0]) if isinstance(request, EndSyncs) else (name, *request)
