"""The part of an `Admin` that is about groups: the sync face of `AsyncGroupAdmin`. Kafka: Admin (E10)."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rayka.client.admin.admin_arguments import names_of
from rayka.client.admin.admin_face import AdminFace
from rayka.client.admin.admin_group_results import GroupDescription, GroupListing, GroupOffset, OffsetReset
from rayka.client.admin.reset_target import target_of
from rayka.client.arguments import Moment, partition_of, text_of
from rayka.errors import InvalidArgument
from rayka.ids import TopicPartition
from rayka.protocol.groups import GroupState


class GroupAdmin(AdminFace):
    """See the module; its methods are those of `Admin`."""

    def list_groups(self, states: Iterable[str] | None = None) -> list[GroupListing]:
        """All groups, or those in these states (such as "Empty" or "Stable"), sorted by id.

        Every broker in use is asked. Raises ValueError for a state that groups do not have.
        """
        wanted = None if states is None else tuple(_state(each) for each in names_of(states) or ())
        return self._run(self._brain.groups.list_groups, wanted)

    def describe_group(self, group_id: str) -> GroupDescription:
        """The group's state, members and what each of them reads.

        Raises GroupIdNotFound, InvalidGroupId.
        """
        return self._run(self._brain.groups.describe, text_of(group_id, "group_id"))

    def delete_group(self, group_id: str) -> None:
        """Forgets the group and the offsets that it has committed. Raises NonEmptyGroup while it has members,
        GroupIdNotFound, InvalidGroupId.
        """
        return self._run(self._brain.groups.delete, text_of(group_id, "group_id"))

    def group_offsets(self, group_id: str) -> list[GroupOffset]:
        """What the group has committed, and how far it is behind, sorted by partition; empty of an unknown group.

        The leaders are asked for the ends, for up to 3 s. Raises InvalidGroupId.
        """
        return self._run(self._brain.groups.offsets, text_of(group_id, "group_id"))

    def reset_group_offsets(
        self,
        group_id: str,
        *,
        to: Literal["earliest", "latest"] | int | Mapping[TopicPartition, int] | None = None,
        timestamp: Moment | None = None,
        shift_by: int | None = None,
        scope: Iterable[str | TopicPartition] | None = None,
        dry_run: bool = False,
    ) -> list[OffsetReset]:
        """Commits other offsets for a group without members; returns them, sorted by partition.

        One of three: `to` the earliest or latest offset, an offset, or an offset by partition; to the first record at
        or after `timestamp` (a moment as of `Consumer.seek_to_timestamp`, or in ms), the end where there is none; or
        `shift_by` so many records from what is committed. What lies outside a log becomes its nearest end. `scope`
        names topics and partitions; without it those that `to` names, or those with committed offsets. With `dry_run`
        nothing is changed.

        Raises NonEmptyGroup while the group has members, GroupIdNotFound when nothing is committed and no scope named,
        UnknownTopicOrPartition, InvalidRequest for a partition that the target says nothing of, InvalidGroupId.
        """
        target = target_of(to, timestamp, shift_by)
        named = None if scope is None else _scope(scope)
        name = text_of(group_id, "group_id")
        return self._run(self._brain.groups.reset_offsets, name, target, named, dry_run=bool(dry_run))


def _state(name: str) -> GroupState:
    try:
        return GroupState(name)
    except ValueError:
        known = ", ".join(repr(each.value) for each in GroupState)
        raise InvalidArgument(f"states: expected some of {known}, found {name!r}") from None


def _scope(given: Any) -> list[str | TopicPartition]:
    if isinstance(given, (str, TopicPartition)) or not isinstance(given, Iterable):
        raise TypeError(f"scope: expected a list of topics and partitions, found {given!r}")
    return [each if isinstance(each, str) else partition_of(each) for each in given]
