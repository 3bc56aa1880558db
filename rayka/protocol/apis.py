"""The table of APIs: one name, one request type, one response type. The name is the remote method of the actors."""

from typing import Any

import msgspec

from rayka.ports import Message, Request
from rayka.protocol.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from rayka.protocol.fetch import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from rayka.protocol.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    StatusRequest,
    StatusResponse,
)
from rayka.protocol.partition_admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from rayka.protocol.produce import ProduceRequest, ProduceResponse
from rayka.protocol.producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from rayka.protocol.quorum_messages import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from rayka.protocol.replica_reports import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ReportExitRequest,
    ReportExitResponse,
)
from rayka.protocol.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)


class Api(msgspec.Struct, frozen=True):
    """One remote method."""

    name: str
    request_type: type[Request[Any]]
    response_type: type[Message]


APIS: tuple[Api, ...] = (
    Api("produce", ProduceRequest, ProduceResponse),
    Api("fetch", FetchRequest, FetchResponse),
    Api("list_offsets", ListOffsetsRequest, ListOffsetsResponse),
    Api("init_producer_id", InitProducerIdRequest, InitProducerIdResponse),
    Api("metadata", MetadataRequest, MetadataResponse),
    Api("create_topics", CreateTopicsRequest, CreateTopicsResponse),
    Api("delete_topics", DeleteTopicsRequest, DeleteTopicsResponse),
    Api("register_broker", RegisterBrokerRequest, RegisterBrokerResponse),
    Api("heartbeat", HeartbeatRequest, HeartbeatResponse),
    Api("allocate_producer_ids", AllocateProducerIdsRequest, AllocateProducerIdsResponse),
    Api("status", StatusRequest, StatusResponse),
    Api("vote", VoteRequest, VoteResponse),
    Api("begin_quorum_epoch", BeginQuorumEpochRequest, BeginQuorumEpochResponse),
    Api("end_quorum_epoch", EndQuorumEpochRequest, EndQuorumEpochResponse),
    Api("fetch_snapshot", FetchSnapshotRequest, FetchSnapshotResponse),
    Api("describe_quorum", DescribeQuorumRequest, DescribeQuorumResponse),
    Api("add_raft_voter", AddRaftVoterRequest, VoterChangeResponse),
    Api("remove_raft_voter", RemoveRaftVoterRequest, VoterChangeResponse),
    Api("update_raft_voter", UpdateRaftVoterRequest, VoterChangeResponse),
    Api("alter_partition", AlterPartitionRequest, AlterPartitionResponse),
    Api("report_exit", ReportExitRequest, ReportExitResponse),
    Api("create_partitions", CreatePartitionsRequest, CreatePartitionsResponse),
    Api(
        "alter_partition_reassignments",
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
    ),
    Api(
        "list_partition_reassignments", ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
    ),
    Api("elect_leaders", ElectLeadersRequest, ElectLeadersResponse),
    Api("unregister_broker", UnregisterBrokerRequest, UnregisterBrokerResponse),
    Api("delete_records", DeleteRecordsRequest, DeleteRecordsResponse),
    Api("describe_log_dirs", DescribeLogDirsRequest, DescribeLogDirsResponse),
    Api("describe_configs", DescribeConfigsRequest, DescribeConfigsResponse),
    Api("incremental_alter_configs", IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
)
API_BY_NAME: dict[str, Api] = {api.name: api for api in APIS}
_API_BY_REQUEST: dict[type, Api] = {api.request_type: api for api in APIS}


def api_of(request: Request[Any]) -> Api:
    """The API that a request belongs to."""
    return _API_BY_REQUEST[type(request)]
