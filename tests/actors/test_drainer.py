"""What the supervisor does about machines that Ray drains, with fakes behind the port. Needs no Ray."""

import asyncio
from collections import deque

import pytest

from rayka.actors.draining.drainer import Drainer
from rayka.client.admin.drain_planner import Mark, Move, Seen, Step
from rayka.errors import UnavailableError
from tests.client.test_drain_planner import SOON_MS, seen, sized, topic

LEADING, LED = seen(topic((1, 2)), marks={}), seen(topic((2, 1)), sizes=sized(5))


class FakePort:
    """Shows what it is told to, and keeps what was done."""

    def __init__(self, *shown: Seen | None) -> None:
        self.shown = deque(shown)
        self.refusals = deque[str | Exception]()
        self.taken: list[Step] = []
        self.recorded: list[tuple[str, tuple[int, ...]]] = []

    async def see(self) -> Seen | None:
        return self.shown.popleft()

    async def take(self, step: Step) -> str:
        self.taken.append(step)
        refusal = self.refusals.popleft() if self.refusals else ""
        if isinstance(refusal, Exception):
            raise refusal
        return refusal

    async def record(self, kind: str, node_ids: tuple[int, ...], reason: str) -> None:
        assert reason
        self.recorded.append((kind, node_ids))


def look(drainer: Drainer, count: int) -> list[bool]:
    async def looks() -> list[bool]:
        return [await drainer.look() for _ in range(count)]

    return asyncio.run(looks())


def test_each_decision_is_taken_and_recorded_and_what_drains_is_known() -> None:
    port = FakePort(LEADING, LED, LED, None)
    drainer = Drainer(port, asyncio.Lock())
    assert look(drainer, 3) == [True, True, False]
    assert [type(each) for each in port.taken] == [Mark, Move]
    assert port.recorded == [("drain-begun", (1,)), ("drain-moves", (1,))]
    assert drainer.draining == {1: SOON_MS}
    assert look(drainer, 1) == [False]
    assert drainer.draining == {}


def test_a_step_that_is_refused_is_no_event_and_is_tried_again() -> None:
    port = FakePort(LED, LED)
    port.refusals.append("t-0: no")
    drainer = Drainer(port, asyncio.Lock())
    assert look(drainer, 2) == [False, True]
    assert len(port.taken) == 2
    assert port.recorded == [("drain-moves", (1,))]


def test_a_step_that_fails_is_tried_again() -> None:
    port = FakePort(LED, LED)
    port.refusals.append(UnavailableError("no controller"))
    drainer = Drainer(port, asyncio.Lock())
    with pytest.raises(UnavailableError):
        look(drainer, 1)
    assert look(drainer, 1) == [True]
    assert port.taken[0] == port.taken[1]
