"""What a consumer asks of one broker, in one fetch session.

The brain of one stream of fetches, without IO. A request says only what has changed since the one before it, so an idle
consumer of many partitions costs next to nothing; when something becomes wanted while the broker holds a request back,
the next request overtakes that one. Invariants: a result counts only if it answers what was asked last of its
partition; without anything wanted nothing is asked. Kafka: FetchSessionHandler, AbstractFetch (G14).
"""

from collections.abc import Iterable

import msgspec

from rayka.client.consumer.fetch_state import FetchTicket
from rayka.ids import NO_EPOCH, node_name
from rayka.protocol.fetch import (
    FIRST_SESSION_EPOCH,
    FetchPartition,
    FetchPartitionResult,
    FetchStream,
    PartitionKey,
    SessionRequest,
)

_NOT_ASKED = 1 << 62
# A broker reads all partitions that a request has changed in one step, and does nothing else meanwhile.
_PARTITIONS_MAX = 500


class _Asked(msgspec.Struct, eq=False):
    """One partition. `asked_in`: the number of the request that asked from this position."""

    ticket: FetchTicket
    asked_in: int = _NOT_ASKED


class NodeFetches:
    """See the module. `is_paused`: the broker has failed to answer, and is given a while. `gets_many`: whether the last
    records were so many that their files are worth opening, where they are on this machine.
    """

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.stream = FetchStream()
        self.is_paused = False
        self.gets_many = True
        self._asked: dict[PartitionKey, _Asked] = {}
        self._has_news = False  # something to ask for that no request asks for yet

    def __repr__(self) -> str:
        return f"<NodeFetches of {node_name(self.node_id)} partitions={len(self._asked)} {self.stream!r}>"

    @property
    def is_any_wanted(self) -> bool:
        return bool(self._asked)

    @property
    def session_id(self) -> int:
        """Of the session that the broker keeps, as far as is known; NO_SESSION when there is none."""
        return self.stream.session.session_id

    def tickets(self) -> Iterable[FetchTicket]:
        """Of all partitions that are asked for here."""
        return (each.ticket for each in self._asked.values())

    def want(self, fetch: FetchPartition, ticket: FetchTicket) -> None:
        """Fetches this from now on, in place of the partition's former fetch."""
        session, key = self.stream.session, (fetch.topic_id, fetch.partition)
        if session.wanted(*key) == fetch:
            self._asked[key].ticket = ticket
            return
        session.want(fetch)
        self._asked[key] = _Asked(ticket)
        self._has_news = True

    def forget(self, key: PartitionKey) -> None:
        """The partition is not fetched from this broker any more."""
        self.stream.session.forget(*key)
        del self._asked[key]

    @property
    def may_send(self) -> bool:
        """Whether a request may leave: one at a time, except with news."""
        if self.is_paused or not self._asked:
            return False
        if self.stream.is_waiting:
            return self._has_news and self.stream.may_overtake
        return self.stream.may_follow

    def begin(self) -> tuple[int, SessionRequest]:
        """The number of the next request, which leaves now, and its content. See `may_wait`."""
        number, request = self.stream.begin(_PARTITIONS_MAX)
        self._has_news = self.stream.session.has_changed
        for each in request.partitions:
            self._asked[each.topic_id, each.partition].asked_in = number
        return number, request

    def may_wait(self, request: SessionRequest) -> bool:
        """Whether the broker may hold the request back. What comes next can overtake only a request of a known session,
        and should not have to.
        """
        if request.session_epoch == FIRST_SESSION_EPOCH:
            return self.stream.has_no_sessions
        return not self._has_news

    def ticket(self, number: int, result: FetchPartitionResult) -> FetchTicket | None:
        """What the result, which the request of this number brought, answers; None when it is of no use any more."""
        asked = self._asked.get((result.topic_id, result.partition))
        return asked.ticket if asked is not None and asked.asked_in <= number else None

    def leader_epoch(self, result: FetchPartitionResult) -> int:
        """The leader epoch in which the partition of this result, which has a `ticket`, is asked for."""
        wanted = self.stream.session.wanted(result.topic_id, result.partition)
        return NO_EPOCH if wanted is None else wanted.current_leader_epoch
