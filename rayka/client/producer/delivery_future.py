"""The futures of a producer: one per `send`, one per `send_batch`.

A future holds a batch and a place in the batch, and no lock or event of its own: a waiting thread registers with the
batch. Kafka: FutureRecordMetadata.
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
    """The result of one record: RecordMetadata or an error, exactly once.

    `result`, `exception`, `done` and `add_done_callback` work as in `concurrent.futures.Future`. The future can also be
    awaited.
    """

    batch: ProducerBatch
    # A value or a `Row` until the batch is sealed; then the record's index in the batch.
    slot: Any
    # The key of a value in `slot`; None once the batch is sealed.
    key: bytes | None = None

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "failed" if self._error() else "acknowledged"
        return f"<DeliveryFuture {self.batch.topic_partition} {state}>"

    def done(self) -> bool:
        """Whether the record was acknowledged or has failed for good."""
        return self.batch.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Returns the record's position in the log. Waits up to `timeout` seconds; None: until the record ends, which
        `delivery_timeout_ms` bounds.

        Raises the error of the delivery, TimeoutError if the delivery is still under way, and RuntimeError on the IO
        thread, where callbacks run.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.metadata()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Returns the error of the delivery, or None; waits like `result`."""
        wait_until_done((self.batch,), timeout)
        return self._error()

    def _error(self) -> Exception | None:
        return self.batch.error_of(self.slot)

    def add_done_callback(self, callback: "Callable[[Self], object]") -> None:
        """Calls `callback(self)` when the record ends: on the IO thread, or at once if the record has ended."""
        if not self.batch.call_when_done(partial(callback, self)):
            callback(self)

    def report_to(self, on_delivery: OnDelivery) -> None:
        """Calls `on_delivery(error, metadata)` when the record ends; one argument is None."""
        self.add_done_callback(partial(_report, on_delivery))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from await_done((self.batch,)).__await__()
        return self.result(0)

    def metadata(self) -> RecordMetadata:
        """The position of an acknowledged record in the log."""
        return self.batch.metadata_of(self.slot)


class BatchRun(NamedTuple):
    """Records of one `send_batch` that went into the same batch."""

    batch: ProducerBatch
    # Index of the first of these records in the batch.
    begin: int
    # Row number of the input's first row in the data given to `send_batch`.
    first_row: int
    # Rows of these records within the input.
    rows: Rows


class BatchFuture:
    """The results of the records of one `send_batch`; like `DeliveryFuture`. Done when all records are."""

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
        """Returns the positions of the records: one entry per run, runs of one partition in the order of the rows.

        Waits and raises as `DeliveryFuture.result`. Raises the first error if there are several; a note on the error
        gives the number of unacknowledged rows, and `failures` lists the rows.
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
        """Returns the first error of the records, or None; waits like `result`."""
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
        """Returns the unacknowledged rows by error; all other rows are in the log. Waits like `result`."""
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
        """Calls `callback(self)` when all records have ended: on the IO thread, or at once if they have ended."""
        when_done(iter(self._batches()), partial(callback, self))

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        yield from await_done(self._batches()).__await__()
        return self.result(0)

    def _batches(self) -> tuple[ProducerBatch, ...]:
        return tuple(dict.fromkeys(each.batch for each in self._runs))


def when_done(batches: Iterator[ProducerBatch], callback: Callback) -> None:
    """Calls back once all batches are done: on the IO thread, or at once. Waits for one batch after the other."""
    for batch in batches:
        if batch.call_when_done(partial(when_done, batches, callback)):
            return
    callback()


def wait_until_done(batches: Sequence[ProducerBatch], timeout: float | None) -> None:
    """Waits until all batches are done; Ctrl-C ends only the wait.

    Raises TimeoutError, and RuntimeError on the IO thread.
    """
    pending = [each for each in batches if not each.is_done]
    if not pending:
        return
    io_thread.refuse("waiting for a delivery")
    if not io_thread.wait_for_call(partial(when_done, iter(pending)), timeout):
        raise _late(pending, timeout)


async def await_done(batches: Sequence[ProducerBatch], timeout_s: float | None = None) -> None:
    """Awaits the end of all batches without blocking the running loop; a cancellation ends only the wait.

    Raises TimeoutError.
    """
    pending = [each for each in batches if not each.is_done]
    if not pending:
        return
    try:
        async with asyncio.timeout(timeout_s):
            await called(partial(when_done, iter(pending)))
    except TimeoutError as error:
        raise _late(pending, timeout_s) from error


def _late(pending: Sequence[ProducerBatch], timeout: float | None) -> TimeoutError:
    """The error of a wait that timed out; names the last error of a try, if a try failed."""
    late = [each for each in pending if not each.is_done]
    cause = next((f"; the last error: {each.last_error}" for each in late if each.last_error), "")
    return TimeoutError(
        f"{sum(map(len, late))} records not acknowledged within {timeout} s; they are still under way{cause}"
    )


def _report(on_delivery: OnDelivery, future: DeliveryFuture) -> None:
    error = future.exception(0)
    on_delivery(error, None if error is not None else future.metadata())
