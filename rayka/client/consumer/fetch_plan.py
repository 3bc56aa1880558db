"""Which broker a consumer asks for which partition, by what it wants and what the metadata say.

The leader is asked, or the follower that the leader named (G15). Invariants: a partition is fetched from one broker at
most; an update costs as much as has changed, in the consumer's state or in the metadata, and for each topic a check of
its age ten times a second. A partition without a known leader waits for newer metadata; one that its topic does not
have is an error for the application. Kafka: AbstractFetch.prepareFetchRequests, selectReadReplica.
"""

from typing import NamedTuple

from rayka.client.consumer.fetch_state import FetchState, FetchTicket
from rayka.client.consumer.node_fetches import NodeFetches
from rayka.client.loop_time import now_s
from rayka.client.metadata import ClusterMetadata, no_such_partition
from rayka.ids import NO_NODE, TopicPartition
from rayka.protocol.fetch import FetchPartition, PartitionKey
from rayka.protocol.membership import MetadataBroker, MetadataPartition, MetadataTopic

_UPDATED_MAX = 500  # at a time: nothing else runs meanwhile
_LOOK_AGAIN_S = 0.1  # at the age of metadata that have not changed


class _Place(NamedTuple):
    """Where a partition is asked for."""

    node: NodeFetches
    key: PartitionKey


class FetchPlanner:
    """What one consumer fetches from which broker: `nodes`, by id; `leaderless`: by topic, what is wanted and has
    no known leader. See the module.
    """

    def __init__(self, state: FetchState, metadata: ClusterMetadata, partition_bytes_max: int) -> None:
        self.nodes: dict[int, NodeFetches] = {}
        self.leaderless: dict[str, dict[TopicPartition, None]] = {}
        self._state = state
        self._metadata = metadata
        self._partition_bytes_max = partition_bytes_max
        self._places: dict[TopicPartition, _Place] = {}
        self._topics: dict[str, MetadataTopic | None] = {}
        self._brokers: tuple[MetadataBroker, ...] = ()
        self._version = -1
        self._look_again_s = 0.0

    def __repr__(self) -> str:
        return f"<FetchPlanner {list(self.nodes.values())}>"

    def update(self) -> None:
        """Brings the fetches in line with what is wanted and known now. When many partitions have changed, some of them
        are left for the next update: the state has them among the `changed`.
        """
        at_s = now_s()
        if self._metadata.version != self._version or at_s >= self._look_again_s:
            self._version, self._look_again_s = self._metadata.version, at_s + _LOOK_AGAIN_S
            self._look_at_topics()
        have_brokers_changed = self._brokers is not self._metadata.nodes.brokers
        self._brokers = self._metadata.nodes.brokers
        now_ms = int(at_s * 1000)
        self._state.read_replicas.update(now_ms, have_brokers_changed=have_brokers_changed)
        for tp in self._state.changed.take(_UPDATED_MAX):
            self._place(tp, now_ms)

    # ---- Metadata --------------------------------------------------------------------------------------------------

    def _look_at_topics(self) -> None:
        """Finds partitions whose leader has changed. For a topic whose metadata are too old `cached` asks again."""
        before, self._topics = self._topics, {}
        for name, partitions in self._state.by_topic.items():
            topic = self._topics[name] = self._metadata.cached(name)
            known = before.get(name)
            if topic is not known:
                self._state.changed.add_all(each for each in partitions if _has_moved(each, known, topic))

    def _topic(self, name: str) -> MetadataTopic | None:
        if self._topics.get(name) is None:
            self._topics[name] = self._metadata.cached(name)
        return self._topics[name]

    # ---- One partition ---------------------------------------------------------------------------------------------

    def _place(self, topic_partition: TopicPartition, now_ms: int) -> None:
        self._forget_leaderless(topic_partition)
        ticket = self._state.ticket(topic_partition)
        topic = None if ticket is None else self._known(topic_partition)
        if ticket is None or topic is None:
            self._move(topic_partition, None)
            return
        leader = topic.partitions[topic_partition.partition]
        node_id = self._node_to_ask(topic_partition, leader, now_ms)
        node = self.nodes.get(node_id)
        if node is None:
            node = self.nodes[node_id] = NodeFetches(node_id)
        self._move(topic_partition, _Place(node, (topic.topic_id, topic_partition.partition)))
        node.want(self._fetch(topic, leader, ticket), ticket)

    def _known(self, topic_partition: TopicPartition) -> MetadataTopic | None:
        """The topic, if the partition has a leader; else the partition is leaderless, or has failed as it is gone."""
        topic, number = self._topic(topic_partition.topic), topic_partition.partition
        if topic is not None and number >= len(topic.partitions):  # created anew, with fewer
            self._state.fail(topic_partition, no_such_partition(topic, number))
            return None
        if topic is None or topic.partitions[number].leader_id == NO_NODE:
            self.leaderless.setdefault(topic_partition.topic, {})[topic_partition] = None
            return None
        return topic

    def _node_to_ask(self, topic_partition: TopicPartition, leader: MetadataPartition, now_ms: int) -> int:
        """The follower that the leader named, while it may be asked; else the leader (G15)."""
        chosen = self._state.read_replicas.node_id(topic_partition, now_ms)
        if chosen is None:
            return leader.leader_id
        is_usable = any(each.node_id == chosen and not each.is_fenced for each in self._brokers)
        return chosen if is_usable else leader.leader_id

    def _fetch(self, topic: MetadataTopic, leader: MetadataPartition, ticket: FetchTicket) -> FetchPartition:
        return FetchPartition(
            topic.topic_id,
            ticket.topic_partition.partition,
            ticket.fetch_offset,
            self._partition_bytes_max,
            leader.leader_epoch,
            ticket.last_fetched_epoch,
        )

    def _move(self, topic_partition: TopicPartition, place: _Place | None) -> None:
        """The partition is fetched from there and from nowhere else."""
        before = self._places.get(topic_partition)
        if before == place:
            return
        if before is not None:
            before.node.forget(before.key)
            del self._places[topic_partition]
        if place is not None:
            self._places[topic_partition] = place

    def _forget_leaderless(self, topic_partition: TopicPartition) -> None:
        others = self.leaderless.get(topic_partition.topic)
        if others is not None:
            others.pop(topic_partition, None)
            if not others:
                del self.leaderless[topic_partition.topic]


def _has_moved(
    topic_partition: TopicPartition, before: MetadataTopic | None, topic: MetadataTopic | None
) -> bool:
    """Whether the partition has another leader, or epoch, or belongs to another topic of the name."""
    if before is None or topic is None or before.topic_id != topic.topic_id:
        return True
    number = topic_partition.partition
    if max(number, 0) >= min(len(before.partitions), len(topic.partitions)):
        return True
    old, new = before.partitions[number], topic.partitions[number]
    return (old.leader_id, old.leader_epoch) != (new.leader_id, new.leader_epoch)
