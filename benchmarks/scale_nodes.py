"""What many partitions cost brokers and controllers: created, described, led by others, restarted, deleted with three
real brokers; and 50,000 in the image of one controller, in this process: how long it takes, and the longest turn.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from uuid import UUID

import rayka
from benchmarks.harness import Row
from benchmarks.stage import pid_of, running_cluster
from rayka.client.admin.admin_results import PartitionDescription
from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller import BootstrapMetadata, Controller
from rayka.ids import random_uuid
from rayka.metadata.image import MetadataImage
from rayka.metadata.image_snapshot import image_of, image_records
from rayka.metadata.metadata_records import METADATA_VERSION_MAX, MetadataRecord, decode_record, encode_record
from rayka.protocol.membership import HeartbeatRequest, RegisterBrokerRequest, RegisteredDirectory
from rayka.protocol.topics import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectionType,
    ElectLeadersRequest,
    NewTopic,
)
from rayka.shard.runtime import ShardRuntime

BROKERS = 3
PARTITIONS, QUICK_PARTITIONS = 2_000, 100
IMAGE_TOPICS, IMAGE_PARTITIONS, QUICK_IMAGE_PARTITIONS = 50, 1_000, 50
TURN_MAX_S = 0.05
_WAIT_S = 300.0


def rows(directory: Path, *, quick: bool) -> Iterator[Row]:
    with running_cluster(directory, brokers=BROKERS) as cluster:
        yield from _ManyPartitions(cluster, QUICK_PARTITIONS if quick else PARTITIONS).rows()
    yield from image_rows(QUICK_IMAGE_PARTITIONS if quick else IMAGE_PARTITIONS)


# ---- Three brokers ---------------------------------------------------------------------------------------------------


class _ManyPartitions:
    """One topic, from its creation to its end."""

    def __init__(self, cluster: rayka.Cluster, count: int) -> None:
        self._cluster = cluster
        self._count = count
        self._topic = f"nodes-{count}"

    def rows(self) -> Iterator[Row]:
        yield self._row("create a topic", self._create, "until all replicas are in sync")
        yield self._row("describe a topic", self._describe, "by Admin")
        yield self._row("describe the cluster", self._cluster.describe, "by Cluster.describe")
        ended = 1
        yield self._row(
            "fail over a broker",
            lambda: self._fail_over(ended),
            "kill -9, until each partition has another leader, or had one",
        )
        yield self._row("restart a broker", self._await_in_sync, "after that, until all are in sync")
        yield self._row("delete a topic", self._delete, "until no broker holds a replica")

    def _row(self, what: str, work: Callable[[], object], note: str) -> Row:
        started = time.perf_counter()
        work()
        settings = f"{self._count:,} partitions, {BROKERS} replicas, {BROKERS} brokers"
        return Row(what=what, settings=settings, value=time.perf_counter() - started, unit="s", note=note)

    def _create(self) -> None:
        with rayka.Admin(cluster=self._cluster) as admin:
            admin.create_topic(self._topic, partitions=self._count, replication_factor=BROKERS)
        self._await_in_sync()

    def _describe(self) -> None:
        with rayka.Admin(cluster=self._cluster) as admin:
            assert len(admin.describe_topic(self._topic).partitions) == self._count

    def _fail_over(self, broker_id: int) -> None:
        """It may be back, and lead again, before it is looked for: the leader epoch tells."""
        with rayka.Admin(cluster=self._cluster) as admin:
            before = {
                each.partition: each.leader_epoch for each in admin.describe_topic(self._topic).partitions
            }
        os.kill(pid_of(self._cluster, node_id=broker_id), signal.SIGKILL)
        self._until(
            lambda partitions: all(
                each.leader_id not in (broker_id, -1)
                or (each.leader_id == broker_id and each.leader_epoch > before[each.partition])
                for each in partitions
            )
        )

    def _await_in_sync(self) -> None:
        self._until(lambda partitions: all(len(each.isr) == BROKERS for each in partitions))

    def _delete(self) -> None:
        with rayka.Admin(cluster=self._cluster) as admin:
            admin.delete_topic(self._topic)
        deadline = time.monotonic() + _WAIT_S
        while any(each.partition_count for each in self._cluster.describe().nodes):
            assert time.monotonic() < deadline, f"{self._topic} is still there: {self._cluster.describe()}"
            time.sleep(0.02)

    def _until(self, is_so: Callable[[Sequence[PartitionDescription]], bool]) -> None:
        deadline = time.monotonic() + _WAIT_S
        with rayka.Admin(cluster=self._cluster) as admin:
            while not is_so(admin.describe_topic(self._topic).partitions):
                assert time.monotonic() < deadline, f"{self._topic} is not as it should be"
                time.sleep(0.02)


# ---- One controller's image ------------------------------------------------------------------------------------------


class _Log:
    """Encodes what is appended, which is committed at once."""

    def __init__(self) -> None:
        self.next_offset = self.high_watermark = 0

    def append(self, records: Sequence[MetadataRecord]) -> int:
        for each in records:
            encode_record(each)
        self.next_offset = self.high_watermark = self.next_offset + len(records)
        return self.next_offset - len(records)


def _new_controller() -> Controller:
    return Controller(
        cluster_id="bench", node_id=3001, config=BrokerConfig(), random=Random(1), wall_clock_ms=lambda: 0
    )


class _OneController:
    """An active controller without a node around it: a request runs turn by turn."""

    def __init__(self) -> None:
        self._log = _Log()
        self._runtime: ShardRuntime[Controller, MetadataRecord] = ShardRuntime(_new_controller, self._log)
        self._runtime.activate(0)
        self.turns_s: list[float] = []
        self.run(BootstrapMetadata())

    @property
    def image(self) -> MetadataImage:
        return self._runtime.shard.image(self._runtime.replayed_offset)

    def run(self, request: object) -> None:
        self.turns_s = []
        self._turn(lambda: self._runtime.handle(request, now_ms=0, deadline_ms=1 << 60))
        while self._runtime.is_busy:
            self._turn(lambda: self._runtime.advance(0))

    def _turn(self, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        work()
        assert self.image is not None  # brought up to date, as the node does after each turn
        self.turns_s.append(time.perf_counter() - started)

    def start(self, broker_id: int) -> None:
        directories = (RegisteredDirectory(random_uuid(Random(broker_id)), f"/data/{broker_id}"),)
        self.run(
            RegisterBrokerRequest(
                broker_id,
                "bench",
                UUID(int=broker_id),
                "localhost",
                directories,
                max_metadata_version=METADATA_VERSION_MAX,
            )
        )
        self.heartbeat(broker_id)

    def heartbeat(self, broker_id: int, *, want_fence: bool = False, want_shut_down: bool = False) -> None:
        epoch = self.image.brokers[broker_id].broker_epoch
        self.run(HeartbeatRequest(broker_id, epoch, self._log.next_offset - 1, want_fence, want_shut_down))


def image_rows(partitions: int) -> Iterator[Row]:
    """Requests that concern all partitions of an image, and what a snapshot of it costs."""
    controller, names = _OneController(), [f"topic-{number}" for number in range(IMAGE_TOPICS)]
    for broker_id in range(1, BROKERS + 1):
        controller.start(broker_id)
    for name in names:
        controller.run(
            CreateTopicsRequest((NewTopic(name, partition_count=partitions, replication_factor=BROKERS),))
        )
    settings = f"{IMAGE_TOPICS * partitions:,} partitions of {IMAGE_TOPICS} topics, {BROKERS} replicas"
    yield from _snapshot_rows(controller.image, settings)
    steps: list[tuple[str, Callable[[], None]]] = [
        ("fence a broker", lambda: controller.heartbeat(1, want_fence=True)),
        ("unfence it", lambda: controller.heartbeat(1)),
        ("shut a broker down", lambda: controller.heartbeat(2, want_shut_down=True)),
        ("elect leaders", lambda: controller.run(ElectLeadersRequest(ElectionType.PREFERRED, None))),
        ("delete all topics", lambda: controller.run(DeleteTopicsRequest(tuple(names)))),
    ]
    for what, step in steps:
        step()
        yield _turn_row(what, settings, controller.turns_s)


def _turn_row(what: str, settings: str, turns_s: Sequence[float]) -> Row:
    return Row.allowed(
        f"{what}: the controller's longest turn",
        max(turns_s),
        "s",
        TURN_MAX_S,
        settings=settings,
        note=f"{what}: {len(turns_s)} turns, {sum(turns_s):.2f} s in all",
    )


def _snapshot_rows(image: MetadataImage, settings: str) -> Iterator[Row]:
    started = time.perf_counter()
    values = [encode_record(each) for each in image_records(image)]
    yield Row(what="snapshot of an image", settings=settings, value=time.perf_counter() - started, unit="s")
    started = time.perf_counter()
    loaded = image_of(map(decode_record, values), image.next_offset)
    yield Row(what="load that snapshot", settings=settings, value=time.perf_counter() - started, unit="s")
    assert len(loaded.topics) == len(image.topics)
