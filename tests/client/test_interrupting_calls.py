"""Code that interrupts its own thread within a call of the producer, as signal handlers and finalizers do: whatever the
instruction, what it sends is sent, in order and once, and what would wait for ever is refused at once.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import rayka
from rayka import Producer
from rayka.client import io_thread
from rayka.client.producer import accumulator
from rayka.errors import ClosedError
from tests.client.support import ScriptedCluster

WAIT_S = 60
STEPS = os.path.join(os.path.dirname(rayka.__file__), "client", "producer") + os.sep
Send = Callable[[Producer, bytes], Any]

SENDS: dict[str, Send] = {
    "plain": lambda producer, value: producer.send("orders", value),
    "with headers": lambda producer, value: producer.send("orders", value, headers=[("h", b"1")]),
    "with a key": lambda producer, value: producer.send("orders", value, key=b"k"),
    "to a partition": lambda producer, value: producer.send("orders", value, partition=0),
    "called back": lambda producer, value: producer.send("orders", value, on_delivery=lambda *_: None),
    "in a batch": lambda producer, value: producer.send_batch("orders", pa.table({"value": [value]})),
}


class InterruptedAt:
    """Runs the handler at the instruction of this number within the producer's modules; `is_over` if there is none."""

    def __init__(self, number: int, handler: Callable[[], object]) -> None:
        self._left = number
        self._handler = handler
        self.is_over = True

    def __enter__(self) -> "InterruptedAt":
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(STEPS):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._left -= 1
            if self._left == 0:
                self.is_over = False
                self._handler()
        return self._trace


def check_order(cluster: ScriptedCluster, sent: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
    """Each record is there once; those before are before, those behind are behind."""
    places = {value: place for place, value in enumerate(cluster.values("orders", 0))}
    assert len(places) == len(cluster.values("orders", 0)) == 4 * len(sent)
    for before, interrupted, within, after in sent:
        assert places[before] < min(places[interrupted], places[within])
        assert max(places[interrupted], places[within]) < places[after]


@pytest.mark.parametrize("inner", [SENDS["plain"], SENDS["with a key"], SENDS["in a batch"]])
@pytest.mark.parametrize("outer", SENDS.values(), ids=SENDS)
def test_a_send_within_a_send_keeps_the_order_wherever_it_comes(outer: Send, inner: Send) -> None:
    numbers = (b"%d" % number for number in count())
    sent: list[tuple[bytes, bytes, bytes, bytes]] = []
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, batch_size=700) as producer:
        for instruction in count(1, 11):
            before, interrupted, within, after = (next(numbers) for _ in range(4))
            inner(producer, before)
            with InterruptedAt(instruction, partial(inner, producer, within)) as interruption:
                outer(producer, interrupted)
            if interruption.is_over:
                inner(producer, within)
            outer(producer, after)
            sent.append((before, interrupted, within, after))
            if interruption.is_over:
                break
        producer.flush(WAIT_S)
    assert len(sent) > 3
    check_order(cluster, sent)


def refused_or_done(call: Callable[[], object], refused: list[str]) -> None:
    try:
        call()
    except TimeoutError as error:
        refused.append(str(error))


@pytest.mark.parametrize("waiting", ["flush", "result", "close", "send to another topic"])
def test_what_waits_within_a_send_ends_or_is_refused_at_once(waiting: str) -> None:
    """With `max_block_ms` and `delivery_timeout_ms` at their defaults, which are minutes."""
    calls: dict[str, Callable[[], object]] = {
        "flush": lambda: producer.flush(),  # noqa: PLW0108  another one each time
        "result": lambda: pending.result(0.001),
        "close": lambda: producer.close(),  # noqa: PLW0108
        "send to another topic": lambda: producer.send(f"topic-{instruction}", b"x"),
    }
    refused: list[str] = []
    held = ScriptedCluster()
    with Producer(held, linger_ms=0) as other:
        held.hold()
        pending = other.send("orders", b"x")
        for instruction in count(1, 12):
            cluster = ScriptedCluster({"orders": 1, f"topic-{instruction}": 1})
            with Producer(cluster, linger_ms=0) as producer, suppress(ClosedError):
                handler = partial(refused_or_done, calls[waiting], refused)
                with InterruptedAt(instruction, handler) as interruption:
                    producer.send("orders", b"x", headers=[("h", b"1")])
            if interruption.is_over:
                break
        held.release()
    assert any("signal handler or a finalizer" in each for each in refused)


def test_a_handler_may_send_so_many_records_at_once_and_is_told_when_it_is_too_many() -> None:
    def handler() -> None:
        with producer._accumulator._lock:  # any step
            for _ in range(accumulator.INTERRUPTING_MAX):
                producer.send("orders", b"x", partition=0, headers=[("h", b"1")])
            with pytest.raises(TimeoutError, match="with the buffer full, was called in a signal handler"):
                producer.send("orders", b"x", partition=0, headers=[("h", b"1")])

    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster) as producer:
        producer.send("orders", b"first", partition=0).result(WAIT_S)
        handler()
    assert len(cluster.values("orders", 0)) == 1 + accumulator.INTERRUPTING_MAX


def test_records_of_a_handler_whose_step_ends_by_an_exception_are_sent_all_the_same() -> None:
    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster) as producer:
        producer.send("orders", b"first", partition=0).result(WAIT_S)
        with suppress(KeyboardInterrupt), producer._accumulator._lock:
            within = producer.send("orders", b"within", partition=0, headers=[("h", b"1")])
            raise KeyboardInterrupt
        assert within.result(WAIT_S).offset == 1


@contextmanager
def settling_interrupted_at(number: int) -> Iterator[list[int]]:
    """Raises KeyboardInterrupt at the point of this number where CPython looks for signals while records of a handler
    are settled: as a function is entered, and as a call into C returns. Gives the number of points that were left.
    """
    left = [number]

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code.co_filename == accumulator.__file__ and event in ("call", "c_return"):
            left[0] -= 1
            if left[0] == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        yield left
    finally:
        sys.setprofile(None)


def test_an_exception_while_records_of_a_handler_are_settled_loses_none_of_them() -> None:
    for number in count(1):
        cluster = ScriptedCluster({"orders": 1})
        with Producer(cluster) as producer:
            producer.send("orders", b"first", partition=0).result(WAIT_S)
            with producer._accumulator._lock:
                within = producer.send("orders", b"within", partition=0, headers=[("h", b"1")])
            with suppress(KeyboardInterrupt), settling_interrupted_at(number) as left:
                producer.send("orders", b"next", partition=0, headers=[("h", b"1")])
            producer.flush(WAIT_S)
            assert within.done()
        assert cluster.values("orders", 0).count(b"within") == 1
        if left[0] > 0:
            return


def test_a_real_signal_handler_sends_and_flushes() -> None:
    """Of some hundred signals each falls where it falls."""
    cluster, refused, calls = ScriptedCluster({"orders": 1}), list[str](), count()

    def handler(*_: object) -> None:
        producer.send("orders", b"%d" % next(calls), headers=[("h", b"1")])
        refused_or_done(partial(producer.flush, 1), refused)

    with Producer(cluster, linger_ms=0) as producer:
        producer.send("orders", b"first").result(WAIT_S)
        former = signal.signal(signal.SIGALRM, handler)
        try:
            for _ in range(300):
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                for _ in range(20):
                    producer.send("orders", b"x", headers=[("h", b"1")])
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, former)
        producer.flush(WAIT_S)
    found = [int(each or b"") for each in cluster.values("orders", 0) if each not in (b"first", b"x")]
    assert found == list(range(next(calls)))


def test_a_step_lock_that_is_gone_is_in_nobodys_way() -> None:
    lock = io_thread.step_lock()
    lock.acquire()
    with pytest.raises(TimeoutError, match="flush was called in a signal handler"):
        io_thread.refuse("flush")
    lock.release()
    io_thread.refuse("flush")
