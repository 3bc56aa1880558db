"""The futures of a producer: one per `send`, one per `send_batch`. They hold a batch and a place in it, and wait for
nothing of their own: a waiting thread registers with the batch. Kafka: FutureRecordMetadata.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias

import msgspec
import numpy as np

from rayka.client import io_thread
from rayka.client.other_loops import called
from rayka.client.producer.acknowledgement import BatchFailure, BatchMetadata, RecordMetadata
from rayka.client.producer.arrow_input import Rows
from rayka.client.producer.producer_batch import Callback, ProducerBatch

OnDelivery: TypeAlias = Callable[[Exception | None, RecordMetadata | None], object]


class DeliveryFuture(msgspec.Struct, eq=False, gc=False):
    """The fate of one record: ends as RecordMetadata or as an error, exactly once.

    `result`, `exception`, `done` and `add_done_callback` are as in `concurrent.futures.Future`; it can be awaited too.
    """

    batch: ProducerBatch
    slot: Any  # a value or a `Row`, until its batch is sealed; then its index there
    key: bytes | None = None  # of a value, until then

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "failed" if self._error() else "acknowledged"
        return f"<DeliveryFuture {self.batch.topic_partition} {state}>"

    def done(self) -> bool:
        """Whether the record was acknowledged or has failed for good."""
        return self.batch.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is in the log; waits up to `timeout` seconds, by default for what `delivery_timeout_ms`
        allows.

        Raises what the delivery failed with, TimeoutError when it is still under way, and RuntimeError on the IO
        thread, where callbacks run.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.metadata()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """What the delivery failed with, or None; waits like `result`."""
        wait_until_done((self.batch,), timeout)
        return self._error()

    def _error(self) -> Exception | None:
        return self.batch.error_of(self.slot)

    def add_done_callback(self, callback: "Callable[[Self], object]") -> None:
        """Calls `callback(self)` at the end: on the IO thread, or at once if it has come already."""
        if not self.batch.call_when_done(partial(callback, self)):
            callback(self)

    def report_to(self, on_delivery: OnDelivery) -> None:
        """Calls `on_delivery(error, metadata)` at the end, one of them None."""
        self.add_done_callback(partial(_report, on_delivery))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from await_done((self.batch,)).__await__()
        return self.result(0)

    def metadata(self) -> RecordMetadata:
        """Where the record is, once it was acknowledged."""
        return self.batch.metadata_of(self.slot)


class BatchRun(NamedTuple):
    """Records of one `send_batch` that went into one batch. `begin`: the index of the first one there; `rows`: their
    rows within an input; `first_row`: the number of that input's first row.
    """

    batch: ProducerBatch
    begin: int
    first_row: int
    rows: Rows


class BatchFuture:
    """The fate of the records of one `send_batch`; like `DeliveryFuture`, and done when all of them are."""

    __slots__ = ("_runs",)

    def __init__(self, runs: "Sequence[BatchRun]") -> None:
        self._runs = runs

    def __repr__(self) -> str:
        pending = sum(not each.batch.is_done for each in self._runs)
        return f"<BatchFuture runs={len(self._runs)} pending={pending}>"

    def done(self) -> bool:
        """Whether every record was acknowledged or has failed for good."""
        return all(each.batch.is_done for each in self._runs)

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Where the records are: one entry for each run of them, runs of one partition in the order given.

        Waits and raises as `DeliveryFuture.result`. An error is the first of perhaps several; a note at it says how
        many rows were not acknowledged, and `failures` which.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return [
            BatchMetadata(each.batch.topic, partition, base_offset, run_count)
            for each in self._runs
            for partition, base_offset, run_count in each.batch.runs(each.begin, len(each.rows))
        ]

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The first error among them, or None; waits like `result`."""
        failures = self.failures(timeout)
        if not failures:
            return None
        error, total = failures[0].error, sum(len(each.rows) for each in self._runs)
        count = sum(len(each.rows) for each in failures)
        first = failures[0].rows[0]
        what = f"{count:,} of {total:,} rows of a send_batch were not acknowledged"
        note = f"{what}, the first is row {first}; `failures` of its future has all"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        return error

    def failures(self, timeout: float | None = None) -> list[BatchFailure]:
        """Which rows were not acknowledged, and why; all others are in the log. Empty when all are.

        Waits like `result`.
        """
        wait_until_done(self._batches(), timeout)
        by_error: dict[int, tuple[Exception, list[np.ndarray]]] = {}
        for batch, begin, first_row, rows in self._runs:
            numbers = None
            for indexes, error in batch.failures(begin, len(rows)):
                numbers = np.asarray(rows) + first_row if numbers is None else numbers
                by_error.setdefault(id(error), (error, []))[1].append(numbers[indexes - begin])
        found = [
            BatchFailure(error, np.sort(np.concatenate(each)).tolist()) for error, each in by_error.values()
        ]
        return sorted(found, key=lambda each: each.rows[0])

    def add_done_callback(self, callback: "Callable[[Self], object]") -> None:
        """Calls `callback(self)` when all is over: on the IO thread, or at once if it is already."""
        when_done(iter(self._batches()), partial(callback, self))

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        yield from await_done(self._batches()).__await__()
        return self.result(0)

    def _batches(self) -> tuple[ProducerBatch, ...]:
        return tuple(dict.fromkeys(each.batch for each in self._runs))


def when_done(batches: Iterator[ProducerBatch], callback: Callback) -> None:
    """Calls back once all batches are done: on the IO thread, or at once. Waits for one after the other."""
    for batch in batches:
        if batch.call_when_done(partial(when_done, batches, callback)):
            return
    callback()


def wait_until_done(batches: Sequence[ProducerBatch], timeout: float | None) -> None:
    """Waits for all; Ctrl-C ends the wait and nothing else. Raises TimeoutError, and RuntimeError on the IO thread."""
    pending = [each for each in batches if not each.is_done]
    if not pending:
        return
    io_thread.refuse("waiting for a delivery")
    if not io_thread.wait_for_call(partial(when_done, iter(pending)), timeout):
        raise _late(pending, timeout)


async def await_done(batches: Sequence[ProducerBatch], timeout_s: float | None = None) -> None:
    """As `wait_until_done`, in a running loop, which goes on meanwhile; cancelled, it ends this wait only."""
    pending = [each for each in batches if not each.is_done]
    if not pending:
        return
    try:
        async with asyncio.timeout(timeout_s):
            await called(partial(when_done, iter(pending)))
    except TimeoutError as error:
        raise _late(pending, timeout_s) from error


def _late(pending: Sequence[ProducerBatch], timeout: float | None) -> TimeoutError:
    """The error of a wait that ended. Names the last error of a try, if there was one."""
    late = [each for each in pending if not each.is_done]
    cause = next((f"; the last error: {each.last_error}" for each in late if each.last_error), "")
    return TimeoutError(
        f"{sum(map(len, late))} records not acknowledged within {timeout} s; they are still under way{cause}"
    )


def _report(on_delivery: OnDelivery, future: DeliveryFuture) -> None:
    error = future.exception(0)
    on_delivery(error, None if error is not None else future.metadata())
