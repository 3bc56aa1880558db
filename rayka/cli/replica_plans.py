"""Where replicas are to go, as users write it: arguments, and Kafka's reassignment file. Pure."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from rayka.errors import InvalidReplicaAssignment
from rayka.ids import Role, TopicPartition

if TYPE_CHECKING:
    from rayka.client.admin.admin_results import BrokerDescription
    from rayka.client.admin.drain_plan import Plan

_ANY_DIRECTORY = "any"
_ID_MAX = 2**31 - 1  # of partitions and of brokers


def parse_replicas(texts: Sequence[str], topic: str) -> "Plan":
    """`0:1,2,3`: the replicas of partition 0, the preferred leader first. Raises InvalidReplicaAssignment."""
    plan: Plan = {}
    for text in texts:
        number, separator, listed = text.partition(":")
        brokers = listed.split(",")
        if not separator or not all(map(_is_number, (number, *(each.strip() for each in brokers)))):
            raise InvalidReplicaAssignment(
                f"--replicas: expected PARTITION:BROKER,BROKER, such as 0:1,2,3, found {text!r}"
            )
        _add(plan, TopicPartition(topic, int(number)), tuple(int(each) for each in brokers))
    return plan


def check_brokers(plan: "Plan", brokers: "Iterable[BrokerDescription]") -> None:
    """Raises InvalidReplicaAssignment for a broker that there is not, one twice, or none, as the controller would."""
    from rayka.client.admin.admin_arguments import replicas_of

    for_users = sorted(each.node_id for each in brokers if Role.BROKER in each.roles)
    for topic_partition, replicas in plan.items():
        unknown = sorted(set(replicas_of(replicas, str(topic_partition))) - set(for_users))
        if unknown:
            raise InvalidReplicaAssignment(
                f"{topic_partition}: {unknown} are no brokers of this cluster; expected some of {for_users}"
            )


def parse_partition(text: str) -> TopicPartition:
    """`orders-3`: partition 3 of that topic. Raises InvalidReplicaAssignment."""
    topic, _, number = text.rpartition("-")
    if not topic or not _is_number(number):
        raise InvalidReplicaAssignment(f"expected TOPIC-PARTITION, such as flights-0, found {text!r}")
    return TopicPartition(topic, int(number))


def parse_json(text: str, source: str) -> "Plan":
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


def _add(plan: "Plan", topic_partition: TopicPartition, replicas: tuple[int, ...]) -> None:
    if topic_partition in plan:
        raise InvalidReplicaAssignment(f"{topic_partition} is given twice; keep one")
    plan[topic_partition] = replicas


def _is_number(text: str) -> bool:
    return text.isdecimal() and int(text) <= _ID_MAX


def _is_id(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _ID_MAX


def _is_ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(_is_id(each) for each in value)
