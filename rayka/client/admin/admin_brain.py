"""The brain of an `Admin`, on the IO thread: topics and the cluster; the other parts are objects of their own.

What changes the metadata is asked of the active controller, and has been done when every usable broker has applied it.
A request that is repeated after a lost answer recognises its own work. Kafka: KafkaAdminClient.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from rayka.client.admin.admin_configs import AsyncConfigAdmin
from rayka.client.admin.admin_partitions import AsyncPartitionAdmin, check_broker
from rayka.client.admin.admin_quorum import AsyncQuorumAdmin
from rayka.client.admin.admin_results import ClusterSummary, TopicDescription
from rayka.client.bootstrap import ClusterHandle
from rayka.client.metadata import ClusterMetadata, NoSuchTopic
from rayka.client.refusal import refusal
from rayka.client.retry import Retry
from rayka.config import AdminConfig
from rayka.errors import ApiError, BrokerIdNotRegistered, ErrorCode
from rayka.protocol.membership import MetadataTopic
from rayka.protocol.partition_admin import (
    CreatePartitionsRequest,
    NewPartitions,
    UnregisterBrokerRequest,
)
from rayka.protocol.topics import CreateTopicsRequest, DeleteTopicsRequest, NewTopic, TopicResult

logger = logging.getLogger(__name__)


class AsyncAdmin:
    """See the module. `quorum`, `partitions` and `configs` take the timeout that `timeout_ms` holds."""

    def __init__(self, handle: ClusterHandle, config: AdminConfig, random: Random) -> None:
        self.cluster_name = handle.name
        self.timeout_ms = config.default_api_timeout_ms
        metadata = self._metadata = ClusterMetadata(handle.network(), handle.name, config, random)
        self._nodes = metadata.nodes
        self.quorum = AsyncQuorumAdmin(self._nodes)
        self.partitions = AsyncPartitionAdmin(metadata)
        self.configs = AsyncConfigAdmin(metadata)

    def __repr__(self) -> str:
        return f"<AsyncAdmin of {self.cluster_name}>"

    async def create_topic(self, topic: NewTopic, *, if_not_exists: bool = False) -> TopicDescription:
        retry = Retry(self.timeout_ms, self._nodes.backoff)
        while True:
            try:
                return await self._create_topic(topic, if_not_exists)
            except NoSuchTopic:  # it was just found or created, and was deleted since
                if not if_not_exists or not await retry.pause():
                    raise

    async def _create_topic(self, topic: NewTopic, if_not_exists: bool) -> TopicDescription:
        request = CreateTopicsRequest((topic,))
        response, may_have_run = await self._nodes.call_controller_again(request, self.timeout_ms)
        exists = response.topics[0].error_code is ErrorCode.TOPIC_ALREADY_EXISTS
        if exists and (may_have_run or if_not_exists):
            existing = TopicDescription.of(await self._topic(topic.name))
            if not if_not_exists and not existing.is_as_asked(topic):
                self._check(response.topics)
            elif if_not_exists and (difference := existing.difference(topic)):
                logger.warning(
                    "topic %r of cluster %r exists with %s", topic.name, self.cluster_name, difference
                )
        else:
            self._check(response.topics)
        await self._nodes.wait_until_applied(response.metadata_offset, self.timeout_ms)
        return TopicDescription.of(await self._topic(topic.name))

    async def delete_topic(self, name: str) -> None:
        response = await self._nodes.call_controller(DeleteTopicsRequest((name,)), self.timeout_ms)
        if response.topics[0].error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise await self._metadata.no_such_topic(name, self.timeout_ms)
        self._check(response.topics)
        await self._nodes.wait_until_applied(response.metadata_offset, self.timeout_ms)

    async def create_partitions(self, wanted: NewPartitions) -> TopicDescription:
        request = CreatePartitionsRequest((wanted,))
        response, may_have_run = await self._nodes.call_controller_again(request, self.timeout_ms)
        (result,) = response.topics
        if result.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise await self._metadata.no_such_topic(wanted.name, self.timeout_ms)
        if may_have_run and result.error_code is ErrorCode.INVALID_PARTITIONS:
            existing = await self._topic(wanted.name)
            if not _has_partitions(existing, wanted):
                self._check(response.topics)
        else:
            self._check(response.topics)
        await self._nodes.wait_until_applied(response.metadata_offset, self.timeout_ms)
        return TopicDescription.of(await self._topic(wanted.name))

    async def list_topics(self) -> list[str]:
        response = await self._nodes.describe(None, self.timeout_ms)
        return sorted(each.name for each in response.topics)

    async def describe_topics(self, names: tuple[str, ...] | None) -> list[TopicDescription]:
        topics = (await self._nodes.describe(names, self.timeout_ms)).topics
        for each in topics:
            await self._check_known(each)
        looks = await self.partitions.look_at_replicas(topics, self.timeout_ms)
        return [TopicDescription.of(each, looks) for each in topics]

    async def describe_cluster(self) -> ClusterSummary:
        response = await self._nodes.describe(None, self.timeout_ms)
        return ClusterSummary.of(self.cluster_name, response)

    async def unregister_broker(self, broker_id: int) -> None:
        known = (await self._nodes.describe((), self.timeout_ms)).brokers
        check_broker(broker_id, self.cluster_name, [each.node_id for each in known])
        with suppress(BrokerIdNotRegistered):  # an earlier try, whose answer was lost, has done it
            await self._nodes.call_controller(UnregisterBrokerRequest(broker_id), self.timeout_ms)

    async def _topic(self, name: str) -> MetadataTopic:
        response = await self._nodes.describe((name,), self.timeout_ms)
        (found,) = response.topics
        await self._check_known(found)
        return found

    async def _check_known(self, topic: MetadataTopic) -> None:
        if topic.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise await self._metadata.no_such_topic(topic.name, self.timeout_ms)
        if topic.error_code is not ErrorCode.NONE:
            raise self._refusal(topic.name, topic.error_code)

    def _check(self, results: Sequence[TopicResult]) -> None:
        for each in results:
            if each.error_code is not ErrorCode.NONE:
                raise self._refusal(each.name, each.error_code, each.error_message)

    def _refusal(self, topic: str, code: ErrorCode, message: str = "") -> ApiError:
        return refusal(code, message, subject=f"topic {topic!r}", cluster_name=self.cluster_name)


def _has_partitions(topic: MetadataTopic, wanted: NewPartitions) -> bool:
    """Whether a request for those partitions may have made the last of these."""
    if len(topic.partitions) != wanted.partition_count:
        return False
    if wanted.assignments is None:
        return True
    newest = topic.partitions[-len(wanted.assignments) :]
    return tuple(each.replicas for each in newest) == wanted.assignments
