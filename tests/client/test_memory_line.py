"""Those who wait for a producer's memory get it in the order of their waiting; a large record does not starve."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from rayka import Producer
from rayka.aio import Producer as AioProducer
from rayka.client.producer.producer_topics import MemoryLine, MemoryTurn
from rayka.errors import BufferExhausted
from tests.client.support import ScriptedCluster

WAIT_S = 60
OPTIONS: dict[str, Any] = {"buffer_memory": 1 << 16, "batch_size": 8_000, "linger_ms": 0}
SMALL, LARGE = bytes(5_000), bytes(50_000)


def waiting(producer: Producer) -> int:
    return len(producer._accumulator.line._turns)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@contextmanager
def filled(cluster: ScriptedCluster) -> Iterator[Producer]:
    """One whose buffer is full of small records that are not acknowledged yet, and for which another one waits."""
    cluster.hold()
    with Producer(cluster, **OPTIONS) as producer:
        thread = in_thread(lambda: [producer.send("orders", SMALL, partition=0) for _ in range(20)])
        until(lambda: waiting(producer) == 1)
        yield producer
        thread.join(WAIT_S)


def in_thread(send: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_large_record_is_taken_in_its_turn_while_others_send_small_ones() -> None:
    over, cluster = threading.Event(), ScriptedCluster({"orders": 8})

    def send_small(number: int) -> None:
        while not over.is_set():
            producer.send("orders", SMALL, partition=number % 8)

    with Producer(cluster, **OPTIONS) as producer:
        threads = [in_thread(lambda number=number: send_small(number)) for number in range(12)]
        until(lambda: waiting(producer) > 3)
        sent = [producer.send("orders", LARGE, partition=number) for number in range(8)]
        over.set()
        for each in threads:
            each.join(WAIT_S)
        assert all(each.result(WAIT_S) for each in sent)


def test_records_that_wait_for_memory_are_taken_in_the_order_of_their_waiting() -> None:
    cluster = ScriptedCluster({"orders": 2})
    with filled(cluster) as producer:
        values = [LARGE, SMALL, LARGE, LARGE, SMALL, SMALL]
        threads = []
        for number, value in enumerate(values):
            mark = b"%d" % number
            threads.append(
                in_thread(lambda value=value, mark=mark: producer.send("orders", mark + value, partition=1))
            )
            until(lambda number=number: waiting(producer) == number + 2)
        cluster.release()
        for each in threads:
            each.join(WAIT_S)
    assert [int((each or b"")[:1]) for each in cluster.values("orders", 1)] == list(range(6))


def test_a_record_for_which_there_is_memory_waits_behind_a_larger_one() -> None:
    cluster = ScriptedCluster({"orders": 2})
    with Producer(cluster, **OPTIONS) as producer:
        producer.send("orders", b"first", partition=0).result(WAIT_S)
        cluster.hold()
        for _ in range(8):
            producer.send("orders", SMALL, partition=0)
        large = in_thread(lambda: producer.send("orders", b"1" + LARGE, partition=1))
        until(lambda: waiting(producer) == 1)
        small = in_thread(lambda: producer.send("orders", b"2" + SMALL, partition=1))
        until(lambda: waiting(producer) == 2 or not small.is_alive())
        assert small.is_alive()
        cluster.release()
        large.join(WAIT_S)
        small.join(WAIT_S)
    assert [(each or b"")[:1] for each in cluster.values("orders", 1)] == [b"1", b"2"]


def test_a_wait_in_vain_is_in_nobodys_way() -> None:
    cluster = ScriptedCluster({"orders": 2})
    with Producer(cluster, **OPTIONS, max_block_ms=300) as producer:
        producer.send("orders", SMALL, partition=0).result(WAIT_S)
        cluster.hold()
        with pytest.raises(BufferExhausted):
            list(map(partial(producer.send, "orders", partition=0), [SMALL] * 20))
        cluster.release()
        producer.flush(WAIT_S)
        assert waiting(producer) == 0
        assert producer.send("orders", LARGE, partition=1).result(WAIT_S)


def test_an_async_send_waits_in_the_same_line() -> None:
    async def work() -> list[bytes]:
        async with AioProducer(cluster, **OPTIONS) as producer:
            await producer.send_and_wait("orders", SMALL, partition=0)
            cluster.hold()
            first = [asyncio.ensure_future(producer.send("orders", SMALL, partition=0)) for _ in range(20)]
            core = producer._core
            assert core is not None
            await asyncio.to_thread(until, lambda: waiting(core) > 0)
            later = [
                asyncio.ensure_future(producer.send("orders", b"%d" % number + value, partition=1))
                for number, value in enumerate([LARGE, SMALL, LARGE, SMALL])
            ]
            await asyncio.sleep(0)
            later[1].cancel()
            cluster.release()
            await asyncio.gather(*first, *later, return_exceptions=True)
            await producer.flush()
        return [(each or b"")[:1] for each in cluster.values("orders", 1)]

    cluster = ScriptedCluster({"orders": 2})
    assert asyncio.run(work()) == [b"0", b"2", b"3"]


def test_the_next_is_called_when_the_first_leaves_without_memory() -> None:
    line, called = MemoryLine(threading.RLock()), list[str]()
    first, second = MemoryTurn(), MemoryTurn()
    line.join(first)
    line.join(second)
    line.call_on_news(first, line.news_count, lambda: called.append("first"))
    line.call_on_news(second, line.news_count, lambda: called.append("second"))
    line.leave(first)
    assert called == ["second"]
    line.current = second
    assert line.may_take


def test_news_between_an_attempt_and_its_wait_are_not_missed() -> None:
    line, called = MemoryLine(threading.RLock()), list[str]()
    first, second = MemoryTurn(), MemoryTurn()
    line.join(first)
    line.join(second)
    seen = line.news_count  # the second tries here, in vain
    line.leave(first)
    line.call_on_news(second, seen, lambda: called.append("second"))
    assert called == ["second"]


def test_a_turn_whose_owner_is_gone_is_in_nobodys_way() -> None:
    line = MemoryLine(threading.RLock())
    lost, second = MemoryTurn(), MemoryTurn()
    line.join(lost)
    line.join(second)
    line.current = second
    assert not line.may_take
    del lost
    assert line.may_take
