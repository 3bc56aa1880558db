"""One replica of one partition: its log, and the role that the metadata give it in each leader epoch.

Invariants:
- Leader epoch and partition epoch never fall.
- There is one role at a time. A change of role or of the leader epoch replaces the object, so nothing of a former role
  is left.
- A producer's records are appended only while this broker leads. A leader's records are appended only while it follows,
  in the epoch in which they were fetched.

`PartitionLeader`, `PartitionFollower` and `ReplicaLog` have further invariants. Kafka: `cluster/Partition.scala`
(B1-B28; reads G1-G4, G12).
"""

from collections.abc import Callable, Generator
from typing import NamedTuple
from uuid import UUID

from rayka.config.topic_config import TopicConfig
from rayka.errors import (
    ApiError,
    DamagedLog,
    FencedLeaderEpoch,
    InvariantBroken,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TIMESTAMP, OffsetAndEpoch, TopicPartition
from rayka.log.log import Log
from rayka.log.segment import COPIED_RANGE_BYTES_MIN, fetch_data
from rayka.log.segments import first_at_or_after, largest_before
from rayka.metadata.image import BrokerImage, PartitionImage
from rayka.partition.follower_states import FollowerStates
from rayka.partition.partition_follower import PartitionFollower
from rayka.partition.partition_leader import PartitionLeader
from rayka.partition.replica_log import ReplicaLog
from rayka.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    FetchPartition,
    FileRange,
)
from rayka.protocol.membership import AlterPartitionItem
from rayka.protocol.wire import NO_BYTES, Part


class ReadResult(NamedTuple):
    """A fetch's result for one partition: records, or places in files, or the epoch at which the reader's log diverges
    (G2).
    """

    high_watermark: int
    log_start_offset: int
    next_offset: int
    records: Part = NO_BYTES
    file_ranges: tuple[FileRange, ...] = ()
    diverging_epoch: OffsetAndEpoch | None = None

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.file_ranges) if self.file_ranges else self.records.size


class FoundOffset(NamedTuple):
    """The answer to ListOffsets; -1 without such a record."""

    timestamp_ms: int = NO_TIMESTAMP
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH


def readable_bytes(log: Log, offset: int, *, max_bytes: int, end_offset: int) -> int:
    """The bytes of whole batches that a reader would find, at most `max_bytes`. With a `max_bytes` of 1 no file is
    looked at. Raises OffsetOutOfRange as `Log.read` does.
    """
    spans = log.spans(offset, max_bytes, end_offset, min_one=True)
    if max_bytes == 1:
        return int(offset < min(end_offset, log.log_end_offset))
    return min(max_bytes, sum(span.stop - span.position for _, span in spans))


def _diverging_epoch(log: Log, fetch: FetchPartition) -> OffsetAndEpoch | None:
    """The epoch and offset at which the reader's log parts from this one (G2, B23); None while it does not."""
    if fetch.last_fetched_epoch == NO_EPOCH:
        return None
    end = log.end_offset_for_epoch(fetch.last_fetched_epoch)
    if end.epoch == NO_EPOCH:
        raise OffsetOutOfRange(
            f"{log.name}: where epoch {fetch.last_fetched_epoch} ended is not known here; epoch {log.latest_epoch}"
            " is the last one"
        )
    # Out of range, whatever the epochs say.
    if fetch.fetch_offset < log.log_start_offset:
        return None
    is_diverging = end.epoch < fetch.last_fetched_epoch or end.offset < fetch.fetch_offset
    return end if is_diverging else None


_UNKNOWN = PartitionImage((), (), (), NO_NODE, NO_EPOCH, NO_EPOCH)


class Partition(ReplicaLog):
    """This broker's replica of one partition."""

    def __init__(
        self, topic_partition: TopicPartition, topic_id: UUID, broker_id: int, log: Log, config: TopicConfig,
        *, brokers: Callable[[int], BrokerImage | None], replica_lag_time_max_ms: int,
    ) -> None:  # fmt: skip
        """`brokers` gives the current metadata of a broker, and is asked at every decision about one."""
        super().__init__(topic_partition, topic_id, broker_id, log, config)
        self._brokers = brokers
        self._lag_max_ms = replica_lag_time_max_ms
        self.role: PartitionLeader | PartitionFollower = PartitionFollower(self, _UNKNOWN)

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "follower"
        pending = f" maximal={list(self.maximal_isr)}" if self.pending_isr else ""
        return (
            f"<Partition {self.topic_partition} {role} epoch={self.leader_epoch} hw={self.high_watermark}"
            f" leo={self.log.log_end_offset} isr={list(self.isr)}{pending}>"
        )

    # ---- What it is ------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, PartitionLeader)

    @property
    def leader_id(self) -> int:
        return self.role.state.leader_id

    @property
    def leader_epoch(self) -> int:
        return self.role.state.leader_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        """The ISR that the controller has committed; only a leader knows it."""
        return self.role.isr.committed

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The replicas that may be in sync after the controller's answer (B2)."""
        return self.role.isr.maximal

    @property
    def pending_isr(self) -> AlterPartitionItem | None:
        """The proposal under way; there is at most one (B12)."""
        return self.role.isr.proposal

    # ---- Its role --------------------------------------------------------------------------------------

    def update_state(self, state: PartitionImage, *, now_ms: int) -> None:
        """Takes over the metadata; an older state changes nothing (B16, B17)."""
        if state.partition_epoch < self.role.state.partition_epoch:
            return
        if state.leader_epoch < self.leader_epoch:
            raise InvariantBroken(f"{self!r}: {state!r} is of an earlier leader epoch")
        if state.leader_id != self.broker_id:
            self.role = PartitionFollower(self, state)
        elif isinstance(self.role, PartitionLeader) and state.leader_epoch == self.leader_epoch:
            self.role.update(state, now_ms)
            self.role.maybe_increment_high_watermark(now_ms)
        else:
            followers = FollowerStates(
                self.topic_partition, self._brokers, replica_lag_time_max_ms=self._lag_max_ms, now_ms=now_ms
            )
            before = self.role
            self.role = PartitionLeader(self, state, followers, now_ms)
            if isinstance(before, PartitionLeader) and state.leader_epoch == before.state.leader_epoch + 1:
                # A replica left the partition. After a larger step another broker may have led in between.
                self.role.lead_began = before.lead_began
            self._begin_epoch(now_ms)

    def on_log_reopened(self, log: Log, now_ms: int) -> None:
        """Replaces the log, after a change of the old one ended half way. Raises StorageError, and DamagedLog when the
        log ends below the high watermark.
        """
        if log.log_end_offset < self.high_watermark:
            raise DamagedLog(
                f"{log.directory} ends at offset {log.log_end_offset}, and was committed up to {self.high_watermark}:"
                " a file in it was shortened while its disk was full. Restore it from a copy; then restart the node"
            )
        self.log = log
        self.load_high_watermark(self.high_watermark)
        if self.is_leader:
            self._begin_epoch(now_ms)

    def _begin_epoch(self, now_ms: int) -> None:
        """Begins the leader's epoch at the log's end, unless the directory is offline."""
        if self.failure is not None:
            return
        try:
            self.log.assign_epoch(self.leader_epoch, self.log.log_end_offset)
        finally:
            # A full disk takes neither the epoch nor an append; committed records are read.
            self.maybe_increment_high_watermark(now_ms)

    def maybe_increment_high_watermark(self, now_ms: int) -> bool:
        """True if the high watermark rose; a follower's never rises by itself (B1)."""
        return isinstance(self.role, PartitionLeader) and self.role.maybe_increment_high_watermark(now_ms)

    def as_leader(self) -> PartitionLeader:
        """The role of a leader. Raises NotLeaderOrFollower, and KafkaStorageError when the disk has failed."""
        self.check_online()
        role = self.role
        if not isinstance(role, PartitionLeader):
            raise NotLeaderOrFollower(
                f"{self.topic_partition}: broker {self.broker_id} does not lead it;"
                f" broker {self.leader_id} does, in epoch {self.leader_epoch}"
            )
        return role

    def as_follower(self, leader_epoch: int) -> PartitionFollower:
        """The role of a follower. Its answer to a fetch counts only in the leader epoch of the fetch (B26). Raises
        FencedLeaderEpoch and UnknownLeaderEpoch when the epoch has changed.
        """
        self.check_online()
        self._check_epoch(leader_epoch)
        role = self.role
        if not isinstance(role, PartitionFollower):
            raise NotLeaderOrFollower(
                f"{self.topic_partition}: broker {self.broker_id} leads it, and follows nobody"
            )
        return role

    # ---- Reading ---------------------------------------------------------------------------------------

    def read(
        self, fetch: FetchPartition, *, max_bytes: int, min_one_batch: bool, as_file_ranges: bool = False,
        is_follower: bool = False, any_replica: bool = False,
    ) -> ReadResult:  # fmt: skip
        """Whole batches from the one that contains the fetch offset, below the high watermark, for a follower to the
        log end (G1-G6); or the epoch at which the reader's log parts from this one. With `any_replica` a consumer may
        read although another broker leads (G15). `as_file_ranges`: the reader can open the files itself.

        `next_offset` follows the last batch. Raises OffsetOutOfRange, the errors of `check_readable`, and StorageError
        when the disk fails.
        """
        self.check_readable(fetch.current_leader_epoch, any_replica=any_replica and not is_follower)
        if is_follower and fetch.current_leader_epoch == NO_EPOCH:
            raise UnknownLeaderEpoch(
                f"{self.topic_partition}: a follower says which leader epoch it follows, here {self.leader_epoch}"
            )
        log, offset = self.log, fetch.fetch_offset
        nothing = ReadResult(self.high_watermark, log.log_start_offset, offset)
        diverging_epoch = _diverging_epoch(log, fetch)
        if diverging_epoch is not None:
            return nothing._replace(diverging_epoch=diverging_epoch)
        if offset == log.log_end_offset:
            return nothing
        max_bytes = min(max_bytes, fetch.max_bytes)
        spans = log.spans(offset, max_bytes, self._end_offset_for(is_follower), min_one_batch)
        range_bytes_min = (COPIED_RANGE_BYTES_MIN if is_follower else 0) if as_file_ranges else None
        read = fetch_data(spans, offset, range_bytes_min=range_bytes_min)
        return nothing._replace(
            records=read.records, file_ranges=read.file_ranges, next_offset=read.next_offset
        )

    def available_bytes(self, offset: int, max_bytes: int, *, is_follower: bool = False) -> int:
        """The bytes of whole batches that a reader would find from the offset on, at most `max_bytes`."""
        end_offset = self._end_offset_for(is_follower)
        return readable_bytes(self.log, offset, max_bytes=max_bytes, end_offset=end_offset)

    def _end_offset_for(self, is_follower: bool) -> int:
        return self.log.log_end_offset if is_follower else self.high_watermark

    def find_offset(
        self, timestamp_ms: int, current_leader_epoch: int, *, is_follower: bool = False
    ) -> Generator[None, None, FoundOffset]:
        """The earliest offset, the latest, or the first one at or after a time, below the reader's end (G12). Yields
        after each slice of a search by time, which may be long; `check_readable` then says whether the search may
        continue.

        Raises OffsetNotAvailable while the high watermark has not reached the leader's first offset.
        """
        self.check_readable(current_leader_epoch)
        epoch_start_offset = self.as_leader().epoch_start_offset
        if (
            not is_follower
            and timestamp_ms != EARLIEST_TIMESTAMP
            and self.high_watermark < epoch_start_offset
        ):
            raise OffsetNotAvailable(
                f"{self.topic_partition}: the high watermark {self.high_watermark} has not reached"
                f" {epoch_start_offset}, where leader epoch {self.leader_epoch} began"
            )
        log, end_offset = self.log, self._end_offset_for(is_follower)
        if timestamp_ms == LATEST_TIMESTAMP:
            return FoundOffset(NO_TIMESTAMP, end_offset, self.leader_epoch)
        if timestamp_ms == EARLIEST_TIMESTAMP:
            return FoundOffset(NO_TIMESTAMP, log.log_start_offset, log.epochs.epoch_of(log.log_start_offset))
        if timestamp_ms == MAX_TIMESTAMP:
            found = yield from largest_before(log, end_offset=end_offset)
        else:
            found = yield from first_at_or_after(log, timestamp_ms, end_offset=end_offset)
        return FoundOffset() if found is None else FoundOffset(*found)

    # ---- Checks ----------------------------------------------------------------------------------------

    def check_readable(self, current_leader_epoch: int, *, any_replica: bool = False) -> None:
        """Raises FencedLeaderEpoch when the caller's epoch is older, UnknownLeaderEpoch when it is newer (B24),
        NotLeaderOrFollower unless any replica will do, and KafkaStorageError when the disk has failed. An epoch of -1
        is not checked.
        """
        if current_leader_epoch != NO_EPOCH:
            self._check_epoch(current_leader_epoch)
        if any_replica:
            self.check_online()
        else:
            self.as_leader()

    def _check_epoch(self, leader_epoch: int) -> None:
        own = self.role.state.leader_epoch
        if leader_epoch != own:
            kind: type[ApiError] = FencedLeaderEpoch if leader_epoch < own else UnknownLeaderEpoch
            raise kind(f"{self.topic_partition}: leader epoch is {own}, found {leader_epoch}")
