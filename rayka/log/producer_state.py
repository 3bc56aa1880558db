"""The producers of one log: which batch of a producer must come next, which came already; and their snapshots on disk.

The last five batches of each producer id are kept (C2), by sequences and offsets. So a batch that was appended already
is answered with its old offsets (C3), a batch whose predecessor is missing is refused (C5), and so is a batch of an
epoch that is over (C4). Every replica builds the same state from its log; only a leader refuses batches, and only those
of clients (C6).

Invariants: `check` changes nothing, and a batch that passed is appended before the next check. The batches of an entry
belong to its one epoch, oldest first. Nothing here depends on the number of records in a batch.

A producer's silence is counted on this process's clock, from its last append or from the opening of the log. C8 counts
from the timestamp of the last record; a producer of last year's records would be forgotten between a request and its
retry. Kafka: `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry`, `BatchMetadata` (C1-C8). Left out:
transactions.

A snapshot `<offset>.snapshot` holds the state before that offset (C9). A roll writes one, named by the base offset of
the new segment, and the closing of the log one at the log end. Opening loads the newest trusted one, and reads the
headers of the batches behind it; so does a truncation, unless the batches close before the new end are enough. A
damaged snapshot is removed, and an older one used (C10). A log that never had a producer id and was never rolled has
none.

Invariants of snapshots:
- None is above the log end offset.
- Each segment except the log's first one has a snapshot at its base offset. It is durable before any segment in front
  goes: from then on only the snapshot knows their producers (C8).
- After a power cut a snapshot above both the recovery point and the base offset of the first segment is not trusted:
  its batches may be gone and others in their place. After the end of a process every snapshot is trusted.

Contents of a snapshot: int16 version, CRC-32C of the rest, a count, and for each batch producer id, epoch, last
sequence, last offset, offset delta, timestamp, coordinator epoch, first offset of an open transaction. Kafka:
`ProducerSnapshot.json`, with the last batch of each producer only. Here the other four come before it, so that a
producer with several requests in flight meets no broker that has forgotten them.
"""

import logging
import re
from collections import deque
from collections.abc import Container, Iterable, Iterator
from itertools import takewhile
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from crc32c import crc32c

from rayka.errors import InvalidProducerEpoch, OutOfOrderSequence
from rayka.log.damage import DamagedBatch
from rayka.log.log_files import SLICE_BATCHES, LogFiles, Slices, run_to_end
from rayka.log.segment import DELETED_SUFFIX, Segment
from rayka.log.segments import Segments
from rayka.protocol.batch_format import LENGTH_FIELD_END, NO_PRODUCER_ID, RecordBatch, sequence_after

# As many as a producer may have in flight (C7).
CACHED_BATCHES = 5
_logger = logging.getLogger(__name__)


class SequencedBatch(NamedTuple):
    """A batch in the log, by its sequences and offsets. Kafka: `BatchMetadata`."""

    last_sequence: int
    last_offset: int
    # Last offset minus first offset, and last sequence minus first sequence.
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return sequence_after(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerStateEntry:
    """One producer id: its newest epoch in the log, and the last batches of that epoch."""

    __slots__ = ("batches", "producer_epoch", "seen_ms")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.batches: deque[SequencedBatch] = deque(maxlen=CACHED_BATCHES)
        self.seen_ms = 0

    def __repr__(self) -> str:
        batches = [(each.first_sequence, each.last_sequence) for each in self.batches]
        return f"<ProducerStateEntry epoch={self.producer_epoch} batches={batches}>"

    @property
    def is_full(self) -> bool:
        """Whether batches before the first one here are forgotten."""
        return len(self.batches) == CACHED_BATCHES

    def add(self, producer_epoch: int, batch: SequencedBatch) -> None:
        """Adds a batch of the log. A new epoch forgets the batches of the one before."""
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches.clear()
        self.batches.append(batch)


class ProducerStates:
    """The producers of one log."""

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        # The time of the last call that gave one.
        self._now_ms = now_ms
        self._entries: dict[int, ProducerStateEntry] = {}

    def __repr__(self) -> str:
        return f"<ProducerStates of {self.name} producers={len(self._entries)}>"

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> Iterable[tuple[int, ProducerStateEntry]]:
        """All producers, in the order of their first batches."""
        return self._entries.items()

    # ---- Before an append: only of what a client sends -------------------------------------------------------

    def check(self, batch: RecordBatch) -> SequencedBatch | None:
        """The duplicate of the batch in the log; None when the batch may be appended (C3-C5).

        Raises InvalidProducerEpoch or OutOfOrderSequence. A batch without a producer id may always be appended.
        """
        if batch.producer_id == NO_PRODUCER_ID:
            return None
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            # Expired, or never here: any sequence may be the first (C5).
            return None
        if batch.producer_epoch < entry.producer_epoch:
            raise InvalidProducerEpoch(
                f"{self.name}: producer {batch.producer_id} sends in epoch {batch.producer_epoch}, which ended:"
                f" its epoch is {entry.producer_epoch}"
            )
        if batch.producer_epoch > entry.producer_epoch:
            if batch.base_sequence != 0:
                raise OutOfOrderSequence(
                    f"{self.name}: producer {batch.producer_id} begins epoch {batch.producer_epoch} with sequence"
                    f" {batch.base_sequence}; expected 0"
                )
            return None
        last = entry.batches[-1].last_sequence
        if batch.base_sequence == sequence_after(last, 1):
            return None
        duplicate = _found(entry, batch)
        if duplicate is None:
            raise OutOfOrderSequence(
                f"{self.name}: producer {batch.producer_id} sends sequence {batch.base_sequence} in epoch"
                f" {batch.producer_epoch}; expected {sequence_after(last, 1)}"
            )
        return duplicate

    def has(self, batch: RecordBatch) -> bool:
        """Whether the batch is in the log already (C3), as far as the last batches of its producer tell."""
        entry = self._entries.get(batch.producer_id)
        is_of_epoch = entry is not None and entry.producer_epoch == batch.producer_epoch
        return is_of_epoch and entry is not None and _found(entry, batch) is not None

    # ---- After an append, of a producer or of the leader -----------------------------------------------------

    def on_appended(self, batch: RecordBatch, first_offset: int, now_ms: int, timestamp_ms: int) -> None:
        """The batch is in the log now, at this offset and with this largest timestamp."""
        if batch.producer_id != NO_PRODUCER_ID:
            delta = batch.last_offset_delta
            appended = SequencedBatch(batch.last_sequence, first_offset + delta, delta, timestamp_ms)
            self._now_ms = now_ms
            self.add(batch.producer_id, batch.producer_epoch, appended)

    def add(self, producer_id: int, producer_epoch: int, batch: SequencedBatch) -> None:
        """As `on_appended`, for a batch known by its sequences alone."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerStateEntry(producer_epoch)
        elif producer_epoch < entry.producer_epoch:
            _logger.warning(
                "%s: offset %d is of producer %d in epoch %d, after one in epoch %d",
                self.name, batch.first_offset, producer_id, producer_epoch, entry.producer_epoch,
            )  # fmt: skip
        entry.add(producer_epoch, batch)
        entry.seen_ms = self._now_ms

    # ---- Forgetting --------------------------------------------------------------------------------------------

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets producers that have been silent for so long (C8)."""
        self._now_ms = now_ms
        silent = [
            producer_id
            for producer_id, entry in self._entries.items()
            if now_ms - entry.seen_ms >= expiration_ms
        ]
        for producer_id in silent:
            del self._entries[producer_id]

    def reaching(self, offset: int) -> list[int]:
        """The producers with a batch at or behind an offset."""
        return [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.batches[-1].last_offset >= offset
        ]

    def replace(self, entries: dict[int, ProducerStateEntry]) -> None:
        """Replaces the entries of these producers."""
        for entry in entries.values():
            entry.seen_ms = self._now_ms
        self._entries.update(entries)

    def clear(self) -> None:
        """Forgets all."""
        self._entries.clear()


def _found(entry: ProducerStateEntry, batch: RecordBatch) -> SequencedBatch | None:
    last_sequence = batch.last_sequence
    for known in entry.batches:
        if known.last_sequence == last_sequence and known.first_sequence == batch.base_sequence:
            return known
    return None


# ---- Snapshots -------------------------------------------------------------------------------------------------

SNAPSHOT_SUFFIX = ".snapshot"
_SNAPSHOT_FILE = re.compile(r"(\d{20})\.snapshot")
_VERSION = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_NO_COORDINATOR_EPOCH, _NO_TRANSACTION = -1, -1
# Base offset, length, last offset delta, max timestamp, producer id, epoch, base sequence.
_BATCH = Struct(">qi11xi8xqqhi")
# A truncation reads the headers of so many offsets before the end, then of a multiple.
_REWOUND_OFFSETS, _REWOUND_FACTOR = 500, 8

# Producer id, epoch, batch.
ProducerBatch = tuple[int, int, SequencedBatch]


class ProducerSnapshots:
    """The snapshots of one log, and the state that they are of."""

    def __init__(self, files: LogFiles, states: ProducerStates) -> None:
        self._disk = files.disk
        self._files = files
        self.states = states
        # Of the snapshots on disk, rising.
        self._offsets: list[int] = []

    # ---- Writing ---------------------------------------------------------------------------------------------

    def take(self, offset: int) -> None:
        """Writes a snapshot of the state, which covers everything below the offset. Durable once a sync plan made now
        is done.
        """
        self._files.write({_name(offset): encode_snapshot(self.states)})
        if offset not in self._offsets:
            self._offsets = sorted([*self._offsets, offset])

    def take_last(self, log_end_offset: int) -> None:
        """Writes the last snapshot of a log that is being closed, unless there is neither a snapshot nor a producer."""
        if self._offsets or len(self.states):
            self.take(log_end_offset)

    @property
    def first_unsynced_offset(self) -> int | None:
        """The lowest offset whose snapshot a power cut may take; None when all are durable."""
        has_content = self._files.unsynced.has_content
        unsynced = takewhile(lambda offset: has_content(self._path(offset)), reversed(self._offsets))
        return min(unsynced, default=None)

    # ---- Loading ---------------------------------------------------------------------------------------------

    def open(
        self, segments: Segments, *, trusted_offset: int | None, damaged: Iterable[DamagedBatch] = ()
    ) -> Slices[None]:
        """Loads the state of the log, which has just been opened, by slices.

        `trusted_offset`: snapshots above it are removed. After a power cut it is the recovery point or the begin of the
        first segment, else the log's end. None: the log was shut down cleanly, so a log with producers has a snapshot.
        """
        names = map(_SNAPSHOT_FILE.fullmatch, self._disk.list(self._files.directory))
        self._offsets = [int(match[1]) for match in names if match]
        if trusted_offset is None and not self._offsets:
            return
        end_offset = segments.active.next_offset
        self._remove_above(end_offset if trusted_offset is None else min(trusted_offset, end_offset))
        yield from self._load(segments, {(each.path, each.position): None for each in damaged})
        if trusted_offset is None:
            # Snapshots where no segment begins; not after an unclean end, for their successors may not be durable then.
            base_offsets = [each.base_offset for each in segments]
            strays = [each for each in self._offsets if each not in base_offsets]
            # The snapshot behind the last segment's begin was written when the log was closed (C10).
            self._remove(strays[:-1] if strays and strays[-1] > base_offsets[-1] else strays)

    def on_unclean(self, recovery_point: int) -> None:
        """Counts snapshots from the recovery point on as unsynced: the former process may have synced none of them."""
        for offset in self._offsets:
            if offset >= recovery_point:
                self._files.unsynced.file_replaced(self._path(offset))

    def on_truncated(self, segments: Segments) -> None:
        """Restores the state that the log had at its new end (C9)."""
        end_offset = segments.active.next_offset
        self._remove_above(end_offset)
        producer_ids = self.states.reaching(end_offset)
        if producer_ids and not self._rewind(segments.active, producer_ids):
            self.states.clear()
            run_to_end(self._load(segments, {}))

    def _rewind(self, segment: Segment, producer_ids: Iterable[int]) -> bool:
        """Restores the state of these producers from the batches close before the end; False if they are not all there.

        Mostly they are, and the truncation need not read the headers of a whole segment, a quarter of a second for a
        million batches. The other producers stay as they are: none of their batches was cut off.
        """
        first_offset = max([segment.base_offset, *self._offsets[-1:]])
        distance = _REWOUND_OFFSETS
        while segment.next_offset - distance > first_offset:
            found: dict[int, ProducerStateEntry] = {}
            for each in self._batches(segment, segment.next_offset - distance, {}):
                if each is not None:
                    producer_id, epoch, batch = each
                    found.setdefault(producer_id, ProducerStateEntry(epoch)).add(epoch, batch)
            rewound = {each: found[each] for each in producer_ids if each in found}
            if all(each in rewound and rewound[each].is_full for each in producer_ids):
                self.states.replace(rewound)
                return True
            distance *= _REWOUND_FACTOR
        return False

    def on_cleared(self) -> None:
        """The log is empty, and begins elsewhere."""
        self._remove(list(self._offsets))
        self.states.clear()

    def retire_before(self, first_offset: int) -> list[str]:
        """The first segment begins here now. Renames older snapshots, which is quicker than to remove them, and returns
        their new paths. The state stays (C8).
        """
        going = [each for each in self._offsets if each < first_offset]
        retired = [self._path(each) + DELETED_SUFFIX for each in going]
        del self._offsets[: len(going)]
        for offset, path in zip(going, retired, strict=True):
            self._files.rename(self._path(offset), path)
        return retired

    def remove_within(self, base_offset: int, end_offset: int) -> None:
        """One segment replaces those between these offsets: removes the snapshots between its base offset and
        its end.
        """
        self._remove([each for each in self._offsets if base_offset < each < end_offset])

    def _remove_above(self, offset: int) -> None:
        self._remove([each for each in self._offsets if each > offset])

    def _remove(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._files.remove(self._path(offset))
            self._offsets.remove(offset)

    def _load(self, segments: Segments, damaged: Container[tuple[str, int]]) -> Slices[None]:
        from_offset = segments.first.base_offset
        for producer_id, producer_epoch, batch in self._newest():
            self.states.add(producer_id, producer_epoch, batch)
        if self._offsets:
            from_offset = max(from_offset, self._offsets[-1])
        for segment in segments:
            if segment.next_offset > from_offset:
                if segment.base_offset > from_offset and segment.base_offset not in self._offsets:
                    # The snapshot was not trusted, or damaged.
                    self.take(segment.base_offset)
                for number, found in enumerate(self._batches(segment, from_offset, damaged), 1):
                    if found is not None:
                        self.states.add(*found)
                    if number % SLICE_BATCHES == 0:
                        yield

    def _newest(self) -> list[ProducerBatch]:
        """The batches of the newest whole snapshot; removes damaged ones on the way (C10)."""
        while self._offsets:
            path = self._path(self._offsets[-1])
            batches = decode_snapshot(self._disk.read_at(path, 0, self._disk.size(path)))
            if batches is not None:
                return batches
            _logger.warning("%s is damaged: it is removed, and the state rebuilt from what is older", path)
            self._remove(self._offsets[-1:])
        return []

    def _batches(
        self, segment: Segment, from_offset: int, damaged: Container[tuple[str, int]]
    ) -> Iterator[ProducerBatch | None]:
        """The batches from the offset on, by their headers; None for one without a producer id."""
        position = segment.position_of(max(from_offset, segment.base_offset))
        view = self._disk.map(segment.path)
        while position < segment.size_bytes:
            base_offset, length, delta, timestamp_ms, producer_id, producer_epoch, sequence = (
                _BATCH.unpack_from(view, position)
            )
            if producer_id != NO_PRODUCER_ID and (segment.path, position) not in damaged:
                last_sequence = sequence_after(sequence, delta)
                batch = SequencedBatch(last_sequence, base_offset + delta, delta, timestamp_ms)
                yield producer_id, producer_epoch, batch
            else:
                yield None
            position += LENGTH_FIELD_END + length

    def _path(self, offset: int) -> str:
        return self._files.path(_name(offset))


def _name(offset: int) -> str:
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"


def encode_snapshot(states: ProducerStates) -> bytes:
    """The content of a snapshot."""
    entries = [
        _ENTRY.pack(producer_id, entry.producer_epoch, *batch, _NO_COORDINATOR_EPOCH, _NO_TRANSACTION)
        for producer_id, entry in states.items()
        for batch in entry.batches
    ]
    content = _COUNT.pack(len(entries)) + b"".join(entries)
    return _HEAD.pack(_VERSION, crc32c(content)) + content


def has_snapshot(files: LogFiles, offset: int) -> bool:
    """Whether the disk has an undamaged snapshot of this offset."""
    path = files.path(_name(offset))
    disk = files.disk
    return disk.exists(path) and decode_snapshot(disk.read_at(path, 0, disk.size(path))) is not None


def decode_snapshot(data: bytes) -> list[ProducerBatch] | None:
    """The batches in a snapshot, oldest first for each producer; None when it is torn, damaged or of another
    version.
    """
    try:
        version, crc = _HEAD.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
    except struct_error:
        return None
    content = memoryview(data)[_HEAD.size :]
    if version != _VERSION or crc32c(content) != crc or len(content) != _COUNT.size + count * _ENTRY.size:
        return None
    return [
        (producer_id, producer_epoch, SequencedBatch(*batch))
        for producer_id, producer_epoch, *batch, _, _ in _ENTRY.iter_unpack(content[_COUNT.size :])
    ]
