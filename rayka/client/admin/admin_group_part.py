"""The sync methods of `Admin` about groups, which run `AsyncGroupAdmin`. Kafka: Admin (E10)."""

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
    """The methods of `Admin` about groups and their committed offsets."""

    def list_groups(self, states: Iterable[str] | None = None) -> list[GroupListing]:
        """Returns all groups, or the groups in these states (such as "Empty" or "Stable"), sorted by id.

        Asks every broker in use. Raises ValueError for a state that groups do not have.
        """
        wanted = None if states is None else tuple(_state(each) for each in names_of(states) or ())
        return self._run(self._brain.groups.list_groups, wanted)

    def describe_group(self, group_id: str) -> GroupDescription:
        """Returns the group's state and its members with their assigned partitions.

        Raises GroupIdNotFound, InvalidGroupId.
        """
        return self._run(self._brain.groups.describe, text_of(group_id, "group_id"))

    def delete_group(self, group_id: str) -> None:
        """Forgets the group and its committed offsets.

        Raises NonEmptyGroup while the group has members, GroupIdNotFound, InvalidGroupId.
        """
        return self._run(self._brain.groups.delete, text_of(group_id, "group_id"))

    def group_offsets(self, group_id: str) -> list[GroupOffset]:
        """Returns the group's committed offsets and lags, sorted by partition; empty for an unknown group.

        Leaders have up to 3 s to name the end offsets. Raises InvalidGroupId.
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

        Takes exactly one target. `to`: the earliest or latest offset, an offset, or an offset by partition.
        `timestamp`: the first record at or after this moment (see `Consumer.seek_to_timestamp`; or in ms), else the
        log's end. `shift_by`: this many records after the committed offset. An offset outside a log becomes the nearest
        end of the log. `scope` names topics and partitions; it defaults to the partitions that `to` names, else to
        those with committed offsets. With `dry_run` nothing is committed.

        Raises NonEmptyGroup while the group has members, GroupIdNotFound when nothing is committed and no scope named,
        UnknownTopicOrPartition, InvalidRequest for a partition without a target offset, InvalidGroupId.
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
