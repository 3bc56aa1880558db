"""A leader, two followers and a controller as small as the rules of replication need them, without a node.

Messages are values that the caller delivers, late, twice or never. Each broker has its own view of the metadata.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from rayka.config.topic_config import TopicConfig
from rayka.errors import ApiError, ErrorCode, OffsetOutOfRange
from rayka.ids import NO_NODE, ZERO_ID, TopicPartition
from rayka.log.log import PrefixCopy
from rayka.log.log_opening import ShutdownState
from rayka.log.recovery import Tearing
from rayka.metadata.image import BrokerImage, PartitionImage
from rayka.partition.follower_states import FollowerFetch
from rayka.partition.partition import Partition, ReadResult
from rayka.partition.partition_leader import Appended
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import split_batches
from rayka.protocol.fetch import FetchPartition
from rayka.protocol.membership import AlterPartitionItem, AlterPartitionResult
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import opened_log
from tests.partition.support import LAG_MAX_MS, append_one, broker_image, position, records, sync

BROKERS = (1, 2, 3)


class Request(NamedTuple):
    """A follower's fetch on its way."""

    number: int
    leader_id: int
    follower: FollowerFetch
    fetch: FetchPartition


class Response(NamedTuple):
    """The leader's answer; `leader_range` is the begin and the end of its log when the fetch was out of range."""

    request: Request
    read: ReadResult | None
    leader_range: tuple[int, int] | None = None


class Controller:
    """Elections, fencing and proposals, as B13, B40, B43, B44 have them, for one partition."""

    def __init__(self) -> None:
        self.state = PartitionImage(BROKERS, (ZERO_ID,) * 3, BROKERS, 1, 0, 0)
        self.brokers = {each: broker_image(each, epoch=each) for each in BROKERS}
        self._last_broker_epoch = max(BROKERS)

    def _change(self, isr: tuple[int, ...]) -> None:
        """Another ISR, and another leader if this one cannot stay."""
        leader_id = self.state.leader_id
        candidates = [each for each in BROKERS if each in isr and self.brokers[each].is_active]
        if leader_id not in candidates:
            leader_id = candidates[0] if candidates else NO_NODE
        is_same = leader_id == self.state.leader_id
        self.state = msgspec.structs.replace(
            self.state,
            isr=isr,
            leader_id=leader_id,
            leader_epoch=self.state.leader_epoch + (not is_same),
            partition_epoch=self.state.partition_epoch + 1,
        )

    def fence(self, broker_id: int) -> None:
        self.brokers[broker_id] = msgspec.structs.replace(self.brokers[broker_id], is_fenced=True)
        left = tuple(each for each in self.state.isr if each != broker_id)
        if len(left) < len(self.state.isr):
            self._change(left or self.state.isr)

    def register(self, broker_id: int) -> None:
        """Another process of the broker: fenced, with another epoch."""
        self.fence(broker_id)
        self._last_broker_epoch += 1
        self.brokers[broker_id] = broker_image(broker_id, epoch=self._last_broker_epoch, is_fenced=True)

    def unfence(self, broker_id: int) -> None:
        self.brokers[broker_id] = msgspec.structs.replace(self.brokers[broker_id], is_fenced=False)
        if self.state.leader_id == NO_NODE and broker_id in self.state.isr:
            self._change(self.state.isr)

    def alter_partition(self, sender: int, item: AlterPartitionItem) -> AlterPartitionResult:
        error = self.refusal(sender, item)
        if error is ErrorCode.NONE:
            self._change(tuple(each.broker_id for each in item.isr))
        self.supersede(error)
        return AlterPartitionResult(
            ZERO_ID,
            0,
            error,
            leader_id=self.state.leader_id,
            leader_epoch=self.state.leader_epoch,
            isr=self.state.isr,
            partition_epoch=self.state.partition_epoch,
        )

    def supersede(self, error: ErrorCode) -> None:
        """After a refusal upon which the leader goes on, what it proposed is done for, copies included (B13)."""
        if error in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED):
            epoch = self.state.partition_epoch + 1
            self.state = msgspec.structs.replace(self.state, partition_epoch=epoch)

    def refusal(self, sender: int, item: AlterPartitionItem) -> ErrorCode:
        """Why a proposal cannot be accepted (B13)."""
        if item.leader_epoch < self.state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if sender != self.state.leader_id:
            return ErrorCode.INVALID_REQUEST
        if item.partition_epoch < self.state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member in item.isr:
            broker = self.brokers[member.broker_id]
            if not broker.is_active or member.broker_epoch not in (-1, broker.broker_epoch):
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE


class Replica:
    """One broker: its disk, its process, and its view of the metadata."""

    def __init__(self, broker_id: int, config: TopicConfig) -> None:
        self.broker_id = broker_id
        self._config = config
        self.disk = MemoryDisk()
        self.disk.make_directory("/data")
        self.brokers: dict[int, BrokerImage] = {}
        self.awaited = -1
        self.disk.sync_now([], ["/"])
        self.start(saved_high_watermark=0, tearing=Tearing.SHORT_TAIL)

    def start(self, saved_high_watermark: int, tearing: Tearing) -> None:
        """A process begins, with what the last one left."""
        log = opened_log(self.disk, "/data/orders-0", self._config, ShutdownState(0, tearing=tearing))
        self.partition = Partition(
            TopicPartition("orders", 0),
            ZERO_ID,
            self.broker_id,
            log,
            self._config,
            brokers=self._broker,
            replica_lag_time_max_ms=LAG_MAX_MS,
        )
        self.partition.load_high_watermark(saved_high_watermark)
        self.awaited = -1

    def _broker(self, broker_id: int) -> BrokerImage | None:
        return self.brokers.get(broker_id)

    def learn(self, controller: Controller, now_ms: int) -> None:
        self.brokers = dict(controller.brokers)
        self.partition.update_state(controller.state, now_ms=now_ms)

    @property
    def is_following(self) -> bool:
        return self.partition.leader_id not in (self.broker_id, NO_NODE)

    def next_request(self, number: int) -> Request:
        """Asks for more; an answer to an earlier request does not count any more."""
        partition = self.partition
        if partition.needs_sync:
            sync(partition, self.disk)
        asked = position(partition)
        fetch = FetchPartition(
            ZERO_ID,
            0,
            asked.offset,
            1 << 20,
            current_leader_epoch=partition.leader_epoch,
            last_fetched_epoch=asked.epoch,
            log_start_offset=partition.log.log_start_offset,
        )
        broker_epoch = self.brokers[self.broker_id].broker_epoch
        follower = FollowerFetch(self.broker_id, broker_epoch, asked.offset, partition.log.log_start_offset)
        self.awaited = number
        return Request(number, partition.leader_id, follower, fetch)

    def answer(self, request: Request, now_ms: int) -> tuple[Response, AlterPartitionItem | None]:
        """As a leader: what was read, and the proposal that comes of it."""
        log = self.partition.log
        try:
            read = self.partition.read(request.fetch, max_bytes=200, min_one_batch=True, is_follower=True)
            if read.diverging_epoch is not None:
                return Response(request, read), None
            update = self.partition.as_leader().record_fetch(request.follower, now_ms=now_ms)
        except OffsetOutOfRange:
            return Response(request, None, (log.log_start_offset, log.log_end_offset)), None
        except ApiError:
            return Response(request, None), None
        return Response(request, read), update.proposal

    def on_response(self, response: Response, now_ms: int) -> None:
        """As a follower: takes it, if it is still waited for."""
        request, read = response.request, response.read
        if request.number != self.awaited:
            return
        self.awaited = -1
        leader_epoch = request.fetch.current_leader_epoch
        if leader_epoch != self.partition.leader_epoch:
            return
        if response.leader_range is not None:
            start, end = response.leader_range
            self._truncate(
                partial(
                    self.partition.as_follower(leader_epoch).on_out_of_range,
                    leader_log_start_offset=start,
                    leader_log_end_offset=end,
                )
            )
        elif read is not None and read.diverging_epoch is not None:
            follower = self.partition.as_follower(leader_epoch)
            self._truncate(partial(follower.truncate_to, read.diverging_epoch))
        elif read is not None:
            self.partition.as_follower(leader_epoch).append(
                read.records,
                high_watermark=read.high_watermark,
                log_start_offset=read.log_start_offset,
                now_ms=now_ms,
            )

    def _truncate(self, truncate: Callable[[PrefixCopy | None], PrefixCopy | None]) -> None:
        copy = truncate(None)
        if copy is not None:
            self.disk.copy_prefix_now(copy.source, copy.target, copy.size_bytes)
            assert truncate(copy) is None

    def append(self, value: bytes, acks: int, now_ms: int) -> Appended | None:
        try:
            return append_one(
                self.partition.as_leader(), records(value), acks, now_ms=now_ms, timestamp_ms=1_000_000
            )
        except ApiError:
            return None

    def values_from(self, offset: int) -> dict[int, bytes | None]:
        return {each: value for each, value in self.values().items() if each >= offset}

    def values(self) -> dict[int, bytes | None]:
        """What the log holds, by offset, from its start on."""
        log = self.partition.log
        found: dict[int, bytes | None] = {}
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            read = log.read(offset, max_bytes=1 << 20, end_offset=log.log_end_offset)
            found.update(_values(bytes(read.records)))
            offset = read.next_offset
        return {each: value for each, value in found.items() if each >= log.log_start_offset}


@lru_cache(maxsize=1024)
def _values(batches: bytes) -> dict[int, bytes | None]:
    """Values of batches, by offset. The logs are read after each step, and few of their bytes are new then."""
    return {
        offset: value
        for batch in split_batches(batches)
        for offset, value in enumerate(decode(batch).values_list(), start=batch.base_offset)
    }
