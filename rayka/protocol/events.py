"""Events: what happened to the cluster, and what it decided by itself, with causes. The newest 1,000 are kept in the
metadata log. Rayka's own.

The active controller records its own events; a node of the cluster, such as the supervisor, has others recorded. An
event is known by its number: later ones have higher numbers, over all controllers.
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
_SUBJECT_LENGTH_MAX = 260  # a topic, "-", and the number of a partition
_TIMESTAMP_MS_MAX = 1 << 53
_KIND = re.compile("[a-z][a-z-]{0,39}")


def one_line(reason: str) -> str:
    """The reason as an event takes it: one line of printable characters, cut to the bound."""
    line = " ".join(reason.split())
    return "".join(each if each.isprintable() else "?" for each in line)[:REASON_LENGTH_MAX]


class Event(Message, frozen=True, array_like=True, gc=False):
    """One event. `subjects`: the nodes (`broker-4`), topics or partitions (`orders-0`) that it is about; of many
    only the first ones.
    """

    number: int
    timestamp_ms: int
    kind: str
    subjects: tuple[str, ...]
    reason: str


class DescribeEventsResponse(Message, frozen=True, array_like=True):
    """The events asked for, the oldest first."""

    events: tuple[Event, ...]


class DescribeEventsRequest(Request[DescribeEventsResponse], frozen=True, array_like=True):
    """The newest `count` events of those with higher numbers than `since`."""

    since: int = NO_EVENT
    count: int = EVENTS_MAX

    def check(self) -> None:
        require(self.since >= NO_EVENT, "since", "the number of an event, or -1", self.since)
        require(0 < self.count <= EVENTS_MAX, "count", f"1 to {EVENTS_MAX}", self.count)


class RecordEventResponse(Message, frozen=True, array_like=True):
    """The number that the event has; -1 where the cluster's `metadata.version` knows no events, so none is kept."""

    number: int


class RecordEventRequest(Request[RecordEventResponse], frozen=True, array_like=True):
    """A node of the cluster has seen or decided something, at a time of its wall clock. An event that is there already,
    the same in all fields, is not recorded again, so a request may be repeated.
    """

    timestamp_ms: int
    kind: str
    subjects: tuple[str, ...]
    reason: str

    @classmethod
    def of_nodes(cls, timestamp_ms: int, kind: str, node_ids: Iterable[int], reason: str) -> Self:
        """About nodes; cuts subjects and reason to their bounds."""
        subjects = tuple(map(node_name, node_ids))[:SUBJECTS_MAX]
        return cls(timestamp_ms, kind, subjects, one_line(reason))

    def check(self) -> None:
        require(0 <= self.timestamp_ms < _TIMESTAMP_MS_MAX, "timestamp_ms", "a time", self.timestamp_ms)
        is_kind = _KIND.fullmatch(self.kind) is not None
        require(is_kind, "kind", "up to 40 of a to z and -", repr(self.kind))
        counts = len(self.subjects)
        require(counts <= SUBJECTS_MAX, "subjects", f"{SUBJECTS_MAX} or fewer", counts)
        for each in self.subjects:
            is_name = 0 < len(each) <= _SUBJECT_LENGTH_MAX and each.isprintable()
            require(is_name, "subjects", "names of nodes, topics or partitions", repr(each))
        is_line = 0 < len(self.reason) <= REASON_LENGTH_MAX and self.reason.isprintable()
        require(is_line, "reason", f"one line of up to {REASON_LENGTH_MAX} characters", repr(self.reason))
