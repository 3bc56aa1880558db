"""How often a client asks for the leaders of topics with many partitions, on a virtual clock (G18)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

from rayka.client.metadata import ClusterMetadata
from rayka.config.client_config import AdminConfig
from rayka.protocol.membership import MetadataRequest
from rayka.sim.loop import Handle, VirtualLoop
from tests.client.support import BROKER, ScriptedCluster

WAIT_MS = 5_000
MANY = 10_000  # they rest for half a second


class SlowCluster:
    """A scripted one whose brokers take their time for metadata; `questions` are the times and the topics."""

    def __init__(self, answer_s: float, topics: dict[str, int]) -> None:
        self.cluster = ScriptedCluster(topics)
        self.answer_s = answer_s
        self.questions: list[tuple[float, tuple[str, ...]]] = []

    async def node_ids(self) -> Sequence[int]:
        return [BROKER]

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        assert isinstance(request, MetadataRequest)
        now_s = asyncio.get_running_loop().time()
        self.questions.append((round(now_s - 1, 3), request.topics or ()))  # the clock begins at 1 s
        await asyncio.sleep(self.answer_s)
        return await self.cluster.call(node_id, request, timeout_ms)


class CountingLoop(VirtualLoop):
    """Counts the timers that are set: each look at the time is one."""

    def __init__(self) -> None:
        super().__init__()
        self.timer_count = 0

    def call_at_us(self, when_us: int, callback: Callable[..., object], *args: Any, **options: Any) -> Handle:
        self.timer_count += 1
        return super().call_at_us(when_us, callback, *args, **options)


def questions(
    ask: Callable[[ClusterMetadata], Awaitable[object]],
    *,
    loop: VirtualLoop | None = None,
    answer_s: float = 0.1,
    **topics: int,
) -> list[tuple[float, tuple[str, ...]]]:
    """Those that are asked; the topics are known from second 0 on, and asked for again from second 10 on."""
    slow = SlowCluster(answer_s, topics)

    async def main() -> None:
        metadata = ClusterMetadata(slow, "scripted", AdminConfig(), Random(1))
        for name in topics:
            await metadata.topic(name, WAIT_MS)
        slow.questions.clear()
        await asyncio.sleep(11 - asyncio.get_running_loop().time())
        await ask(metadata)

    (loop or VirtualLoop()).run_until_complete(main())
    return slow.questions


async def ask_for_two_seconds(metadata: ClusterMetadata) -> None:
    async def ask() -> None:
        while asyncio.get_running_loop().time() < 13:
            await metadata.refresh_leaders(("orders",))
            await asyncio.sleep(0.01)

    await asyncio.gather(*(ask() for _ in range(10)))


def test_all_callers_that_ask_for_many_partitions_share_a_question_for_each_rest() -> None:
    at_s = [at for at, _ in questions(ask_for_two_seconds, orders=MANY)]
    assert at_s == [10.0, 10.6, 11.2, 11.8, 12.4]


def test_what_takes_longer_than_its_rest_is_not_asked_for_meanwhile() -> None:
    at_s = [at for at, _ in questions(ask_for_two_seconds, answer_s=0.8, orders=MANY)]
    assert at_s == [10.0, 11.3]  # behind an answer that took 0.8 s


def test_a_caller_that_asks_for_several_topics_waits_no_longer_than_callers_that_ask_for_one() -> None:
    waits_s: list[float] = []

    async def ask(metadata: ClusterMetadata, pause_s: float, *names: str) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < 41:
            begun_s = loop.time()
            await metadata.refresh_leaders(names)
            if len(names) > 1:
                waits_s.append(loop.time() - begun_s)
            await asyncio.sleep(pause_s)

    async def all_of_them(metadata: ClusterMetadata) -> None:
        alone = [ask(metadata, 0.08 + 0.007 * number, "ab"[number % 2]) for number in range(6)]
        await asyncio.gather(*alone, ask(metadata, 0.1, "a", "b"))

    found = questions(all_of_them, answer_s=0.01, a=2_000, b=2_000)
    assert max(waits_s) < 0.13  # a rest, a question, and the one before it
    assert len(found) < 2 * 30 / 0.1, "each topic rests all the same"


def test_what_waits_for_a_question_that_takes_long_does_not_look_again_and_again() -> None:
    loop = CountingLoop()

    async def fifty(metadata: ClusterMetadata) -> None:
        loop.timer_count = 0
        first = asyncio.ensure_future(metadata.refresh_leaders(("orders",)))
        await asyncio.sleep(0.1)
        await asyncio.gather(first, *(metadata.refresh_leaders(("orders",)) for _ in range(50)))

    assert len(questions(fifty, loop=loop, answer_s=2.0, orders=100)) == 1
    assert loop.timer_count == 2, "that of the broker that takes two seconds, and the tenth of a second above"


def test_few_partitions_do_not_rest() -> None:
    assert len(questions(ask_for_two_seconds, answer_s=0.0, orders=10)) == 200


def test_another_topic_is_asked_for_while_one_rests() -> None:
    async def both(metadata: ClusterMetadata) -> None:
        await metadata.refresh_leaders(("orders",))
        await asyncio.gather(metadata.refresh_leaders(("orders",)), metadata.refresh_leaders(("returns",)))

    assert questions(both, orders=MANY, returns=3) == [
        (10.0, ("orders",)),
        (10.1, ("returns",)),
        (10.6, ("orders",)),
    ]
