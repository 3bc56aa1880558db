"""The table of APIs. A row holds everything that is particular to one API: dispatch, forwarding to the active
controller, encoding and the remote methods of the actors are the same code for all APIs.
"""

from dataclasses import dataclass
from enum import Flag, auto
from functools import cached_property
from typing import Any, get_args

from rayka.ports import Message, Request
from rayka.protocol import (
    configs,
    drains,
    events,
    fetch,
    groups,
    load,
    membership,
    produce,
    quorum_messages,
    topics,
)


class ServedBy(Flag):
    """The role that answers an API: a broker, the active controller's state machine, or each replica of a quorum's
    log.
    """

    BROKER = auto()
    CONTROLLER = auto()
    QUORUM = auto()


BROKER, CONTROLLER, QUORUM = ServedBy


@dataclass(frozen=True)
class Api:
    """One remote method."""

    name: str
    request_type: type[Request[Any]]
    served_by: ServedBy
    # Calls take the direct lane where there is one.
    is_hot: bool = False

    @cached_property
    def response_type(self) -> type[Message]:
        """The type `ResponseT` of the request type's base `Request[ResponseT]`."""
        (base,) = self.request_type.__orig_bases__  # type: ignore[attr-defined]
        response_type: type[Message] = get_args(base)[0]
        return response_type


APIS: tuple[Api, ...] = (
    Api("produce", produce.ProduceRequest, BROKER, is_hot=True),
    Api("fetch", fetch.FetchRequest, BROKER | QUORUM, is_hot=True),
    Api("list_offsets", fetch.ListOffsetsRequest, BROKER, is_hot=True),
    Api("init_producer_id", produce.InitProducerIdRequest, BROKER, is_hot=True),
    Api("delete_records", topics.DeleteRecordsRequest, BROKER),
    Api("describe_log_dirs", topics.DescribeLogDirsRequest, BROKER),
    Api("alter_replica_log_dirs", topics.AlterReplicaLogDirsRequest, BROKER),
    Api("find_coordinator", groups.FindCoordinatorRequest, BROKER, is_hot=True),
    Api("join_group", groups.JoinGroupRequest, BROKER, is_hot=True),
    Api("sync_group", groups.SyncGroupRequest, BROKER, is_hot=True),
    Api("group_heartbeat", groups.GroupHeartbeatRequest, BROKER, is_hot=True),
    Api("leave_group", groups.LeaveGroupRequest, BROKER, is_hot=True),
    Api("list_groups", groups.ListGroupsRequest, BROKER),
    Api("describe_groups", groups.DescribeGroupsRequest, BROKER),
    Api("delete_groups", groups.DeleteGroupsRequest, BROKER),
    Api("offset_commit", groups.OffsetCommitRequest, BROKER, is_hot=True),
    Api("offset_fetch", groups.OffsetFetchRequest, BROKER, is_hot=True),
    Api("offset_delete", groups.OffsetDeleteRequest, BROKER),
    Api("metadata", membership.MetadataRequest, BROKER | CONTROLLER, is_hot=True),
    Api("status", membership.StatusRequest, BROKER | CONTROLLER),
    Api("register_broker", membership.RegisterBrokerRequest, CONTROLLER),
    Api("heartbeat", membership.HeartbeatRequest, CONTROLLER, is_hot=True),
    Api("alter_partition", membership.AlterPartitionRequest, CONTROLLER),
    Api("assign_replicas_to_dirs", membership.AssignReplicasToDirsRequest, CONTROLLER),
    Api("report_exit", membership.ReportExitRequest, CONTROLLER),
    Api("allocate_producer_ids", produce.AllocateProducerIdsRequest, CONTROLLER),
    Api("create_topics", topics.CreateTopicsRequest, CONTROLLER),
    Api("delete_topics", topics.DeleteTopicsRequest, CONTROLLER),
    Api("create_partitions", topics.CreatePartitionsRequest, CONTROLLER),
    Api("alter_partition_reassignments", topics.AlterPartitionReassignmentsRequest, CONTROLLER),
    Api("list_partition_reassignments", topics.ListPartitionReassignmentsRequest, CONTROLLER),
    Api("elect_leaders", topics.ElectLeadersRequest, CONTROLLER),
    Api("unregister_broker", topics.UnregisterBrokerRequest, CONTROLLER),
    Api("balance", load.BalanceRequest, CONTROLLER),
    Api("describe_balance", load.DescribeBalanceRequest, CONTROLLER),
    Api("cancel_balance", load.CancelBalanceRequest, CONTROLLER),
    Api("drain_broker", drains.DrainBrokerRequest, CONTROLLER),
    Api("describe_drains", drains.DescribeDrainsRequest, CONTROLLER),
    Api("cancel_drain", drains.CancelDrainRequest, CONTROLLER),
    Api("describe_events", events.DescribeEventsRequest, BROKER | CONTROLLER),
    Api("record_event", events.RecordEventRequest, CONTROLLER),
    Api("describe_load", load.DescribeLoadRequest, CONTROLLER),
    Api("describe_configs", configs.DescribeConfigsRequest, CONTROLLER),
    Api("incremental_alter_configs", configs.IncrementalAlterConfigsRequest, CONTROLLER),
    Api("vote", quorum_messages.VoteRequest, QUORUM),
    Api("begin_quorum_epoch", quorum_messages.BeginQuorumEpochRequest, QUORUM),
    Api("end_quorum_epoch", quorum_messages.EndQuorumEpochRequest, QUORUM),
    Api("resign", quorum_messages.ResignRequest, QUORUM),
    Api("fetch_snapshot", quorum_messages.FetchSnapshotRequest, QUORUM),
    Api("describe_quorum", quorum_messages.DescribeQuorumRequest, QUORUM),
    Api("add_raft_voter", quorum_messages.AddRaftVoterRequest, QUORUM),
    Api("remove_raft_voter", quorum_messages.RemoveRaftVoterRequest, QUORUM),
    Api("update_raft_voter", quorum_messages.UpdateRaftVoterRequest, QUORUM),
)
API_BY_NAME: dict[str, Api] = {api.name: api for api in APIS}
_API_BY_REQUEST: dict[type, Api] = {api.request_type: api for api in APIS}


def api_of(request: Request[Any]) -> Api:
    """The API of a request."""
    return _API_BY_REQUEST[type(request)]


def is_hot(request: Request[Any]) -> bool:
    """Whether the call takes the direct lane where there is one. Fetches of the metadata log stay on Ray, as all calls
    that keep the quorum together do.
    """
    is_of_quorum = isinstance(request, fetch.FetchRequest) and request.is_of_metadata
    return api_of(request).is_hot and not is_of_quorum
