"""The consumer as a sync class: reads all partitions of its topics, those it is assigned, or its share in a group.

The public methods: they check what they are given, and say what they guarantee. State, polls, automatic commits and the
end are in `ConsumerCore`. Not for several threads at once, as Kafka's. Kafka: KafkaConsumer (E3 to E10, G12, G16).
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Generic, Unpack

import pyarrow as pa

from rayka.client import io_thread
from rayka.client.arguments import (
    Moment,
    check_callback,
    given_timestamp_ms,
    int_of,
    mapping_of,
    partition_of,
    partitions_of,
    topic_names,
)
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle
from rayka.client.consumer.call_guard import exclusive, exclusive_or_nested
from rayka.client.consumer.consumer_core import ConsumerCore, OnCommit, log_refusal
from rayka.client.consumer.group_membership import GroupMetadata
from rayka.client.consumer.offset_commits import (
    CommittableOffsets,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    committable,
)
from rayka.client.consumer.rebalance_listener import RebalanceListener
from rayka.client.consumer.record import Record, ValueT
from rayka.client.io_thread import SyncClient
from rayka.client.leader_calls import LIST_OFFSETS
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ClosedError, ConfigError, InvalidArgument
from rayka.ids import NO_OFFSET, TopicPartition
from rayka.options import ConsumerOptions
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsetsPartitionResult

ITERATION_POLL_MS = 1_000.0
OnPartitions = Callable[[list[TopicPartition]], Any]


class Consumer(SyncClient, Generic[ValueT]):
    """Reads records of topics in order per partition.

    `Consumer("flights", cluster="rayka")` reads all partitions of its topics; `Consumer(cluster=...)` waits
    for `assign`. Options are Kafka's, as keywords or dotted in the dict `config`; an unknown one is a ConfigError that
    names the nearest:

        group_id: str | None = None
        group_instance_id: str | None = None
        client_id: str = "rayka"
        enable_auto_commit: bool = True
        auto_commit_interval_ms: int = 5000
        max_poll_interval_ms: int = 300000
        session_timeout_ms: int = 45000
        heartbeat_interval_ms: int = 3000
        partition_assignment_strategy: an assignor | a list of them = ('range', 'cooperative-sticky')
        default_api_timeout_ms: int = 60000
        auto_offset_reset: "earliest" | "latest" | "none" = "latest"
        fetch_min_bytes: int = 1
        fetch_max_wait_ms: int = 500
        fetch_max_bytes: int = 52428800
        max_partition_fetch_bytes: int = 1048576
        max_poll_records: int = 500
        check_crcs: bool = True
        local_reads: bool = True
        client_rack: str = ""
        key_deserializer: "bytes" | "string" | "json" | "msgpack" | a pydantic model | a callable | None = None
        value_deserializer: "bytes" | "string" | "json" | "msgpack" | a pydantic model | a callable | None = None
        interceptors: a list of objects = ()
        request_timeout_ms: int = 30000
        retry_backoff_ms: int = 100
        retry_backoff_max_ms: int = 1000
        metadata_max_age_ms: int = 300000
        metadata_max_idle_ms: int = 300000
        transport: "auto" | "ray" = "auto"

    Assignors are "range", "roundrobin", "sticky" and "cooperative-sticky". A callable deserializer takes bytes;
    an object with `deserialize(topic, headers, data)` is told where they come from. With
    `local_reads`, which is rayka's own, segments on this machine are mapped instead of being sent. With `client_rack` a
    replica in that rack is read, if it is in sync; without it, one in the rack of a broker whose files are here. The
    assignors but "roundrobin" give a member partitions with a replica in its `client_rack`, as far as loads stay even.

    `interceptors` are objects with `on_consume(records)`, which returns the list of records that the application gets
    instead (in a loop each list has one record; `poll_arrow` gives what is stored), `on_commit(offsets)`, called on the
    IO thread after each commit that went well, or both. What they raise is logged and changes nothing; positions move
    by what is stored.

    With `group_id` reading begins where the group has committed, and where it has committed nothing at
    `auto_offset_reset`. Positions are committed every `auto_commit_interval_ms` by `poll` and by loops, of what was
    given before, and when partitions go to another member or the consumer closes, unless `enable_auto_commit=False`;
    `commit` and `commit_async` do it when you say so. So each record is given at least once. Without `group_id`
    positions live in this object only.

    A consumer made with topics follows them: partitions that are added are read within `metadata_max_age_ms`, always
    from their beginning, since all their records are newer than the subscription; by a group from where it has
    committed, if it has, and so are topics that come to match its pattern. When a topic was deleted and created
    again, what was fetched of the old one is given, a warning is logged, and the new one is read where
    `auto_offset_reset` says; "none" raises InconsistentTopicId.

    Guarantee: every committed record from the start position on is delivered once, in offset order per partition, until
    `seek` says otherwise. When an unclean election has taken records that were read, reading goes on at the first
    offset that differs, or with `auto_offset_reset="none"` raises LogTruncation. Raises ConfigError for an unknown
    option, ClusterNotFound, UnknownTopicOrPartition, UnavailableError when no broker answers within
    `default_api_timeout_ms`, also while reading. Kafka: KafkaConsumer.
    """

    _core: ConsumerCore

    def __init__(
        self,
        *topics: str | Iterable[str],
        cluster: str | ClusterHandle = DEFAULT_CLUSTER,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        names = topic_names(*topics)
        parsed = ConsumerConfig.given(config, options, what="consumer")
        self._core = ConsumerCore(type(self).__name__, cluster, parsed)
        self._begin(names)

    def _begin(self, topics: Iterable[str]) -> None:
        if topics:
            try:
                self.subscribe(topics)
            except BaseException:
                self.close()
                raise

    def __repr__(self) -> str:
        return repr(self._core)

    # ---- What is read ----------------------------------------------------------------------------------------------

    @exclusive
    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions from now on, whatever is added to their topics; those assigned before keep
        their position.

        Raises UnknownTopicOrPartition for a partition that does not exist, TypeError for anything but TopicPartition.
        """
        core, wanted = self._core, partitions_of(partitions)
        if core.rebalance_listener is not None:
            raise RuntimeError(
                f"{self!r} is subscribed to {', '.join(core.topics)} in a group; unsubscribe first, or do not assign"
            )
        core.run(core.fetcher.assign, wanted)
        core.delivery.keep_only(dict.fromkeys(wanted))
        core.is_assigned = bool(wanted)

    @exclusive
    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Reads these topics from now on, instead of those before, and shares their partitions with the other members
        of its group; without a group, reads all of them. With `pattern`, a regular expression for whole names, the
        group reads the topics that match, those that are created later too, within `metadata_max_age_ms`.

        The group is joined when `poll` is called, and what changes later is told by `poll` too, in its thread:
        `on_assign` with the partitions that are new, before any record of them, `on_revoke` with those that another
        member is to get, after which none of their records is given, `on_lost` (else `on_revoke`) with those that
        others may have already, because this member was silent for too long. Each gets a list of TopicPartition, and
        may call the consumer's other methods, `commit` and `seek` among them, but not `poll`.
        A callback that raises ends nothing: a poll raises it when the member has its partitions. Raises
        UnknownTopicOrPartition for a topic that does not exist, ConfigError for what needs a group, ValueError for a
        pattern that is none, RuntimeError while partitions are assigned.
        """
        names, matching = tuple(topic_names(topics)), _compiled(pattern)
        listener = RebalanceListener(on_assign, on_revoke, on_lost)
        for name, callback in listener._asdict().items():
            check_callback(callback, name)
        if bool(names) == (matching is not None):
            raise InvalidArgument(
                "subscribe: expected topics or a pattern; `unsubscribe` ends a subscription"
            )
        core = self._core
        if core.is_assigned:
            raise RuntimeError(
                f"{self!r} reads what `assign` named; assign([]) ends that, and then subscribe"
            )
        if core.config.group_id is not None:
            core.join(listener, names, matching)
        elif listener != RebalanceListener() or matching is not None:
            raise ConfigError(
                "subscribe: a pattern and callbacks expect a group; give the consumer a group_id"
            )
        else:
            core.run(core.fetcher.follow, names)
            core.delivery.keep_only(core.fetcher.subscription.partitions)
        core.topics = names

    def unsubscribe(self) -> None:
        """Reads nothing from now on; a member of a group leaves it, after `on_revoke`. Does nothing otherwise.

        Automatic commits count what was given last as for `close`.
        """
        self._core.unsubscribe(is_processed=self._core.is_processed(sys.exc_info()[0]))

    def subscription(self) -> tuple[str, ...]:
        """The topics that are subscribed to, or that match the pattern as far as is known."""
        listener = self._core.rebalance_listener
        return self._core.topics if listener is None else listener.coordinator.membership.topics

    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that are read, in the order given; those added to a topic since come last."""
        return tuple(self._core.fetcher.subscription.partitions)

    # ---- Reading ---------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[Record[ValueT]]:
        """The next records, at most max_records (`max_poll_records` by default); an empty list after timeout_ms.

        When no node of the cluster has answered anything for `default_api_timeout_ms`, UnavailableError is raised, once
        in as long, by `poll_arrow` and a loop too; poll again, and reading goes on when the cluster is back.
        Raises OffsetOutOfRange when a position lies outside the log and no reset policy is set, CorruptRecord naming
        partition and offset, UnknownTopicOrPartition when a topic was deleted. Nothing is skipped by an error.
        """
        core = self._core
        count_max = record_count(max_records, core.config.max_poll_records)
        taken = core.poll(timeout_ms, partial(core.delivery.next_records, count_max))
        # The last step: CPython looks for no signal between a store and the return.
        core.delivery.attempt.is_handed = True
        return taken or []

    def poll_arrow(self, timeout_ms: float = 1000, max_records: int | None = None) -> pa.RecordBatch | None:
        """The next records as one Arrow batch, at most max_records where that is given; None after timeout_ms.

        Columns: topic string, partition int32, offset int64, timestamp timestamp[ms, UTC], timestamp_type
        int32 (0 create, 1 log append), key binary, value binary, headers list<struct<key string, value
        binary>> (null where a batch has none). One batch of the log at a time, small ones merged; bytes are
        not deserialized. Raises as `poll`.
        """
        core = self._core
        count_max = record_count(max_records, sys.maxsize)
        taken = core.poll(timeout_ms, partial(core.delivery.next_arrow, count_max))
        core.delivery.attempt.is_handed = True
        return taken

    def __iter__(self) -> Iterator[Record[ValueT]]:
        """Records one after another, for ever; leave the loop whenever you like, the next one goes on from there.

        `seek` and `assign` in the loop, and `close` there or in another thread, hold from the next record on: nothing
        that was fetched before is given any more. After `assign([])` a loop waits until something is assigned. It ends
        when the consumer is closed (as kafka-python's does); one that begins after that raises ClosedError.
        """
        core = self._core
        core.check_open()
        while not core.is_closed:
            try:
                records = core.poll(ITERATION_POLL_MS, core.delivery.iterator)
            except ClosedError:  # meanwhile, in another thread
                return
            if records is not None and not core.is_closed:
                given = (
                    records
                    if core.rebalance_listener is None
                    else islice(records, core.config.max_poll_records)
                )
                core.delivery.attempt.is_handed = True
                yield from given

    # ---- Positions -----------------------------------------------------------------------------------------------

    @exclusive
    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """The next record of the partition is the first at or after offset.

        An offset outside the log is found out by the next poll: `auto_offset_reset` decides, "none" raises
        OffsetOutOfRange. Raises ValueError for a negative offset or a partition that is not assigned.
        """
        if not 0 <= int_of(offset, "offset") < 2**63:
            raise InvalidArgument(
                f"offset: expected 0 or more, below 2**63, found {offset}; see seek_to_beginning and seek_to_end"
            )
        self._core.check_assigned([topic_partition])
        self._core.run(self._core.fetcher.seek, {topic_partition: offset})
        self._core.delivery.drop(topic_partition)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Goes to the first offset of the partitions, of all assigned ones if none is named."""
        self._seek_to_timestamp(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Goes behind the last committed record of the partitions, of all assigned ones if none is named."""
        self._seek_to_timestamp(partitions, LATEST_TIMESTAMP)

    def seek_to_timestamp(self, timestamp: Moment, *partitions: TopicPartition) -> None:
        """Goes to the first record at or after a moment, or a timestamp in ms, and behind the last record where there
        is none; of all assigned partitions if none is named. A moment is a `datetime` (also of pandas), a `date`, or a
        text as "2026-01-31T12:00"; without a time zone it is local time. Raises TypeError, and ValueError for what is
        no moment since 1970.
        """
        self._seek_to_timestamp(partitions, given_timestamp_ms(timestamp, "timestamp"))

    # ---- Pausing ---------------------------------------------------------------------------------------------------

    @exclusive
    def pause(self, *partitions: TopicPartition) -> None:
        """Gives no more records of these partitions until `resume`, also in a loop that is under way; positions stay.

        What was fetched of them is kept. A partition that is assigned anew is not paused. Raises ValueError for one
        that is not assigned.
        """
        self._core.check_assigned(partitions)
        # First: if an interruption comes next, `paused` already names the partitions.
        for tp in partitions:
            self._core.delivery.pause(tp)
        self._core.run(self._core.fetcher.pause, partitions)

    @exclusive
    def resume(self, *partitions: TopicPartition) -> None:
        """Goes on giving records of these partitions. Raises ValueError for one that is not assigned."""
        self._core.check_assigned(partitions)
        # First: if an interruption comes next, `paused` still names the partitions.
        self._core.run(self._core.fetcher.resume, partitions)
        for tp in partitions:
            self._core.delivery.resume(tp)

    def paused(self) -> tuple[TopicPartition, ...]:
        """The partitions that are paused."""
        self._core.check_open()
        return self._core.delivery.paused()

    # ---- Offsets ---------------------------------------------------------------------------------------------------

    @exclusive_or_nested
    def position(self, topic_partition: TopicPartition) -> int:
        """The offset of the next record that poll will give. Raises what the lookup of an unknown one raises."""
        self._core.check_assigned([topic_partition])
        waiting_offset = self._core.delivery.next_offset(topic_partition)
        if waiting_offset is not None:
            return waiting_offset
        read = self._core.delivery.read_up_to(topic_partition)
        timeout_ms = self._core.config.default_api_timeout_ms
        return int(self._core.run(self._core.fetcher.position, topic_partition, read, timeout_ms))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition. Raises UnknownTopicOrPartition, UnavailableError."""
        return self._offsets(partitions, EARLIEST_TIMESTAMP)  # G12

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each partition: the offset after its last committed record."""
        return self._offsets(partitions, LATEST_TIMESTAMP)  # G12

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, Moment]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after its moment, or timestamp in ms; None where there is none.

        Moments as of `seek_to_timestamp`. Raises UnknownTopicOrPartition, UnavailableError, TypeError, ValueError for
        what is no moment since 1970.
        """
        given = mapping_of(timestamps, "timestamps").items()
        found = self._look_up({partition_of(tp): given_timestamp_ms(each, f"{tp}") for tp, each in given})
        return {
            tp: None
            if each.offset == NO_OFFSET
            else OffsetAndTimestamp(each.offset, each.timestamp_ms, each.leader_epoch)
            for tp, each in found.items()
        }

    def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The offsets between each partition's position and its end, of all assigned ones if none is named.

        Raises what `position` and `end_offsets` raise.
        """
        chosen = partitions or self.assignment()
        ends = self.end_offsets(chosen)
        return {tp: max(0, ends[tp] - self.position(tp)) for tp in chosen}

    @exclusive
    def _seek_to_timestamp(self, partitions: tuple[TopicPartition, ...], timestamp_ms: int) -> None:
        chosen = partitions or self.assignment()
        self._core.check_assigned(chosen)
        self._core.run(self._core.fetcher.seek_to_timestamp, chosen, timestamp_ms)
        for tp in chosen:
            self._core.delivery.drop(tp)

    def _offsets(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        found = self._look_up(dict.fromkeys(partitions_of(partitions), timestamp_ms))
        return {tp: each.offset for tp, each in found.items()}

    def _look_up(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListOffsetsPartitionResult]:
        """In the order of those wanted."""
        self._core.check_open()
        timeout_ms = self._core.config.default_api_timeout_ms
        found = self._core.run(self._core.fetcher.leaders.call, LIST_OFFSETS, wanted, timeout_ms)
        return {tp: found[tp] for tp in wanted}

    # ---- Commits ---------------------------------------------------------------------------------------------------

    @exclusive_or_nested
    def commit(self, offsets: CommittableOffsets | None = None) -> None:
        """Commits these offsets, of the next records that the group is to read, or, with None, all positions.

        Returns when all brokers in sync have them. Of a partition that several commits name the last one counts. Raises
        InvalidGroupId without `group_id`, UnknownTopicOrPartition, OffsetMetadataTooLarge (the other partitions are
        committed then), IllegalGeneration, UnknownMemberId or FencedInstanceId when the group goes on without this
        member; InconsistentTopicId for a topic that this consumer does not read, and that was created again since it
        learned of it (commit again for the new topic); UnavailableError, or RebalanceInProgress when the members of a
        new generation have waited for their assignments all the time: commit again.
        """
        core, given = self._core, None if offsets is None else committable(offsets)
        core.run(core.commit_call("commit", given).commit)

    def commit_async(
        self, offsets: CommittableOffsets | None = None, callback: OnCommit | None = None
    ) -> None:
        """As `commit`, but does not wait. `callback(offsets, error)` is called on the IO thread when it has ended, with
        None for an error when all went well; without a callback an error is logged.

        It never overwrites a later commit of this consumer. A callback on the IO thread, its own too, may call it with
        offsets, also while another thread polls; without them it raises RuntimeError there, since the thread that polls
        has not processed all up to its positions.
        """
        check_callback(callback, "callback")
        if not io_thread.is_current():
            begin = partial(self._begin_commit, offsets, callback)
            self._core.exclusively("commit_async", begin, may_nest=True)
            return
        self._core.check_open()
        if offsets is None:
            raise RuntimeError(
                "commit_async: a callback on rayka's IO thread cannot know what the thread that polls has processed;"
                " name the offsets, such as those that the callback was given, or commit in the thread that polls"
            )
        self._begin_commit(offsets, callback)

    def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition; None without one. Raises InvalidGroupId without
        `group_id`, UnavailableError.
        """
        wanted = partitions_of(partitions)
        self._core.check_open()
        found = self._core.run(self._core.group_offsets("committed").fetch, wanted)
        return {tp: found[tp] for tp in wanted}

    def group_metadata(self) -> GroupMetadata:
        """The group, the generation and the member's ids. Raises InvalidGroupId without `group_id`."""
        return self._core.member_metadata("group_metadata")

    def _begin_commit(self, offsets: CommittableOffsets | None, callback: OnCommit | None) -> None:
        call = self._core.commit_call("commit_async", None if offsets is None else committable(offsets))
        io_thread.call_next(call.begin, callback or log_refusal)

    # ---- End -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops fetching. Any other method raises ClosedError from then on, and loops over the consumer end; closing
        twice is fine.

        With automatic commits, closing says that the records that you were given last are processed, as asking for the
        next ones does. They are not committed, and so given again, when an exception is on its way (out of `with`, in
        `finally` or `except`), and when another thread closes than the one that was given them. In a signal handler, a
        deserializer or an interceptor, which interrupt a method, the consumer closes when that method ends; `poll` ends
        with ClosedError.
        """
        self._core.close(is_processed=self._core.is_processed(sys.exc_info()[0]))

    def __exit__(self, kind: object = None, *_: object) -> None:
        self._core.close(is_processed=self._core.is_processed(kind))

    def __del__(self) -> None:
        core: ConsumerCore | None = self.__dict__.get("_core")
        if core is not None:
            core.abandon()  # first: warnings may be errors
            core.warn_unclosed()


def methods_of(core: ConsumerCore, topics: Iterable[str]) -> Consumer[Any]:
    """The methods of a core that has just been opened, and that subscribes to the topics."""
    consumer: Consumer[Any] = Consumer.__new__(Consumer)
    consumer._core = core
    consumer._begin(topics)
    return consumer


def record_count(max_records: int | None, default: int) -> int:
    """The most records that a poll gives. Raises TypeError, ValueError."""
    if max_records is None:
        return default
    if int_of(max_records, "max_records") < 1:
        raise InvalidArgument(f"max_records: expected 1 or more, found {max_records}")
    return max_records


def _compiled(pattern: str | re.Pattern[str] | None) -> re.Pattern[str] | None:
    """The pattern as a regular expression. Raises TypeError, InvalidArgument."""
    if pattern is None or (isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str)):
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f"pattern: expected a regular expression of str, found {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidArgument(f"pattern: expected a regular expression, found {pattern!r}: {error}") from None
