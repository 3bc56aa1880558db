"""What a consumer says to its group and how it shares out the partitions where it leads: pure functions.

A member offers each of its assignors with its subscription. With an assignor that remembers, the subscription claims
the partitions that the member has, or had in its last generation where it gives up all of them before it joins. Kafka:
`ConsumerCoordinator.metadata`, `ConsumerCoordinator.onLeaderElected` (E9).
"""

from collections.abc import Iterable
from typing import NamedTuple

from rayka.config.client_config import ConsumerConfig
from rayka.coordinator.assignors.assignor import RacksByTopic, Subscriber
from rayka.coordinator.assignors.assignor_table import ASSIGNORS
from rayka.ids import TopicPartition
from rayka.protocol.groups import (
    CONSUMER_PROTOCOL_TYPE,
    NO_GENERATION,
    ConsumerAssignment,
    ConsumerSubscription,
    GroupProtocol,
    JoinedMember,
    JoinGroupRequest,
    MemberAssignment,
    SyncGroupRequest,
    decode_member_data,
    encode_member_data,
)

_FORGETFUL = ("range", "roundrobin")  # claims change nothing, so a restarted member says what it said before


class GroupMetadata(NamedTuple):
    """Which member of which generation speaks. Kafka: ConsumerGroupMetadata."""

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str = ""


class Claim(NamedTuple):
    """Partitions that a member has, and the generation whose assignment gave it to them."""

    partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION


def is_cooperative(config: ConsumerConfig) -> bool:
    """One assignor that is not makes the member eager, so that members can change from one to the other."""
    return all(ASSIGNORS[each].is_cooperative for each in config.partition_assignment_strategy)


def join_request(
    config: ConsumerConfig, metadata: GroupMetadata, topics: tuple[str, ...], claim: Claim, client_host: str
) -> JoinGroupRequest:
    """A join with all assignors of the member, in its order, and the name of its machine: a call by Ray has no address
    that the coordinator could see.
    """
    names = config.partition_assignment_strategy
    protocols = tuple(GroupProtocol(name, _subscription(config, name, topics, claim)) for name in names)
    return JoinGroupRequest(
        metadata.group_id,
        config.session_timeout_ms,
        config.max_poll_interval_ms,
        metadata.member_id,
        CONSUMER_PROTOCOL_TYPE,
        protocols,
        metadata.group_instance_id,
        config.client_id,
        client_host,
    )


def _subscription(config: ConsumerConfig, name: str, topics: tuple[str, ...], claim: Claim) -> bytes:
    """A member that gives up everything before it joins claims nothing from a cooperative assignor, which would keep it
    from the others.
    """
    has_claim = name not in _FORGETFUL and ASSIGNORS[name].is_cooperative == is_cooperative(config)
    said = claim if has_claim else Claim()
    return encode_member_data(
        ConsumerSubscription(topics, said.partitions, said.generation_id, config.client_rack)
    )


def sync_request(
    metadata: GroupMetadata, protocol_name: str, assignments: tuple[MemberAssignment, ...] = ()
) -> SyncGroupRequest:
    """A sync of this generation; the leader's has the assignments of all."""
    group_id, generation_id, member_id, instance_id = metadata
    return SyncGroupRequest(
        group_id,
        generation_id,
        member_id,
        assignments,
        CONSUMER_PROTOCOL_TYPE,
        protocol_name,
        instance_id,
    )


def subscribers_of(members: Iterable[JoinedMember]) -> list[Subscriber]:
    """The members of a generation as an assignor sees them. Raises CorruptRecord."""
    return [
        Subscriber(
            each.member_id,
            decode_member_data(ConsumerSubscription, each.metadata),
            each.group_instance_id,
        )
        for each in members
    ]


def assigned_counts(members: Iterable[JoinedMember]) -> dict[str, int]:
    """By topic: how many partitions it had when it was shared out, as far as the members' assignments show.

    Raises CorruptRecord.
    """
    counts: dict[str, int] = {}
    for each in members:
        for tp in (
            decode_member_data(ConsumerAssignment, each.assignment).partitions if each.assignment else ()
        ):
            counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
    return counts


def assignments_of(
    protocol_name: str, members: Iterable[Subscriber], topics: RacksByTopic
) -> tuple[MemberAssignment, ...]:
    """What the leader brings for all members."""
    counts = {name: len(partitions) for name, partitions in topics.items()}
    assigned = ASSIGNORS[protocol_name].assign(members, counts, topics)
    return tuple(
        MemberAssignment(member_id, encode_member_data(ConsumerAssignment(tuple(partitions))))
        for member_id, partitions in assigned.items()
    )
