"""The partitions that a consumer reads, their positions, and the replicas that they are fetched from. A core without
IO.

Invariants:
- A partition has a position, or a start to be looked up.
- An answer counts only for the position from which the partition is asked for now, with the same `position_version`
  (none from before a seek), so the data of a partition have no hole.
- Every change that may alter the fetch of a partition puts it among the `changed`, so planning costs as much as has
  changed.
- The next offset is the broker's `next_offset`, never "last record + 1", so control records and compaction gaps cannot
  stall a reader. The epoch of the last batch before it goes with each fetch: by it a leader finds that records that
  were read are not in its log.

Kafka: SubscriptionState, ConsumerMetadata (G15, G16).
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

import numpy as np

from rayka.client.consumer.fetch_buffer import ChangedPartitions, FetchBuffer, Fetched
from rayka.client.metadata import topic_recreated
from rayka.config.client_config import ConsumerConfig
from rayka.errors import InvalidArgument, InvariantBroken, LogTruncation, RaykaError
from rayka.ids import NO_EPOCH, NO_OFFSET, OffsetAndEpoch, TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from rayka.protocol.membership import MetadataTopic

logger = logging.getLogger(__name__)

START_TIMESTAMPS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}


class FetchTicket(NamedTuple):
    """The position of one partition: its next fetch."""

    topic_partition: TopicPartition
    # Grows with each change of the position by anything but fetches.
    position_version: int
    fetch_offset: int
    last_fetched_epoch: int


class FetchStart(NamedTuple):
    """The start of a partition without a position, to be looked up."""

    topic_partition: TopicPartition
    position_version: int
    # The timestamp to look up; None: no reset policy names one.
    timestamp_ms: int | None
    # The committed offset of the group comes first, if there is one.
    is_committed: bool = False
    # The offset that was out of range, if the reset policy was asked for that reason.
    reset_from: int = NO_OFFSET


TicketOrStart = FetchTicket | FetchStart


class FetchState:
    """The positions of one consumer. Belongs to the loop."""

    def __init__(self, config: ConsumerConfig) -> None:
        # The assignment.
        self.by_topic: Mapping[str, Sequence[TopicPartition]] = {}
        # Partitions whose fetch may have to change.
        self.changed = ChangedPartitions()
        self.read_replicas = ReadReplicas(self.changed)
        self.buffer = FetchBuffer(self.changed, config.max_partition_fetch_bytes, config.fetch_max_bytes)
        self._reset_to = START_TIMESTAMPS.get(config.auto_offset_reset)
        # A group may have committed offsets.
        self._has_group = config.group_id is not None
        self._paused: dict[TopicPartition, None] = {}
        # The newest position version; no version is used twice.
        self._position_version = 0
        self._positions: dict[TopicPartition, TicketOrStart] = {}
        # The starts among the positions.
        self._unpositioned: dict[TopicPartition, FetchStart] = {}
        # Positions that are not asked for a while, after an error that passes by itself.
        self._resting: dict[TopicPartition, FetchTicket] = {}

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the assignment; partitions that stay keep their position and their data."""
        kept, self._positions = self._positions, {}
        by_topic: dict[str, list[TopicPartition]] = {}
        for tp in dict.fromkeys(partitions):
            if tp in kept:
                self._positions[tp] = kept[tp]
            else:
                self._set(FetchStart(tp, self._next_position_version(), self._reset_to, self._has_group))
            by_topic.setdefault(tp.topic, []).append(tp)
        self.by_topic = by_topic
        gone = [tp for tp in kept if tp not in self._positions]
        self._drop(dict.fromkeys(gone))
        for tp in gone:
            self._unpositioned.pop(tp, None)
            self._paused.pop(tp, None)
            self.changed.add(tp)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops asking for the partitions until `resume`, or until they are assigned anew."""
        for tp in partitions:
            self._paused[tp] = None
            self.changed.add(tp)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Asks for the partitions again."""
        for tp in partitions:
            self._paused.pop(tp, None)
            self.changed.add(tp)

    def seek(self, topic_partition: TopicPartition, offset: int, last_epoch: int = NO_EPOCH) -> None:
        """Begins the next fetch at `offset`. Fetched data, and fetches under way, are dropped."""
        self.position(topic_partition)
        self._drop({topic_partition: None})
        self._set(FetchTicket(topic_partition, self._next_position_version(), offset, last_epoch))

    def seek_to_timestamp(
        self, topic_partition: TopicPartition, timestamp_ms: int, *, is_committed: bool = False
    ) -> None:
        """Begins the next fetch at the offset of a time, or of EARLIEST_TIMESTAMP or LATEST_TIMESTAMP. With
        `is_committed` a committed offset of the group comes first.
        """
        self.position(topic_partition)
        self._drop({topic_partition: None})
        self._set(FetchStart(topic_partition, self._next_position_version(), timestamp_ms, is_committed))

    def begin_again(self, topic_partition: TopicPartition) -> bool:
        """Begins in a topic that was created again: at the committed offset of the group in the new topic, or as the
        reset policy says, or at the start that had yet to be looked up. False when there is none of these. Fetched data
        of the former topic stay to be taken.
        """
        former, timestamp_ms = self.position(topic_partition), self._reset_to
        is_committed = self._has_group and timestamp_ms is not None
        if isinstance(former, FetchStart):
            timestamp_ms, is_committed = former.timestamp_ms, former.is_committed
        self._set(FetchStart(topic_partition, self._next_position_version(), timestamp_ms, is_committed))
        self.buffer.forgive(topic_partition)
        self.read_replicas.forget(topic_partition)
        return timestamp_ms is not None or is_committed

    def position(self, topic_partition: TopicPartition) -> TicketOrStart:
        """Raises InvalidArgument for a partition that its topic does not have any more, which callers may not know."""
        position = self._positions.get(topic_partition)
        if position is None:
            raise InvalidArgument(
                f"{topic_partition} is not assigned any more: its topic has no such partition"
            )
        return position

    def is_current(self, position: TicketOrStart) -> bool:
        """Whether the partition has this position now. A second answer to one fetch brings nothing new."""
        return self._positions.get(position.topic_partition) == position

    # ---- Offsets to look up ----------------------------------------------------------------------------------------

    def without_offset(self) -> list[FetchStart]:
        """Partitions whose offset must be looked up."""
        return [each for tp, each in self._unpositioned.items() if self.buffer.error(tp) is None]

    def on_offset(self, start: FetchStart, offset: int, epoch: int = NO_EPOCH) -> None:
        """Takes the offset of a start, and its leader epoch if known. Ignored after a later `seek`."""
        if self.is_current(start):
            self._set(FetchTicket(start.topic_partition, start.position_version, offset, epoch))

    def on_nothing_committed(self, start: FetchStart) -> None:
        """Lets the reset policy decide about the start."""
        if self.is_current(start):
            self._set(start._replace(is_committed=False))

    def reset(self, ticket: FetchTicket) -> bool:
        """Looks up a new start by the reset policy, after an offset out of range. False without a policy."""
        if self._reset_to is None:
            return False
        if self.is_current(ticket):
            tp = ticket.topic_partition
            self._drop({tp: None})
            self._set(
                FetchStart(tp, self._next_position_version(), self._reset_to, reset_from=ticket.fetch_offset)
            )
        return True

    def on_diverging(self, ticket: FetchTicket, diverging: OffsetAndEpoch) -> int:
        """Goes on at the first offset that is known to differ, since the leader's log lacks records that were read.
        Without a reset policy the application gets LogTruncation instead. Returns the offset.
        """
        offset = min(diverging.offset, ticket.fetch_offset)
        if self._reset_to is None:
            tp = ticket.topic_partition
            lost = LogTruncation(
                f"{tp}: records from offset {offset} on, of those read up to {ticket.fetch_offset} in leader epoch"
                f" {ticket.last_fetched_epoch}, are not in the log any more: a replica without them was elected"
                f" leader; seek to {offset} to read what is there now, or set auto_offset_reset",
                {tp: offset},
            )
            self.on_error(ticket, lost)
        elif self.is_current(ticket):
            self.seek(ticket.topic_partition, offset, diverging.epoch)
        return offset

    # ---- Fetches ---------------------------------------------------------------------------------------------------

    def ticket(self, topic_partition: TopicPartition) -> FetchTicket | None:
        """The position from which to ask for the partition; None while it is not asked for."""
        position = self._positions.get(topic_partition)
        if not isinstance(position, FetchTicket) or self._resting.get(topic_partition) == position:
            return None
        if topic_partition in self._paused:
            return None
        return position if self.buffer.takes_more(topic_partition) else None

    def rest(self, ticket: FetchTicket) -> None:
        """Stops asking from this position, until `end_rest` or a change of the position."""
        if self.is_current(ticket):
            self._resting[ticket.topic_partition] = ticket
            self.changed.add(ticket.topic_partition)

    def end_rest(self, ticket: FetchTicket) -> None:
        """Ends the pause: the position is fetched again."""
        if self._resting.get(ticket.topic_partition) == ticket:
            del self._resting[ticket.topic_partition]
            self.changed.add(ticket.topic_partition)

    def read_from(self, ticket: FetchTicket, node_id: int, until_ms: int) -> None:
        """Reads from this replica, which the leader calls nearer, until then (G15)."""
        if self.is_current(ticket):
            self.read_replicas.choose(ticket.topic_partition, node_id, until_ms)

    def on_fetched(
        self, ticket: FetchTicket, buffers: tuple[np.ndarray, ...], next_offset: int, last_epoch: int
    ) -> None:
        """Takes whole batches, the last of them of `last_epoch`. The next fetch begins at `next_offset`."""
        if not self.is_current(ticket):
            return
        if next_offset < ticket.fetch_offset:
            raise InvariantBroken(f"{ticket!r} cannot go back to {next_offset}")
        if next_offset > ticket.fetch_offset:
            tp, position_version, offset, _ = ticket
            self.buffer.add(Fetched(tp, position_version, offset, next_offset, buffers))
            self._set(FetchTicket(tp, position_version, next_offset, last_epoch))

    def on_error(self, position: TicketOrStart, error: RaykaError) -> None:
        """Gives the application an error, if the position is current."""
        if self.is_current(position):
            self.buffer.fail(position.topic_partition, error)

    def fail(self, topic_partition: TopicPartition, error: RaykaError) -> None:
        """Gives the application an error, if the partition is assigned."""
        if topic_partition in self._positions:
            self.buffer.fail(topic_partition, error)

    # ---- Within ----------------------------------------------------------------------------------------------------

    def _set(self, position: TicketOrStart) -> None:
        tp = position.topic_partition
        self._positions[tp] = position
        if isinstance(position, FetchStart):
            self._unpositioned[tp] = position
        else:
            self._unpositioned.pop(tp, None)
        self.changed.add(tp)

    def _next_position_version(self) -> int:
        self._position_version += 1
        return self._position_version

    def _drop(self, gone: Collection[TopicPartition]) -> None:
        """Forgets the data, errors and replicas of these partitions' former positions."""
        self.buffer.drop(gone)
        for tp in gone:
            self.read_replicas.forget(tp)


class ReadReplicas:
    """The followers that partitions are read from, as leaders named them. Changes go into `changed`.

    Invariants: a partition without a follower here is read from its leader; every choice ends after some time, so that
    the leader is asked again and may name another replica. Kafka: SubscriptionState.preferredReadReplica (G15).
    """

    def __init__(self, changed: ChangedPartitions) -> None:
        self._changed = changed
        # The node, and the end of the choice. The choice that ends first comes first.
        self._choices: dict[TopicPartition, tuple[int, int]] = {}

    def node_id(self, topic_partition: TopicPartition, now_ms: int) -> int | None:
        """The follower to read from; None: the leader."""
        node_id, until_ms = self._choices.get(topic_partition, (None, 0))
        return node_id if now_ms < until_ms else None

    def choose(self, topic_partition: TopicPartition, node_id: int, until_ms: int) -> None:
        """Reads from this follower until then; no earlier choice may end later."""
        self.forget(topic_partition)
        self._choices[topic_partition] = (node_id, until_ms)
        self._changed.add(topic_partition)

    def read_from_leader(self, topic_partition: TopicPartition) -> None:
        """Gives up the follower. The leader is asked, and may name another one."""
        if self.forget(topic_partition):
            self._changed.add(topic_partition)

    def forget(self, topic_partition: TopicPartition) -> bool:
        """Drops the choice of a partition. Returns whether there was one."""
        return self._choices.pop(topic_partition, None) is not None

    def update(self, now_ms: int, *, have_brokers_changed: bool) -> None:
        """Ends choices whose time is over. After a change of the brokers all partitions here are planned again."""
        while self._choices:
            tp, (_, until_ms) = next(iter(self._choices.items()))
            if now_ms < until_ms:
                break
            self.read_from_leader(tp)
        if have_brokers_changed:
            self._changed.add_all(self._choices)


class Subscription:
    """The partitions that a consumer reads, and how they follow the metadata of their topics.

    Invariants: a topic is known by its id. When the metadata show another id under its name, positions in the former
    topic mean nothing in the new one: a bounded read ends with an error; a consumer begins again as `auto_offset_reset`
    says, and logs one warning. Records that were fetched before are still given, before those of the new topic. A topic
    that is followed is read with all its partitions. An added partition is read from its beginning, since all its
    records are newer than the subscription. An assignment never grows.
    """

    def __init__(self, state: FetchState, cluster_name: str) -> None:
        # Replaced as a whole, so any thread may read it; all else belongs to the loop.
        self.partitions: Mapping[TopicPartition, None] = {}
        # The topics that are followed, and their partition counts.
        self.followed: dict[str, int] = {}
        self._state = state
        self._cluster_name = cluster_name
        self._topic_ids: dict[str, UUID] = {}
        self._is_bounded = False

    def assign(
        self, partitions: Sequence[TopicPartition], topic_ids: Mapping[str, UUID], *, is_bounded: bool
    ) -> None:
        """Reads exactly these partitions. With `is_bounded`, another id of a topic is an error from then on."""
        self._topic_ids, self.followed = dict(topic_ids), {}
        self._is_bounded = is_bounded
        self._set(partitions)

    def follow(self, topics: Sequence[MetadataTopic]) -> None:
        """Reads all partitions of these topics, and those that are added."""
        self._topic_ids = {each.name: each.topic_id for each in topics}
        self.followed = {each.name: len(each.partitions) for each in topics}
        self._is_bounded = False
        self._set([tp for each in topics for tp in _partitions(each)])

    def reads(self, topic: str) -> bool:
        """Whether the topic is followed, or a partition of it is read."""
        return topic in self._topic_ids

    def on_metadata(self, topic: MetadataTopic) -> bool:
        """Takes new metadata of a topic, before anything uses them. Returns whether the assignment has changed."""
        former_id = self._topic_ids.get(topic.name, topic.topic_id)
        if former_id != topic.topic_id:
            self._on_created_again(topic, former_id)
            return True
        count = len(topic.partitions)
        former_count = self.followed.get(topic.name, count)
        if former_count < count:
            self._on_added(topic, former_count)
        return former_count < count

    def _on_added(self, topic: MetadataTopic, former_count: int) -> None:
        added = _partitions(topic)[former_count:]
        self.followed[topic.name] = len(topic.partitions)
        self._set([*self.partitions, *added])
        for tp in added:
            self._state.seek_to_timestamp(tp, EARLIEST_TIMESTAMP)
        logger.info(
            "topic %r has %d partitions now, all of which are read", topic.name, len(topic.partitions)
        )

    def _on_created_again(self, topic: MetadataTopic, former_id: UUID) -> None:
        error = topic_recreated(topic, former_id, self._cluster_name)
        if self._is_bounded:
            for tp in self._state.by_topic.get(topic.name, ()):
                self._state.fail(tp, error)
            return
        self._topic_ids[topic.name] = topic.topic_id
        former = tuple(self._state.by_topic.get(topic.name, ()))
        if topic.name in self.followed:
            self.followed[topic.name] = len(topic.partitions)
            others = [tp for tp in self.partitions if tp.topic != topic.name]
            self._set([*others, *_partitions(topic)])
        for tp in former:
            if tp in self.partitions and not self._state.begin_again(tp):
                self._state.fail(tp, error)
        logger.warning(
            "topic %r of cluster %r was deleted and created again; reading goes on in the new one, at the offsets that"
            " auto_offset_reset names",
            topic.name,
            self._cluster_name,
        )

    def _set(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = dict.fromkeys(partitions)
        self._state.assign(self.partitions)


def _partitions(topic: MetadataTopic) -> list[TopicPartition]:
    return [TopicPartition(topic.name, each.partition) for each in topic.partitions]
