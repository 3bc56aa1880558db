"""The async producer against a scripted cluster: what it does otherwise than the sync one, which is how it waits."""

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest

import rayka
from rayka import RecordMetadata
from rayka.aio import Producer
from rayka.client import io_thread
from rayka.errors import (
    BufferExhausted,
    ClosedError,
    ConfigError,
    ErrorCode,
    RecordTooLarge,
    UnavailableError,
    UnknownTopicOrPartition,
)
from tests.client.support import QUICK, ScriptedCluster

WAIT_S = 60
SMALL = {"buffer_memory": 1 << 16, "linger_ms": 0}
ResultT = TypeVar("ResultT")


def run(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """In a loop of its own, within a bound."""

    async def bounded() -> ResultT:
        async with asyncio.timeout(WAIT_S):
            return await work

    return asyncio.run(bounded())


async def held(cluster: ScriptedCluster) -> None:
    """Returns when a produce request waits."""
    await asyncio.to_thread(cluster.wait_until_held)


# ---- Sending ----


def test_a_send_gives_a_future_that_ends_as_the_place_of_its_record():
    async def work() -> list[RecordMetadata]:
        async with Producer(cluster, **QUICK) as producer:
            sent = [await producer.send("orders", b"%d" % n, partition=1, timestamp_ms=5) for n in range(3)]
            return [await each for each in sent]

    cluster = ScriptedCluster()
    assert run(work()) == [RecordMetadata("orders", 1, n, 5) for n in range(3)]
    assert cluster.values("orders", 1) == [b"0", b"1", b"2"]


def test_many_plain_values_arrive_in_order():
    async def work() -> None:
        async with Producer(cluster, batch_size=4_096) as producer:
            for number in range(5_000):
                await producer.send("orders", b"%d" % number)

    cluster = ScriptedCluster({"orders": 1})
    run(work())
    assert cluster.values("orders", 0) == [b"%d" % number for number in range(5_000)]


def test_it_has_all_methods_of_the_sync_one_with_their_arguments():
    for name, method in inspect.getmembers(rayka.Producer, inspect.isfunction):
        if not name.startswith("_"):
            arguments = inspect.signature(getattr(Producer, name)).parameters
            assert list(arguments) == list(inspect.signature(method).parameters), name


def test_a_send_takes_the_arguments_of_the_sync_producer():
    async def work() -> RecordMetadata:
        async with Producer(ScriptedCluster(), **QUICK) as producer:
            return await (await producer.send("orders", b"v", b"k", [("a", b"1")], 1, 5))

    assert run(work()) == RecordMetadata("orders", 1, 0, 5)


def test_slips_are_said_at_the_line_of_the_caller():
    cluster = ScriptedCluster({"orders": 1})

    async def slips() -> None:
        async with Producer(cluster, **QUICK) as producer:
            await producer.send("orders")
            await producer.send_and_wait("orders")
            await producer.send("orders", b"v", timestamp_ms=1_795_824_000)

    with pytest.warns(UserWarning, match="if it is|if you mean") as caught:
        run(slips())
    assert [warning.filename for warning in caught] == [__file__] * 3


def test_send_and_wait_returns_when_the_log_has_the_record():
    async def work() -> RecordMetadata:
        async with Producer(ScriptedCluster(), **QUICK) as producer:
            return await producer.send_and_wait("orders", b"v", key=b"k")

    assert run(work()).offset == 0


def test_a_batch_is_sent_as_by_the_sync_producer():
    async def work() -> int:
        async with Producer(ScriptedCluster(), **QUICK) as producer:
            future = await producer.send_batch("orders", [b"%d" % n for n in range(100)])
            return sum(each.record_count for each in await future)

    assert run(work()) == 100


def test_a_thousand_deliveries_are_awaited_at_once():
    async def work() -> list[RecordMetadata]:
        async with Producer(ScriptedCluster({"orders": 1})) as producer:
            return await asyncio.gather(*(producer.send_and_wait("orders", b"x") for _ in range(1_000)))

    assert sorted(each.offset for each in run(work())) == list(range(1_000))


def test_a_delivery_that_is_over_is_awaited_without_a_turn_of_the_loop():
    async def work() -> int:
        async with Producer(ScriptedCluster(), **QUICK) as producer:
            future = await producer.send("orders", b"x")
            await future
            turns: list[int] = []
            asyncio.get_running_loop().call_soon(turns.append, 1)
            await future
            return len(turns)

    assert run(work()) == 0


def test_a_producer_is_used_by_several_loops():
    async def use() -> int:
        return (await producer.send_and_wait("orders", b"x", partition=0)).offset

    producer = Producer(ScriptedCluster(), **QUICK)
    assert [run(use()), run(use())] == [0, 1]
    run(producer.close())


def test_the_loop_goes_on_while_the_topic_is_looked_up():
    async def work() -> None:
        cluster.hung.append(1)
        async with Producer(cluster, request_timeout_ms=50, **QUICK) as producer:
            sending = asyncio.ensure_future(producer.send("orders", b"x"))
            await held(cluster)  # another task's turn
            cluster.hung.clear()
            await (await sending)

    cluster = ScriptedCluster()
    run(work())


# ---- Errors ----


def test_errors_are_those_of_the_sync_producer():
    async def work() -> None:
        async with Producer(cluster, **QUICK) as producer:
            with pytest.raises(UnknownTopicOrPartition, match="the nearest name is 'orders'"):
                await producer.send("order", b"x")
            with pytest.raises(UnknownTopicOrPartition, match="partition 9 of topic 'orders' does not exist"):
                await producer.send("orders", b"x", partition=9)
            with pytest.raises(TypeError, match="value: expected bytes or None, found int"):
                await producer.send("orders", 7)
            with pytest.raises(TypeError, match="on_delivery: expected a callable, found int"):
                await producer.send("orders", b"x", on_delivery=7)  # type: ignore[arg-type]
            cluster.answers.append(ErrorCode.MESSAGE_TOO_LARGE)
            with pytest.raises(RecordTooLarge):
                await producer.send_and_wait("orders", b"x")

    cluster = ScriptedCluster()
    run(work())


def test_an_unknown_option_is_said_when_the_producer_is_made():
    with pytest.raises(ConfigError, match=r"nearest known key is 'linger\.ms'"):
        Producer(ScriptedCluster(), lingerms=5)  # type: ignore[call-arg]


def test_a_cluster_that_answers_nothing_is_an_error_within_the_bound():
    async def work() -> None:
        cluster.hung += [1, 2, 3001]
        producer = Producer(cluster, max_block_ms=50, request_timeout_ms=20, **QUICK)
        with pytest.raises(UnavailableError):
            await producer.send("orders", b"x")
        await producer.close()

    cluster = ScriptedCluster()
    run(work())


def test_a_full_buffer_is_awaited_then_said():
    async def work() -> None:
        cluster.hold()
        producer = Producer(cluster, **SMALL, max_block_ms=1_000)
        sent = [await producer.send("orders", bytes(20_000), partition=0) for _ in range(3)]
        with pytest.raises(BufferExhausted, match="stayed full for max_block_ms=1000"):
            await producer.send("orders", bytes(20_000), partition=0)
        cluster.release()
        await producer.close()
        assert all(each.done() for each in sent)

    cluster = ScriptedCluster()
    run(work())


def test_a_send_that_waits_for_memory_lets_other_tasks_go_on():
    async def work() -> None:
        cluster.hold()
        async with Producer(cluster, **SMALL) as producer:
            sending = asyncio.ensure_future(fill(producer))
            await held(cluster)
            assert not sending.done()
            cluster.release()
            await sending

    async def fill(producer: Producer) -> None:
        for number in range(20):
            await producer.send("orders", b"%020000d" % number, partition=0)

    cluster = ScriptedCluster()
    run(work())
    assert len(cluster.values("orders", 0)) == 20


# ---- Cancelling ----


def test_a_cancelled_wait_for_memory_leaves_no_record_and_the_producer_goes_on():
    async def work() -> None:
        cluster.hold()
        async with Producer(cluster, **SMALL) as producer:
            for number in range(3):
                await producer.send("orders", b"%020000d" % number, partition=0)
            waiting = asyncio.ensure_future(producer.send("orders", b"%020000d" % 3, partition=0))
            await held(cluster)
            await asyncio.sleep(0)
            assert waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            cluster.release()
            await producer.send("orders", b"%020000d" % 4, partition=0)

    cluster = ScriptedCluster()
    run(work())
    assert [each[-1:] for each in cluster.values("orders", 0) if each] == [b"0", b"1", b"2", b"4"]


def test_a_cancelled_wait_for_a_topic_ends_at_once_and_the_producer_goes_on():
    async def work() -> None:
        async with Producer(cluster, request_timeout_ms=50, **QUICK) as producer:
            cluster.hung += [1, 2, 3001]
            waiting = asyncio.ensure_future(producer.send("orders", b"x"))
            await held(cluster)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            cluster.hung.clear()
            await producer.send_and_wait("orders", b"y", partition=0)

    cluster = ScriptedCluster()
    run(work())
    assert cluster.values("orders", 0) == [b"y"]


def test_a_cancelled_wait_for_a_delivery_ends_the_wait_only():
    async def work() -> None:
        cluster.hold()
        async with Producer(cluster, **QUICK) as producer:
            future = await producer.send("orders", b"x", partition=0)

            async def wait() -> None:
                await future

            waiting = asyncio.ensure_future(wait())
            await held(cluster)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            cluster.release()
            assert (await future).offset == 0

    cluster = ScriptedCluster()
    run(work())


def test_a_cancelled_close_ends_what_is_under_way():
    async def work() -> None:
        cluster.hold()
        producer = Producer(cluster, **QUICK)
        future = await producer.send("orders", b"x", partition=0)
        closing = asyncio.ensure_future(producer.close())
        await held(cluster)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(ClosedError, match="before the acknowledgement of 1 record"):
            await future

    cluster = ScriptedCluster()
    run(work())


# ---- Callbacks ----


def test_callbacks_run_in_the_loop_and_may_be_coroutines():
    received: list[tuple[int, Any, int]] = []

    async def later(error: Exception | None, metadata: RecordMetadata | None) -> None:
        await asyncio.sleep(0)
        assert metadata is not None
        received.append((metadata.offset, error, threading.get_ident()))

    def at_once(error: Exception | None, metadata: RecordMetadata | None) -> None:
        received.append((-1, type(error), threading.get_ident()))

    async def work() -> None:
        async with Producer(cluster, **QUICK) as producer:
            await producer.send("orders", b"x", partition=0, on_delivery=later)
            await producer.flush()
            cluster.answers.append(ErrorCode.MESSAGE_TOO_LARGE)
            await producer.send("orders", b"x", partition=0, on_delivery=at_once)

    cluster = ScriptedCluster()
    run(work())
    own = threading.get_ident()
    assert received == [(0, None, own), (-1, RecordTooLarge, own)]


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_callback_that_raises_is_raised_by_the_next_flush_and_harms_nothing_else(is_coroutine: bool):
    async def broken_later(*_: object) -> None:
        raise LookupError("my own")

    def broken(*_: object) -> None:
        raise LookupError("my own")

    async def work() -> None:
        async with Producer(ScriptedCluster(), **QUICK) as producer:
            callback = broken_later if is_coroutine else broken
            await producer.send("orders", b"x", on_delivery=callback)
            with pytest.raises(LookupError, match="my own"):
                await producer.flush()
            await producer.send_and_wait("orders", b"y")
            await producer.flush()

    run(work())


def test_a_callback_may_flush_its_own_producer():
    async def work() -> list[int]:
        received: list[int] = []

        async def flush(*_: object) -> None:
            await producer.flush()
            received.append(1)
            over.set()

        over = asyncio.Event()
        async with Producer(ScriptedCluster(), **QUICK) as producer:
            await producer.send("orders", b"x", on_delivery=flush)
            await over.wait()
        return received

    assert run(work()) == [1]


# ---- The end ----


def test_a_callback_of_a_loop_that_was_closed_is_not_waited_for_by_the_next():
    async def send() -> None:
        over = asyncio.get_running_loop().create_future()

        async def endless(*_: object) -> None:
            over.set_result(asyncio.current_task())
            await asyncio.Event().wait()

        await producer.send("orders", b"x", on_delivery=endless)
        abandoned.append(await over)

    abandoned: list[Any] = []
    producer = Producer(ScriptedCluster(), **QUICK)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(send())
    loop.close()
    run(producer.flush())
    run(producer.close())
    abandoned[0]._log_destroy_pending = False  # that is what happened


def test_async_with_delivers_what_lingers():
    async def work() -> None:
        async with Producer(cluster, linger_ms=60_000) as producer:
            await producer.send("orders", b"x", partition=0)

    cluster = ScriptedCluster()
    run(work())
    assert cluster.values("orders", 0) == [b"x"]


def test_a_closed_producer_says_so():
    async def work() -> None:
        producer = Producer(ScriptedCluster(), **QUICK)
        await producer.send("orders", b"x")
        await producer.close()
        await producer.close()
        assert "closed" in repr(producer)
        for call in (
            partial(producer.send, "orders", b"x"),
            partial(producer.send_batch, "orders", [b"x"]),
            producer.flush,
        ):
            with pytest.raises(ClosedError):
                await call()

    run(work())


def test_a_producer_that_was_never_opened_ends_in_silence():
    async def work() -> None:
        producer = Producer(ScriptedCluster())
        await producer.close()
        with pytest.raises(ClosedError, match=r"<aio\.Producer closed>"):
            await producer.send("orders", b"x")

    run(work())


def test_what_close_cannot_deliver_in_time_fails():
    async def work() -> None:
        cluster.hold()
        producer = Producer(cluster, **QUICK)
        future = await producer.send("orders", b"x")
        with pytest.raises(TimeoutError, match="1 records not acknowledged within"):
            await producer.close(timeout=0.05)
        with pytest.raises(ClosedError):
            await future

    cluster = ScriptedCluster()
    run(work())


def test_a_producer_that_is_dropped_open_warns_and_still_delivers():
    async def work() -> None:
        producer = Producer(cluster, linger_ms=60_000)
        future = await producer.send("orders", b"x", partition=0)
        with pytest.warns(ResourceWarning, match=r"unclosed <aio\.Producer cluster=scripted>"):
            del producer
        await future

    cluster = ScriptedCluster()
    run(work())


def test_a_look_for_the_cluster_that_fails_is_repeated_by_the_next_call():
    class Late(ScriptedCluster):
        looks = 0

        def network(self, transport: str = "auto") -> ScriptedCluster:
            self.looks += 1
            if self.looks == 1:
                raise UnavailableError("not yet")
            return self

    async def work() -> None:
        producer = Producer(cluster, **QUICK)
        with pytest.raises(UnavailableError, match="not yet"):
            await producer.send("orders", b"x")
        await producer.send_and_wait("orders", b"x")
        await producer.close()

    cluster = Late()
    run(work())


def test_on_the_io_thread_an_async_client_is_refused_because_it_would_wait_for_itself():
    async def work() -> None:
        with pytest.raises(RuntimeError, match=r"aio\.Producer was called on rayka's IO thread"):
            await Producer(ScriptedCluster()).send("orders", b"x")

    io_thread.run(work, WAIT_S)
