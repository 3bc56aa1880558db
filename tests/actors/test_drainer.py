"""What the supervisor does about machines that Ray drains, with fakes behind the port. Needs no Ray."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest

from rayka.actors.drainer import Drainer
from rayka.client.admin.drained_brokers import (
    DrainStep,
    Mark,
    QuorumLeadership,
    Resign,
    SeenDrains,
    StopDrained,
)
from rayka.errors import UnavailableError
from tests.client.test_drained_brokers import SOON_MS, seen

EMPTY, MARKED, UNMARKED, WITHDRAWN = seen(0), seen(), seen(marks={}), seen(drains={})


class FakePort:
    """Shows what it is told to, and keeps what was done."""

    def __init__(self, *shown: SeenDrains | None) -> None:
        self.shown = deque(shown)
        self.refusals = deque[str | Exception]()
        self.taken: list[DrainStep] = []
        self.recorded: list[tuple[str, tuple[int, ...]]] = []

    async def see(self) -> SeenDrains | None:
        return self.shown.popleft()

    async def take(self, step: DrainStep) -> str:
        self.taken.append(step)
        refusal = self.refusals.popleft() if self.refusals else ""
        if isinstance(refusal, Exception):
            raise refusal
        return refusal

    async def record(self, kind: str, node_ids: tuple[int, ...], reason: str) -> None:
        assert reason
        self.recorded.append((kind, node_ids))


async def until(is_so: Callable[[], bool]) -> None:
    """Gives what runs beside it the turns that it needs."""
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110  # a task of the drainer's own tells of no event
            await asyncio.sleep(0)


def look(drainer: Drainer, count: int) -> list[bool]:
    async def looks() -> list[bool]:
        return [await drainer.look() for _ in range(count)]

    return asyncio.run(looks())


def test_each_decision_is_taken_and_recorded_and_what_drains_is_known() -> None:
    quorum = QuorumLeadership(1, 7, (1, 2))
    port = FakePort(UNMARKED, replace(MARKED, quorum=quorum), MARKED, None)
    drainer = Drainer(port, asyncio.Lock())
    assert look(drainer, 3) == [True, True, False]
    assert [type(each) for each in port.taken] == [Mark, Resign]
    assert port.recorded == [("drain-begun", (1,)), ("drain-resigned", (1,))]
    assert drainer.draining == {1: SOON_MS}
    assert look(drainer, 1) == [False]
    assert drainer.draining == {}


def test_a_step_that_is_refused_is_no_event_and_is_tried_again() -> None:
    port = FakePort(UNMARKED, UNMARKED)
    port.refusals.append("no")
    drainer = Drainer(port, asyncio.Lock())
    assert look(drainer, 2) == [False, True]
    assert len(port.taken) == 2
    assert port.recorded == [("drain-begun", (1,))]


def test_a_step_that_fails_is_tried_again() -> None:
    port = FakePort(UNMARKED, UNMARKED)
    port.refusals.append(UnavailableError("no controller"))
    drainer = Drainer(port, asyncio.Lock())
    with pytest.raises(UnavailableError):
        look(drainer, 1)
    assert look(drainer, 1) == [True]
    assert port.taken[0] == port.taken[1]


# ---- Others that keep the nodes --------------------------------------------------------------------------------------


def test_only_a_stop_waits_for_others_that_keep_the_nodes() -> None:
    quorum = QuorumLeadership(3001, 7, (3001, 3002))
    voting = replace(MARKED, drains={1: SOON_MS, 3001: SOON_MS}, quorum=quorum, actors=(1, 2, 3001, 3002))
    later = replace(EMPTY, drains={1: SOON_MS, 2: SOON_MS})
    port = FakePort(UNMARKED, voting, EMPTY, later, EMPTY)

    async def looks() -> None:
        acting = asyncio.Lock()
        drainer = Drainer(port, acting)
        async with acting:
            assert [await drainer.look() for _ in range(4)] == [True, True, True, True]
            await asyncio.sleep(0)
            assert [type(each) for each in port.taken] == [Mark, Resign, Mark]
        await until(lambda: len(port.taken) == 4)
        assert isinstance(port.taken[-1], StopDrained)
        await until(lambda: port.recorded[-1] == ("drain-stopped", (1,)))

    asyncio.run(looks())


def test_while_a_stop_waits_another_machine_is_emptied() -> None:
    both = {1: SOON_MS, 4: SOON_MS}
    empty = replace(EMPTY, drains=both, marks=both)
    unmarked = replace(empty, marks={1: SOON_MS})
    port = FakePort(EMPTY, unmarked, empty)

    async def looks() -> None:
        acting = asyncio.Lock()
        drainer = Drainer(port, acting)
        async with acting:
            assert [await drainer.look() for _ in range(3)] == [True, True, False]
            assert [type(each) for each in port.taken] == [Mark]
        await until(lambda: len(port.taken) == 2)
        assert port.taken[-1].node_ids == (1,)

    asyncio.run(looks())


def test_a_broker_whose_machine_stays_after_all_is_not_stopped_when_its_turn_comes() -> None:
    port = FakePort(EMPTY, None, EMPTY)

    async def looks() -> None:
        acting = asyncio.Lock()
        drainer = Drainer(port, acting)
        async with acting:
            assert [await drainer.look(), await drainer.look()] == [True, False]
        await asyncio.sleep(0)
        assert await drainer.look(), "the lock is free, and the machine drains once more"
        await until(lambda: bool(port.taken))

    asyncio.run(looks())
    assert [type(each) for each in port.taken] == [StopDrained]


def test_a_stop_that_fails_is_begun_again() -> None:
    port = FakePort(EMPTY, EMPTY)
    port.refusals.append(UnavailableError("no controller"))

    async def looks() -> None:
        drainer = Drainer(port, asyncio.Lock())
        assert await drainer.look()
        await until(lambda: bool(port.taken))
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError):
            await drainer.look()
        assert await drainer.look()
        await until(lambda: len(port.taken) == 2)

    asyncio.run(looks())
