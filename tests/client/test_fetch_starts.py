"""Where partitions without a position begin: what a look-up may still change when its answer comes (G12, G16)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rayka.client.consumer.fetch_loop import FetchStarts
from rayka.client.consumer.fetch_state import FetchState
from rayka.client.leader_calls import LeaderCalls
from rayka.errors import ErrorCode
from rayka.ids import NO_OFFSET, TopicPartition
from tests.client.offset_support import AT_A, AT_B, SMALL_FETCHES, A, Brokers, play

SOUGHT = 77
TIMEOUT_MS = 60_000


class Starting:
    """A consumer of both partitions that begins to read, and what its application is told."""

    def __init__(self, brokers: Brokers, leaders: LeaderCalls) -> None:
        self.brokers = brokers
        self.state = FetchState(SMALL_FETCHES)
        self.state.assign([AT_A, AT_B])
        self.woken_count = 0
        self.starts = FetchStarts(
            self.state,
            leaders,
            TIMEOUT_MS,
            self._wake,
        )

    def _wake(self) -> None:
        self.woken_count += 1

    def seek_once_asked(self) -> None:
        """Seeks in the first partition between the first question and its answer."""

        def seek() -> None:
            self.brokers.on_asked = lambda: None
            self.state.seek(AT_A, SOUGHT)

        self.brokers.on_asked = seek

    def position(self, topic_partition: TopicPartition) -> int:
        ticket = self.state.ticket(topic_partition)
        assert ticket is not None, topic_partition
        return ticket.fetch_offset


def start(scene: Callable[[Starting], Coroutine[Any, Any, None]]) -> None:
    brokers = Brokers()
    play(brokers, lambda leaders: scene(Starting(brokers, leaders)))


async def look_up(starting: Starting) -> None:
    begun = starting.starts.begin()
    assert begun is not None
    await begun


def test_a_start_that_was_found_is_the_position_and_wakes_the_fetcher() -> None:
    async def scene(starting: Starting) -> None:
        await look_up(starting)
        assert (starting.position(AT_A), starting.position(AT_B)) == (10, 11)
        assert starting.woken_count > 0
        assert starting.starts.begin() is None

    start(scene)


@pytest.mark.parametrize("offset", [10, NO_OFFSET])
def test_a_seek_stands_against_the_answer_of_an_earlier_look_up(offset: int) -> None:
    async def scene(starting: Starting) -> None:
        starting.brokers.offsets[0] = offset
        starting.seek_once_asked()
        await look_up(starting)
        assert starting.position(AT_A) == SOUGHT

    start(scene)


def test_a_refused_look_up_is_no_error_of_a_partition_that_was_sought_meanwhile() -> None:
    async def scene(starting: Starting) -> None:
        starting.brokers.refusals[A] = [ErrorCode.INVALID_REQUEST]
        starting.seek_once_asked()
        await look_up(starting)
        assert not starting.state.buffer.has_news()

    start(scene)


def test_a_refused_look_up_is_an_error_of_its_partition() -> None:
    async def scene(starting: Starting) -> None:
        starting.brokers.refusals[A] = [ErrorCode.INVALID_REQUEST]
        await look_up(starting)
        assert starting.state.buffer.error(AT_A) is not None
        assert starting.state.buffer.error(AT_B) is None

    start(scene)


def test_a_partition_that_is_to_begin_elsewhere_is_looked_up_again_once() -> None:
    async def scene(starting: Starting) -> None:
        starting.brokers.silent = [A]
        first = asyncio.get_running_loop().create_task(look_up(starting))
        await asyncio.sleep(0.05)
        assert starting.starts.begin() is None  # both are asked for
        starting.state.seek_to_timestamp(AT_A, 123)
        again = starting.starts.begin()
        assert again is not None
        second = asyncio.get_running_loop().create_task(again)
        await first
        assert starting.starts.begin() is None  # the second is under way
        second.cancel()

    start(scene)


def test_a_reset_is_logged_with_where_reading_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(starting: Starting) -> None:
        starting.state.seek(AT_A, SOUGHT)
        ticket = starting.state.ticket(AT_A)
        assert ticket is not None
        assert starting.state.reset(ticket)
        await look_up(starting)
        assert starting.position(AT_A) == 10

    start(scene)
    assert [each.getMessage() for each in caplog.records if each.name.endswith("fetch_loop")] == [
        f"{AT_A}: offset {SOUGHT} is out of range; reading goes on at offset 10, the earliest, "
        "as auto_offset_reset says"
    ]
