"""Events: incidents of the cluster, and its own decisions with their causes. Rayka's own.

The metadata log keeps the newest 1,000. The active controller records its own events; another node, such as the
supervisor, asks the controller to record one. An event's number identifies the event: later events have higher numbers,
over all controllers.
"""

import re
from collections.abc import Iterable
from typing import Self

from rayka.ids import node_name
from rayka.ports import Message, Request
from rayka.protocol.request_parts import require

EVENTS_MAX = 1_000
NO_EVENT = -1
SUBJECTS_MAX = 16
REASON_LENGTH_MAX = 500
# A topic, "-", and the number of a partition.
_SUBJECT_LENGTH_MAX = 260
_TIMESTAMP_MS_MAX = 1 << 53
_KIND = re.compile("[a-z][a-z-]{0,39}")


def one_line(reason: str) -> str:
    """Turns a reason into the form of events: one line of printable characters, at most REASON_LENGTH_MAX long."""
    line = " ".join(reason.split())
    return "".join(each if each.isprintable() else "?" for each in line)[:REASON_LENGTH_MAX]


class Event(Message, frozen=True, array_like=True, gc=False):
    """One event."""

    number: int
    timestamp_ms: int
    kind: str
    # Nodes (`broker-4`), topics or partitions (`orders-0`); at most SUBJECTS_MAX.
    subjects: tuple[str, ...]
    reason: str


class DescribeEventsResponse(Message, frozen=True, array_like=True):
    """The events, the oldest first."""

    events: tuple[Event, ...]


class DescribeEventsRequest(Request[DescribeEventsResponse], frozen=True, array_like=True):
    """Asks for the newest `count` events with numbers above `since`."""

    since: int = NO_EVENT
    count: int = EVENTS_MAX

    def check(self) -> None:
        require(self.since >= NO_EVENT, "since", "the number of an event, or -1", self.since)
        require(0 < self.count <= EVENTS_MAX, "count", f"1 to {EVENTS_MAX}", self.count)


class RecordEventResponse(Message, frozen=True, array_like=True):
    """The event's number; NO_EVENT: the cluster's `metadata.version` has no events, and the event was not kept."""

    number: int


class RecordEventRequest(Request[RecordEventResponse], frozen=True, array_like=True):
    """Records an event of a node. A request may be repeated: an event with equal fields is recorded once."""

    # By the node's wall clock.
    timestamp_ms: int
    kind: str
    subjects: tuple[str, ...]
    reason: str

    @classmethod
    def of_nodes(cls, timestamp_ms: int, kind: str, node_ids: Iterable[int], reason: str) -> Self:
        """A request about nodes; cuts subjects and reason to their bounds."""
        subjects = tuple(map(node_name, node_ids))[:SUBJECTS_MAX]
        return cls(timestamp_ms, kind, subjects, one_line(reason))

    def check(self) -> None:
        require(0 <= self.timestamp_ms < _TIMESTAMP_MS_MAX, "timestamp_ms", "a time", self.timestamp_ms)
        is_kind = _KIND.fullmatch(self.kind) is not None
        require(is_kind, "kind", "up to 40 of a to z and -", repr(self.kind))
        count = len(self.subjects)
        require(count <= SUBJECTS_MAX, "subjects", f"{SUBJECTS_MAX} or fewer", count)
        for each in self.subjects:
            is_name = 0 < len(each) <= _SUBJECT_LENGTH_MAX and each.isprintable()
            require(is_name, "subjects", "names of nodes, topics or partitions", repr(each))
        is_line = 0 < len(self.reason) <= REASON_LENGTH_MAX and self.reason.isprintable()
        require(is_line, "reason", f"one line of up to {REASON_LENGTH_MAX} characters", repr(self.reason))
