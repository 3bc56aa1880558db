"""Events in the metadata log, the history of the cluster: writing, describing, and recording for other nodes.

Events tell incidents of brokers, disks and controllers (`incidents`), and decisions of the cluster itself.

Invariant: the numbers of events rise by one, over all controllers. No event is written while the cluster's
`metadata.version` knows no events. Rayka's own (decision 066).
"""

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from rayka.metadata.image import events_response
from rayka.metadata.metadata_records import EventRecord, MetadataRecord
from rayka.protocol.events import (
    NO_EVENT,
    SUBJECTS_MAX,
    DescribeEventsRequest,
    DescribeEventsResponse,
    RecordEventRequest,
    RecordEventResponse,
    one_line,
)
from rayka.shard.shard import Result

if TYPE_CHECKING:
    from rayka.controller.request_context import RequestContext


class EventKind(StrEnum):
    """The kinds of events that controllers record; other nodes have kinds of their own."""

    BROKER_STARTED = "broker-started"
    BROKER_UNFENCED = "broker-unfenced"
    BROKER_FENCED = "broker-fenced"
    BROKER_CORDONED = "broker-cordoned"
    BROKER_STOPPED = "broker-stopped"
    BROKER_REMOVED = "broker-removed"
    DISK_OFFLINE = "disk-offline"
    DISK_ONLINE = "disk-online"
    CONTROLLER_LEADS = "controller-leads"
    HEAL_BEGUN = "heal-begun"
    HEAL_ENDED = "heal-ended"
    HEAL_STOPPED = "heal-stopped"
    BALANCE_BEGUN = "balance-begun"
    BALANCE_ENDED = "balance-ended"
    BALANCE_CANCELLED = "balance-cancelled"
    DRAIN_MOVES = "drain-moves"
    DRAIN_ENDED = "drain-ended"


class Decision(NamedTuple):
    """An event before it has a number."""

    kind: EventKind
    # The nodes, topics or partitions of the event.
    subjects: tuple[str, ...]
    reason: str


class DecidedEvents:
    """Numbers the events of one request in their order."""

    def __init__(self, context: "RequestContext", *, is_first: bool = False) -> None:
        """`is_first`: the same batch begins a cluster whose `metadata.version` knows events."""
        self._wall_clock_ms = context.wall_clock_ms
        self._has_events = context.image.has_events or is_first
        self._next_number = context.image.next_event_number

    def __repr__(self) -> str:
        return f"<DecidedEvents next={self._next_number}>"

    def records(self, decision: Decision | None) -> list[MetadataRecord]:
        """The record of the decision; none without a decision, or if the cluster has no events."""
        if decision is None or not self._has_events:
            return []
        number, self._next_number = self._next_number, self._next_number + 1
        subjects, reason = decision.subjects[:SUBJECTS_MAX], one_line(decision.reason)
        return [_record(number, self._wall_clock_ms(), decision.kind.value, subjects, reason)]


def _record(number: int, timestamp_ms: int, kind: str, subjects: tuple[str, ...], reason: str) -> EventRecord:
    return EventRecord(number=number, timestamp_ms=timestamp_ms, kind=kind, subjects=subjects, reason=reason)


def describe_events(
    context: "RequestContext", request: DescribeEventsRequest
) -> Result[MetadataRecord, DescribeEventsResponse]:
    """Describes the newest events after a given one."""
    return Result((), events_response(context.image, request))


def record_event(
    context: "RequestContext", request: RecordEventRequest
) -> Result[MetadataRecord, RecordEventResponse]:
    """Records an event of another node, unless it is in the log already. Response: the number of the event."""
    image = context.image
    if not image.has_events:
        return Result((), RecordEventResponse(NO_EVENT))
    wanted = request.timestamp_ms, request.kind, request.subjects, request.reason
    for each in image.events:
        if (each.timestamp_ms, each.kind, each.subjects, each.reason) == wanted:
            return Result((), RecordEventResponse(each.number))
    record = _record(image.next_event_number, *wanted)
    return Result([record], RecordEventResponse(record.number))
