"""One worker: a member of a group that passes batches to the user's function and commits after its return.

At least once: uncommitted records are delivered again, to this or another worker. A batch whose function raises is
retried with back-off, and is poison after the last retry. `stop` then ends the pool and skips no record; otherwise each
record of the batch is tried alone, and only failing records are skipped.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rayka.client.consumer.consumer import Consumer
from rayka.config.client_config import WorkersConfig
from rayka.errors import ApiError, SerializationError, WorkFailed

_POLL_MS = 200
_BACKOFF_MAX_MS = 10_000

logger = logging.getLogger(__name__)

# A list of `Record`, or a pyarrow.RecordBatch.
Batch = Any


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The progress of one worker since its start."""

    worker_id: int
    partitions: int = 0
    records: int = 0
    batches: int = 0
    retries: int = 0
    poison: int = 0
    busy_s: float = 0.0
    is_ready: bool = True


class _Draining(Exception):
    """Ends the attempts at a failed batch while the worker drains; another worker gets the batch."""


class Worker:
    """One worker. `run` belongs to one thread; any thread may call `drain` and `status`."""

    def __init__(
        self,
        worker_id: int,
        consumer: Consumer,
        work: Callable[[Any], object],
        config: WorkersConfig,
        draining: threading.Event | None = None,
    ) -> None:
        """`draining`: what says that it is to drain, if that may be said before it is made."""
        self._id = worker_id
        self._consumer = consumer
        self._work = work
        self._config = config
        self._draining = draining or threading.Event()
        self._records = self._batches = self._retries = self._poison = 0
        self._busy_s = 0.0

    def __repr__(self) -> str:
        return f"<Worker {self._id} records={self._records} poison={self._poison}>"

    def drain(self) -> None:
        """Makes `run` take no further batch; the current batch is finished and committed."""
        self._draining.set()

    def status(self) -> WorkerStatus:
        return WorkerStatus(
            self._id,
            len(self._consumer.assignment()),
            self._records,
            self._batches,
            self._retries,
            self._poison,
            self._busy_s,
        )

    def run(self) -> None:
        """Works until `drain`. Raises WorkFailed for poison with `stop`, and the consumer's errors."""
        with self._consumer:
            while not self._draining.is_set():
                batch = self._poll()
                if batch is None or not len(batch):
                    continue
                try:
                    self._work_through(batch)
                except _Draining:
                    return
                self._commit()

    # ---- One batch ---------------------------------------------------------------------------------------------------

    def _poll(self) -> Batch | None:
        """Polls the next batch. A record that cannot be deserialized is poison, too."""
        try:
            if self._config.batch == "arrow":
                return self._consumer.poll_arrow(_POLL_MS, self._config.max_records)
            return self._consumer.poll(_POLL_MS, self._config.max_records)
        except SerializationError as error:
            if self._config.on_poison == "stop" or error.topic_partition is None or error.offset is None:
                raise
            self._consumer.seek(error.topic_partition, error.offset + 1)
            self._count_poison(None, error)
            self._commit()  # no other record may come, and this one would wait for ever
            return None

    def _work_through(self, batch: Batch) -> None:
        error = self._attempt(batch)
        if error is not None:
            self._on_poison(batch, error)
        self._records += len(batch)
        self._batches += 1

    def _attempt(self, batch: Batch) -> Exception | None:
        """Calls the function with retries; returns None, or the exception of the last attempt."""
        backoff_ms = self._config.retry_backoff_ms
        failure: Exception | None = None
        for attempt in range(self._config.retries + 1):
            if attempt:
                self._retries += 1
                if self._draining.wait(backoff_ms / 1000):
                    raise _Draining
                backoff_ms = min(2 * backoff_ms, _BACKOFF_MAX_MS)
            begin_s = time.monotonic()
            try:
                self._work(batch)
            except Exception as error:
                failure = error
                logger.warning("%r: attempt %d on %s failed: %r", self, attempt + 1, _place(batch), error)
            else:
                return None
            finally:
                self._busy_s += time.monotonic() - begin_s
        return failure

    def _on_poison(self, batch: Batch, error: Exception) -> None:
        if self._config.on_poison == "stop":
            raise WorkFailed(
                f"{_place(batch)}: the function failed {self._config.retries + 1} times, at last with {error!r};"
                " nothing of it is committed. Mend the function and start again, or pass records over with on_poison"
            ) from error
        if len(batch) == 1:
            self._pass_over(batch, error)
            return
        for single in _singles(batch):
            failure = self._attempt(single)
            if failure is not None:
                self._pass_over(single, failure)

    def _pass_over(self, single: Batch, error: Exception) -> None:
        logger.error("%r passes over %s: %r", self, _place(single), error)
        self._count_poison(single[0] if isinstance(single, list) else single, error)

    def _count_poison(self, record: Any, error: Exception) -> None:
        self._poison += 1
        if callable(self._config.on_poison):
            self._config.on_poison(record, error)

    def _commit(self) -> None:
        try:
            self._consumer.commit()
        except ApiError as error:
            # Another member has the partitions now and gets the batch again.
            logger.warning("%r could not commit: %s", self, error)


def _singles(batch: Batch) -> Iterator[Batch]:
    for place in range(len(batch)):
        yield [batch[place]] if isinstance(batch, list) else batch.slice(place, 1)


def _place(batch: Batch) -> str:
    """The range of the batch, from its first record to its last."""
    if isinstance(batch, list):
        places = [(each.topic, each.partition, each.offset) for each in (batch[0], batch[-1])]
    else:
        columns = [batch[name] for name in ("topic", "partition", "offset")]
        places = [tuple(each[row].as_py() for each in columns) for row in (0, -1)]
    begin, end = (f"{topic}-{partition} offset {offset}" for topic, partition, offset in places)
    return begin if begin == end else f"{begin} to {end}"
