"""How much a broker allows itself to fetch of what it is not in sync with (B45, G17).

Kafka's is the quota of replicas that topics name. Rayka's own are those of what reassignments add, and of what leaves a
broker.
"""

from rayka.config.broker_config import BrokerConfig
from rayka.node.replication.departing_replicas import DepartingReplicas
from rayka.partition.partition import Partition
from rayka.partition.quota import PacedQuota, Quota, ReplicationQuota, ReplicationQuotas


class FollowerQuotas:
    """Of one broker, for all leaders that it fetches from."""

    def __init__(self, broker_id: int, config: BrokerConfig) -> None:
        added = config.reassignment_replication_throttled_rate
        self._broker_id = broker_id
        self._quotas = ReplicationQuotas(
            ReplicationQuota(config.follower_replication_throttled_rate), PacedQuota(added)
        )
        self.departing = DepartingReplicas(broker_id, added)

    def __repr__(self) -> str:
        return f"<FollowerQuotas {self._quotas} {self.departing!r}>"

    def configure(self, config: BrokerConfig) -> None:
        """Other rates; that of what departs counts from the next share on."""
        added = config.reassignment_replication_throttled_rate
        self._quotas.named.bytes_per_second = config.follower_replication_throttled_rate
        self._quotas.added.bytes_per_second = self.departing.bytes_per_second = added

    def pause_ms(self, partition: Partition, now_ms: int) -> int:
        """How long nothing of the partition is asked for; 0: it may be asked for now."""
        return max((each.pause_ms(now_ms) for each in self._counting(partition)), default=0)

    def record(self, partition: Partition, size_bytes: int, now_ms: int) -> None:
        """So much of the partition was fetched."""
        for each in self._counting(partition):
            each.record(size_bytes, now_ms)

    def _counting(self, partition: Partition) -> tuple[Quota, ...]:
        """The quotas that what is fetched of the partition counts for."""
        state = partition.role.state
        return self._quotas.of(
            partition.config.follower_replication_throttled_replicas,
            partition.topic_partition.partition,
            self._broker_id,
            is_added=self._broker_id in state.adding_replicas,
        ) + self.departing.quotas(state)
