"""One task's rows: the batches of one range of offsets, mapped from segment files where they are on this machine,
fetched from the broker where not, as Arrow batches of a size that suits Spark.

Invariants: rows come in offset order, each once, none outside the range. Files are read first, those of the plan and
then those of any replica in sync on this machine; the broker gives the rest, from the first offset missing in them.
While Spark works on one answer the next fetch is under way.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from rayka.client import io_thread
from rayka.errors import (
    CorruptRecord,
    InconsistentTopicId,
    OffsetOutOfRange,
    TooManyOpenFiles,
    UnknownTopicOrPartition,
)
from rayka.log.mapped_reader import MappedReader
from rayka.protocol.batch_decode import DecodedBatch, decode
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.protocol.fetch import FetchPartitionResult, FileRange
from rayka.spark.plan import (
    OffsetRange,
    available_part,
    is_topic_lost,
    on_topic_lost,
)
from rayka.spark.schema import spark_batch
from rayka.spark.source_options import ReadOptions

if TYPE_CHECKING:
    from rayka.spark.topic_client import TopicClient

_ROWS_WORTH_A_BATCH = 4_096
_BYTES_WORTH_A_BATCH = 1 << 20
_TIMEOUT_SECONDS = 120


def read_range(
    options: ReadOptions,
    wanted: OffsetRange,
    file_ranges: tuple[FileRange, ...],
    connect: Callable[[], "TopicClient"],
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in offset order. `connect` is called only if the files do not give them all."""
    tp = wanted.topic_partition
    rows = (
        spark_batch(options.columns, _decode(batch, wanted), tp, wanted.start_offset, wanted.end_offset)
        for batch in _while_topic_is_there(options, _batches(options, wanted, file_ranges, connect))
    )
    return coalesce(rows)


def _decode(batch: RecordBatch, wanted: OffsetRange) -> DecodedBatch:
    try:
        return decode(batch)
    except CorruptRecord as error:
        raise CorruptRecord(f"{wanted.topic_partition!r}: {error}") from error


def coalesce(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: small ones are put together, large ones passed on as they are."""
    small: list[pa.RecordBatch] = []
    row_count = size_bytes = 0
    for batch in rows:
        if batch.num_rows == 0:
            continue
        small.append(batch)
        row_count += batch.num_rows
        size_bytes += batch.nbytes
        if row_count >= _ROWS_WORTH_A_BATCH or size_bytes >= _BYTES_WORTH_A_BATCH:
            yield _together(small)
            small, row_count, size_bytes = [], 0, 0
    if small:
        yield _together(small)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _while_topic_is_there(options: ReadOptions, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    try:
        yield from batches
    except (UnknownTopicOrPartition, InconsistentTopicId) as error:
        if not is_topic_lost(error):
            raise
        on_topic_lost(options, error)


def _batches(
    options: ReadOptions,
    wanted: OffsetRange,
    file_ranges: tuple[FileRange, ...],
    connect: Callable[[], "TopicClient"],
) -> Iterator[RecordBatch]:
    """The batches that hold the range, from files as far as they go: those that the plan names, which are on the
    planner's machine, then those on this one.
    """
    next_offset = yield from _mapped_part(wanted, file_ranges)
    if next_offset == wanted.end_offset:
        return
    client = connect()
    left = msgspec.structs.replace(wanted, start_offset=next_offset)
    next_offset = yield from _mapped_part(left, io_thread.run(partial(client.locate, left), _TIMEOUT_SECONDS))
    if next_offset < wanted.end_offset:
        yield from _fetched_batches(client, wanted, next_offset, options)


def _mapped_part(
    wanted: OffsetRange, file_ranges: tuple[FileRange, ...]
) -> Generator[RecordBatch, None, int]:
    """The batches of the range that the files give; returns where to go on, at the latest at its end."""
    next_offset = wanted.start_offset
    for batch in _mapped_batches(wanted, file_ranges):
        if batch.base_offset >= wanted.end_offset:
            return wanted.end_offset
        if batch.next_offset > next_offset:
            next_offset = batch.next_offset
            yield batch
    return min(next_offset, wanted.end_offset)


def _mapped_batches(wanted: OffsetRange, file_ranges: tuple[FileRange, ...]) -> Iterator[RecordBatch]:
    """The batches in the files, up to the first file that is not the one, or not of the topic, that planning saw."""
    reader = MappedReader()
    for file_range in file_ranges:
        try:
            mapped = reader.read(file_range, wanted.topic_id)
        except TooManyOpenFiles:
            # The caller reads the rest over the network.
            return
        if mapped is None:
            return
        yield from split_batches(mapped)


def _fetched_batches(
    client: "TopicClient", wanted: OffsetRange, offset: int, options: ReadOptions
) -> Iterator[RecordBatch]:
    end_offset = wanted.end_offset
    pending = _fetch(client, wanted, offset)
    try:
        while offset < end_offset:
            try:
                result = pending.result(_TIMEOUT_SECONDS)
            except OffsetOutOfRange:
                there = io_thread.run(partial(client.available_of, wanted), _TIMEOUT_SECONDS)
                asked = (offset, end_offset)
                offset, end_offset = available_part(options, wanted.topic_partition, asked, there)
                pending = _fetch(client, wanted, offset)
                continue
            offset = result.next_offset
            if offset < end_offset:
                pending = _fetch(client, wanted, offset)
            yield from split_batches(result.records)
    finally:
        pending.cancel()


def _fetch(client: "TopicClient", wanted: OffsetRange, offset: int) -> "Future[FetchPartitionResult]":
    return asyncio.run_coroutine_threadsafe(client.fetch(wanted, offset), io_thread.loop())
