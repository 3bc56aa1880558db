"""Where replicas are to go: what people write, Kafka's reassignment file, and the plan that empties a broker. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from rayka.errors import (
    BrokerIdNotRegistered,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
)
from rayka.ids import TopicPartition

if TYPE_CHECKING:
    from rayka.client.admin_results import BrokerDescription, PartitionDescription, TopicDescription

Plan = dict[TopicPartition, tuple[int, ...]]
_ANY_DIRECTORY = "any"


def drain_plan(
    broker_id: int, brokers: "Sequence[BrokerDescription]", topics: "Sequence[TopicDescription]"
) -> Plan:
    """New replicas of each partition that has one on the broker: another broker takes its place in the order.

    Each goes to an active broker that has none of the partition, in a rack that has none if there is one, with the
    fewest replicas by then. Raises BrokerIdNotRegistered, and InvalidReplicationFactor naming the topics for which
    there are not enough brokers.
    """
    known = [each.node_id for each in brokers]
    if broker_id not in known:
        listed = ", ".join(map(str, known)) or "none"
        raise BrokerIdNotRegistered(f"there is no broker {broker_id}; the cluster has {listed}")
    racks = {each.node_id: each.rack for each in brokers}
    counts = {
        each.node_id: each.replica_count
        for each in brokers
        if each.state == "active" and each.node_id != broker_id
    }
    plan: Plan = {}
    homeless: dict[str, int] = {}
    for topic in topics:
        for partition in topic.partitions:
            target = _target(partition)
            if broker_id not in target:
                continue
            others = [each for each in target if each != broker_id]
            chosen = _successor(others, counts, racks)
            if chosen is None:
                homeless[topic.name] = len(target)
            else:
                counts[chosen] += 1
                plan[TopicPartition(topic.name, partition.partition)] = tuple(
                    chosen if each == broker_id else each for each in target
                )
    if homeless:
        named = ", ".join(f"{name} (replication factor {count})" for name, count in homeless.items())
        raise InvalidReplicationFactor(
            f"without broker {broker_id} {len(counts)} active brokers remain ({_listed(counts)}), too few for topic "
            f"{named}; add another broker first (one more in the spec, and `rayka start` again while the cluster "
            "runs), or reassign to fewer replicas with `rayka partition reassign`"
        )
    return plan


def _target(partition: "PartitionDescription") -> tuple[int, ...]:
    """The replicas that it has, or will have when its reassignment is over."""
    return tuple(each for each in partition.replicas if each not in partition.removing_replicas)


def _successor(others: Sequence[int], counts: Mapping[int, int], racks: Mapping[int, str]) -> int | None:
    taken = [racks.get(each, "") for each in others]
    free = [each for each in counts if each not in others]
    return min(free, key=lambda each: (racks[each] in taken, counts[each], each), default=None)


def _listed(counts: Mapping[int, int]) -> str:
    return ", ".join(str(each) for each in sorted(counts)) or "none"


def parse_replicas(texts: Sequence[str], topic: str) -> Plan:
    """`0:1,2,3`: the replicas of partition 0, the preferred leader first. Raises InvalidReplicaAssignment."""
    plan: Plan = {}
    for text in texts:
        number, separator, listed = text.partition(":")
        brokers = listed.split(",")
        if not separator or not number.isdecimal() or not all(each.strip().isdecimal() for each in brokers):
            raise InvalidReplicaAssignment(
                f"--replicas: expected PARTITION:BROKER,BROKER, such as 0:1,2,3, found {text!r}"
            )
        _add(plan, TopicPartition(topic, int(number)), tuple(int(each) for each in brokers))
    return plan


def parse_json(text: str, source: str) -> Plan:
    """Kafka's file: `{"version": 1, "partitions": [{"topic": ..., "partition": ..., "replicas": [...]}]}`.

    Raises InvalidReplicaAssignment naming the source.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidReplicaAssignment(f"{source}: not JSON: {error}") from None
    partitions = found.get("partitions") if isinstance(found, dict) else None
    if not isinstance(partitions, list) or found.get("version", 1) != 1:
        raise InvalidReplicaAssignment(
            f'{source}: expected {{"version": 1, "partitions": [...]}}, as kafka-reassign-partitions takes it'
        )
    plan: Plan = {}
    for number, each in enumerate(partitions):
        _add(plan, *_entry(each, f"{source}, partitions[{number}]"))
    return plan


def _entry(entry: Any, where: str) -> tuple[TopicPartition, tuple[int, ...]]:
    given: dict[str, Any] = entry if isinstance(entry, dict) else {}
    topic, partition, replicas = given.get("topic"), given.get("partition"), given.get("replicas")
    if not isinstance(topic, str) or not _is_id(partition) or not _is_ids(replicas):
        raise InvalidReplicaAssignment(
            f'{where}: expected {{"topic": "t", "partition": 0, "replicas": [1, 2, 3]}}, found {entry!r}'
        )
    if any(each != _ANY_DIRECTORY for each in given.get("log_dirs") or ()):
        raise InvalidReplicaAssignment(f"{where}: expected no log_dirs, or 'any': brokers choose directories")
    return TopicPartition(topic, partition), tuple(replicas)


def _add(plan: Plan, topic_partition: TopicPartition, replicas: tuple[int, ...]) -> None:
    if topic_partition in plan:
        raise InvalidReplicaAssignment(f"{topic_partition} is given twice; keep one")
    plan[topic_partition] = replicas


def _is_id(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(_is_id(each) for each in value)
