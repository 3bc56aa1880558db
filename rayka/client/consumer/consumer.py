"""The consumer as a sync class: reads all partitions of its topics, those it is assigned, or its share in a group.

A thin face: `Fetcher` fetches ahead on the IO thread, `Delivery` decodes and keeps positions on the caller's
thread; what is about positions, commits and membership are parts of their own. Not for several threads at once, as
Kafka's. Kafka: KafkaConsumer (G16).
"""

import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Generic, Unpack

import pyarrow as pa

from rayka.client import io_thread
from rayka.client.arguments import int_of, is_int
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle
from rayka.client.consumer.consumer_membership import ConsumerMembership
from rayka.client.consumer.consumer_part import Turn, in_turn, partitions_of, topic_names
from rayka.client.consumer.record import Record, ValueT
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ClosedError, InvalidArgument
from rayka.ids import TopicPartition
from rayka.options import ConsumerOptions

ITERATION_POLL_MS = 1_000.0
# An automatic commit that is due waits so long for a poll that waits itself. While this thread works, each step of the
# IO thread waits for the interpreter: 5 ms, and the next records as long.
COMMIT_LATE_S = 0.1
# How long `close` waits until the thread that polls has noticed it.
_CLOSE_TURN_TIMEOUT_S = 5.0


class Consumer(ConsumerMembership, Generic[ValueT]):
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

    # `close` was called within another method, and is done when that method ends.
    _is_close_due = False
    _is_warned = False

    def __init__(
        self,
        *topics: str | Iterable[str],
        cluster: str | ClusterHandle = DEFAULT_CLUSTER,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        names = topic_names(*topics)
        super().__init__(cluster, ConsumerConfig.given(config, options, what="consumer"))
        if names:
            try:
                self.subscribe(names)
            except BaseException:
                self.close()
                raise

    # ---- What is read ----------------------------------------------------------------------------------------------

    @in_turn
    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions from now on, whatever is added to their topics; those assigned before keep
        their position.

        Raises UnknownTopicOrPartition for a partition that does not exist, TypeError for anything but TopicPartition.
        """
        wanted = partitions_of(partitions)
        self._check_not_subscribed()
        self._run(self._fetcher.assign, wanted)
        self._delivery.keep_only(dict.fromkeys(wanted))
        self._is_assigned = bool(wanted)

    # ---- Reading ---------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[Record[ValueT]]:
        """The next records, at most max_records (`max_poll_records` by default); an empty list after timeout_ms.

        When no node of the cluster has answered anything for `default_api_timeout_ms`, UnavailableError is raised, once
        in as long, by `poll_arrow` and a loop too; poll again, and reading goes on when the cluster is back.
        Raises OffsetOutOfRange when a position lies outside the log and no reset policy is set, CorruptRecord naming
        partition and offset, UnknownTopicOrPartition when a topic was deleted. Nothing is skipped by an error.
        """
        count_max = record_count(max_records, self._config.max_poll_records)
        taken = self._poll(timeout_ms, lambda: self._delivery.next_records(count_max))
        # The last step: CPython looks for no signal between a store and the return.
        self._delivery.attempt.is_handed = True
        return taken or []

    def poll_arrow(self, timeout_ms: float = 1000, max_records: int | None = None) -> pa.RecordBatch | None:
        """The next records as one Arrow batch, at most max_records where that is given; None after timeout_ms.

        Columns: topic string, partition int32, offset int64, timestamp timestamp[ms, UTC], timestamp_type
        int32 (0 create, 1 log append), key binary, value binary, headers list<struct<key string, value
        binary>> (null where a batch has none). One batch of the log at a time, small ones merged; bytes are
        not deserialized. Raises as `poll`.
        """
        count_max = record_count(max_records, sys.maxsize)
        taken = self._poll(timeout_ms, lambda: self._delivery.next_arrow(count_max))
        self._delivery.attempt.is_handed = True
        return taken

    def __iter__(self) -> Iterator[Record[ValueT]]:
        """Records one after another, for ever; leave the loop whenever you like, the next one goes on from there.

        `seek` and `assign` in the loop, and `close` there or in another thread, hold from the next record on: nothing
        that was fetched before is given any more. After `assign([])` a loop waits until something is assigned. It ends
        when the consumer is closed (as kafka-python's does); one that begins after that raises ClosedError.
        """
        self._check_open()
        while not self._closed:
            try:
                records = self._poll(ITERATION_POLL_MS, self._delivery.iterator)
            except ClosedError:  # meanwhile, in another thread
                return
            if records is not None and not self._closed:
                given = records if self._group is None else islice(records, self._config.max_poll_records)
                self._delivery.attempt.is_handed = True
                yield from given

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
        self._close(is_processed=self._is_processed(sys.exc_info()[0]))

    def __exit__(self, kind: object = None, *_: object) -> None:
        self._close(is_processed=self._is_processed(kind))

    def _close(self, *, is_processed: bool) -> None:
        if self._closed or io_thread.is_lost():
            return
        io_thread.refuse("close")
        turn = Turn()
        try:
            before = self._in_use.begin(turn)
            is_within = before is not None and before.thread == turn.thread
            if is_within and not self._is_in_callback():
                self._is_close_due = True
                self._interrupt()
                return
            if before is not None and not is_within and self._config.group_id is not None:
                self._interrupt()
                before = self._in_use.wait_and_begin(turn, _CLOSE_TURN_TIMEOUT_S)
            self._is_closing = True
            self._end(has_turn=before is None or is_within, is_processed=is_processed)
        finally:
            turn.end()

    def _end(self, *, has_turn: bool, is_processed: bool) -> None:
        try:
            if has_turn and not is_processed:
                self._delivery.take_back()
            if has_turn:
                self._commit_at_end()
            self._end_membership(is_telling=has_turn)
        finally:
            self._closed = True
            self._delivery.end()
            self._run(self._fetcher.close)

    def _end_if_due(self) -> None:
        if self._is_close_due and not self._closed:
            self._close(is_processed=False)

    def __del__(self) -> None:
        if not self._closed and not io_thread.is_lost():
            for abandon in self._abandons():  # first: warnings may be errors
                io_thread.call_soon(abandon)
            self._warn_unclosed()

    def _warn_unclosed(self) -> None:
        """For a finalizer: warns its caller, once."""
        if self._closed or self._is_warned or io_thread.is_lost():
            return
        self._is_warned = True
        warnings.warn(f"{self!r} was not closed; use `with` or close()", ResourceWarning, stacklevel=3)

    # ---- Within ----------------------------------------------------------------------------------------------------

    @in_turn
    def _poll(self, timeout_ms: float, take: Any) -> Any:
        """What `take` gives, waiting for fetches while it gives nothing."""
        if not is_int(timeout_ms) and not isinstance(timeout_ms, float):
            raise TypeError(f"timeout_ms: expected a number, found {type(timeout_ms).__name__}")
        if not timeout_ms / 1000 < threading.TIMEOUT_MAX:  # a NaN neither
            raise InvalidArgument(f"timeout_ms: expected a time that ends, found {timeout_ms}")
        deadline_s = time.monotonic() + timeout_ms / 1000
        silence_ms_max = self._config.default_api_timeout_ms
        self._delivery.begin()
        self._maybe_auto_commit(late_s=COMMIT_LATE_S)
        if self._group is not None:
            self._group.check_poll()
        while True:
            self._hand_over()
            taken = take()
            # `take` runs deserializers and interceptors, which may close the consumer, and so may a signal handler.
            self._check_not_closing()
            if taken:
                return taken
            self._maybe_auto_commit()
            remaining_ms = max(0.0, (deadline_s - time.monotonic()) * 1000)
            poll = partial(self._fetcher.poll, remaining_ms, self._delivery.add, silence_ms_max)
            if not self._polls(poll, remaining_ms):
                self._check_open()
                if not self._has_handover and time.monotonic() >= deadline_s:
                    if self._group is not None:
                        self._group.raise_error()
                    return None


def record_count(max_records: int | None, default: int) -> int:
    """How many records a poll gives at most. Raises TypeError, ValueError."""
    if max_records is None:
        return default
    if int_of(max_records, "max_records") < 1:
        raise InvalidArgument(f"max_records: expected 1 or more, found {max_records}")
    return max_records
