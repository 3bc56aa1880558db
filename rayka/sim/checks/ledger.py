"""The committed records of the quorum, as an observer outside knows them: written once, never taken back.

The ledger grows when the first node exposes a high watermark; whatever any node holds below its high watermark is then
compared with it, batch by batch. Beside the batches it keeps the metadata image at recent offsets, so that every
node's own image can be compared with what the records say, and when each topic began and ended. Kafka: the
`ConsistentCommittedData` of `RaftEventSimulationTest`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import UUID

from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.metadata_records import MetadataRecord, RemoveTopicRecord, TopicRecord, decode_record
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import RecordBatch
from rayka.raft.control_records import VotersRecord, decode_control_batch
from rayka.raft.voters import VoterSet

_IMAGES_MAX = 3_000
_NOTHING = object()


class Committed(NamedTuple):
    """One batch that is committed."""

    base_offset: int
    next_offset: int
    epoch: int
    crc: int


class TopicLife(NamedTuple):
    """One incarnation of a topic: it exists from the offset after `begin` to `end`, None while it lives."""

    name: str
    topic_id: UUID
    begin: int
    end: int | None

    def ended(self, offset: int) -> "TopicLife":
        """The same one, removed by the record at the offset."""
        return TopicLife(self.name, self.topic_id, self.begin, offset)


class Ledger:
    """The committed log. `end` is the first offset that is not known to be committed; `appended_ms`, when the last
    batch was appended, by its leader's wall clock.
    """

    def __init__(self) -> None:
        self.end = 0
        self.last_epoch = 0
        self.appended_ms = 0
        self.batches: dict[int, Committed] = {}
        self.epoch_ends: list[tuple[int, int]] = []  # (epoch, end offset), ascending
        self.voter_sets: list[VoterSet] = []
        self.topics: dict[UUID, TopicLife] = {}
        self.by_name: dict[str, list[UUID]] = {}
        self.on_image: Callable[[MetadataImage, MetadataImage], None] = lambda before, after: None
        self._delta = MetadataDelta(MetadataImage())
        self.newest_image = MetadataImage()
        self._images: dict[int, MetadataImage] = {0: self.newest_image}

    def __repr__(self) -> str:
        return f"<Ledger end={self.end} epoch={self.last_epoch} topics={len(self.topics)}>"

    # ---- Growing -----------------------------------------------------------------------------------------------------

    def extend(self, batch: RecordBatch) -> None:
        """The next batch is committed. Raises CorruptRecord when it is damaged."""
        assert batch.base_offset == self.end, f"{self!r} goes on with {batch!r}"
        batch.check_crc("ledger")
        self.batches[self.end] = Committed(self.end, batch.next_offset, batch.leader_epoch, batch.crc)
        if self.epoch_ends and self.epoch_ends[-1][0] == batch.leader_epoch:
            self.epoch_ends.pop()
        self.epoch_ends.append((batch.leader_epoch, batch.next_offset))
        self.end, self.last_epoch = batch.next_offset, batch.leader_epoch
        self.appended_ms = batch.base_timestamp_ms
        if batch.is_control:
            records = decode_control_batch(batch)
            self.voter_sets.extend(each.voters for each in records if isinstance(each, VotersRecord))
        else:
            for offset, record in _records(batch):
                self._replay(offset, record)
        before = self.newest_image
        self.newest_image = self._delta.apply(self.end)
        self._delta = MetadataDelta(self.newest_image)
        self._images[self.end] = self.newest_image
        if len(self._images) > _IMAGES_MAX:
            del self._images[next(iter(self._images))]
        self.on_image(before, self.newest_image)

    def _replay(self, offset: int, record: MetadataRecord) -> None:
        self._delta.replay(record)
        if isinstance(record, TopicRecord):
            self.topics[record.topic_id] = TopicLife(record.name, record.topic_id, offset, None)
            self.by_name.setdefault(record.name, []).append(record.topic_id)
        elif isinstance(record, RemoveTopicRecord):
            self.topics[record.topic_id] = self.topics[record.topic_id].ended(offset)

    # ---- Asking ------------------------------------------------------------------------------------------------------

    def image(self, offset: int) -> MetadataImage | None:
        """The metadata after every record below the offset; None when it is not at a batch's end, or long ago."""
        return self._images.get(offset)

    def epoch_of(self, end_offset: int) -> int | None:
        """The epoch of the batch that ends at the offset; None when none does."""
        epoch = next((epoch for epoch, end in self.epoch_ends if end_offset <= end), None)
        return epoch if end_offset <= self.end else None

    def lives(self, name: str) -> list[TopicLife]:
        """All incarnations of a topic, oldest first."""
        return [self.topics[topic_id] for topic_id in self.by_name.get(name, ())]


def _records(batch: RecordBatch) -> Iterator[tuple[int, MetadataRecord]]:
    for offset, value in enumerate(decode(batch, check_crc=False).values_list(), batch.base_offset):
        assert value is not None, f"{batch!r} holds a null"
        yield offset, decode_record(value)


Compared = tuple[MetadataImage, MetadataImage]
_MAPS = ("topics", "brokers", "configs", "features")  # topics_by_id holds the same topics


def difference(found: MetadataImage, expected: MetadataImage, before: Compared | None = None) -> str:
    """What differs between two images of one offset; empty when they are equal.

    `before` is a pair that was found equal: what neither of the two has changed since is not looked at again.
    """
    for name in _MAPS:
        ours, theirs = getattr(found, name), getattr(expected, name)
        our_past, their_past = (getattr(each, name) for each in before) if before is not None else ({}, {})
        if len(ours) != len(theirs):
            return f"{name}: {sorted(map(str, ours))}, expected {sorted(map(str, theirs))}"
        if ours is our_past and theirs is their_past:
            continue
        for key, value in theirs.items():
            own = ours.get(key)
            if value is their_past.get(key, _NOTHING) and own is our_past.get(key, _NOTHING):
                continue
            if own != value:
                return f"{name}[{key!r}]: {own!r}, expected {value!r}"
    # Cheap: the same objects are equal at once.
    if found.events != expected.events:
        own, known = ([each.number for each in one.events] for one in (found, expected))
        return f"events: numbers {own}, expected {known}"
    return ""
