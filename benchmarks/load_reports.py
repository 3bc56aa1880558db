"""What it costs the active controller that brokers report their load: 100 of them, with 2,000 replicas each.

Encoded heartbeats that all carry a report are decoded, checked and handled by a controller in memory, each broker's at
the default interval of reports; nothing is written. A report names as many partitions as it may. What Ray takes for a
call is left out: heartbeats come without reports, too.
"""

import gc
import random
import time
from itertools import count
from typing import Any
from uuid import UUID

from benchmarks.harness import Row
from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller import BootstrapMetadata, Controller
from rayka.ids import random_uuid
from rayka.metadata.metadata_records import (
    METADATA_VERSION_MAX,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from rayka.protocol.load import (
    REPORTED_PARTITIONS_MAX,
    DescribeLoadRequest,
    DescribeLoadResponse,
    LoadReport,
    PartitionLoad,
)
from rayka.protocol.membership import (
    HeartbeatRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RegisteredDirectory,
)
from rayka.protocol.wire import decode, encode
from rayka.shard.shard import Result

BROKERS, REPLICAS_EACH, FACTOR, TOPICS = 100, 2_000, 3, 100
SPENT_MAX_S = 0.02  # 2 % of a core
_CLUSTER_ID = "load"


def row(*, quick: bool) -> Row:
    """Processor seconds for each second of reports."""
    rounds = 10 if quick else 100
    cluster = _Cluster(REPLICAS_EACH // 10 if quick else REPLICAS_EACH)
    interval_ms = cluster.config.broker_load_report_interval_ms
    heartbeats = [cluster.heartbeats(interval_ms) for _ in range(rounds)]
    gc.collect()
    gc.freeze()  # as a node does when it has started
    spent_s = sum(cluster.take(each, interval_ms) for each in heartbeats)
    report_bytes = len(heartbeats[-1][-1])
    assert cluster.reporting_count == BROKERS
    settings = (
        f"{BROKERS} brokers, {cluster.partition_count * FACTOR // BROKERS:,} replicas each: "
        f"{BROKERS * 1000 // interval_ms} reports of {report_bytes} bytes a second"
    )
    spent_each_s = spent_s * 1000 / (rounds * interval_ms)
    return Row.allowed(
        "processor time for a second of load reports", spent_each_s, "s", SPENT_MAX_S, settings=settings
    )


class _Cluster:
    """Brokers that run, and their partitions, as the active controller knows them; no log."""

    def __init__(self, replicas_each: int) -> None:
        self.config = BrokerConfig()
        self._chance = random.Random(1)
        self._controller = Controller(
            cluster_id=_CLUSTER_ID,
            node_id=3001,
            config=self.config,
            random=self._chance,
            wall_clock_ms=lambda: self._now_ms,
        )
        self._now_ms = self._next_offset = 0
        self._numbers = count(1)
        self.partition_count = -(-BROKERS * replicas_each // FACTOR)
        self._handle(BootstrapMetadata())
        directories = [random_uuid(self._chance) for _ in range(BROKERS)]
        self._epochs = [self._register(each, directories[each - 1]) for each in range(1, BROKERS + 1)]
        self._topic_ids = [random_uuid(self._chance) for _ in range(TOPICS)]
        for number, topic_id in enumerate(self._topic_ids):
            self._replay(TopicRecord(name=f"topic-{number}", topic_id=topic_id))
        for number in range(self.partition_count):
            self._replay(self._partition(number, directories))
        for each in self.heartbeats(self.config.broker_load_report_interval_ms):
            self._on_heartbeat(each)  # each broker is unfenced

    def _register(self, broker_id: int, directory_id: UUID) -> int:
        response: RegisterBrokerResponse = self._handle(
            RegisterBrokerRequest(
                broker_id,
                _CLUSTER_ID,
                random_uuid(self._chance),
                f"machine-{broker_id}",
                (RegisteredDirectory(directory_id, "/data"),),
                max_metadata_version=METADATA_VERSION_MAX,
            )
        )
        return response.broker_epoch

    def _partition(self, number: int, directories: list[UUID]) -> PartitionRecord:
        replicas = tuple(1 + (number + place) % BROKERS for place in range(FACTOR))
        return PartitionRecord(
            topic_id=self._topic_ids[number % TOPICS],
            partition=number // TOPICS,
            replicas=replicas,
            directories=tuple(directories[each - 1] for each in replicas),
            isr=replicas,
            leader_id=replicas[0],
        )

    @property
    def reporting_count(self) -> int:
        """Of how many brokers it knows a load, and a partition that they have named."""
        found: DescribeLoadResponse = self._handle(DescribeLoadRequest())
        known = {each.broker_id for each in found.brokers if each.age_ms >= 0}
        return len(known & {each.broker_id for each in found.partitions})

    def heartbeats(self, interval_ms: int) -> list[bytes]:
        """One of each broker, with its load since the one before."""
        return [
            encode(
                HeartbeatRequest(
                    broker_id,
                    epoch,
                    self._next_offset,
                    want_fence=False,
                    want_shut_down=False,
                    number=next(self._numbers),
                    directory_size_bytes=(self._chance.randrange(10**12),),
                    load=self._report(broker_id, interval_ms),
                )
            ).body
            for broker_id, epoch in enumerate(self._epochs, start=1)
        ]

    def _report(self, broker_id: int, interval_ms: int) -> LoadReport:
        named = [broker_id - 1 + BROKERS * place for place in range(REPORTED_PARTITIONS_MAX)]  # it leads them
        size_bytes, free_bytes, in_, out = (self._chance.randrange(10**9) for _ in range(4))
        partitions = tuple(
            PartitionLoad(
                self._topic_ids[each % TOPICS],
                each // TOPICS,
                True,
                size_bytes // 10,
                bytes_in=in_ // 10,
                records_in=in_ // 1_000,
                bytes_out=out // 10,
                records_out=out // 1_000,
            )
            for each in named
        )
        return LoadReport(
            interval_ms,
            processor_permille=700,
            free_bytes=free_bytes,
            size_bytes=size_bytes,
            partition_count=self.partition_count * FACTOR // BROKERS,
            leader_count=self.partition_count // BROKERS,
            bytes_in=in_,
            records_in=in_ // 100,
            bytes_out=out,
            records_out=out // 100,
            replication_bytes_in=2 * in_,
            replication_bytes_out=2 * in_,
            partitions=partitions,
        )

    def take(self, heartbeats: list[bytes], interval_ms: int) -> float:
        """How much processor time they cost, in seconds."""
        self._now_ms += interval_ms
        began_s = time.process_time()
        for each in heartbeats:
            self._on_heartbeat(each)
        return time.process_time() - began_s

    def _on_heartbeat(self, body: bytes) -> None:
        request = decode(HeartbeatRequest, body)
        request.check()
        self._controller.on_heartbeat(request, now_ms=self._now_ms, next_offset=self._next_offset)
        self._handle(request)

    # ---- Records -------------------------------------------------------------------------------------------------

    def _handle(self, request: Any) -> Any:
        """The response; what it writes is replayed."""
        outcome = self._controller.handle(request, now_ms=self._now_ms, next_offset=self._next_offset)
        result = outcome if isinstance(outcome, Result) else self._steps(outcome)
        for each in result.records:
            self._replay(each)
        return result.response

    def _steps(self, steps: Any) -> Result[MetadataRecord, Any]:
        try:
            step = next(steps)
            while True:
                for each in step if isinstance(step, list) else [step] if step is not None else []:
                    self._replay(each)
                step = steps.send(self._next_offset)
        except StopIteration as end:
            result: Result[MetadataRecord, Any] = end.value
            return result

    def _replay(self, record: MetadataRecord) -> None:
        self._controller.replay(record, self._next_offset)
        self._next_offset += 1
