"""How a follower takes an answer of its leader, partition by partition.

Invariants: a result counts only in the epoch in which it was asked for (B26), and its records only if they answer the
newest position; an error of one partition holds up no other partition. Kafka: `AbstractFetcherThread.
processFetchRequest`, `ReplicaFetcherThread.processPartitionData` (B3, B22-B26).
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

import numpy as np

from rayka import clock
from rayka.errors import ApiError, ErrorCode, PassingStorageError, StorageError, TooManyOpenFiles
from rayka.ids import node_name
from rayka.log.mapped_reader import LocalDirectories, copy_range
from rayka.node.fetch_positions import FetchPositions, Followed, Hold
from rayka.node.replica import ReplicaOwner, Truncate, Truncations
from rayka.node.tasks import Repeats, Tasks
from rayka.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartitionResult,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
)
from rayka.protocol.wire import NO_BYTES

# An append takes up to 60 microseconds, a truncation up to 200.
WEIGHT_PER_TURN = 100
# A megabyte takes two or three milliseconds.
_BYTES_PER_WEIGHT = 20_000
_logger = logging.getLogger(__name__)


class FetchAnswers:
    """Takes the results of one leader, and looks up the leader's offsets where a position is out of range."""

    def __init__(
        self,
        leader_id: int,
        owner: ReplicaOwner,
        positions: FetchPositions,
        truncations: Truncations,
        local: LocalDirectories | None,
        tasks: Tasks,
    ) -> None:
        self._leader_id = leader_id
        self._owner = owner
        self._settings = owner.settings
        self._config = owner.settings.config
        self._positions = positions
        self._truncations = truncations
        # The directories of leaders whose files this process can read; None: it reads no files.
        self._local = local
        self._tasks = tasks
        self._delayed: list[Followed] = []
        self._lookups: list[Followed] = []
        self._failures = Repeats(_logger)
        # Each fail-over has some.
        self._errors = Repeats(_logger, logging.INFO)

    def __repr__(self) -> str:
        return f"<FetchAnswers from {node_name(self._leader_id)}>"

    async def take(self, results: Iterable[FetchPartitionResult], number: int) -> None:
        """Takes the results of the request of this number. Between parts of a long answer other work has its turn."""
        weight = 0
        for result in results:
            key = (result.topic_id, result.partition)
            followed = self._positions.get(key)
            if followed is None:
                self._positions.maybe_end(key)
            else:
                self._take(followed, result, is_fresh=followed.asked_in <= number)
            weight += 1 + result.size_bytes // _BYTES_PER_WEIGHT
            if weight >= WEIGHT_PER_TURN:
                weight = 0
                await asyncio.sleep(0)
        if self._delayed or self._lookups:
            self._settle()

    def _take(self, followed: Followed, result: FetchPartitionResult, *, is_fresh: bool) -> None:
        """Takes one result. For an older position only its high watermark counts, in the same epoch (B26)."""
        try:
            if not is_fresh:
                is_same_epoch = result.leader_epoch == followed.leader_epoch
                if is_same_epoch and result.error_code is ErrorCode.NONE and result.diverging_epoch is None:
                    self._append(followed, result, NO_BYTES)
            elif result.error_code is not ErrorCode.NONE:
                self._on_error(followed, result)
            elif result.diverging_epoch is not None:
                followed.on_answered()
                diverging = result.diverging_epoch
                self._truncate(followed, lambda copied: followed.as_follower().truncate_to(diverging, copied))
            else:
                records = self._records(result) if result.file_ranges else result.records
                self._append(followed, result, records)
        except ApiError as error:
            self._on_refused(followed, error)
        except StorageError as error:
            self._owner.on_storage_error(followed.replica, error)

    def _records(self, result: FetchPartitionResult) -> np.ndarray:
        """Copies the records from the leader's files on this machine. No bytes if the files have changed since: then
        the same position is asked for again. The copy belongs to this process, so the bytes that are checked are those
        that are appended.
        """
        try:
            copies = [copy for each in result.file_ranges if (copy := copy_range(each)) is not None]
        except TooManyOpenFiles:
            if self._local is not None:
                self._local.on_no_descriptor()
            return NO_BYTES
        is_found = len(copies) == len(result.file_ranges)
        if self._local is not None:
            self._local.on_read(is_found=is_found)
        if not is_found:
            return NO_BYTES
        return copies[0] if len(copies) == 1 else np.concatenate(copies)

    def _append(self, followed: Followed, result: FetchPartitionResult, records: np.ndarray) -> None:
        partition, now_ms, size_bytes = followed.partition, clock.now_ms(), records.size
        log = partition.log
        log_start_offset = log.log_start_offset
        is_moved = followed.as_follower().append(
            records,
            high_watermark=result.high_watermark,
            log_start_offset=result.log_start_offset,
            now_ms=now_ms,
        )
        followed.on_answered()
        if self._failures.failing:
            self._failures.succeeded(followed.key)
        if self._errors.failing:
            self._errors.succeeded(followed.key)
        followed.is_behind = result.high_watermark > log.log_end_offset
        if size_bytes:
            partition.traffic.replication_bytes_in += size_bytes
            self._owner.follower_quotas.record(partition, size_bytes, now_ms)
        is_elsewhere = size_bytes > 0 or log.log_start_offset != log_start_offset
        if is_elsewhere or is_moved:
            self._owner.on_follower_appended(followed.replica, is_high_watermark_moved=is_moved)
        if is_elsewhere:
            self._positions.refresh(followed)

    # ---- Truncation ------------------------------------------------------------------------------------

    def _truncate(self, followed: Followed, truncate: Truncate) -> None:
        """Truncates at once if that is quick; else holds the partition until it is done, and the others go on."""
        if truncate(None) is None:
            self._on_truncated(followed)
        else:
            self._positions.hold(followed, Hold.TRUNCATION)
            name = f"truncate {followed.partition.topic_partition}"
            self._tasks.start(name, self._copy_and_truncate(followed, truncate))

    def _on_truncated(self, followed: Followed) -> None:
        self._owner.on_follower_appended(followed.replica, is_high_watermark_moved=True)
        self._positions.release(followed)

    async def _copy_and_truncate(self, followed: Followed, truncate: Truncate) -> None:
        try:
            if await self._truncations.run(
                followed.replica.directory, truncate, lambda: self._positions.get(followed.key) is followed
            ):
                self._on_truncated(followed)
        except ApiError as error:
            self._on_refused(followed, error)
        except PassingStorageError as error:
            if followed.partition.log.failure is None:
                # There was no room for the copy.
                self._on_refused(followed, error)
            else:
                self._owner.on_storage_error(followed.replica, error)
        except StorageError as error:
            self._owner.on_storage_error(followed.replica, error)
        self._settle()

    # ---- Errors of a partition ----------------------------------------------------------------

    def _on_error(self, followed: Followed, result: FetchPartitionResult) -> None:
        match result.error_code:
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                self._positions.hold(followed, Hold.LOOKUP)
                self._lookups.append(followed)
            # Newer metadata is on its way.
            case ErrorCode.FENCED_LEADER_EPOCH:
                self._positions.hold(followed, Hold.METADATA)
            case code:
                self._errors.failed(followed.key, f"{followed!r}: {code.name}: {result.error_message}")
                self._delayed.append(followed)

    def _on_refused(self, followed: Followed, error: ApiError | PassingStorageError) -> None:
        """Tries again later; nothing has changed here. The records may have been damaged on their way, or on the
        leader's disk; or there is no room for a copy.
        """
        backoff_ms = self._config.replica_fetch_backoff_ms
        name, leader = followed.partition.topic_partition, node_name(self._leader_id)
        followed.problem = f"{name} cannot be copied from {leader}: {error}"
        self._failures.failed(followed.key, f"{followed.problem}; fetched again every {backoff_ms} ms")
        followed.delay_ms = backoff_ms
        self._delayed.append(followed)

    def _settle(self) -> None:
        delayed, self._delayed = self._delayed, []
        lookups, self._lookups = self._lookups, []
        self._positions.delay(delayed, self._config.replica_fetch_backoff_ms)
        if lookups:
            self._tasks.start(f"look up offsets on {node_name(self._leader_id)}", self._look_up(lookups))

    # ---- Offsets out of range --------------------------------------------------------------------------

    async def _look_up(self, lookups: Sequence[Followed]) -> None:
        """Asks the leader where its logs begin and end, and goes on from there (B25)."""
        asked = tuple(
            ListOffsetsPartition(*each.key, timestamp_ms, each.leader_epoch)
            for each in lookups
            for timestamp_ms in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        request = ListOffsetsRequest(asked, replica_id=self._settings.node_id)
        try:
            response = await self._settings.network.call(
                self._leader_id, request, self._config.replica_socket_timeout_ms
            )
        except ApiError as error:
            _logger.info("%r: no offsets: %s", self, error)
            self._delayed += [each for each in lookups if self._positions.get(each.key) is each]
        else:
            found = iter(response.partitions)
            for each, earliest, latest in zip(lookups, found, found, strict=True):
                if self._positions.get(each.key) is each:
                    self._on_offsets(each, earliest, latest)
        self._settle()

    def _on_offsets(
        self, followed: Followed, earliest: ListOffsetsPartitionResult, latest: ListOffsetsPartitionResult
    ) -> None:
        if earliest.error_code is not ErrorCode.NONE or latest.error_code is not ErrorCode.NONE:
            self._delayed.append(followed)
            return
        log = followed.partition.log
        # Asked at once, the leader would say the same again.
        if earliest.offset <= log.log_end_offset <= latest.offset:
            self._delayed.append(followed)
            return
        try:
            self._truncate(
                followed,
                lambda copied: followed.as_follower().on_out_of_range(
                    copied, leader_log_start_offset=earliest.offset, leader_log_end_offset=latest.offset
                ),
            )
        except StorageError as error:
            self._owner.on_storage_error(followed.replica, error)
