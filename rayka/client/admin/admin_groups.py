"""Groups, their members and their committed offsets, as their coordinators know them.

The list of groups comes from all brokers, everything else from a group's coordinator. A reset is computed here and
committed like the commit of any caller outside the group, which the coordinator accepts while the group has no members.
Kafka: KafkaAdminClient, ConsumerGroupCommand (E10).
"""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from rayka.client.admin.admin_arguments import offsets_of
from rayka.client.admin.admin_group_results import GroupDescription, GroupListing, GroupOffset, OffsetReset
from rayka.client.admin.admin_part import NODE_TIMEOUT_MS, AdminPart
from rayka.client.arguments import given_timestamp_ms, int_of
from rayka.client.consumer.group_membership import GroupMetadata
from rayka.client.consumer.offset_commits import GroupOffsets, OffsetAndMetadata
from rayka.client.coordinator_calls import CoordinatorCalls
from rayka.client.leader_calls import LIST_OFFSETS, LeaderCalls, offsets_at
from rayka.client.metadata import ClusterMetadata
from rayka.client.retry import Retry
from rayka.errors import (
    ApiError,
    ErrorCode,
    GroupIdNotFound,
    InvalidArgument,
    InvalidRequest,
    NonEmptyGroup,
    RaykaError,
    error_for,
)
from rayka.ids import NO_OFFSET, ZERO_ID, TopicPartition
from rayka.protocol.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from rayka.protocol.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchedOffset,
    GroupState,
    ListedGroup,
    ListGroupsRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from rayka.protocol.membership import MetadataRequest


class ResetTarget(NamedTuple):
    """The target of a reset. At most one field is set; without any the target is the end of each log."""

    is_earliest: bool = False
    offset: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp_ms: int | None = None
    shift_by: int | None = None

    def offset_of(
        self, topic_partition: TopicPartition, before: int | None, *, first: int, end: int, by_time: int
    ) -> int:
        """The target offset of one partition, whose log goes from `first` to `end`.

        `before` is the committed offset, `by_time` the offset at `timestamp_ms`. The result may lie outside the log.
        Raises InvalidRequest when the target names no offset for the partition.
        """
        if self.shift_by is not None:
            if before is None:
                raise InvalidRequest(
                    f"{topic_partition} has no committed offset to shift; name another target for it"
                )
            return before + self.shift_by
        if self.offsets is not None:
            if topic_partition not in self.offsets:
                raise InvalidRequest(
                    f"{topic_partition}: expected an offset in `to`, found none; name one, or leave the partition out"
                    " of `scope`"
                )
            return self.offsets[topic_partition]
        if self.offset is not None:
            return self.offset
        if self.timestamp_ms is not None:
            return by_time
        return first if self.is_earliest else end


def target_of(to: Any, timestamp: Any, shift_by: Any) -> ResetTarget:
    """The target from the arguments of a caller. Raises TypeError, and InvalidArgument unless exactly one is given."""
    given = [each for each in (to, timestamp, shift_by) if each is not None]
    if len(given) != 1:
        raise InvalidArgument(f"expected one of to, timestamp and shift_by, found {len(given)}")
    if shift_by is not None:
        return ResetTarget(shift_by=int_of(shift_by, "shift_by"))
    if timestamp is not None:
        return ResetTarget(timestamp_ms=given_timestamp_ms(timestamp, "timestamp"))
    if isinstance(to, str):
        if to not in ("earliest", "latest"):
            raise InvalidArgument(f"to: expected 'earliest', 'latest', an offset or offsets, found {to!r}")
        return ResetTarget(is_earliest=to == "earliest")
    if isinstance(to, Mapping):
        return ResetTarget(offsets=offsets_of(to))
    return ResetTarget(offset=int_of(to, "to"))


_WITHOUT_MEMBERS = (GroupState.EMPTY, GroupState.DEAD)


class AsyncGroupAdmin(AdminPart):
    """The methods of `Admin` about groups, with checked arguments."""

    def __init__(self, metadata: ClusterMetadata, timeout_ms: int) -> None:
        super().__init__(metadata, timeout_ms)
        self._coordinators = CoordinatorCalls(metadata.nodes)
        self._leaders = LeaderCalls(metadata.nodes.network, metadata)

    # ---- Groups ----

    async def list_groups(self, states: tuple[GroupState, ...] | None) -> list[GroupListing]:
        """Lists the groups of all unfenced brokers; asks again while a broker does not answer or still loads groups.

        Raises UnavailableError when the list stays incomplete until the timeout.
        """
        retry = Retry(self.timeout_ms, self._nodes.backoff)
        while True:
            brokers = (await self._ask(MetadataRequest(()))).brokers
            asking = (self._listed(each.node_id, states) for each in brokers if not each.is_fenced)
            answers = await asyncio.gather(*asking)
            problems = [each for each in answers if isinstance(each, RaykaError)]
            if not problems:
                found = {
                    each.group_id: each for groups in answers if isinstance(groups, tuple) for each in groups
                }
                return [GroupListing.taken_from(found[group_id]) for group_id in sorted(found)]
            if not await retry.pause():
                raise self._nodes.unavailable(f"not all groups are known: {problems[0]}", problems[0])

    async def _listed(
        self, broker_id: int, states: tuple[GroupState, ...] | None
    ) -> tuple[ListedGroup, ...] | RaykaError:
        try:
            response = await self._nodes.network.call(broker_id, ListGroupsRequest(states), NODE_TIMEOUT_MS)
        except ApiError as error:
            if not error.retriable:
                raise
            return error
        if response.is_loading:
            return error_for(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"broker-{broker_id} has yet to load groups"
            )
        return response.groups

    async def describe(self, group_id: str) -> GroupDescription:
        """Raises GroupIdNotFound."""
        described = await self._described(group_id)
        if described.error_code is ErrorCode.GROUP_ID_NOT_FOUND:
            raise self._unknown(group_id)
        return GroupDescription.of(described, self._coordinators.known(group_id))

    async def _described(self, group_id: str) -> DescribedGroup:
        """Describes the group; the state of an unknown group is DEAD."""

        def check(response: DescribeGroupsResponse) -> None:
            (found,) = response.groups
            if found.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                raise error_for(found.error_code, f"group {group_id!r}: {found.error_message}")

        request = DescribeGroupsRequest((group_id,))
        response = await self._coordinators.call(group_id, request, self.timeout_ms, check=check)
        return response.groups[0]

    async def delete(self, group_id: str) -> None:
        """Deletes the group. Raises GroupIdNotFound, NonEmptyGroup.

        A group that existed and is unknown to the deletion was deleted by an earlier attempt whose answer was lost.
        """
        await self.describe(group_id)

        def check(response: DeleteGroupsResponse) -> None:
            (result,) = response.groups
            if result.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                raise self._refusal(f"group {group_id!r}", result.error_code, result.error_message)

        request = DeleteGroupsRequest((group_id,))
        await self._coordinators.call(group_id, request, self.timeout_ms, check=check)

    def _unknown(self, group_id: str) -> GroupIdNotFound:
        cluster = self._nodes.cluster_name
        return GroupIdNotFound(
            f"cluster {cluster!r} has no group {group_id!r}; `rayka group list` names all of them"
        )

    # ---- Offsets ----

    async def offsets(self, group_id: str) -> list[GroupOffset]:
        """The committed offsets and lags; end offset and lag are None if the partition's leader does not name them."""
        committed = await self._committed(group_id)
        wanted = dict.fromkeys(committed, LATEST_TIMESTAMP)
        timeout_ms = min(self.timeout_ms, NODE_TIMEOUT_MS)
        ends = await self._leaders.call(LIST_OFFSETS, wanted, timeout_ms, on_refused=lambda tp, error: None)
        known = {tp: each.offset for tp, each in ends.items()}
        return [GroupOffset.of(each, known.get(tp)) for tp, each in sorted(committed.items())]

    async def _committed(self, group_id: str) -> dict[TopicPartition, FetchedOffset]:
        """The committed offsets of topics that still exist.

        A coordinator may still keep offsets of a deleted topic; they are left out, also if a topic of the same name
        was created since.
        """

        def check(response: OffsetFetchResponse) -> None:
            for each in response.partitions:
                if each.error_code is not ErrorCode.NONE:
                    raise error_for(each.error_code, f"group {group_id!r}: {each.error_message}")

        request = OffsetFetchRequest(group_id)
        response = await self._coordinators.call(group_id, request, self.timeout_ms, check=check)
        names = tuple(dict.fromkeys(each.topic for each in response.partitions))
        topics = (await self._metadata.renew(names, self.timeout_ms)).topics if names else ()
        ids = {each.name: (each.topic_id, ZERO_ID) for each in topics if each.error_code is ErrorCode.NONE}
        return {
            TopicPartition(each.topic, each.partition): each
            for each in response.partitions
            if each.topic_id in ids.get(each.topic, ())
        }

    async def reset_offsets(
        self,
        group_id: str,
        target: ResetTarget,
        scope: Iterable[str | TopicPartition] | None,
        *,
        dry_run: bool,
    ) -> list[OffsetReset]:
        """Commits the reset unless `dry_run`; returns it by partition. Raises NonEmptyGroup, GroupIdNotFound."""
        described = await self._described(group_id)
        if described.state not in _WITHOUT_MEMBERS:
            raise NonEmptyGroup(
                f"group {group_id!r} of cluster {self._nodes.cluster_name!r} has {len(described.members)} members"
                f" (state {described.state}), and only they commit offsets; stop them first"
            )
        committed = await self._committed(group_id)
        partitions = await self._in_scope(scope, committed, target)
        if not partitions:
            raise self._unknown(group_id)
        resets = await self._resets(target, partitions, committed)
        if not dry_run:
            offsets = {each.topic_partition: OffsetAndMetadata(each.offset) for each in resets}
            commits = GroupOffsets(self._coordinators, self._metadata, group_id, self.timeout_ms)
            await commits.commit(offsets, GroupMetadata(group_id))
        return resets

    async def _in_scope(
        self,
        scope: Iterable[str | TopicPartition] | None,
        committed: Mapping[TopicPartition, FetchedOffset],
        target: ResetTarget,
    ) -> list[TopicPartition]:
        """The partitions named, all of a topic that is named, those of the target, or those with a committed offset."""
        found: dict[TopicPartition, None] = {}
        for each in (target.offsets or committed) if scope is None else scope:
            name = each if isinstance(each, str) else each.topic
            topic = await self._metadata.topic(name, self.timeout_ms)
            if isinstance(each, str):
                found |= dict.fromkeys(TopicPartition(name, place.partition) for place in topic.partitions)
            else:
                found[each] = None
        return sorted(found)

    async def _resets(
        self,
        target: ResetTarget,
        partitions: list[TopicPartition],
        committed: Mapping[TopicPartition, FetchedOffset],
    ) -> list[OffsetReset]:
        look_up = partial(offsets_at, self._leaders, partitions, timeout_ms=self.timeout_ms)
        first = await look_up(EARLIEST_TIMESTAMP)
        end = await look_up(LATEST_TIMESTAMP)
        by_time = first if target.timestamp_ms is None else await look_up(target.timestamp_ms)
        resets = []
        for tp in partitions:
            before = committed[tp].offset if tp in committed else None
            at_time = end[tp] if by_time[tp] == NO_OFFSET else by_time[tp]
            wanted = target.offset_of(tp, before, first=first[tp], end=end[tp], by_time=at_time)
            resets.append(OffsetReset(tp, before, min(max(wanted, first[tp]), end[tp])))
        return resets
