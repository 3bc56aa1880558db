"""The followers that a consumer reads from: which one a leader named for a partition, and until when.

Invariants: a partition without one here is read from its leader; every choice ends by itself after some time, so that
the leader is asked again and may name another replica. Kafka: SubscriptionState.preferredReadReplica (G15).
"""

from rayka.client.consumer.changed_partitions import ChangedPartitions
from rayka.ids import TopicPartition


class ReadReplicas:
    """See the module. Puts partitions that are to be read from another node among the `changed`."""

    def __init__(self, changed: ChangedPartitions) -> None:
        self._changed = changed
        # The node, and until when; the one that ends first comes first.
        self._choices: dict[TopicPartition, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"<ReadReplicas { ({tp: node_id for tp, (node_id, _) in self._choices.items()}) }>"

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
        """Something was wrong with the follower: the leader is asked, which may name another one."""
        if self.forget(topic_partition):
            self._changed.add(topic_partition)

    def forget(self, topic_partition: TopicPartition) -> bool:
        """Drops the choice with the partition's position; whether there was one."""
        return self._choices.pop(topic_partition, None) is not None

    def update(self, now_ms: int, *, have_brokers_changed: bool) -> None:
        """Ends the choices whose time is over. When the brokers have changed, all partitions here count as changed."""
        while self._choices:
            tp, (_, until_ms) = next(iter(self._choices.items()))
            if now_ms < until_ms:
                break
            self.read_from_leader(tp)
        if have_brokers_changed:
            self._changed.add_all(self._choices)
