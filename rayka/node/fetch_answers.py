"""What a follower does with an answer of its leader, partition by partition.

Invariants: a result counts only in the epoch in which it was asked for (B26), and its records only if they answer what
was asked last; whatever is wrong with one partition holds up that one alone. Kafka: `AbstractFetcherThread.
processFetchRequest`, `ReplicaFetcherThread.processPartitionData` (B3, B22-B26).
"""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rayka.errors import ApiError, ErrorCode, PassingStorageError, StorageError, TooManyOpenFiles
from rayka.ids import node_name
from rayka.log.mapped_reader import LocalDirectories, copy_range
from rayka.node import clock
from rayka.node.data_directories import DataDirectories
from rayka.node.fetch_positions import FetchPositions, Followed, Hold
from rayka.node.follower_quotas import FollowerQuotas
from rayka.node.replica import ReplicaOwner, Truncate, Truncations
from rayka.node.settings import NodeSettings
from rayka.node.tasks import Repeats, Tasks, in_turns
from rayka.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    FetchPartitionResult,
    ListOffsetsPartition,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
)
from rayka.protocol.wire import NO_BYTES

WEIGHT_PER_TURN = 100  # to append takes up to 60 microseconds, to cut a log up to 200
_BYTES_PER_WEIGHT = 20_000  # a megabyte takes two or three milliseconds
_logger = logging.getLogger(__name__)


class Shared(NamedTuple):
    """What all fetchers of one broker share. `local` knows whose files can be read here."""

    settings: NodeSettings
    directories: DataDirectories
    tasks: Tasks
    host: ReplicaOwner
    quotas: FollowerQuotas
    truncations: Truncations
    local: LocalDirectories | None


class FetchAnswers:
    """The results of one leader, and those of looking up its offsets."""

    def __init__(self, leader_id: int, shared: Shared, positions: FetchPositions) -> None:
        self._leader_id = leader_id
        self._shared = shared
        self._config = shared.settings.config
        self._host = shared.host
        self._positions = positions
        self._delayed: list[Followed] = []
        self._lookups: list[Followed] = []
        self._failures = Repeats(_logger)
        self._errors = Repeats(_logger, logging.INFO)  # each fail-over has some

    def __repr__(self) -> str:
        return f"<FetchAnswers from {node_name(self._leader_id)}>"

    async def take(self, results: Iterable[FetchPartitionResult], number: int) -> None:
        """The results that the request of this number has brought. After some of them others have their turn."""
        async for result in in_turns(results, WEIGHT_PER_TURN, weigh=_weight):
            key = (result.topic_id, result.partition)
            followed = self._positions.get(key)
            if followed is None:
                self._positions.maybe_end(key)
            else:
                self._take(followed, result, is_fresh=followed.asked_in <= number)
        self._settle()

    def _take(self, followed: Followed, result: FetchPartitionResult, *, is_fresh: bool) -> None:
        """Of a result that answers an older position only the high watermark counts, in the same epoch (B26)."""
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
                self._append(followed, result, self._records(result))
        except ApiError as error:
            self._on_refused(followed, error)
        except StorageError as error:
            self._host.on_storage_error(followed.replica, error)

    def _records(self, result: FetchPartitionResult) -> np.ndarray:
        """What was given, sent or in files on this machine; nothing when those are not what they were, so that the same
        is asked for again. The copy is this process's own: what is checked in it is what is appended.
        """
        if not result.file_ranges:
            return result.records
        try:
            copies = [copy for each in result.file_ranges if (copy := copy_range(each)) is not None]
        except TooManyOpenFiles:
            if self._shared.local is not None:
                self._shared.local.on_no_descriptor()
            return NO_BYTES
        is_found = len(copies) == len(result.file_ranges)
        if self._shared.local is not None:
            self._shared.local.on_read(is_found=is_found)
        if not is_found:
            return NO_BYTES
        return copies[0] if len(copies) == 1 else np.concatenate(copies)

    def _append(self, followed: Followed, result: FetchPartitionResult, records: np.ndarray) -> None:
        log = followed.partition.log
        log_start_offset = log.log_start_offset
        is_moved = followed.as_follower().append(
            records,
            high_watermark=result.high_watermark,
            log_start_offset=result.log_start_offset,
            now_ms=clock.now_ms(),
        )
        followed.on_answered()
        self._failures.succeeded(followed.key)
        self._errors.succeeded(followed.key)
        followed.is_behind = result.high_watermark > log.log_end_offset
        followed.partition.traffic.replication_bytes_in += records.size
        self._positions.on_fetched(followed, records.size)
        is_elsewhere = bool(records.size) or log.log_start_offset != log_start_offset
        if is_elsewhere or is_moved:
            self._host.on_follower_appended(followed.replica, is_high_watermark_moved=is_moved)
        if is_elsewhere:
            self._positions.refresh(followed)

    # ---- Truncation ------------------------------------------------------------------------------------

    def _truncate(self, followed: Followed, truncate: Truncate) -> None:
        """At once where that is quick; otherwise the partition waits for it, and the others go on."""
        if truncate(None) is None:
            self._on_truncated(followed)
        else:
            self._positions.hold(followed, Hold.TRUNCATION)
            name = f"truncate {followed.partition.topic_partition}"
            self._shared.tasks.start(name, self._copy_and_truncate(followed, truncate))

    def _on_truncated(self, followed: Followed) -> None:
        self._host.on_follower_appended(followed.replica, is_high_watermark_moved=True)
        self._positions.release(followed)

    async def _copy_and_truncate(self, followed: Followed, truncate: Truncate) -> None:
        try:
            if await self._shared.truncations.run(
                followed.replica.directory, truncate, lambda: self._positions.get(followed.key) is followed
            ):
                self._on_truncated(followed)
        except ApiError as error:
            self._on_refused(followed, error)
        except PassingStorageError as error:
            if followed.partition.log.failure is None:
                self._on_refused(followed, error)  # there was no room for the copy
            else:
                self._host.on_storage_error(followed.replica, error)
        except StorageError as error:
            self._host.on_storage_error(followed.replica, error)
        self._settle()

    # ---- What is wrong with a partition ----------------------------------------------------------------

    def _on_error(self, followed: Followed, result: FetchPartitionResult) -> None:
        match result.error_code:
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                self._positions.hold(followed, Hold.LOOKUP)
                self._lookups.append(followed)
            case ErrorCode.FENCED_LEADER_EPOCH:  # newer metadata is on its way
                self._positions.hold(followed, Hold.METADATA)
            case code:
                self._errors.failed(followed.key, f"{followed!r}: {code.name}: {result.error_message}")
                self._delayed.append(followed)

    def _on_refused(self, followed: Followed, error: ApiError | PassingStorageError) -> None:
        """Nothing has changed. What came may have been damaged on its way here, or on the leader's disk; or there is no
        room for a copy.
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
            self._shared.tasks.start(
                f"look up offsets on {node_name(self._leader_id)}", self._look_up(lookups)
            )

    # ---- Offsets out of range --------------------------------------------------------------------------

    async def _look_up(self, lookups: Sequence[Followed]) -> None:
        """Asks the leader where its logs begin and end, and goes on from there (B25)."""
        asked = tuple(
            ListOffsetsPartition(*each.key, timestamp_ms, each.leader_epoch)
            for each in lookups
            for timestamp_ms in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        request = ListOffsetsRequest(asked, replica_id=self._shared.settings.node_id)
        try:
            response = await self._shared.settings.network.call(
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
        if earliest.offset <= log.log_end_offset <= latest.offset:  # it would be told the same again at once
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
            self._host.on_storage_error(followed.replica, error)


def _weight(result: FetchPartitionResult) -> int:
    return 1 + result.size_bytes // _BYTES_PER_WEIGHT
