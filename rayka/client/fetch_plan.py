"""Which broker a consumer asks for which partition, by what it wants and what the metadata say.

The leader is asked, or the follower that the leader named (G15). Topics whose leader is not known, and partitions that
the topic does not have, are told apart: the first need newer metadata, of the others the application hears.
"""

import asyncio

from rayka.client.fetch_state import FetchState, FetchTicket
from rayka.client.metadata import ClusterMetadata, NoSuchTopic
from rayka.client.offset_lookup import no_such_partition
from rayka.ids import NO_NODE, TopicPartition
from rayka.protocol.cluster import MetadataPartition
from rayka.protocol.fetch import FetchPartition
from rayka.protocol.fetch_session import PartitionKey

Tickets = dict[PartitionKey, FetchTicket]


class Plan:
    """What is to be asked now: `by_node` what of whom, `stale` the topics whose leaders are to be found out, `gone` the
    partitions that do not exist."""

    def __init__(self) -> None:
        self.by_node: dict[int, tuple[list[FetchPartition], Tickets]] = {}
        self.stale: dict[str, None] = {}
        self.gone: dict[TopicPartition, NoSuchTopic] = {}


class FetchPlanner:
    """Makes the plans of one consumer."""

    def __init__(self, state: FetchState, metadata: ClusterMetadata, partition_bytes_max: int) -> None:
        self._state = state
        self._metadata = metadata
        self._partition_bytes_max = partition_bytes_max

    def next(self) -> Plan:
        """Everything that wants data and is not asked for yet; it counts as asked for from now on."""
        plan = Plan()
        for tp in self._state.fetchable():
            topic = self._metadata.cached(tp.topic)
            if topic is not None and tp.partition >= len(topic.partitions):  # created anew, with fewer
                plan.gone[tp] = no_such_partition(topic, tp.partition)
            elif topic is None or topic.partitions[tp.partition].leader_id == NO_NODE:
                plan.stale[tp.topic] = None
            else:
                leader = topic.partitions[tp.partition]
                ticket = self._state.begin_fetch(tp)
                parts, tickets = plan.by_node.setdefault(self._node_to_ask(tp, leader), ([], {}))
                parts.append(
                    FetchPartition(
                        topic.topic_id,
                        tp.partition,
                        ticket.fetch_offset,
                        self._partition_bytes_max,
                        leader.leader_epoch,
                        ticket.last_fetched_epoch,
                    )
                )
                tickets[topic.topic_id, tp.partition] = ticket
        return plan

    def is_in_vain(self, node_id: int, tickets: Tickets) -> bool:
        """Whether another node is to be asked for all of it by now."""
        return not any(self._is_to_ask(node_id, each.topic_partition) for each in tickets.values())

    def _is_to_ask(self, node_id: int, topic_partition: TopicPartition) -> bool:
        topic = self._metadata.cached(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            return False
        return self._node_to_ask(topic_partition, topic.partitions[topic_partition.partition]) == node_id

    def _node_to_ask(self, topic_partition: TopicPartition, leader: MetadataPartition) -> int:
        """The follower that the leader named, while it may be asked; else the leader (G15)."""
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        chosen = self._state.read_replica(topic_partition, now_ms)
        is_usable = any(each.node_id == chosen and not each.is_fenced for each in self._metadata.brokers)
        return chosen if chosen is not None and is_usable else leader.leader_id
