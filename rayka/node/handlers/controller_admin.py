"""The APIs by which operators and clients change the cluster, for a controller node to inherit: each request is checked
as far as that needs no state, and answered by the active controller's state machine. Kafka: `ControllerApis`.
"""

from abc import ABC, abstractmethod
from typing import TypeVar

from rayka.node.handlers.controller_requests import (
    check_alter_configs,
    check_create_partitions,
    check_create_topics,
    check_delete_topics,
    check_describe_configs,
    check_elect_leaders,
    check_reassignments,
)
from rayka.ports import Message, Request
from rayka.protocol.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from rayka.protocol.partition_admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from rayka.protocol.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

ResponseT = TypeVar("ResponseT", bound=Message)


class ControllerAdminApis(ABC):
    """A node with the controller's state machine."""

    @abstractmethod
    async def submit(self, request: Request[ResponseT]) -> ResponseT:
        """The state machine's answer, committed. Raises the ApiError that refuses the call."""

    async def create_topics(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        check_create_topics(request)
        return await self.submit(request)

    async def delete_topics(self, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        check_delete_topics(request)
        return await self.submit(request)

    async def create_partitions(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        check_create_partitions(request)
        return await self.submit(request)

    async def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        check_reassignments(request)
        return await self.submit(request)

    async def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        return await self.submit(request)

    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        check_elect_leaders(request)
        return await self.submit(request)

    async def unregister_broker(self, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
        return await self.submit(request)

    async def describe_configs(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        check_describe_configs(request)
        return await self.submit(request)

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        check_alter_configs(request)
        return await self.submit(request)
