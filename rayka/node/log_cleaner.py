"""Compacts the logs of one broker in the background, those with the most to gain first (F20, F26-F28).

Invariants: a log has one cleaning at a time. A cleaning is given up as soon as its log is truncated, deleted, moved,
failed, or not compacted any more. A log that cannot be cleaned is named with the reason, and the others go on. Between
two slices of work everything else has its turn, and the bytes that all cleanings read and write stay below
`log.cleaner.io.max.bytes.per.second`.

Kafka: `LogCleaner`, `LogCleanerManager`, `Throttler`. Kafka's threads are tasks here: `log.cleaner.threads` logs are
cleaned at once, and share `log.cleaner.dedupe.buffer.size`.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from rayka import clock
from rayka.cleaner.compaction import (
    FAILURES,
    Cleanable,
    CleaningFailed,
    Compaction,
    SyncNeeded,
    Turns,
    cleanable,
)
from rayka.cleaner.file_cleaning import CleaningAborted, CleaningSettings, SegmentGroup, Step
from rayka.config.broker_config import BrokerConfig
from rayka.errors import DiskFull, PassingStorageError, StorageError
from rayka.log.log import Log
from rayka.log.log_directory import LogDirectory
from rayka.node.data_directories import SPARE_BYTES
from rayka.node.replica import Replica, ReplicaOwner
from rayka.node.settings import NodeSettings
from rayka.node.tasks import LOOK_MS, Pace, Repeats, in_turns
from rayka.ports import JobDied, RunningJob
from rayka.protocol.topics import LastCleaning, LogCleaning

_SECRET_BYTES = 32
# The cost of a look at a log besides its segments, in segments.
_SEGMENTS_PER_LOOK = 10
_logger = logging.getLogger(__name__)


def weight_of(replica: Replica) -> int:
    """The cost of a look at the replica's log, for `in_turns`: a look goes through all segments."""
    return _SEGMENTS_PER_LOOK + len(replica.partition.log.segments)


class _Chosen(NamedTuple):
    replica: Replica
    log: Log
    part: Cleanable

    def is_here(self) -> bool:
        """True while the log is the one of its partition here."""
        directory = self.replica.directory
        return directory.failure is None and directory.logs.get(self.replica.topic_partition) is self.log

    def is_wanted(self) -> bool:
        """True while the log is here, and its topic is compacted."""
        return self.is_here() and self.replica.partition.config.is_compacted


class LogCleaner:
    """The cleanings of one broker. `config` may change at any time."""

    def __init__(
        self,
        settings: NodeSettings,
        owner: ReplicaOwner,
        on_failed: Callable[[LogDirectory, StorageError], None],
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._on_failed = on_failed
        self._repeats = Repeats(_logger)
        self._uncleanable: dict[Log, str] = {}
        # Why logs wait: for room on the disk, or for a process that lives.
        self._waiting: dict[Log, str] = {}
        self._last: dict[Log, LastCleaning] = {}
        # When a log whose last cleaning ended early may be cleaned again.
        self._not_before_ms: dict[Log, int] = {}
        # The logs that are being cleaned.
        self._cleaned: dict[Log, None] = {}
        self.config: BrokerConfig = settings.config
        self._pace = Pace(lambda: self.config.log_cleaner_io_max_bytes_per_second)
        # True for a replica whose log a copy will replace.
        self.is_paused: Callable[[Replica], bool] = lambda _: False

    def problems(self) -> list[str]:
        """Why logs cannot be cleaned, one line each."""
        return list(self._uncleanable.values())

    def cleaning(self, replica: Replica) -> LogCleaning | None:
        """The state of the replica's log; None when it is not compacted. Costs `weight_of`."""
        partition, log = replica.partition, replica.partition.log
        if not partition.config.is_compacted:
            return None
        part = cleanable(log, partition.high_watermark, self._settings.wall_clock_ms())
        return LogCleaning(part.clean_bytes, part.cleanable_bytes, self._problem(log), self._last.get(log))

    def _problem(self, log: Log) -> str:
        if not self.config.log_cleaner_enable:
            return "log.cleaner.enable is false on this broker"
        if not self.config.log_cleaner_threads:
            return "log.cleaner.threads is 0 on this broker"
        return self._uncleanable.get(log) or self._waiting.get(log, "")

    async def run(self) -> None:
        """Cleans logs that are due, for ever."""
        while self.config.log_cleaner_enable:
            count = self.config.log_cleaner_threads
            await asyncio.gather(*[self._work(count) for _ in range(max(1, count))])

    async def _work(self, count: int) -> None:
        """Cleans one log after another, as one of `count` workers, until the configuration wants another number."""
        while self.config.log_cleaner_threads == count:
            chosen = await self._filthiest() if count else None
            if chosen is None:
                await self._back_off(count)
            else:
                await self._clean(chosen)

    async def _back_off(self, count: int) -> None:
        """Waits as long as the configuration says, which may change during the wait."""
        begin_ms, left_ms = clock.now_ms(), max(1, self.config.log_cleaner_backoff_ms)
        while left_ms > 0 and self.config.log_cleaner_threads == count:
            await asyncio.sleep(min(LOOK_MS, left_ms) / 1000)
            left_ms = begin_ms + self.config.log_cleaner_backoff_ms - clock.now_ms()

    # ---- Choice ------------------------------------------------------------------------------------------

    async def _filthiest(self) -> _Chosen | None:
        """The log with the largest share of bytes that were never cleaned, of those that are due (F20).

        A log whose cleaning ended early, for example on a full disk, is passed over for as long as that cleaning took:
        else it would be tried again and again in the place of the others.
        """
        replicas = self._owner.replicas
        logs = {each.partition.log for each in replicas}
        for known in (self._uncleanable, self._waiting, self._last, self._not_before_ms):
            for log in [each for each in known if each not in logs]:
                del known[log]
        looked_at = in_turns(replicas, weigh=weight_of)
        found = [each async for replica in looked_at if (each := self._choice(replica)) is not None]
        now_ms = clock.now_ms()
        free = [
            each
            for each in found
            if each.log not in self._cleaned and self._not_before_ms.get(each.log, 0) <= now_ms
        ]
        return max(free, key=lambda each: each.part.dirty_ratio, default=None)

    def _choice(self, replica: Replica) -> _Chosen | None:
        """The log and its cleanable part; None where no cleaning is due, or possible."""
        partition, log = replica.partition, replica.partition.log
        is_usable = partition.failure is None and log.failure is None and replica.directory.failure is None
        if not is_usable or log in self._uncleanable or self.is_paused(replica):
            return None
        if not partition.config.is_compacted:
            return None
        try:
            part = cleanable(log, partition.high_watermark, self._settings.wall_clock_ms())
        except PassingStorageError:
            return None
        except StorageError as error:
            self._on_failed(replica.directory, error)
            return None
        chosen = _Chosen(replica, log, part)
        return chosen if part.is_due(partition.config) and chosen.is_wanted() else None

    # ---- One log -----------------------------------------------------------------------------------------

    async def _clean(self, chosen: _Chosen) -> None:
        config, begin_ms = self.config, clock.now_ms()
        settings = CleaningSettings(
            map_bytes=config.log_cleaner_dedupe_buffer_size // max(1, config.log_cleaner_threads),
            timestamp_ms=self._settings.wall_clock_ms(),
            secret=self._settings.random.randbytes(_SECRET_BYTES),
        )
        compaction = Compaction(
            chosen.log, chosen.part, settings, is_wanted=chosen.is_wanted, is_here=chosen.is_here
        )
        self._cleaned[chosen.log] = None
        try:
            failure = await self._perform(compaction, chosen)
        finally:
            del self._cleaned[chosen.log]
        if failure is not None:
            now_ms = clock.now_ms()
            self._not_before_ms[chosen.log] = now_ms + max(now_ms - begin_ms, config.log_cleaner_backoff_ms)
            self._on_refused(chosen, failure)
        else:
            self._repeats.succeeded(chosen.log)
            self._not_before_ms.pop(chosen.log, None)
            self._on_cleaned(chosen, compaction, settings.timestamp_ms)

    async def _perform(self, compaction: Compaction, chosen: _Chosen) -> Exception | None:
        """Performs the whole compaction; returns the error that ended it."""
        job = self._settings.disk.start(compaction.job)
        answer = failure = None
        try:
            while (step := await _next(job, answer)) is not None:
                answer = await self._make(compaction.on_step(step), chosen)
                self._check_room(compaction)
            compaction.finish()
        except FAILURES as error:
            failure = error
        finally:
            await job.end()
        return None if failure is None else compaction.on_failed(failure)

    def _check_room(self, compaction: Compaction) -> None:
        """Raises DiskFull before a copy takes the last room from the logs that are appended to. A copy is at most as
        large as its segments, so small segments are copied also where there is little room.
        """
        spare_bytes = min(SPARE_BYTES, compaction.copied_bytes)
        free_bytes = self._settings.disk.free_bytes(compaction.directory) if spare_bytes else 0
        if free_bytes < spare_bytes:
            raise DiskFull(
                f"{compaction.directory} has {free_bytes} bytes of room, and {spare_bytes} stay free; free some space"
            )

    async def _make(self, turns: Turns, chosen: _Chosen) -> SegmentGroup | None:
        while True:
            try:
                turn = next(turns)
            except StopIteration as end:
                answer: SegmentGroup | None = end.value
                return answer
            if isinstance(turn, SyncNeeded):
                await self._sync(turn, chosen)
            else:
                await self._pace.spend(turn.size_bytes, chosen.is_wanted)

    async def _sync(self, needed: SyncNeeded, chosen: _Chosen) -> None:
        """Syncs files or directories. A failed sync of a swap takes the directory offline, whatever its cause: names
        may be lost that look as if they were there (F13). Files that are synced before the swap are not read yet, and
        another try writes them anew.
        """
        try:
            await self._settings.disk.sync(needed.files, needed.directories, in_background=True)
        except StorageError as error:
            if needed.directories and chosen.is_here():
                self._on_failed(chosen.replica.directory, error)
            raise

    def _on_refused(self, chosen: _Chosen, error: Exception) -> None:
        """Counts the error for the log, or for its directory. A full disk is tried again, and so is a process that
        died.
        """
        name = chosen.replica.topic_partition
        if isinstance(error, CleaningAborted):
            _logger.info("%s", error)
        elif not chosen.is_here():
            _logger.info("%s is gone: its cleaning ended with %s", name, error)
        elif isinstance(error, JobDied):
            self._waiting[chosen.log] = f"{name} is not compacted, and is tried again: {error}"
            self._repeats.failed(chosen.log, self._waiting[chosen.log])
        elif isinstance(error, PassingStorageError):
            self._waiting[chosen.log] = f"{name} is not compacted until {error.until}: {error}"
            self._repeats.failed(chosen.log, self._waiting[chosen.log])
            # In the middle of a swap: the log goes on once it is opened again.
            if chosen.log.failure is not None:
                chosen.replica.directory.on_full(error)
        elif isinstance(error, StorageError):
            self._on_failed(chosen.replica.directory, error)
        else:
            self._uncleanable[chosen.log] = f"{name} cannot be compacted: {error}"
            _logger.error(
                "%s; it grows until its broker restarts without that damage", self._uncleanable[chosen.log]
            )

    def _on_cleaned(self, chosen: _Chosen, compaction: Compaction, timestamp_ms: int) -> None:
        counts = compaction.counts
        self._waiting.pop(chosen.log, None)
        self._last[chosen.log] = LastCleaning(
            timestamp_ms, compaction.end_offset, counts.input_bytes, counts.output_bytes
        )
        _logger.info(
            "%s is compacted up to offset %d: %d of %d records, %d of %d bytes are left; %d keys in the map, %d"
            " records without a key removed",
            chosen.replica.topic_partition, compaction.end_offset, counts.kept_records, counts.input_records,
            counts.output_bytes, counts.input_bytes, compaction.key_count, counts.invalid_records,
        )  # fmt: skip
        if counts.unreadable_batches:
            _logger.warning(
                "%s: %d batches stay as they are, because their columns contradict their headers: no key can be read",
                chosen.replica.topic_partition,
                counts.unreadable_batches,
            )


async def _next(job: RunningJob, answer: object) -> Step | None:
    """The next step of the job. An unforeseen error of a job counts for its log alone: it must not end the broker,
    which would meet the error again after each restart. Only a job that ran out of memory is tried again.
    """
    try:
        step: Step | None = await job.next(answer)
    except FAILURES:
        raise
    except MemoryError as error:
        raise JobDied(f"there is no memory for it: {error!r}") from error
    except Exception as error:
        _logger.exception("a cleaning ended with an error that was not foreseen")
        raise CleaningFailed(repr(error)) from error
    return step
