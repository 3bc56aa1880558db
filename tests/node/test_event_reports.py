"""What a process has seen is recorded as soon as a controller takes it, in its order, and bounded."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from rayka.errors import DiskFull, InvalidRequest, UnavailableError
from rayka.node.controller_link import WAITING_MAX, EventReports
from rayka.protocol.events import RecordEventRequest, RecordEventResponse
from tests.node.log_support import run
from tests.testing.virtual import VirtualCluster


class Controller:
    """Takes events, unless it refuses with an error."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked_count = 0
        self.recorded: list[RecordEventRequest] = []

    async def __call__(self, request: RecordEventRequest) -> RecordEventResponse:
        self.asked_count += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.recorded.append(request)
        return RecordEventResponse(len(self.recorded))


class Reporting:
    """Reports that run, and the time that they go by."""

    def __init__(self) -> None:
        self.controller, self.now_ms = Controller(), 1_000
        self.reports = EventReports(self.controller, lambda: self.now_ms)

    async def go_on(self, seconds: float = 3) -> None:
        task = asyncio.ensure_future(self.reports.run())
        await asyncio.sleep(seconds)
        task.cancel()


def reporting(scenario: Any) -> None:
    async def main() -> None:
        await scenario(Reporting())

    run(cast("Coroutine[Any, Any, None]", main()))


def test_events_wait_for_a_controller_with_the_time_at_which_they_were_seen() -> None:
    async def scenario(reporting: Reporting) -> None:
        reporting.controller.error = UnavailableError("no quorum")
        reporting.reports.tell("process-ended", (2,), "process 12 was killed")
        reporting.now_ms = 5_000
        reporting.reports.tell("machine-lost", (3, 3001), "gone\nfor good")
        await reporting.go_on()
        assert reporting.controller.recorded == []
        reporting.controller.error = None
        await reporting.go_on()
        assert reporting.controller.recorded == [
            RecordEventRequest(1_000, "process-ended", ("broker-2",), "process 12 was killed"),
            RecordEventRequest(5_000, "machine-lost", ("broker-3", "controller-3001"), "gone for good"),
        ]
        for each in reporting.controller.recorded:
            each.check()

    reporting(scenario)


def test_what_a_controller_refuses_for_good_is_dropped() -> None:
    async def scenario(reporting: Reporting) -> None:
        reporting.controller.error = InvalidRequest("an older controller")
        reporting.reports.tell("process-ended", (2,), "one")
        await reporting.go_on()
        reporting.controller.error = None
        reporting.reports.tell("process-ended", (2,), "two")
        await reporting.go_on()
        assert [each.reason for each in reporting.controller.recorded] == ["two"]

    reporting(scenario)


def test_the_newest_events_are_kept_where_none_takes_them() -> None:
    async def scenario(reporting: Reporting) -> None:
        for number in range(WAITING_MAX + 5):
            reporting.reports.tell("process-ended", (2,), f"{number}")
        await reporting.go_on()
        assert [each.reason for each in reporting.controller.recorded] == [
            f"{number}" for number in range(5, WAITING_MAX + 5)
        ]

    reporting(scenario)


def test_nothing_is_sent_while_nothing_happens() -> None:
    async def scenario(reporting: Reporting) -> None:
        await reporting.go_on(60 * 0.9)
        assert reporting.controller.asked_count == 0

    reporting(scenario)


def test_a_full_disk_that_nobody_stands_in_for_is_told_of_and_that_it_has_room_again() -> None:
    """The controller hears of it by no heartbeat, for nothing is offline: its leaders refuse appends, and are read."""
    cluster = VirtualCluster()

    def told() -> list[tuple[str, tuple[str, ...], str]]:
        events = cluster.sim.ledger.newest_image.events
        return [(each.kind, each.subjects, each.reason) for each in events if each.kind.startswith("disk-")]

    broker = cluster.sim.cluster.machines[1].broker
    assert broker is not None
    assert broker.observed is not None
    directories = broker.observed.directories
    (directory,) = directories.all
    directory.on_full(DiskFull("no space left on device"))
    cluster.until(lambda: len(told()) == 2)
    full, online = told()
    reason = f"{directory.path} takes no writes: no space left on device; what is there is read"
    assert full == ("disk-full", ("broker-1",), reason)
    assert online == ("disk-online", ("broker-1",), f"{directory.path} takes writes again")
    cluster.sim.close()
