"""What brokers have said of their load: soft state, a bounded window for each, known to the active controller only.

Nothing of it is in the metadata log: a new active controller knows it anew after one interval of reports. A report
counts while its broker has the epoch in which it came, and only if a broker can be meant by it. Rayka's own.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rayka.metadata.image import BrokerImage
from rayka.protocol.load import BrokerLoad, LoadReport, at_rest, is_plausible

REPORTS_MAX = 12
_MEANS = (
    "processor_permille", "bytes_in", "records_in", "bytes_out", "records_out",
    "replication_bytes_in", "replication_bytes_out",
)  # fmt: skip
_UNKNOWN_MS = -1


class _Window(NamedTuple):
    """The reports of one process, the oldest first, and when the newest came."""

    broker_epoch: int
    reports: "deque[LoadReport]"
    last_ms: int
    started_with: Mapping[str, str]


class BrokerLoads:
    """The windows, by broker. Invariant: at most 12 reports of each broker that is registered, each of bounded size."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}

    def __repr__(self) -> str:
        return f"<BrokerLoads of {list(self._windows)}>"

    def on_report(
        self, broker: BrokerImage, report: LoadReport, now_ms: int, started_with: Mapping[str, str]
    ) -> None:
        """A report has come with a heartbeat; one that no broker can mean changes nothing."""
        if not is_plausible(report):
            return
        window = self._current(broker)
        reports = deque[LoadReport](maxlen=REPORTS_MAX) if window is None else window.reports
        reports.append(report)
        self._windows[broker.broker_id] = _Window(broker.broker_epoch, reports, now_ms, started_with)

    def retain(self, brokers: Mapping[int, BrokerImage]) -> None:
        """Forgets brokers that are not registered any more."""
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
        """When that came; -1 before the first."""
        window = self._current(broker)
        return _UNKNOWN_MS if window is None else window.last_ms

    def of(self, broker: BrokerImage, now_ms: int) -> BrokerLoad:
        """Means over the window, weighted by the interval of each report; a fenced broker is `at_rest`."""
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
