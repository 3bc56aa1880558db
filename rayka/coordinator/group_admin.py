"""ListGroups, DescribeGroups and DeleteGroups. Kafka: `GroupMetadataManager.listGroups`, `describeGroups`,
`GroupCoordinatorShard.deleteGroups`.
"""

from rayka.coordinator.committed_offsets import tombstone
from rayka.coordinator.group import EMPTY, STABLE, Group, Member
from rayka.coordinator.group_effects import Effects
from rayka.coordinator.group_records import GroupKey, GroupRecord
from rayka.coordinator.known_groups import KnownGroups
from rayka.errors import ErrorCode
from rayka.protocol.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupResult,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from rayka.shard.shard import Steps


class GroupAdmin:
    """What operators ask about the groups of a shard."""

    def __init__(self, known: KnownGroups) -> None:
        self._known = known

    def __repr__(self) -> str:
        return f"<GroupAdmin of {self._known!r}>"

    def list_groups(self, request: ListGroupsRequest, effects: Effects) -> ListGroupsResponse:
        """In the order of ids."""
        listed = [
            ListedGroup(each.group_id, each.protocol_type, each.state)
            for each in self._known.groups.values()
            if request.states is None or each.state in request.states
        ]
        return ListGroupsResponse(tuple(sorted(listed, key=lambda each: each.group_id)))

    def describe_groups(self, request: DescribeGroupsRequest, effects: Effects) -> DescribeGroupsResponse:
        """One for each id."""
        return DescribeGroupsResponse(tuple(self._describe(each) for each in request.group_ids))

    def _describe(self, group_id: str) -> DescribedGroup:
        group = self._known.groups.get(group_id)
        if group is None:
            message = f"group {group_id!r} is not known"
            return DescribedGroup(group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)
        return DescribedGroup(
            group_id,
            group.state,
            group.generation_id,
            group.protocol_type,
            group.protocol_name if group.state is STABLE else "",
            tuple(_described(group, each) for each in group.members.values()),
        )

    def delete_groups(
        self, request: DeleteGroupsRequest, effects: Effects
    ) -> Steps[GroupRecord, DeleteGroupsResponse]:
        """Tombstones, of however many offsets the groups have."""
        results = []
        for group_id in request.group_ids:
            result = self._refusal(group_id)
            if result is None:
                for record in self._tombstones(group_id):  # noqa: UP028 - the runtime sends each yield an offset
                    yield record
            results.append(result or GroupResult(group_id))
        return effects.result(DeleteGroupsResponse(tuple(results)))

    def _refusal(self, group_id: str) -> GroupResult | None:
        group = self._known.groups.get(group_id)
        if group is None:
            return GroupResult(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} is not known")
        if group.state is not EMPTY or group.pending:
            message = f"group {group_id!r} has members; stop them first"
            return GroupResult(group_id, ErrorCode.NON_EMPTY_GROUP, message)
        return None

    def _tombstones(self, group_id: str) -> list[GroupRecord]:
        """The group's own comes last, so that what is left after a failover is a group that can be deleted again."""
        offsets = [tombstone(group_id, each) for each in self._known.offsets.get(group_id, {})]
        is_recorded = self._known.groups[group_id].is_recorded
        return [*offsets, *([GroupRecord(GroupKey(group_id), None)] if is_recorded else [])]


def _described(group: Group, member: Member) -> DescribedMember:
    is_stable = group.state is STABLE
    return DescribedMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.metadata(group.protocol_name) if is_stable else b"",
        member.assignment if is_stable else b"",
    )
