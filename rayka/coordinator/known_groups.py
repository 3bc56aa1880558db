"""The groups and offsets of one shard, and what all requests to them share: limits, clock, checks of members.

Kafka: `GroupMetadataManager`, `OffsetMetadataManager`, as far as they hold state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from rayka.config.broker_config import BrokerConfig
from rayka.coordinator.group import Group, Member
from rayka.coordinator.group_records import OffsetValue
from rayka.errors import FencedInstanceId, UnknownMemberId
from rayka.ids import TopicPartition, random_uuid


@dataclass(slots=True)
class KnownGroups:
    """By group id. `wall_clock_ms` is for timestamps in records, which outlive the process."""

    config: BrokerConfig
    random: Random
    wall_clock_ms: Callable[[], int]
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, OffsetValue]] = field(default_factory=dict)
    _tokens: "count[int]" = field(default_factory=count)

    def __repr__(self) -> str:
        return f"<KnownGroups {len(self.groups)}>"

    def new_token(self) -> int:
        """What a request waits under."""
        return next(self._tokens)

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix or 'member'}-{random_uuid(self.random)}"

    def make(self, group_id: str) -> Group:
        """The group, also if it was not known; it is forgotten when nothing becomes of it."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group

    def forget_if_nothing(self, group: Group) -> None:
        """A group without members, offsets or a record does not exist."""
        if not (group.members or group.pending or group.is_recorded or self.offsets.get(group.group_id)):
            self.groups.pop(group.group_id, None)

    def member(self, group_id: str, member_id: str, group_instance_id: str) -> tuple[Group, Member]:
        """The group, and the member of it that a request comes from. Raises UnknownMemberId, and FencedInstanceId of a
        static member whose place another process has taken (E6, E7).
        """
        group = self.groups.get(group_id)
        if group is None:
            raise UnknownMemberId(f"group {group_id!r} has no members; join it")
        if group_instance_id:
            known = group.statics.get(group_instance_id)
            if known is not None and known != member_id:
                raise FencedInstanceId(
                    f"group {group_id!r}: {group_instance_id!r} is {known!r} by now, found {member_id!r}; give each"
                    " process a group_instance_id of its own"
                )
        member = group.members.get(member_id)
        if member is None or member.group_instance_id != group_instance_id:
            raise UnknownMemberId(f"group {group_id!r} has no member {member_id!r} any more; join again")
        return group, member
