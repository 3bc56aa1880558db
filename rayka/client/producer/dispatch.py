"""Which leader a batch goes to, and in which request; how many requests and batches a leader takes at a time.

All batches that are ready for one leader go in as few requests as their bounds allow, at most one batch of each
partition in each (C1). A leader that has as much on its way as it takes gets no more, and what waits here fills up
meanwhile. On the IO thread only. Kafka: Sender.sendProducerData, RecordAccumulator.drain, InFlightRequests.
"""

from collections.abc import Callable

import msgspec

from rayka.client.metadata import ClusterMetadata
from rayka.client.producer.producer_batch import ProducerBatch
from rayka.errors import RaykaError
from rayka.ids import NO_NODE
from rayka.protocol.membership import MetadataTopic

REQUEST_BYTES_MAX = 4 << 20
REQUEST_BATCHES_MAX = 300  # small ones take a loop's time by their number, here and on the broker
_BACKLOG_MS_MAX = 2_000.0  # how long a backlog may fill
# On their way to one: it is busy, and what waits here still fills.
LEADER_BATCHES_MAX = 2 * REQUEST_BATCHES_MAX


class _Load(msgspec.Struct, eq=False):
    """What is on its way to one leader; `filling` is the request that takes more batches now."""

    request_count: int = 0
    batch_count: int = 0
    full_request_ms: float = 0.0  # how long the last full request took
    filling: list[ProducerBatch] = []
    filling_bytes: int = 0


class Dispatch:
    """See the module. `on_no_leader` returns why and until when a batch waits."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        requests_max: int,
        on_no_leader: Callable[[ProducerBatch], tuple[RaykaError, float]],
        on_no_producer_id: Callable[[int, str], None],
    ) -> None:
        self.on_no_leader = on_no_leader
        self.on_no_producer_id = on_no_producer_id
        self._metadata = metadata
        self._requests_max = requests_max
        self._loads: dict[int, _Load] = {}
        self._requests: list[tuple[int, list[ProducerBatch]]] = []
        self._topics: dict[str, MetadataTopic | None] = {}

    def __repr__(self) -> str:
        return (
            f"<Dispatch requests={ {node_id: load.request_count for node_id, load in self._loads.items()} }>"
        )

    def leader_of(self, batch: ProducerBatch) -> int:
        """The node that leads its partition, or NO_NODE."""
        if batch.topic not in self._topics:
            self._topics[batch.topic] = self._metadata.cached(batch.topic)
        topic = self._topics[batch.topic]
        if topic is None or batch.partition >= len(topic.partitions):
            return NO_NODE
        return topic.partitions[batch.partition].leader_id

    def free_places(self, leader_id: int) -> int:
        """How many batches the leader takes now, in whole requests."""
        load = self._loads[leader_id]
        requests = min(
            self._requests_max - load.request_count,
            (LEADER_BATCHES_MAX - load.batch_count) // REQUEST_BATCHES_MAX,
        )
        return max(requests, 0) * REQUEST_BATCHES_MAX

    def take(self, leader_id: int, batch: ProducerBatch) -> bool:
        """Puts the batch into a request to the leader; False when it takes no more now."""
        load = self._loads.get(leader_id)
        if load is None:
            load = self._loads[leader_id] = _Load()
        is_full = len(load.filling) == REQUEST_BATCHES_MAX
        if not load.filling or is_full or load.filling_bytes + batch.size_bytes > REQUEST_BYTES_MAX:
            if not self.free_places(leader_id):
                return False
            load.filling, load.filling_bytes = [], 0
            load.request_count += 1
            self._requests.append((leader_id, load.filling))
        load.filling.append(batch)
        load.filling_bytes += batch.size_bytes
        load.batch_count += 1
        return True

    def close_requests(self) -> None:
        """What is taken from here on goes in other requests than what was taken before."""
        self._topics.clear()
        for load in self._loads.values():
            load.filling = []

    def take_requests(self) -> list[tuple[int, list[ProducerBatch]]]:
        """The requests made since the last time, each with its leader; they must be sent in this order."""
        self.close_requests()
        requests, self._requests = self._requests, []
        return requests

    def backlog_ms(self, leader_id: int, batch_count: int) -> float:
        """How long the leader takes for so many small batches, as far as the last request tells."""
        expected_ms = self._loads[leader_id].full_request_ms * batch_count / LEADER_BATCHES_MAX
        return min(expected_ms, _BACKLOG_MS_MAX)

    def on_over(self, leader_id: int, batch_count: int, took_ms: float) -> None:
        """A request of so many batches has ended."""
        load = self._loads[leader_id]
        load.request_count -= 1
        load.batch_count -= batch_count
        if batch_count == REQUEST_BATCHES_MAX:
            load.full_request_ms = took_ms
