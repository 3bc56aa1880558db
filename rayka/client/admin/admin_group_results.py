"""What an `Admin` answers about groups: frozen values, plain enough for JSON."""

from dataclasses import dataclass
from typing import Self

from rayka.client.admin.admin_results import AdminResult
from rayka.errors import CorruptRecord
from rayka.ids import NO_OFFSET, TopicPartition
from rayka.protocol.groups import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerAssignment,
    DescribedGroup,
    DescribedMember,
    FetchedOffset,
    GroupState,
    decode_member_data,
)


@dataclass(frozen=True)
class GroupListing(AdminResult):
    """A group in a few words. The protocol type is "consumer", or empty of one that has only committed offsets."""

    group_id: str
    protocol_type: str
    state: GroupState


@dataclass(frozen=True)
class GroupMember(AdminResult):
    """A member of a group, and the partitions that it reads; none while the group rebalances."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]

    @classmethod
    def of(cls, member: DescribedMember, protocol_type: str) -> Self:
        assignment = _assignment(member.assignment) if protocol_type == CONSUMER_PROTOCOL_TYPE else ()
        instance_id = member.group_instance_id or None
        return cls.taken_from(member, group_instance_id=instance_id, assignment=assignment)


@dataclass(frozen=True)
class GroupDescription(AdminResult):
    """A group: its state, its generation, the assignor that it uses, its members, and the node that coordinates it."""

    group_id: str
    state: GroupState
    generation_id: int
    protocol_type: str
    protocol_name: str
    coordinator_id: int
    members: tuple[GroupMember, ...]

    @classmethod
    def of(cls, group: DescribedGroup, coordinator_id: int) -> Self:
        members = tuple(GroupMember.of(each, group.protocol_type) for each in group.members)
        return cls.taken_from(group, coordinator_id=coordinator_id, members=members)


@dataclass(frozen=True)
class GroupOffset(AdminResult):
    """What a group has committed of one partition; `end_offset` and `lag`, how far it is behind, are None when they are
    not known.
    """

    topic_partition: TopicPartition
    offset: int
    leader_epoch: int
    metadata: str
    end_offset: int | None
    lag: int | None

    @classmethod
    def of(cls, fetched: FetchedOffset, end_offset: int | None) -> Self:
        lag = (
            None if end_offset is None or fetched.offset == NO_OFFSET else max(0, end_offset - fetched.offset)
        )
        tp = TopicPartition(fetched.topic, fetched.partition)
        return cls.taken_from(fetched, topic_partition=tp, end_offset=end_offset, lag=lag)


@dataclass(frozen=True)
class OffsetReset(AdminResult):
    """The offset of a partition that was committed, None where that was none, and the one in its place."""

    topic_partition: TopicPartition
    former_offset: int | None
    offset: int


def _assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Empty of bytes that are no assignment of ours."""
    try:
        return tuple(sorted(decode_member_data(ConsumerAssignment, data).partitions)) if data else ()
    except CorruptRecord:
        return ()
