"""Dumps of the files of logs: segments, indexes, epochs, snapshots and `quorum-state`. Writes and locks nothing.

A running node may append during the dump. A batch cut by the end of the newest segment's file is therefore a note and
no damage: the append is not finished, or recovery will remove the batch.
"""

import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from rayka.errors import ApiError, StorageError
from rayka.log.leader_epoch_cache import LEADER_EPOCH_FILE, decode_epochs
from rayka.log.local_disk import LocalDisk
from rayka.log.segment_file import LOG_SUFFIX
from rayka.log.segment_indexes import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    OffsetIndex,
    SparseIndex,
    TimeIndex,
)
from rayka.metadata.metadata_records import decode_record
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import HEADER_BYTES, LENGTH_FIELD_END, RecordBatch, split_batches
from rayka.raft.control_records import decode_control_batch
from rayka.raft.election_state import QUORUM_STATE_FILE, decode_election
from rayka.raft.snapshot import decode_snapshot, parse_snapshot_name


@dataclass(frozen=True, slots=True)
class BatchDump:
    """One batch's header, whether its CRC is right, and its records if they were asked for.

    Where nothing else is said, a field is the attribute of that name of a `RecordBatch`.
    """

    position: int
    base_offset: int
    last_offset: int
    record_count: int
    leader_epoch: int
    size_bytes: int
    codec: str
    is_control: bool
    is_transactional: bool
    max_timestamp_ms: int
    delete_horizon_ms: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    crc: str
    is_crc_valid: bool
    records: list[dict[str, Any]] | None = None


@dataclass(slots=True)
class FileDump:
    """One file. `problems` are damage, `notes` are not. Indexes and small files have `entries` instead of batches."""

    path: str
    kind: str
    size_bytes: int
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    batches: list[BatchDump] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)


class FileDumps:
    """Dumps files. `with_records`: the records too; `as_metadata`: their values are records of the metadata."""

    def __init__(self, *, with_records: bool = False, as_metadata: bool = False) -> None:
        self._disk = LocalDisk()
        self._with_records = with_records
        self._as_metadata = as_metadata

    def close(self) -> None:
        self._disk.close()

    # ---- Which files -------------------------------------------------------------------------------------------------

    def dump(self, path: str) -> Iterator[FileDump]:
        """Dumps a file, or every file of the logs in a directory. Raises StorageError when there is nothing to dump."""
        if not os.path.isdir(path):
            found = self._dump_file(path)
            if found is None:
                raise StorageError(
                    f"{path} is no file of a log: expected *.log, *.index, *.timeindex,"
                    f" *.checkpoint, {LEADER_EPOCH_FILE} or {QUORUM_STATE_FILE}"
                )
            yield found
            return
        count = 0
        for each in self._files_under(path):
            found = self._dump_file(each)
            if found is not None:
                count += 1
                yield found
        if not count:
            raise StorageError(
                f"{path} holds no log; name a partition's directory or a node's data directory"
            )

    def _files_under(self, directory: str) -> Iterator[str]:
        for name in self._disk.list(directory):
            path = posixpath.join(directory, name)
            if os.path.isdir(path):
                yield from self._files_under(path)
            else:
                yield path

    def _dump_file(self, path: str) -> FileDump | None:
        name, size_bytes = posixpath.basename(path), self._disk.size(path)
        if name.endswith(LOG_SUFFIX):
            return self._dump_segment(FileDump(path, "segment", size_bytes))
        if name.endswith(OFFSET_INDEX_SUFFIX):
            return self._dump_index(
                FileDump(path, "offset index", size_bytes), OffsetIndex, ("offset", "position")
            )
        if name.endswith(TIME_INDEX_SUFFIX):
            return self._dump_index(
                FileDump(path, "time index", size_bytes), TimeIndex, ("timestamp_ms", "offset")
            )
        if name == LEADER_EPOCH_FILE:
            return self._dump_epochs(FileDump(path, "leader epochs", size_bytes))
        if name == QUORUM_STATE_FILE:
            return self._dump_election(FileDump(path, "quorum state", size_bytes))
        if parse_snapshot_name(name) is not None:
            return self._dump_snapshot(FileDump(path, "snapshot", size_bytes))
        return None

    # ---- Batches -----------------------------------------------------------------------------------------------------

    def _dump_segment(self, dump: FileDump) -> FileDump:
        expected = _base_offset(dump.path)
        for batch in self._walk(dump, self._disk.map(dump.path), is_newest=self._is_newest(dump.path)):
            if batch.base_offset < expected:
                dump.problems.append(f"offsets go back to {batch.base_offset}, expected {expected} or later")
            expected = batch.last_offset + 1
        return dump

    def _dump_snapshot(self, dump: FileDump) -> FileDump:
        content = self._disk.map(dump.path)
        for _ in self._walk(dump, content, is_newest=False):
            pass
        try:
            decode_snapshot(content, dump.path)
        except StorageError as error:
            if not dump.problems:
                dump.problems.append(str(error))
        return dump

    def _is_newest(self, path: str) -> bool:
        names = self._disk.list(posixpath.dirname(path) or ".")
        return posixpath.basename(path) == [name for name in names if name.endswith(LOG_SUFFIX)][-1]

    def _walk(self, dump: FileDump, content: memoryview, *, is_newest: bool) -> Iterator[BatchDump]:
        """Yields the batches in order and adds each to the dump, up to the first position without a batch."""
        position = 0
        while position < len(content):
            size_bytes = _size_at(content, position)
            if size_bytes is None or position + size_bytes > len(content):
                message = (
                    f"the file ends within a batch at position {position}, {len(content) - position} bytes"
                )
                (dump.notes if is_newest else dump.problems).append(message)
                return
            try:
                batch = RecordBatch(content[position : position + max(size_bytes, HEADER_BYTES)])
            except ApiError as error:
                dump.problems.append(f"no batch at position {position}: {error}")
                return
            found = self._dump_batch(dump, batch, position)
            dump.batches.append(found)
            yield found
            position += size_bytes

    def _dump_batch(self, dump: FileDump, batch: RecordBatch, position: int) -> BatchDump:
        is_crc_valid = batch.is_crc_valid()
        records = None
        if not is_crc_valid:
            dump.problems.append(
                f"the batch at position {position}, offset {batch.base_offset}, has a wrong CRC"
            )
        elif self._with_records or self._as_metadata:
            records = self._dump_records(dump, batch)
        found: dict[str, Any] = {
            "position": position,
            "codec": batch.codec.name.lower(),
            "crc": f"{batch.crc:#010x}",
            "is_crc_valid": is_crc_valid,
            "records": records,
        }
        names = (each.name for each in fields(BatchDump) if each.name not in found)
        return BatchDump(**{each: getattr(batch, each) for each in names}, **found)

    def _dump_records(self, dump: FileDump, batch: RecordBatch) -> list[dict[str, Any]]:
        try:
            decoded = decode(batch, check_crc=False)
            keys, values = self._keys_and_values(batch, decoded.keys_list(), decoded.values_list())
        except ApiError as error:
            dump.problems.append(f"the batch at offset {batch.base_offset} cannot be read: {error}")
            return []
        columns = (decoded.offsets, decoded.timestamps_ms, keys, values, decoded.headers_list())
        return [
            {"offset": int(offset), "timestamp_ms": int(timestamp_ms), "key": key, "value": value}
            | ({"headers": [[name, _text(each)] for name, each in headers]} if headers else {})
            for offset, timestamp_ms, key, value, headers in zip(*columns, strict=True)
        ]

    def _keys_and_values(
        self, batch: RecordBatch, keys: list[bytes | None], values: list[bytes | None]
    ) -> tuple[list[Any], list[Any]]:
        """Keys and values as texts; control and metadata records as type and fields."""
        if batch.is_control:
            control = list(decode_control_batch(batch))
            return [type(each).__name__ for each in control], [plain_fields(each) for each in control]
        if self._as_metadata:
            records = [decode_record(value or b"") for value in values]
            return [type(each).__name__ for each in records], [plain_fields(each) for each in records]
        return [_text(key) for key in keys], [_text(value) for value in values]

    # ---- Other files -------------------------------------------------------------------------------------------------

    def _dump_index(self, dump: FileDump, kind: type[SparseIndex], names: tuple[str, str]) -> FileDump:
        base_offset, data = _base_offset(dump.path), self._read(dump.path)
        if kind.load(base_offset, data) is None:
            dump.problems.append("it fails its sanity check; the node will build it anew")
        whole_bytes = len(data) - len(data) % kind.ENTRY.size
        for first, second in kind.ENTRY.iter_unpack(data[:whole_bytes]):
            pair = (first + base_offset, second) if kind is OffsetIndex else (first, second + base_offset)
            dump.entries.append(dict(zip(names, pair, strict=True)))
        path = posixpath.splitext(dump.path)[0] + LOG_SUFFIX
        if not self._disk.exists(path):
            dump.notes.append(f"there is no {posixpath.basename(path)} to compare it with")
        elif kind is OffsetIndex:
            _check_positions(dump, self._disk.map(path))
        else:
            _check_times(dump, self._disk.map(path))
        return dump

    def _dump_epochs(self, dump: FileDump) -> FileDump:
        epochs = decode_epochs(self._read(dump.path))
        if epochs is None:
            dump.problems.append("it is damaged; the node will build it anew")
        dump.entries = [{"epoch": each.epoch, "start_offset": each.start_offset} for each in epochs or ()]
        return dump

    def _dump_election(self, dump: FileDump) -> FileDump:
        election = decode_election(self._read(dump.path))
        if election is None:
            dump.problems.append("it is damaged")
        else:
            dump.entries.append(plain_fields(election))
        return dump

    def _read(self, path: str) -> bytes:
        return self._disk.read_at(path, 0, self._disk.size(path))


def _check_positions(dump: FileDump, content: memoryview) -> None:
    for entry in dump.entries:
        begin = content[entry["position"] : entry["position"] + 8]
        if int.from_bytes(begin, "big") != entry["offset"]:
            dump.problems.append(f"no batch with offset {entry['offset']} at position {entry['position']}")


def _check_times(dump: FileDump, content: memoryview) -> None:
    """Checks a time index: an entry is the largest timestamp of a batch, and the last offset of that batch."""
    try:
        times = {each.last_offset: each.max_timestamp_ms for each in whole_batches(content)}
    except ApiError:
        dump.notes.append("its segment is damaged, so it was not compared")
        return
    for entry in dump.entries:
        if times.get(entry["offset"]) != entry["timestamp_ms"]:
            dump.problems.append(
                f"no batch with timestamp {entry['timestamp_ms']} ends at offset {entry['offset']}"
            )


def whole_batches(content: memoryview) -> Iterator[RecordBatch]:
    """Up to where the file ends within a batch, which a running node is writing or did not finish; CRCs unchecked."""
    end = 0
    while (size_bytes := _size_at(content, end)) is not None:
        if size_bytes < HEADER_BYTES or end + size_bytes > len(content):
            break
        end += size_bytes
    yield from split_batches(content[:end])


def _base_offset(path: str) -> int:
    digits = posixpath.basename(path).partition(".")[0]
    return int(digits) if digits.isdecimal() else 0


def _size_at(content: memoryview, position: int) -> int | None:
    """The size of the batch that begins here; None when the file ends within the header."""
    if position + HEADER_BYTES > len(content):
        return None
    return LENGTH_FIELD_END + int.from_bytes(content[position + 8 : position + 12], "big", signed=True)


def _text(value: bytes | None) -> str | None:
    """Decodes UTF-8; shows other bytes in hexadecimal."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def plain_fields(record: Any) -> dict[str, Any]:
    """A struct as plain values by field names."""
    return {name: msgspec.to_builtins(getattr(record, name)) for name in record.__struct_fields__}
