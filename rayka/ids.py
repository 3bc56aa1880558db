"""Identifiers that every layer shares: values only, no behaviour that needs anything else.

Node ids are unique in a cluster: brokers from 1, coordinators from 1001, controllers from 3001. Kafka: Uuid,
TopicPartition, ReplicaKey, OffsetAndEpoch.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from random import Random
from uuid import UUID

import msgspec

METADATA_TOPIC = "__cluster_metadata"
# Names of the cluster's own topics begin with it.
INTERNAL_PREFIX = "__"
# Kafka: Uuid.METADATA_TOPIC_ID
METADATA_TOPIC_ID = UUID(int=1)
METADATA_PARTITION = 0
# Stands for "none" where a UUID is expected.
ZERO_ID = UUID(int=0)
NO_NODE = -1
NO_OFFSET = -1
NO_EPOCH = -1
NO_TIMESTAMP = -1

FIRST_BROKER_ID = 1
FIRST_COORDINATOR_ID = 1001
FIRST_CONTROLLER_ID = 3001


class Role(StrEnum):
    """A role of a node. Kafka: `process.roles`."""

    BROKER = "broker"
    COORDINATOR = "coordinator"
    CONTROLLER = "controller"

    def __repr__(self) -> str:
        # Errors and descriptions show roles as users write them.
        return repr(self.value)


BROKER_ONLY = (Role.BROKER,)


class TopicPartition(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One partition of one topic; hashable, ordered by name, then number."""

    topic: str
    partition: int

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One partition of one incarnation of a topic: a topic deleted and created again has another id."""

    topic_id: UUID
    partition: int

    def __repr__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class ReplicaKey(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A replica is a node *and* the directory it keeps: on an empty disk the same node is another replica (A55)."""

    node_id: int
    directory_id: UUID


class OffsetAndEpoch(msgspec.Struct, frozen=True, order=False, array_like=True):
    """A position in a log and the leader epoch it belongs to."""

    offset: int
    epoch: int


def is_internal(topic: str) -> bool:
    """Whether the topic is the cluster's own: clients read it and write nothing."""
    return topic.startswith(INTERNAL_PREFIX)


def random_uuid(random: Random) -> UUID:
    """A version 4 UUID from the injected random, so that a seeded run gives the same ids."""
    return UUID(int=random.getrandbits(128), version=4)


def role_of(node_id: int) -> Role:
    """The role for which the range of the node id stands; of a node with several roles the first."""
    if node_id >= FIRST_CONTROLLER_ID:
        return Role.CONTROLLER
    if node_id >= FIRST_COORDINATOR_ID:
        return Role.COORDINATOR
    return Role.BROKER


def holds_partitions(roles: Collection[Role]) -> bool:
    """Whether a node with these roles registers as a broker: every node does unless it is a controller only."""
    return any(each is not Role.CONTROLLER for each in roles)


def is_combined(roles: Collection[Role]) -> bool:
    """Whether a node with these roles is a controller and a broker or coordinator."""
    return Role.CONTROLLER in roles and holds_partitions(roles)


def possible_controllers(node_ids: Iterable[int]) -> list[int]:
    """The possible controllers among all nodes of a cluster: the nodes with ids of controllers, else all nodes.

    Without such an id controllers are combined with other roles, and any node may be one (decision 032).
    """
    known = list(node_ids)
    return [each for each in known if role_of(each) is Role.CONTROLLER] or known


def node_name(node_id: int) -> str:
    """`broker-1`, `controller-3001`: the name of a node's directory and the last part of its actor's name."""
    return f"{role_of(node_id)}-{node_id}"
