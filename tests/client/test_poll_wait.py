"""A poll that waits: in which step it ends, and what ends it (G15, G16)."""

import asyncio
import threading
from random import Random
from typing import Any

import pytest

from rayka.client import io_thread
from rayka.client.consumer.fetch_buffer import Fetched
from rayka.client.consumer.fetcher import Fetcher
from rayka.config.client_config import ConsumerConfig
from rayka.errors import CorruptRecord
from rayka.ids import ZERO_ID
from rayka.protocol.fetch import FetchPartitionResult, FetchRequest, FetchResponse
from rayka.protocol.later import Later
from tests.client.test_fetcher import ORDERS, QUICK, START, TIMEOUT_MS, ScriptedBrokers, data

WAIT_S = 10.0


class HeldFetches(ScriptedBrokers):
    """Brokers that hold every fetch until the test ends it: `fetches` has those under way."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches: list[Later[FetchResponse]] = []

    def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if not isinstance(request, FetchRequest):
            return super().call(node_id, request, timeout_ms)
        held: Later[FetchResponse] = Later()
        self.fetches.append(held)
        return held

    async def until_asked(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.fetches) < count:  # noqa: ASYNC110  # there is no event for it
                await asyncio.sleep(0.001)


def answered(next_offset: int) -> FetchResponse:
    return FetchResponse((FetchPartitionResult(ZERO_ID, 0, **data(next_offset)),), session_id=7)


def play(scene: Any) -> None:
    async def main() -> None:
        brokers = HeldFetches()
        fetcher = Fetcher(brokers, ConsumerConfig(**QUICK), Random(1))
        await fetcher.assign([ORDERS])
        try:
            await scene(brokers, fetcher)
        finally:
            await fetcher.close()

    io_thread.run(main, 30)


def test_the_step_that_brings_an_answer_sends_the_next_fetch_and_ends_the_poll() -> None:
    async def scene(brokers: HeldFetches, fetcher: Fetcher) -> None:
        taken: list[Fetched] = []
        polled = fetcher.poll(TIMEOUT_MS, taken.extend)
        await brokers.until_asked(1)
        brokers.fetches[0].end(answered(START + 5))
        assert [each.next_offset for each in taken] == [START + 5]
        assert len(brokers.fetches) == 2, "the next one is under way"
        assert await polled

    play(scene)


def test_all_that_an_answer_brings_is_there_when_the_poll_ends() -> None:
    async def scene(brokers: HeldFetches, fetcher: Fetcher) -> None:
        taken: list[Fetched] = []
        polled = fetcher.poll(TIMEOUT_MS, taken.extend)
        await brokers.until_asked(1)
        brokers.fetches[0].end(answered(START + 5))
        assert await polled
        brokers.fetches[1].end(answered(START + 9))
        fetcher.state.fail(ORDERS, CorruptRecord("behind it"))
        assert await fetcher.poll(TIMEOUT_MS, taken.extend)
        assert [each.next_offset for each in taken] == [START + 5, START + 9], "data before the error"
        with pytest.raises(CorruptRecord, match="behind it"):
            await fetcher.poll(TIMEOUT_MS, taken.extend)

    play(scene)


def test_an_error_ends_a_poll_that_waits() -> None:
    async def scene(brokers: HeldFetches, fetcher: Fetcher) -> None:
        polled = fetcher.poll(TIMEOUT_MS, list)
        await brokers.until_asked(1)
        fetcher.state.fail(ORDERS, CorruptRecord("here"))
        with pytest.raises(CorruptRecord, match="here"):
            await polled

    play(scene)


@pytest.mark.parametrize("end", [Fetcher.interrupt, Fetcher.abandon])
def test_an_interruption_and_a_close_end_a_poll_that_waits_at_once(end: Any) -> None:
    async def scene(brokers: HeldFetches, fetcher: Fetcher) -> None:
        polled = fetcher.poll(TIMEOUT_MS, list)
        await brokers.until_asked(1)
        end(fetcher)
        assert polled.done()
        assert not await polled

    play(scene)


def test_a_poll_that_is_given_up_takes_nothing_and_the_next_gets_it() -> None:
    async def scene(brokers: HeldFetches, fetcher: Fetcher) -> None:
        given_up: list[Fetched] = []
        taken: list[Fetched] = []
        fetcher.poll(TIMEOUT_MS, given_up.extend).cancel()
        polled = fetcher.poll(TIMEOUT_MS, taken.extend)
        await brokers.until_asked(1)
        brokers.fetches[0].end(answered(START + 5))
        assert await polled
        assert (len(given_up), len(taken)) == (0, 1)

    play(scene)


def test_a_poll_without_news_ends_after_its_time() -> None:
    async def scene(brokers: HeldFetches, fetcher: Fetcher) -> None:
        assert not await fetcher.poll(1, list)
        assert len(brokers.fetches) <= 1

    play(scene)


def test_a_thread_that_waits_goes_on_in_the_step_that_brings_its_result() -> None:
    begun: list[Later[str]] = []
    has_begun = threading.Event()

    def work() -> Later[str]:
        begun.append(Later())
        has_begun.set()
        return begun[0]

    results: list[str] = []
    waiting = threading.Thread(target=lambda: results.append(io_thread.run(work, WAIT_S)))
    waiting.start()
    assert has_begun.wait(WAIT_S)
    io_thread.call_soon(lambda: begun[0].end("it"))
    waiting.join(WAIT_S)
    assert results == ["it"]
