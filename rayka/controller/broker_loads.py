"""The loads that brokers report: soft state of the active controller, a bounded window of reports for each broker.

Loads are not in the metadata log: a new active controller knows the loads after one interval of reports. A report
counts while its broker keeps the epoch in which the report came. An implausible report is ignored. Rayka's own.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rayka.metadata.image import BrokerImage
from rayka.metadata.metadata_records import MetadataRecord
from rayka.protocol.load import (
    BrokerLoad,
    DescribeLoadRequest,
    DescribeLoadResponse,
    LoadReport,
    NamedPartitionLoad,
    at_rest,
    is_plausible,
)
from rayka.shard.shard import Result

if TYPE_CHECKING:
    from rayka.controller.request_context import RequestContext

REPORTS_MAX = 12
_MEANS = (
    "processor_permille", "bytes_in", "records_in", "bytes_out", "records_out",
    "replication_bytes_in", "replication_bytes_out",
)  # fmt: skip
# Fields of a named partition's load: of a fenced broker, and of an active one.
_AT_REST = ("partition", "size_bytes")
_SHARED = ("partition", "is_leader", "size_bytes", "bytes_in", "records_in", "bytes_out", "records_out")
_UNKNOWN_MS = -1


class _Window(NamedTuple):
    """The reports of one process of a broker."""

    broker_epoch: int
    # The oldest report first; 1 to 12 reports.
    reports: "deque[LoadReport]"
    # The monotonic time at which the newest report came.
    last_ms: int
    # The settings that the newest report named, by dotted key.
    started_with: Mapping[str, str]


class BrokerLoads:
    """The windows, by broker. Invariant: at most 12 reports, each of bounded size, for each registered broker."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}

    def __repr__(self) -> str:
        return f"<BrokerLoads of {list(self._windows)}>"

    def on_report(
        self, broker: BrokerImage, report: LoadReport, now_ms: int, started_with: Mapping[str, str]
    ) -> None:
        """Takes in a report that came with a heartbeat. Ignores an implausible report."""
        if not is_plausible(report):
            return
        window = self._current(broker)
        reports = deque[LoadReport](maxlen=REPORTS_MAX) if window is None else window.reports
        reports.append(report)
        self._windows[broker.broker_id] = _Window(broker.broker_epoch, reports, now_ms, started_with)

    def retain(self, brokers: Mapping[int, BrokerImage]) -> None:
        """Forgets all brokers but these, the registered ones."""
        for broker_id in [each for each in self._windows if each not in brokers]:
            del self._windows[broker_id]

    def newest(self, broker: BrokerImage) -> LoadReport | None:
        """The last report of this process; None before the first."""
        window = self._current(broker)
        return None if window is None else window.reports[-1]

    def started_with(self, broker: BrokerImage) -> Mapping[str, str] | None:
        """The settings of `BROKER_KEYS` that the broker's process was started with; None before a report."""
        window = self._current(broker)
        return None if window is None else window.started_with

    def last_ms(self, broker: BrokerImage) -> int:
        """The time of this process's newest report (monotonic ms); -1 before the first."""
        window = self._current(broker)
        return _UNKNOWN_MS if window is None else window.last_ms

    def of(self, broker: BrokerImage, now_ms: int) -> BrokerLoad:
        """The load of the broker: means over the window, weighted by the interval of each report. A fenced broker has
        the load `at_rest`.
        """
        window = self._current(broker)
        if window is None:
            return BrokerLoad(broker.broker_id, _UNKNOWN_MS, _UNKNOWN_MS, LoadReport(0), broker.is_fenced)
        window_ms = sum(each.interval_ms for each in window.reports)
        means = {
            name: sum(getattr(each, name) * each.interval_ms for each in window.reports) // window_ms
            for name in _MEANS
        }
        report = msgspec.structs.replace(window.reports[-1], **means)
        known = at_rest(report) if broker.is_fenced else report
        age_ms = max(0, now_ms - window.last_ms)
        return BrokerLoad(broker.broker_id, age_ms, window_ms, known, broker.is_fenced)

    def _current(self, broker: BrokerImage) -> _Window | None:
        window = self._windows.get(broker.broker_id)
        return window if window is not None and window.broker_epoch == broker.broker_epoch else None


def describe_load(
    context: "RequestContext", request: DescribeLoadRequest
) -> Result[MetadataRecord, DescribeLoadResponse]:
    """Describes the load of every registered broker and of the partitions that brokers named in their newest reports. A
    fenced broker leads nothing and serves no client. Partitions that do not exist, or are not on the broker, are left
    out.
    """
    brokers = context.image.brokers.values()
    wanted = None if request.topics is None else frozenset(request.topics)
    named = [
        each
        for broker in brokers
        for each in _named(context, broker)
        if wanted is None or each.topic in wanted
    ]
    named.sort(key=lambda each: (each.topic, each.partition, each.broker_id))
    loads = tuple(context.loads.of(each, context.now_ms) for each in brokers)
    return Result((), DescribeLoadResponse(loads, tuple(named)))


def _named(context: "RequestContext", broker: BrokerImage) -> Iterator[NamedPartitionLoad]:
    report = context.loads.newest(broker)
    for each in report.partitions if report is not None else ():
        topic = context.image.topics_by_id.get(each.topic_id)
        is_there = topic is not None and 0 <= each.partition < len(topic.partitions)
        if is_there and topic is not None and broker.broker_id in topic.partitions[each.partition].replicas:
            said = {name: getattr(each, name) for name in (_AT_REST if broker.is_fenced else _SHARED)}
            yield NamedPartitionLoad(topic.name, broker_id=broker.broker_id, **said)
