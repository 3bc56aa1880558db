"""One replica of one partition: its leader and epoch, its log, and how far that is committed.

Invariants: log_start_offset <= high_watermark <= log_end_offset; the high watermark of one leadership never falls;
the committed ISR is a subset of the maximal ISR, and a leader counts the latter; an append of a producer happens only
while this broker leads, an append of a leader's records only while it follows, in the epoch they were fetched in; with
`flush=batch` the high watermark stays below what a power cut would take of this leader's log, so no reader gets, and
no producer was told of, a record that can vanish.

Kafka: `cluster/Partition.scala` (B1-B28; reads G1-G4, G12; G11, G13, G15).
"""

from collections.abc import Callable, Generator
from typing import NamedTuple
from uuid import UUID

from rayka.config import FlushPolicy, TopicConfig
from rayka.errors import (
    ApiError,
    DamagedLog,
    FencedLeaderEpoch,
    InvariantBroken,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageError,
    UnknownLeaderEpoch,
)
from rayka.ids import NO_EPOCH, NO_NODE, NO_OFFSET, NO_TIMESTAMP, OffsetAndEpoch, TopicPartition
from rayka.log.log import Log, PrefixCopy
from rayka.metadata.image import BrokerImage, PartitionImage
from rayka.partition import follower_log, partition_reads
from rayka.partition.follower_log import FollowerAppend
from rayka.partition.follower_states import FollowerFetch, FollowerState
from rayka.partition.leadership import Leadership
from rayka.partition.partition_reads import FoundOffset, ReadLimits, ReadResult
from rayka.partition.read_replica import choose_read_replica, is_alive_in
from rayka.partition.validation import is_stamped_by_broker, validate_batches
from rayka.partition.watermarks import followed_high_watermark
from rayka.ports import Buffer
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, FetchPartition
from rayka.protocol.produce import ACKS_ALL
from rayka.protocol.replica_reports import (
    AlterPartitionItem,
    AlterPartitionResult,
)


class Appended(NamedTuple):
    """An append that is to be acknowledged: where it is, in which epoch, and whether a sync must come
    first."""

    base_offset: int
    required_offset: int
    leader_epoch: int
    log_append_time_ms: int
    needs_sync: bool


class FollowerUpdate(NamedTuple):
    """What a follower's fetch has changed, and what is to be proposed to the controller because of it."""

    is_high_watermark_raised: bool = False
    is_low_watermark_raised: bool = False
    proposal: AlterPartitionItem | None = None


_NO_UPDATE = FollowerUpdate()


class Partition:
    """This broker's replica of one partition."""

    def __init__(
        self, topic_partition: TopicPartition, topic_id: UUID, broker_id: int, log: Log, config: TopicConfig,
        *, brokers: Callable[[int], BrokerImage | None], replica_lag_time_max_ms: int,
    ) -> None:  # fmt: skip
        """`brokers` gives what the metadata says of a broker now; it is asked at every decision about one."""
        self._broker_id = broker_id
        self._brokers = brokers
        self._leadership = Leadership(
            topic_partition,
            topic_id,
            broker_id,
            brokers=brokers,
            replica_lag_time_max_ms=replica_lag_time_max_ms,
        )
        self._config = config
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.failure: StorageError | None = None
        self.leader_epoch_start_offset = NO_OFFSET
        self.high_watermark = log.log_start_offset

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "follower"
        pending = f" maximal={list(self.maximal_isr)}" if self.pending_isr else ""
        return (
            f"<Partition {self.topic_partition} {role} epoch={self.leader_epoch} hw={self.high_watermark}"
            f" leo={self.log.log_end_offset} isr={list(self.isr)}{pending}>"
        )

    # ---- What it is ------------------------------------------------------------------------------------

    @property
    def config(self) -> TopicConfig:
        return self._config

    @property
    def is_leader(self) -> bool:
        return self._leadership.leader_id == self._broker_id

    @property
    def leader_id(self) -> int:
        return self._leadership.leader_id

    @property
    def leader_epoch(self) -> int:
        return self._leadership.leader_epoch

    @property
    def partition_epoch(self) -> int:
        """How often the partition's metadata has changed."""
        return self._leadership.partition_epoch

    @property
    def replicas(self) -> tuple[int, ...]:
        return self._leadership.replicas

    @property
    def isr(self) -> tuple[int, ...]:
        """The ISR as the controller has committed it; only a leader knows."""
        return self._leadership.isr.committed

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The replicas that may be in sync once the controller has answered (B2)."""
        return self._leadership.isr.maximal

    @property
    def pending_isr(self) -> AlterPartitionItem | None:
        """The proposal that is under way; there is no other meanwhile (B12)."""
        return self._leadership.isr.proposal

    @property
    def remote_replicas(self) -> tuple[FollowerState, ...]:
        """What a leader knows of its followers (B5)."""
        return tuple(self._leadership.followers.values())

    # ---- Leadership ------------------------------------------------------------------------------------

    def load_high_watermark(self, saved: int | None) -> None:
        """What the checkpoint says, as far as the log can be that (B4)."""
        start = self.log.log_start_offset
        self.high_watermark = min(max(start if saved is None else saved, start), self.log.log_end_offset)

    def update_config(self, config: TopicConfig) -> None:
        """Counts from the next request on."""
        self._config = config
        self.log.update_config(config)

    def update_state(self, state: PartitionImage, *, now_ms: int) -> None:
        """Takes over what the metadata says; an older state changes nothing (B16, B17).

        A new epoch of this broker's leadership begins at its log end offset, also when it will own no record.
        """
        if state.partition_epoch < self.partition_epoch:
            return
        is_new_leader_epoch = state.leader_epoch > self.leader_epoch
        self._leadership.update(state, now_ms)
        if not self.is_leader:
            return
        try:
            if is_new_leader_epoch:
                self.leader_epoch_start_offset = self.log.log_end_offset
                self.log.assign_epoch(state.leader_epoch, self.log.log_end_offset)
        finally:  # a full disk takes no epoch and no append; what is committed is read
            self.maybe_increment_high_watermark(now_ms)

    def on_log_reopened(self, log: Log, now_ms: int) -> None:
        """The log of before ended half way through a change; this is what is there. Raises StorageError, and DamagedLog
        when that is less than was committed.
        """
        if log.log_end_offset < self.high_watermark:
            raise DamagedLog(
                f"{log.directory} ends at offset {log.log_end_offset}, and was committed up to {self.high_watermark}:"
                " a file in it was shortened while its disk was full. Restore it from a copy; then restart the node"
            )
        self.log = log
        self.load_high_watermark(self.high_watermark)
        if self.is_leader:
            log.assign_epoch(self.leader_epoch, log.log_end_offset)
            self.maybe_increment_high_watermark(now_ms)

    def maybe_increment_high_watermark(self, now_ms: int) -> bool:
        """Whether the high watermark rose: to what the maximal ISR has, if the ISR is large enough (B1)."""
        leadership = self._leadership
        if not self.is_leader or len(leadership.isr.committed) < self._effective_min_isr:
            return False
        log_end_offset = self.log.log_end_offset
        own_offset = self.log.flushed_offset if self._is_flushed_in_batches else log_end_offset
        committed = leadership.committed_offset(own_offset, log_end_offset, now_ms)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        if not self.log.log_start_offset <= committed <= log_end_offset:
            raise InvariantBroken(f"{self!r}: {committed} is outside the log")
        return True

    @property
    def _is_flushed_in_batches(self) -> bool:
        """Whether a record counts only once it is on the disk."""
        return self._config.flush is FlushPolicy.BATCH

    @property
    def _effective_min_isr(self) -> int:
        return min(self._config.min_insync_replicas, len(self.replicas))

    # ---- Producing -------------------------------------------------------------------------------------

    def append(self, records: Buffer, acks: int, *, now_ms: int, timestamp_ms: int) -> Appended:
        """Validates the batches and appends them (B18). `now_ms` is monotonic, `timestamp_ms` the wall
        clock's.

        A batch that its producer sent before is where it was (C3). Raises NotLeaderOrFollower, NotEnoughReplicas
        (B15, nothing written), what `validate_batches` raises, OutOfOrderSequence, InvalidProducerEpoch,
        RecordBatchTooLarge, and StorageError when the disk fails.
        """
        self._check_leader()
        if acks == ACKS_ALL and len(self.isr) < self._effective_min_isr:
            raise NotEnoughReplicas(self._too_few_replicas())
        batches = validate_batches(
            records, self._config, where=str(self.topic_partition), timestamp_ms=timestamp_ms
        )
        stamp_ms = timestamp_ms if is_stamped_by_broker(self._config) else None
        info = self.log.append_as_leader(
            batches, self.leader_epoch, now_ms=now_ms, log_append_time_ms=stamp_ms
        )
        if info.is_duplicate and stamp_ms is not None:
            stamp_ms = info.max_timestamp_ms
        self.maybe_increment_high_watermark(now_ms)
        return Appended(
            base_offset=info.first_offset,
            required_offset=info.last_offset + 1,
            leader_epoch=self.leader_epoch,
            log_append_time_ms=NO_TIMESTAMP if stamp_ms is None else stamp_ms,
            needs_sync=self.needs_sync,
        )

    @property
    def needs_sync(self) -> bool:
        """Whether what was appended must reach the disk before it is acknowledged."""
        unflushed_count = self.log.log_end_offset - self.log.flushed_offset
        return unflushed_count > 0 and (
            self._config.flush is FlushPolicy.BATCH or unflushed_count >= self._config.flush_messages
        )

    def is_acknowledged(self, appended: Appended, acks: int) -> bool:
        """Whether the producer may be told of the append (B15).

        Raises NotLeaderOrFollower after a change of leadership, NotEnoughReplicasAfterAppend, and
        KafkaStorageError when the disk has failed meanwhile.
        """
        self._check_online()
        if not self.is_leader or self.leader_epoch != appended.leader_epoch:
            raise NotLeaderOrFollower(
                f"{self.topic_partition}: the leadership changed before the append was committed"
            )
        if appended.needs_sync and self.log.flushed_offset < appended.required_offset:
            return False
        if acks != ACKS_ALL:
            return True
        if self.high_watermark < appended.required_offset:
            return False
        if len(self.isr) < self._effective_min_isr:
            raise NotEnoughReplicasAfterAppend(self._too_few_replicas())
        return True

    # ---- A leader's followers --------------------------------------------------------------------------

    def record_follower_fetch(self, fetch: FollowerFetch, *, now_ms: int) -> FollowerUpdate:
        """A replica has everything below its fetch offset: what changes with that (B5, B11, G13).

        Only for the first read of a fetch that was read without error, in the current leader epoch and without
        diverging (B6, B24). Raises NotLeaderOrFollower when it is not a replica, or an older process of its broker.
        """
        self._check_leader()
        follower = self._leadership.follower(fetch)
        log_end_offset = self.log.log_end_offset
        if not 0 <= fetch.fetch_offset <= log_end_offset:
            raise InvariantBroken(f"{self!r}: {fetch!r} is outside the log")
        is_moved = fetch.fetch_offset != follower.log_end_offset
        old_low = self.low_watermark(now_ms) if fetch.log_start_offset != follower.log_start_offset else None
        follower.on_fetch(fetch, log_end_offset, now_ms)
        needed_offset = max(self.high_watermark, self.leader_epoch_start_offset)
        proposal = self._leadership.maybe_expand(follower, needed_offset)
        is_raised = is_moved and self.maybe_increment_high_watermark(now_ms)
        is_low_raised = old_low is not None and self.low_watermark(now_ms) > old_low
        if not (is_raised or is_low_raised or proposal):
            return _NO_UPDATE
        return FollowerUpdate(is_raised, is_low_raised, proposal)

    def maybe_shrink_isr(self, *, now_ms: int) -> AlterPartitionItem | None:
        """A proposal without the members that have not been caught up for too long (B10). To be asked regularly.

        None when the disk has failed: no replica can follow then, and alone in the ISR this replica would take along
        what the others have.
        """
        if self.failure is not None:
            return None
        return self._leadership.maybe_shrink(self.log.log_end_offset, now_ms)

    def maybe_recover(self) -> AlterPartitionItem | None:
        """A proposal that only says that this leader, elected uncleanly, has recovered (B41). To be asked regularly.

        None while another one is pending, which says so too.
        """
        return self._leadership.maybe_recover()

    def on_alter_partition(
        self, item: AlterPartitionItem, result: AlterPartitionResult, *, now_ms: int
    ) -> AlterPartitionItem | None:
        """What became of a proposal (B12). What is returned is to be proposed again."""
        again = self._leadership.on_alter_partition(item, result)
        self.maybe_increment_high_watermark(now_ms)
        return again

    def low_watermark(self, now_ms: int) -> int:
        """The lowest log start offset of all live replicas; -1 while one of them has not told it (G11)."""
        return self._leadership.low_watermark(self.log.log_start_offset, now_ms)

    def live_replicas_below(self, offset: int, now_ms: int) -> dict[int, int]:
        """The live followers whose logs begin below an offset, and where; -1 of one that has not told it (G11)."""
        live = self._leadership.live_followers(now_ms)
        return {each.replica_id: each.log_start_offset for each in live if each.log_start_offset < offset}

    def delete_records(self, before_offset: int) -> int:
        """Deletes the records below an offset, -1 for the high watermark. They are gone everywhere once the low
        watermark has reached the offset returned (G11). Raises OffsetOutOfRange above the high watermark.
        """
        self._check_leader()
        offset = self.high_watermark if before_offset == NO_OFFSET else before_offset
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: expected an offset of 0 to the high watermark {self.high_watermark},"
                f" or -1 for that, found {before_offset}"
            )
        self.log.increment_log_start_offset(offset)
        return offset

    def preferred_read_replica(self, *, rack_id: str, fetch_offset: int, now_ms: int) -> int:
        """The replica in the reader's rack that it should read from; -1: from here (G15)."""
        if not self.is_leader or not rack_id or is_alive_in(self._brokers(self._broker_id), rack_id):
            return NO_NODE
        in_sync = self._leadership.in_sync_followers(self.log.log_end_offset, now_ms)
        return choose_read_replica(in_sync, fetch_offset, rack_id, self._brokers)

    # ---- Following -------------------------------------------------------------------------------------

    def fetch_position(self) -> OffsetAndEpoch:
        """What to ask the leader for: all behind this log, if its last epoch is the leader's too (B17, B23)."""
        return OffsetAndEpoch(self.log.log_end_offset, self.log.latest_epoch)

    def append_as_follower(
        self, records: Buffer, *, leader_epoch: int, high_watermark: int, log_start_offset: int, now_ms: int
    ) -> FollowerAppend:
        """Takes an answer that was fetched in this leader epoch: the records, and how far they are committed (B3, B18).

        Raises FencedLeaderEpoch and UnknownLeaderEpoch when the epoch has changed since (B26), CorruptRecord when a
        batch is damaged or out of place; then nothing is appended.
        """
        self._check_following(leader_epoch)
        batches = follower_log.checked_batches(
            self.log, records, leader_epoch=leader_epoch, where=str(self.topic_partition)
        )
        if batches:
            follower_log.append(self.log, batches, now_ms)
        is_moved = self._follow_high_watermark(high_watermark)
        self.log.increment_log_start_offset(min(log_start_offset, self.high_watermark))
        return FollowerAppend(self.log.log_end_offset, self.needs_sync, is_moved)

    def truncate_to(
        self, diverging: OffsetAndEpoch, copied: PrefixCopy | None = None, *, leader_epoch: int
    ) -> PrefixCopy | None:
        """The leader's log has parted from this one by the end of that epoch: what it cannot have is cut off (B22).
        What is returned has to be copied first, and given here then; nothing has changed yet.

        Also below the high watermark (B27): after an unclean election, committed records are what the leader has.
        Raises as `append_as_follower` when the epoch has changed (B26).
        """
        self._check_following(leader_epoch)
        try:
            return self.log.truncate_to(follower_log.truncation_offset(self.log, diverging), copied)
        finally:  # one that met a full disk half way may have shortened the log all the same
            self._follow_high_watermark(self.high_watermark)

    def on_out_of_range(
        self,
        copied: PrefixCopy | None = None,
        *,
        leader_epoch: int,
        leader_log_start_offset: int,
        leader_log_end_offset: int,
    ) -> PrefixCopy | None:
        """The leader has no such offset: the log goes on where both of them can (B25). Returns and raises as
        `truncate_to`.
        """
        self._check_following(leader_epoch)
        try:
            return follower_log.move_into_range(
                self.log,
                copied,
                leader_log_start_offset=leader_log_start_offset,
                leader_log_end_offset=leader_log_end_offset,
            )
        finally:  # as above
            self._follow_high_watermark(self.high_watermark)

    def _follow_high_watermark(self, high_watermark: int) -> bool:
        """Whether the high watermark moved; a follower's may fall (B3)."""
        before = self.high_watermark
        self.high_watermark = followed_high_watermark(
            high_watermark, self.log.log_start_offset, self.log.log_end_offset
        )
        return self.high_watermark != before

    # ---- Reading ---------------------------------------------------------------------------------------

    def read(
        self, fetch: FetchPartition, *, max_bytes: int, min_one_batch: bool, as_file_ranges: bool = False,
        is_follower: bool = False, any_replica: bool = False,
    ) -> ReadResult:  # fmt: skip
        """Whole batches from the one that contains the fetch offset, below the high watermark, for a follower to the
        log end (G1-G4). With `any_replica` a consumer may read here although another leads (G15).

        `next_offset` follows the last batch. Raises OffsetOutOfRange, what `check_readable` raises, and StorageError
        when the disk fails.
        """
        self.check_readable(fetch.current_leader_epoch, any_replica=any_replica and not is_follower)
        if is_follower and fetch.current_leader_epoch == NO_EPOCH:
            raise UnknownLeaderEpoch(
                f"{self.topic_partition}: a follower says which leader epoch it follows, here {self.leader_epoch}"
            )
        limits = ReadLimits(self._end_offset_for(is_follower), max_bytes, min_one_batch)
        return partition_reads.read_log(
            self.log, fetch, limits, high_watermark=self.high_watermark, as_file_ranges=as_file_ranges
        )

    def available_bytes(self, offset: int, max_bytes: int, *, is_follower: bool = False) -> int:
        """How many bytes of whole batches a reader would find from the offset on, at most max_bytes."""
        end_offset = self._end_offset_for(is_follower)
        return self.log.readable_bytes(offset, max_bytes=max_bytes, end_offset=end_offset)

    def _end_offset_for(self, is_follower: bool) -> int:
        return self.log.log_end_offset if is_follower else self.high_watermark

    def find_offset(
        self, timestamp_ms: int, current_leader_epoch: int, *, is_follower: bool = False
    ) -> Generator[None, None, FoundOffset]:
        """The earliest, latest, or first offset at or after a time, below what the asker may read (G12). Yields
        after each slice of a search by time, which may be long.

        Raises OffsetNotAvailable while the high watermark has not reached the leader's first offset.
        """
        self.check_readable(current_leader_epoch)
        if (
            not is_follower
            and timestamp_ms != EARLIEST_TIMESTAMP
            and self.high_watermark < self.leader_epoch_start_offset
        ):
            raise OffsetNotAvailable(
                f"{self.topic_partition}: the high watermark {self.high_watermark} has not reached"
                f" {self.leader_epoch_start_offset}, where leader epoch {self.leader_epoch} began"
            )
        end_offset = self._end_offset_for(is_follower)
        if timestamp_ms == LATEST_TIMESTAMP:
            return FoundOffset(NO_TIMESTAMP, end_offset, self.leader_epoch)
        search = partition_reads.find_by_time(self.log, timestamp_ms, end_offset=end_offset)
        while True:
            try:
                next(search)
            except StopIteration as end:
                found: FoundOffset = end.value
                return found
            yield
            self.check_readable(current_leader_epoch)

    # ---- Checks ----------------------------------------------------------------------------------------

    def check_readable(self, current_leader_epoch: int, *, any_replica: bool = False) -> None:
        """Raises FencedLeaderEpoch when the caller's epoch is older, UnknownLeaderEpoch when it is newer (B24),
        NotLeaderOrFollower unless any replica will do, and KafkaStorageError when the disk has failed. Epoch -1 is
        not checked.
        """
        if current_leader_epoch != NO_EPOCH:
            self._check_epoch(current_leader_epoch)
        if any_replica:
            self._check_online()
        else:
            self._check_leader()

    def _check_following(self, leader_epoch: int) -> None:
        """An answer counts only in the leader epoch in which it was asked for (B26)."""
        self._check_online()
        self._check_epoch(leader_epoch)
        if self.is_leader:
            raise NotLeaderOrFollower(
                f"{self.topic_partition}: broker {self._broker_id} leads it, and follows nobody"
            )

    def _check_epoch(self, leader_epoch: int) -> None:
        if leader_epoch != self.leader_epoch:
            is_older = leader_epoch < self.leader_epoch
            kind: type[ApiError] = FencedLeaderEpoch if is_older else UnknownLeaderEpoch
            raise kind(f"{self.topic_partition}: leader epoch is {self.leader_epoch}, found {leader_epoch}")

    def _check_leader(self) -> None:
        self._check_online()
        if not self.is_leader:
            raise NotLeaderOrFollower(
                f"{self.topic_partition}: broker {self._broker_id} does not lead it;"
                f" broker {self.leader_id} does, in epoch {self.leader_epoch}"
            )

    def _check_online(self) -> None:
        if self.failure is not None:
            raise KafkaStorageError(f"{self.topic_partition}: {self.failure}")

    def _too_few_replicas(self) -> str:
        return (
            f"{self.topic_partition}: in sync are {list(self.isr)},"
            f" min.insync.replicas={self._config.min_insync_replicas}"
        )
