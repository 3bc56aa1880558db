"""The asynchronous `Admin`, on the IO thread: topics, the cluster, its load and events.

Partitions, groups, configurations and the quorum are objects of their own (`AdminPart`). A request that is repeated
after a lost answer recognises its own effect as success. Kafka: KafkaAdminClient.
"""

import logging
from contextlib import suppress
from random import Random

import msgspec

from rayka.client.admin.admin_configs import AsyncConfigAdmin
from rayka.client.admin.admin_groups import AsyncGroupAdmin
from rayka.client.admin.admin_load_results import (
    BalancePlan,
    BalanceStatus,
    ClusterLoad,
    DrainInfo,
    EventInfo,
)
from rayka.client.admin.admin_part import AdminPart
from rayka.client.admin.admin_partitions import AsyncPartitionAdmin
from rayka.client.admin.admin_quorum import AsyncQuorumAdmin
from rayka.client.admin.admin_results import ClusterSummary, TopicDescription
from rayka.client.bootstrap import ClusterHandle
from rayka.client.metadata import ClusterMetadata
from rayka.client.retry import Retry
from rayka.config.client_config import AdminConfig
from rayka.errors import ApiError, BrokerIdNotRegistered, ErrorCode, NoDiskRoom, NoSuchTopic, UnavailableError
from rayka.ids import TopicPartition
from rayka.protocol.drains import CancelDrainRequest, DescribeDrainsRequest, DrainBrokerRequest
from rayka.protocol.events import DescribeEventsRequest
from rayka.protocol.load import (
    BalanceRequest,
    CancelBalanceRequest,
    DescribeBalanceRequest,
    DescribeLoadRequest,
)
from rayka.protocol.membership import MetadataRequest, MetadataTopic
from rayka.protocol.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewPartitions,
    NewTopic,
    UnregisterBrokerRequest,
)

# How long `events` waits for a controller before it asks a broker.
_CONTROLLER_TIMEOUT_MS = 2_000

logger = logging.getLogger(__name__)


class AsyncAdmin(AdminPart):
    """The methods of `Admin` about topics, the cluster, load and events, with checked arguments."""

    def __init__(self, handle: ClusterHandle, config: AdminConfig, random: Random) -> None:
        self.cluster_name = handle.name
        metadata = ClusterMetadata(handle.network(config.transport), handle.name, config, random)
        super().__init__(metadata, config.default_api_timeout_ms)
        self.quorum = AsyncQuorumAdmin(metadata, self.timeout_ms)
        self.partitions = AsyncPartitionAdmin(metadata, self.timeout_ms)
        self.groups = AsyncGroupAdmin(metadata, self.timeout_ms)
        self.configs = AsyncConfigAdmin(metadata, self.timeout_ms)

    async def create_topic(self, topic: NewTopic, *, if_not_exists: bool = False) -> TopicDescription:
        retry = Retry(self.timeout_ms, self._nodes.backoff)
        while True:
            try:
                return await self._create_topic(topic, if_not_exists)
            except NoSuchTopic:
                # Another caller deleted the topic between its creation and its description.
                if not if_not_exists or not await retry.pause():
                    raise

    async def _create_topic(self, topic: NewTopic, if_not_exists: bool) -> TopicDescription:
        request = CreateTopicsRequest((topic,))
        response, may_have_run = await self._nodes.call_controller_again(request, self.timeout_ms)
        (result,) = response.topics
        is_done = False
        if result.error_code is ErrorCode.TOPIC_ALREADY_EXISTS and (may_have_run or if_not_exists):
            existing = await self._described(topic.name)
            is_done = if_not_exists or existing.is_as_asked(topic)
            if if_not_exists and (difference := existing.difference(topic)):
                logger.warning(
                    "topic %r of cluster %r exists with %s", topic.name, self.cluster_name, difference
                )
        if not is_done:
            await self._check_topic(topic.name, result.error_code, result.error_message)
        await self._until_applied(response.metadata_offset)
        return await self._described(topic.name)

    async def delete_topic(self, name: str) -> None:
        response = await self._ask(DeleteTopicsRequest((name,)))
        (result,) = response.topics
        await self._check_topic(name, result.error_code, result.error_message)
        await self._until_applied(response.metadata_offset)

    async def create_partitions(self, wanted: NewPartitions) -> TopicDescription:
        request = CreatePartitionsRequest((wanted,))
        response, may_have_run = await self._nodes.call_controller_again(request, self.timeout_ms)
        (result,) = response.topics
        is_done = False
        if may_have_run and result.error_code is ErrorCode.INVALID_PARTITIONS:
            is_done = _has_partitions(await self._described(wanted.name), wanted)
        if not is_done:
            await self._check_topic(wanted.name, result.error_code, result.error_message)
        await self._until_applied(response.metadata_offset)
        return await self._described(wanted.name)

    async def list_topics(self) -> list[str]:
        return sorted(each.name for each in (await self._ask(MetadataRequest())).topics)

    async def describe_topic(self, name: str) -> TopicDescription:
        (found,) = await self.describe_topics((name,))
        return found

    async def describe_topics(self, names: tuple[str, ...] | None) -> list[TopicDescription]:
        topics = await self._topics(names)
        held = await self.partitions.held(topics)
        return [TopicDescription.of(each, held) for each in topics]

    async def describe_cluster(self) -> ClusterSummary:
        return ClusterSummary.of(self.cluster_name, await self._ask(MetadataRequest()))

    async def drain_broker(
        self, broker_id: int, *, dry_run: bool = False
    ) -> dict[TopicPartition, tuple[int, ...]]:
        response = await self._ask(DrainBrokerRequest(broker_id, is_dry_run=dry_run))
        if response.no_room:
            raise NoDiskRoom(response.no_room)
        if not dry_run:
            await self._until_applied(response.metadata_offset)
        return {TopicPartition(each.topic, each.partition): each.replicas for each in response.moves}

    async def describe_drains(self) -> list[DrainInfo]:
        response = await self._ask(DescribeDrainsRequest())
        return [DrainInfo.taken_from(each) for each in response.drains]

    async def cancel_drain(self, broker_id: int) -> bool:
        """Whether one was under way; then every usable broker knows that it is not any more."""
        await self._registered((broker_id,))
        request = CancelDrainRequest(broker_id)
        response, may_have_run = await self._nodes.call_controller_again(request, self.timeout_ms)
        if response.is_cancelled:
            await self._until_applied(response.metadata_offset)
        return response.is_cancelled or may_have_run

    async def unregister_broker(self, broker_id: int) -> None:
        await self._registered((broker_id,))
        # The broker was registered just now: an earlier attempt whose answer was lost has removed it.
        with suppress(BrokerIdNotRegistered):
            await self._ask(UnregisterBrokerRequest(broker_id))

    # ---- Load, balance and events ----

    async def describe_load(self, topics: tuple[str, ...] | None) -> ClusterLoad:
        """The load as the active controller knows it, with `topics` only their partitions. Raises NoSuchTopic."""
        wanted = None if topics is None else tuple(dict.fromkeys(topics))
        if wanted:
            await self._topics(wanted)
        return ClusterLoad.of(await self._ask(DescribeLoadRequest(wanted or None)), names=wanted)

    async def balance(self, moves: int) -> BalancePlan:
        """Returns the plan, once every usable broker knows the moves that have begun."""
        response = await self._ask(BalanceRequest(moves))
        if response.begun_count:
            await self._until_applied(response.metadata_offset)
        return msgspec.convert(response, BalancePlan, from_attributes=True)

    async def describe_balance(self) -> BalanceStatus:
        """The progress of the balance under way, or the end of the last one."""
        return BalanceStatus.taken_from(await self._ask(DescribeBalanceRequest()))

    async def cancel_balance(self) -> bool:
        """Cancels the balance; returns whether one was under way, once every usable broker knows of its end.

        True also after a lost answer, because the earlier attempt may have cancelled the balance.
        """
        request = CancelBalanceRequest()
        response, may_have_run = await self._nodes.call_controller_again(request, self.timeout_ms)
        if response.is_cancelled:
            await self._until_applied(response.metadata_offset)
        return response.is_cancelled or may_have_run

    async def events(self, since: int, count: int) -> list[EventInfo]:
        """The newest `count` events after number `since`, the oldest first.

        A broker answers while there is no active controller, because operators need events most when the quorum is
        lost.
        """
        request = DescribeEventsRequest(since, count)
        try:
            timeout_ms = min(self.timeout_ms, _CONTROLLER_TIMEOUT_MS)
            response = await self._nodes.call_controller(request, timeout_ms)
        except UnavailableError as error:
            try:
                response = await self._nodes.ask_any_broker(request)
            except (ApiError, UnavailableError):
                raise error from None
        return [EventInfo.taken_from(each) for each in response.events]

    # ---- Helpers ----

    async def _described(self, name: str) -> TopicDescription:
        """The topic as the controller knows it, without the logs on disks."""
        (topic,) = await self._topics((name,))
        return TopicDescription.of(topic)

    async def _topics(self, names: tuple[str, ...] | None) -> tuple[MetadataTopic, ...]:
        topics = (await self._ask(MetadataRequest(names))).topics
        for each in topics:
            await self._check_topic(each.name, each.error_code)
        return topics

    async def _check_topic(self, name: str, code: ErrorCode, message: str = "") -> None:
        await self._check(f"topic {name!r}", name, code, message)


def _has_partitions(topic: TopicDescription, wanted: NewPartitions) -> bool:
    """Whether the topic is as a request for these partitions would have left it."""
    if len(topic.partitions) != wanted.partition_count:
        return False
    if wanted.assignments is None:
        return True
    newest = topic.partitions[-len(wanted.assignments) :]
    return tuple(each.replicas for each in newest) == wanted.assignments
