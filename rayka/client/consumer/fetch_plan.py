"""The plan of a consumer's fetches: the broker to ask for each partition, and the fetch session with each broker.

The leader of a partition is asked, or the follower that the leader named (G15). Invariants: a partition is fetched from
one broker at most; an update costs as much as has changed, in the consumer's state or in the metadata, and for each
topic a check of its age ten times a second. A partition without a known leader waits for newer metadata; a partition
that its topic does not have is an error for the application. Without IO.

Kafka: AbstractFetch.prepareFetchRequests, selectReadReplica, FetchSessionHandler (G14).
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from rayka.client.consumer.fetch_state import FetchState, FetchTicket
from rayka.client.metadata import ClusterMetadata, no_such_partition
from rayka.clock import now_s
from rayka.ids import NO_EPOCH, NO_NODE, TopicPartition, node_name
from rayka.protocol.fetch import (
    FIRST_SESSION_EPOCH,
    FetchPartition,
    FetchPartitionResult,
    FetchStream,
    PartitionKey,
    SessionRequest,
)
from rayka.protocol.membership import MetadataBroker, MetadataPartition, MetadataTopic

_NOT_ASKED = 1 << 62
# A broker reads all partitions that a request has changed in one step, and does nothing else during that step.
_PARTITIONS_MAX = 500
# Partitions that are planned in one step of the loop, which does nothing else during that step.
_UPDATED_MAX = 500
# The pause between looks at the age of metadata that have not changed.
_LOOK_AGAIN_S = 0.1


class _Asked(msgspec.Struct, eq=False):
    """A partition that is fetched from a broker."""

    ticket: FetchTicket
    # The number of the request that asked from this position.
    asked_in: int = _NOT_ASKED


class NodeFetches:
    """The fetch session of a consumer with one broker.

    A request names only the partitions that have changed since the one before, so an idle consumer of many partitions
    costs next to nothing. When a partition changes while the broker holds a request back, the next request overtakes
    that one. Invariants: a result counts only if it answers the last request for its partition; no request leaves while
    there is no partition.
    """

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.stream = FetchStream()
        # The broker has failed to answer, and is not asked for a while.
        self.is_paused = False
        # The last answer had so many records that files on this machine are worth opening.
        self.gets_many = True
        self._asked: dict[PartitionKey, _Asked] = {}
        # A partition has changed that no request has named yet.
        self._has_news = False

    def __repr__(self) -> str:
        return f"<NodeFetches of {node_name(self.node_id)} partitions={len(self._asked)} {self.stream!r}>"

    @property
    def is_any_wanted(self) -> bool:
        """Whether a partition is fetched from this broker."""
        return bool(self._asked)

    @property
    def session_id(self) -> int:
        """The session that the broker keeps, as far as is known; NO_SESSION without one."""
        return self.stream.session.session_id

    def tickets(self) -> Iterable[FetchTicket]:
        """The positions of all partitions that are fetched from this broker."""
        return (each.ticket for each in self._asked.values())

    def want(self, fetch: FetchPartition, ticket: FetchTicket) -> None:
        """Replaces the fetch of a partition."""
        session, key = self.stream.session, (fetch.topic_id, fetch.partition)
        if session.wanted(*key) == fetch:
            self._asked[key].ticket = ticket
            return
        session.want(fetch)
        self._asked[key] = _Asked(ticket)
        self._has_news = True

    def forget(self, key: PartitionKey) -> None:
        """Stops fetching a partition from this broker."""
        self.stream.session.forget(*key)
        del self._asked[key]

    @property
    def may_send(self) -> bool:
        """Whether a request may leave: one at a time, unless a partition has changed."""
        if self.is_paused or not self._asked:
            return False
        if self.stream.is_waiting:
            return self._has_news and self.stream.may_overtake
        return self.stream.may_follow

    def begin(self) -> tuple[int, SessionRequest]:
        """The number and content of the next request, which has to leave now."""
        number, request = self.stream.begin(_PARTITIONS_MAX)
        self._has_news = self.stream.session.has_changed
        for each in request.partitions:
            self._asked[each.topic_id, each.partition].asked_in = number
        return number, request

    def may_wait(self, request: SessionRequest) -> bool:
        """Whether the broker may hold the request back. The next request can overtake only a request of a known
        session, and none that is about to be followed.
        """
        if request.session_epoch == FIRST_SESSION_EPOCH:
            return self.stream.has_no_sessions
        return not self._has_news

    def ticket(self, number: int, result: FetchPartitionResult) -> FetchTicket | None:
        """The position that a result of the request of this number answers; None for a result that comes too late."""
        asked = self._asked.get((result.topic_id, result.partition))
        return asked.ticket if asked is not None and asked.asked_in <= number else None

    def leader_epoch(self, result: FetchPartitionResult) -> int:
        """The leader epoch in which the partition of this result is asked for."""
        wanted = self.stream.session.wanted(result.topic_id, result.partition)
        return NO_EPOCH if wanted is None else wanted.current_leader_epoch


class _Place(NamedTuple):
    """The broker and the key by which a partition is fetched."""

    node: NodeFetches
    key: PartitionKey


class FetchPlanner:
    """The plan of one consumer. Belongs to the loop."""

    def __init__(self, state: FetchState, metadata: ClusterMetadata, partition_bytes_max: int) -> None:
        # The sessions, by the id of the broker.
        self.nodes: dict[int, NodeFetches] = {}
        # By topic, the partitions to fetch that have no known leader.
        self.leaderless: dict[str, dict[TopicPartition, None]] = {}
        self._state = state
        self._metadata = metadata
        self._partition_bytes_max = partition_bytes_max
        self._places: dict[TopicPartition, _Place] = {}
        self._topics: dict[str, MetadataTopic | None] = {}
        self._brokers: tuple[MetadataBroker, ...] = ()
        self._version = -1
        self._look_again_s = 0.0

    def update(self) -> None:
        """Plans the partitions that have changed. When they are many, some stay among the `changed` of the state, for
        the next update.
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
        """Finds partitions whose leader has changed. `cached` asks again for a topic whose metadata are too old."""
        before, self._topics = self._topics, {}
        for name, partitions in self._state.by_topic.items():
            topic = self._topics[name] = self._metadata.cached(name)
            known = before.get(name)
            if topic is not known:
                self._state.changed.add_all(each for each in partitions if _has_moved(each, known, topic))

    # ---- One partition ---------------------------------------------------------------------------------------------

    def _place(self, topic_partition: TopicPartition, now_ms: int) -> None:
        others = self.leaderless.get(topic_partition.topic)
        if others is not None:
            others.pop(topic_partition, None)
            if not others:
                del self.leaderless[topic_partition.topic]
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
        fetch = FetchPartition(
            topic.topic_id,
            topic_partition.partition,
            ticket.fetch_offset,
            self._partition_bytes_max,
            leader.leader_epoch,
            ticket.last_fetched_epoch,
        )
        node.want(fetch, ticket)

    def _known(self, topic_partition: TopicPartition) -> MetadataTopic | None:
        """The topic, if the partition has a leader. Else the partition is noted as leaderless, or has failed since its
        topic does not have it.
        """
        name, number = topic_partition.topic, topic_partition.partition
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = self._metadata.cached(name)
        # A topic that was created again may have fewer partitions.
        if topic is not None and number >= len(topic.partitions):
            self._state.fail(topic_partition, no_such_partition(topic, number))
            return None
        if topic is None or topic.partitions[number].leader_id == NO_NODE:
            self.leaderless.setdefault(name, {})[topic_partition] = None
            return None
        return topic

    def _node_to_ask(self, topic_partition: TopicPartition, leader: MetadataPartition, now_ms: int) -> int:
        """The follower that the leader named, while it may be asked; else the leader (G15)."""
        chosen = self._state.read_replicas.node_id(topic_partition, now_ms)
        if chosen is None:
            return leader.leader_id
        is_usable = any(each.node_id == chosen and not each.is_fenced for each in self._brokers)
        return chosen if is_usable else leader.leader_id

    def _move(self, topic_partition: TopicPartition, place: _Place | None) -> None:
        """Fetches the partition from this place, and from no other."""
        before = self._places.get(topic_partition)
        if before == place:
            return
        if before is not None:
            before.node.forget(before.key)
            del self._places[topic_partition]
        if place is not None:
            self._places[topic_partition] = place


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
