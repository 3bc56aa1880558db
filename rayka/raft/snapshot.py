"""A snapshot: the state that the log's records below one offset make, in a file that stands for them (A45).

It is batches of records: the header, the voters known at its end (none when no voter ever was), the state's own
records, the footer. Batches carry the snapshot's epoch, and count offsets from 0. A snapshot without its footer is not
whole. The one with id 0-0 is written when a directory is formatted, holds the first voters and nothing else, and is
never fetched (A48). Kafka: `RecordsSnapshotWriter`, `RecordsSnapshotReader`, `Snapshots`.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from rayka.errors import ApiError, CorruptRecord, StorageError
from rayka.ids import NO_TIMESTAMP, OffsetAndEpoch
from rayka.ports import Buffer
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.raft.control_records import (
    ControlRecord,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    decode_control_batch,
    encode_control_batch,
)
from rayka.raft.voters import VoterSet

BOOTSTRAP_SNAPSHOT_ID = OffsetAndEpoch(0, 0)
SNAPSHOT_SUFFIX = ".checkpoint"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_ADVICE = "restore it from a copy; or remove it while the node is down, if another voter has the metadata"


def snapshot_name(snapshot_id: OffsetAndEpoch) -> str:
    """The file that holds the snapshot of everything below an offset."""
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}{SNAPSHOT_SUFFIX}"


def parse_snapshot_name(name: str) -> OffsetAndEpoch | None:
    """The id in a file's name; None when it is no snapshot's, or that of one still being written."""
    match = _NAME.fullmatch(name)
    return OffsetAndEpoch(int(match[1]), int(match[2])) if match else None


# ---- Writing -------------------------------------------------------------------------------------------------------


def encode_snapshot(
    snapshot_id: OffsetAndEpoch,
    voters: VoterSet | None,
    data: Iterable[Buffer],
    *,
    timestamp_ms: int,
    last_contained_log_timestamp_ms: int = NO_TIMESTAMP,
) -> Iterator[Buffer]:
    """The content of a snapshot, part after part. `data` is the state's batches, made by `encode_batch` as they are
    asked for.
    """
    known: list[ControlRecord] = [KRaftVersionRecord(), VotersRecord(voters)] if voters else []
    before: list[list[ControlRecord]] = [[SnapshotHeaderRecord(last_contained_log_timestamp_ms)], known]
    batches = chain(
        (encode_control_batch(part, timestamp_ms=timestamp_ms) for part in before if part),
        data,
        (encode_control_batch([SnapshotFooterRecord()], timestamp_ms=timestamp_ms),),
    )
    offset = 0
    for batch in map(RecordBatch, batches):
        yield from batch.stamped(base_offset=offset, leader_epoch=snapshot_id.epoch)
        offset += batch.record_count


# ---- Reading -------------------------------------------------------------------------------------------------------


class Snapshot(NamedTuple):
    """What a snapshot holds; the batches view its content, their CRCs are right."""

    last_contained_log_timestamp_ms: int
    voters: VoterSet | None
    data: tuple[RecordBatch, ...]

    def values(self) -> Iterator[bytes]:
        """The state's records, in order."""
        for batch in self.data:
            for value in decode(batch, check_crc=False).values_list():
                if value is None:
                    raise CorruptRecord(f"{batch!r} of a snapshot holds a record without value")
                yield value


def decode_snapshot(content: Buffer, path: str) -> Snapshot:
    """The snapshot in a file. Raises StorageError naming the path when it is damaged or not whole."""
    try:
        return _decode(content)
    except ApiError as error:
        raise StorageError(f"{path} is damaged: {error}; {_ADVICE}") from error


def last_contained_timestamp_ms(content: Buffer, path: str) -> int:
    """Of the newest record that the state stands for, -1 when there was none; only the header is looked at.

    Raises StorageError naming the path.
    """
    try:
        for record in decode_control_batch(next(split_batches(content))):
            if isinstance(record, SnapshotHeaderRecord):
                return record.last_contained_log_timestamp_ms
    except (ApiError, StopIteration) as error:
        raise StorageError(f"{path} is damaged: {error}; {_ADVICE}") from error
    raise StorageError(f"{path} is damaged: it does not begin with a header; {_ADVICE}")


def _decode(content: Buffer) -> Snapshot:
    control: list[ControlRecord] = []
    data = []
    for batch in split_batches(content):
        if control and isinstance(control[-1], SnapshotFooterRecord):
            raise CorruptRecord(f"{batch!r} follows the footer")
        if batch.is_control:
            control.extend(decode_control_batch(batch))
        else:
            batch.check_crc()
            data.append(batch)
    if len(control) < 2 or not isinstance(control[-1], SnapshotFooterRecord):
        raise CorruptRecord(f"it is not whole: no footer ends it, found {control!r}")
    header, voters = control[0], [each.voters for each in control if isinstance(each, VotersRecord)]
    if not isinstance(header, SnapshotHeaderRecord) or len(voters) > 1:
        raise CorruptRecord(f"expected a header, then the voters at most once, found {control!r}")
    return Snapshot(header.last_contained_log_timestamp_ms, voters[0] if voters else None, tuple(data))
