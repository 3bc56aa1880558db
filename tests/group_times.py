"""Which group of tests ends the run, and whether that is because the processors are busy or because it waits."""

from dataclasses import dataclass, field

import psutil
import pytest

_SHOWN = 15


@dataclass
class _Group:
    """When the tests of a group ran, in seconds since the epoch, how long in all, and in which process."""

    begin_s: float
    end_s: float = 0.0
    in_tests_s: float = 0.0
    tests: set[str] = field(default_factory=set)
    workers: set[str] = field(default_factory=set)


class GroupTimes:
    """A plugin of the process that spreads the tests. Prints a line for each group that took long, in seconds since
    the first test began, and the share of processor time that was used meanwhile, by whatever ran on the machine.
    """

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._used = _processor_time()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, test = report.nodeid.partition("::")
        name = test.rpartition("@")[2] if "@" in test.rpartition("]")[2] else file.rpartition("/")[2]
        group = self._groups.setdefault(name, _Group(report.start))
        group.begin_s, group.end_s = min(group.begin_s, report.start), max(group.end_s, report.stop)
        group.in_tests_s += report.duration
        group.tests.add(report.nodeid)
        group.workers.add(getattr(report, "worker_id", "main"))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not terminalreporter.config.getoption("durations") or not self._groups:
            return
        began_s = min(each.begin_s for each in self._groups.values())
        longest = sorted(self._groups.items(), key=lambda item: -item[1].in_tests_s)[:_SHOWN]
        terminalreporter.section(f"longest {len(longest)} groups")
        terminalreporter.write_line("begin    end  in tests  tests  workers")
        for name, group in sorted(longest, key=lambda item: item[1].begin_s):
            span = f"{group.begin_s - began_s:5.0f}  {group.end_s - began_s:5.0f}  {group.in_tests_s:8.0f}"
            workers = " ".join(sorted(group.workers))
            terminalreporter.write_line(f"{span}  {len(group.tests):5}  {workers}  {name}")
        busy, all_ = (now - then for now, then in zip(_processor_time(), self._used, strict=True))
        terminalreporter.write_line(f"{psutil.cpu_count()} processors, {100 * busy / all_:.0f} % busy")


def _processor_time() -> tuple[float, float]:
    """Of all processors together since the machine began: seconds that were used, and all seconds."""
    times = psutil.cpu_times()
    all_ = sum(getattr(times, name) for name in times._fields if not name.startswith("guest"))
    return all_ - times.idle - getattr(times, "iowait", 0.0), all_
