"""The caller's half of an incremental fetch session: says only what changed since its last request.

The caller states what it wants of each partition; `next` gives what the node does not know yet, so a request costs as
much as has changed, not as much as is wanted, and no more than the caller allows: the rest is said next. Invariants:
nothing follows a request that begins a session before its answer, which names the session; a later request may overtake
one that the node still holds back, and then only the later one's end counts; what may not have arrived (a broken call,
a session that the node has forgotten) is said again, in full, in a new session. The node's half is
`rayka.node.handlers.fetch_sessions`. Kafka: `FetchSessionHandler` (G14).
"""

from itertools import islice
from typing import NamedTuple
from uuid import UUID

from rayka.errors import ErrorCode
from rayka.ids import TopicIdPartition
from rayka.protocol.fetch import (
    FINAL_SESSION_EPOCH,
    FIRST_SESSION_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchResponse,
)

SESSION_EPOCH_MAX = 2**31 - 1
PartitionKey = tuple[UUID, int]


class SessionRequest(NamedTuple):
    """The part of a FetchRequest that is about its session; the fields have its names."""

    session_id: int
    session_epoch: int
    partitions: tuple[FetchPartition, ...]
    forgotten: tuple[TopicIdPartition, ...]


class FetchSessionHandler:
    """What one caller wants of one node."""

    def __init__(self) -> None:
        self._wanted: dict[PartitionKey, FetchPartition] = {}
        self._changed: dict[PartitionKey, None] = {}  # wanted, but not as the node knows it
        self._forgotten: dict[PartitionKey, None] = {}  # known to the node, but not wanted
        self.session_id = NO_SESSION  # the node keeps one of this id, unless it has forgotten it
        self._epoch = FIRST_SESSION_EPOCH

    def __repr__(self) -> str:
        return (
            f"<FetchSessionHandler session={self.session_id} epoch={self._epoch} wanted={len(self._wanted)}"
            f" changed={len(self._changed)} forgotten={len(self._forgotten)}>"
        )

    def want(self, fetch: FetchPartition) -> None:
        """This is to be fetched from now on; what was said of the partition before is obsolete."""
        key = (fetch.topic_id, fetch.partition)
        if self._wanted.get(key) != fetch:
            self._wanted[key] = fetch
            self._changed[key] = None
            self._forgotten.pop(key, None)

    def forget(self, topic_id: UUID, partition: int) -> None:
        """The partition is not wanted any more; one that never was is no error."""
        key = (topic_id, partition)
        if self._wanted.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None

    def wanted(self, topic_id: UUID, partition: int) -> FetchPartition | None:
        """What is fetched of the partition; None: nothing, and a result of it is to be ignored."""
        return self._wanted.get((topic_id, partition))

    @property
    def has_changed(self) -> bool:
        """Whether something is wanted otherwise than the node knows."""
        return bool(self._changed)

    def next(self, partitions_max: int | None = None) -> SessionRequest:
        """What to send now, about so many partitions at most; while some are left, `has_changed`. `on_response` or
        `on_failure` ends it, unless a later one overtakes it.
        """
        epoch = self._epoch
        is_first = epoch == FIRST_SESSION_EPOCH
        unsaid = iter(list(self._wanted if is_first else self._changed))
        partitions = tuple(self._wanted[key] for key in islice(unsaid, partitions_max))
        forgotten = tuple(TopicIdPartition(*key) for key in (() if is_first else self._forgotten))
        if not is_first:
            self._epoch = next_session_epoch(epoch)
        self._changed, self._forgotten = dict.fromkeys(unsaid), {}
        return SessionRequest(self.session_id, epoch, partitions, forgotten)

    def on_response(self, response: FetchResponse) -> None:
        """The node has answered. After an error, and when it keeps no session, everything is said again."""
        if response.error_code is not ErrorCode.NONE:
            self.on_failure()
        elif response.session_id == NO_SESSION:
            self.session_id, self._epoch = NO_SESSION, FIRST_SESSION_EPOCH
        elif self._epoch == FIRST_SESSION_EPOCH:
            self.session_id, self._epoch = response.session_id, next_session_epoch(FIRST_SESSION_EPOCH)

    def on_failure(self) -> None:
        """Without an answer it is not known what has arrived: the next request begins another session instead."""
        self._epoch = FIRST_SESSION_EPOCH


def next_session_epoch(epoch: int) -> int:
    """The epoch of the request that follows: after the largest comes 1, because 0 would begin another session."""
    if epoch == FINAL_SESSION_EPOCH:
        return FINAL_SESSION_EPOCH
    return 1 if epoch >= SESSION_EPOCH_MAX else epoch + 1
