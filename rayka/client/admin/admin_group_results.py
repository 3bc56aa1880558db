"""Results of `Admin` about groups: frozen values with `to_dict` for JSON."""

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
    """One line of the list of groups."""

    group_id: str
    # "consumer"; empty for a group that has only committed offsets.
    protocol_type: str
    state: GroupState


@dataclass(frozen=True)
class GroupMember(AdminResult):
    """A member of a group and its assigned partitions."""

    member_id: str
    # None: a dynamic member.
    group_instance_id: str | None
    client_id: str
    client_host: str
    # Empty while the group rebalances.
    assignment: tuple[TopicPartition, ...]

    @classmethod
    def of(cls, member: DescribedMember, protocol_type: str) -> Self:
        assignment = _assignment(member.assignment) if protocol_type == CONSUMER_PROTOCOL_TYPE else ()
        instance_id = member.group_instance_id or None
        return cls.taken_from(member, group_instance_id=instance_id, assignment=assignment)


@dataclass(frozen=True)
class GroupDescription(AdminResult):
    """A group: its state, generation, assignor, coordinator and members."""

    group_id: str
    state: GroupState
    generation_id: int
    protocol_type: str
    # The name of the assignor.
    protocol_name: str
    # The node that coordinates the group.
    coordinator_id: int
    members: tuple[GroupMember, ...]

    @classmethod
    def of(cls, group: DescribedGroup, coordinator_id: int) -> Self:
        members = tuple(GroupMember.of(each, group.protocol_type) for each in group.members)
        return cls.taken_from(group, coordinator_id=coordinator_id, members=members)


@dataclass(frozen=True)
class GroupOffset(AdminResult):
    """The offset that a group has committed for one partition."""

    topic_partition: TopicPartition
    offset: int
    leader_epoch: int
    metadata: str
    # The end of the partition's log; None: unknown.
    end_offset: int | None
    # Records from the committed offset to the end, >= 0; None: unknown.
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
    """One partition of a reset of a group's committed offsets."""

    topic_partition: TopicPartition
    # The offset committed before; None: there was none.
    former_offset: int | None
    # The offset committed by the reset.
    offset: int


def _assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of an assignment; empty for bytes in another client's format."""
    try:
        return tuple(sorted(decode_member_data(ConsumerAssignment, data).partitions)) if data else ()
    except CorruptRecord:
        return ()
