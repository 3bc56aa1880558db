"""Topics made, listed, described and deleted, and the quorum: an async brain, `AsyncAdmin`, and its sync face, `Admin`.

Everything is asked of the active controller, whose answer is the newest committed. Kafka: KafkaAdminClient. Left out:
all but topics and the quorum.
"""

from collections.abc import Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from rayka.client import io_thread
from rayka.client.admin_quorum import AsyncQuorumAdmin
from rayka.client.admin_results import ClusterSummary, QuorumInfo, TopicDescription
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle, resolve
from rayka.client.metadata import ClusterMetadata, no_such_topic
from rayka.client.retry import Backoff
from rayka.config import AdminConfig, TopicConfig
from rayka.errors import (
    ApiError,
    ClosedError,
    ErrorCode,
    InvalidPartitions,
    InvalidReplicationFactor,
    error_for,
)
from rayka.protocol.topics import (
    DEFAULT_COUNT,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
    TopicResult,
)


class AsyncAdmin:
    """The brain of an `Admin`, on the IO thread."""

    def __init__(self, handle: ClusterHandle, config: AdminConfig, random: Random) -> None:
        self.cluster_name = handle.name
        network = handle.network()
        self._metadata = ClusterMetadata(network, handle.name, config, random)
        self._quorum = AsyncQuorumAdmin(network, handle.name, Backoff.of(config, random))
        self._timeout_ms = config.default_api_timeout_ms

    async def create_topic(self, topic: NewTopic) -> TopicDescription:
        request = CreateTopicsRequest((topic,))
        response, may_have_run = await self._metadata.call_controller_again(request, self._timeout_ms)
        if may_have_run and response.topics[0].error_code is ErrorCode.TOPIC_ALREADY_EXISTS:
            existing = await self.describe_topic(topic.name)
            if not existing.is_as_asked(topic):
                self._check(response.topics)
        else:
            self._check(response.topics)
        await self._metadata.wait_until_applied(response.metadata_offset, self._timeout_ms)
        return await self.describe_topic(topic.name)

    async def delete_topic(self, name: str) -> None:
        response = await self._metadata.call_controller(DeleteTopicsRequest((name,)), self._timeout_ms)
        if response.topics[0].error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise no_such_topic(name, self.cluster_name, await self.list_topics())
        self._check(response.topics)
        await self._metadata.wait_until_applied(response.metadata_offset, self._timeout_ms)

    async def list_topics(self) -> list[str]:
        response = await self._metadata.describe(None, self._timeout_ms)
        return sorted(each.name for each in response.topics)

    async def describe_topic(self, name: str) -> TopicDescription:
        response = await self._metadata.describe((name,), self._timeout_ms)
        found = response.topics[0]
        if found.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise no_such_topic(name, self.cluster_name, await self.list_topics())
        if found.error_code is not ErrorCode.NONE:
            raise error_for(found.error_code, f"topic {name!r} of cluster {self.cluster_name!r}")
        return TopicDescription.of(found)

    async def describe_cluster(self) -> ClusterSummary:
        response = await self._metadata.describe(None, self._timeout_ms)
        return ClusterSummary.of(self.cluster_name, response)

    async def describe_quorum(self) -> QuorumInfo:
        return await self._quorum.describe(self._timeout_ms)

    async def add_raft_voter(self, node_id: int, directory_id: UUID | None) -> None:
        await self._quorum.add_voter(node_id, directory_id, self._timeout_ms)

    async def remove_raft_voter(self, node_id: int, directory_id: UUID | None) -> None:
        await self._quorum.remove_voter(node_id, directory_id, self._timeout_ms)

    def _check(self, results: Sequence[TopicResult]) -> None:
        for each in results:
            if each.error_code is not ErrorCode.NONE:
                where = f"topic {each.name!r} of cluster {self.cluster_name!r}"
                raise error_for(each.error_code, f"{where}: {each.error_message or each.error_code.name}")


class Admin:
    """Manages topics and the quorum. `with` closes it; thread-safe.

    Options are Kafka's, as keywords in snake_case or dotted in the dict `config`: `default_api_timeout_ms` (60 s)
    bounds every call, `request_timeout_ms`, `retry_backoff_ms`, `retry_backoff_max_ms`.

    Every call raises UnavailableError when no controller answers in time, and ClosedError. Raises ConfigError,
    ClusterNotFound. Kafka: Admin.
    """

    def __init__(
        self,
        cluster: str | ClusterHandle = DEFAULT_CLUSTER,
        *,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        parsed = AdminConfig.given(config, options, what="admin")
        self._brain = AsyncAdmin(resolve(cluster), parsed, Random())
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Admin cluster={self._brain.cluster_name}{' closed' * self._is_closed}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, Any] | None = None,
    ) -> TopicDescription:
        """Creates the topic and returns it, once every broker knows it. Counts default to the cluster's.

        When an answer was lost and the repeated request finds a topic that is as it was asked for, that is the one it
        created. Raises TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidReplicationFactor, and ConfigError
        for a key that topics do not have.
        """
        counts = (
            _count(partitions, "partitions", InvalidPartitions),
            _count(replication_factor, "replication_factor", InvalidReplicationFactor),
        )
        checked = TopicConfig.parse({} if configs is None else configs, what=f"topic {name!r}").overrides()
        return io_thread.run(self._open().create_topic(NewTopic(_name(name), *counts, checked)), None)

    def delete_topic(self, name: str) -> None:
        """Deletes the topic with all its records; returns when every broker has dropped it.

        Raises UnknownTopicOrPartition.
        """
        io_thread.run(self._open().delete_topic(_name(name)), None)

    def list_topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return io_thread.run(self._open().list_topics(), None)

    def describe_topic(self, name: str) -> TopicDescription:
        """The topic's id, partitions and explicit configuration. Raises UnknownTopicOrPartition."""
        return io_thread.run(self._open().describe_topic(_name(name)), None)

    def describe_cluster(self) -> ClusterSummary:
        """The cluster's id, active controller and registered brokers."""
        return io_thread.run(self._open().describe_cluster(), None)

    def describe_quorum(self) -> QuorumInfo:
        """Who leads the metadata quorum, who votes and who follows, and how far each is.

        Without a leader UnavailableError says what each controller answered.
        """
        return io_thread.run(self._open().describe_quorum(), None)

    def add_raft_voter(self, node_id: int, directory_id: UUID | None = None) -> None:
        """Makes a controller that follows the metadata a voter; returns when that is committed (A56).

        Without `directory_id` it is the directory that the node follows with. Raises InvalidRequest when the node is no
        controller, DuplicateVoter when a replica of it votes already, RequestTimedOut when it has not caught up or
        another change is under way, and UnavailableError when the node does not follow, or the answer was lost and the
        change may have been made.
        """
        io_thread.run(self._open().add_raft_voter(_node(node_id), directory_id), None)

    def remove_raft_voter(self, node_id: int, directory_id: UUID | None = None) -> None:
        """Takes the vote from a controller; returns when that is committed (A57). It goes on following.

        Raises VoterNotFound, also for the last voter, RequestTimedOut while another change is under way, and
        UnavailableError when the answer was lost and the change may have been made.
        """
        io_thread.run(self._open().remove_raft_voter(_node(node_id), directory_id), None)

    def close(self) -> None:
        """Ends; closing again does nothing."""
        self._is_closed = True

    def _open(self) -> AsyncAdmin:
        if self._is_closed:
            raise ClosedError(f"{self!r}: make a new Admin")
        return self._brain


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name: expected str, found {type(name).__name__}")
    return name


def _node(node_id: Any) -> int:
    if not isinstance(node_id, int) or isinstance(node_id, bool):
        raise TypeError(f"node_id: expected int, found {type(node_id).__name__}")
    return node_id


def _count(count: Any, name: str, error: type[ApiError]) -> int:
    """A count given by the user, or the cluster's default: -1 is how the protocol says that, and is none here."""
    if count is None:
        return DEFAULT_COUNT
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{name}: expected int, found {type(count).__name__}")
    if not 1 <= count < 2**31:
        raise error(
            f"{name}: expected 1 or more, below 2**31, or None for the cluster's default; found {count}"
        )
    return count
