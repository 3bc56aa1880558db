"""What a controller checks of a request before its core sees it: everything that needs no state.

Each function raises InvalidRequest that names the field, what was expected and what was found.
"""

from collections import Counter
from collections.abc import Sequence

from rayka.config import dotted
from rayka.errors import InconsistentClusterId, InvalidRequest
from rayka.ids import FIRST_BROKER_ID, FIRST_CONTROLLER_ID, METADATA_TOPIC_ID, NO_EPOCH, ZERO_ID
from rayka.protocol.configs import (
    AlteredResource,
    ConfigResourceName,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from rayka.protocol.fetch import FetchRequest
from rayka.protocol.membership import HeartbeatRequest, RegisterBrokerRequest
from rayka.protocol.partition_admin import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    ElectLeadersRequest,
)
from rayka.protocol.replica_reports import AlterPartitionRequest, ReportExitRequest
from rayka.protocol.topics import CreateTopicsRequest, DeleteTopicsRequest
from rayka.raft.quorum import METADATA_PARTITION


def check_fetch(request: FetchRequest, cluster_id: str) -> None:
    """A follower of the metadata log (A27). Raises also InconsistentClusterId, naming both clusters."""
    if request.cluster_id not in ("", cluster_id):
        raise InconsistentClusterId(
            f"node {request.replica_id} of cluster {request.cluster_id} fetches from cluster {cluster_id}; "
            "check the data directory that it was given"
        )
    _require(
        len(request.partitions) == 1, "partitions", "the metadata partition alone", len(request.partitions)
    )
    (partition,) = request.partitions
    found = (partition.topic_id, partition.partition)
    _require(
        found == (METADATA_TOPIC_ID, METADATA_PARTITION), "partition", "that of __cluster_metadata", found
    )
    _require(request.replica_id >= 0, "replica_id", "a node that follows", request.replica_id)
    _require(request.max_wait_ms >= 0, "max_wait_ms", "0 or more", request.max_wait_ms)
    max_bytes = min(request.max_bytes, partition.max_bytes)
    _require(max_bytes > 0, "max_bytes", "more than 0", max_bytes)
    _require(partition.fetch_offset >= 0, "fetch_offset", "0 or more", partition.fetch_offset)
    least_epoch = 0 if partition.fetch_offset else NO_EPOCH
    epoch = partition.last_fetched_epoch
    _require(epoch >= least_epoch, "last_fetched_epoch", f"{least_epoch} or more", epoch)
    if partition.current_leader_epoch != NO_EPOCH:
        _require(
            epoch <= partition.current_leader_epoch,
            "last_fetched_epoch",
            "at most current_leader_epoch",
            epoch,
        )


def check_register_broker(request: RegisterBrokerRequest) -> None:
    is_broker_id = FIRST_BROKER_ID <= request.broker_id < FIRST_CONTROLLER_ID
    _require(is_broker_id, "broker_id", f"{FIRST_BROKER_ID} to {FIRST_CONTROLLER_ID - 1}", request.broker_id)
    _require(request.incarnation_id != ZERO_ID, "incarnation_id", "that of a process", request.incarnation_id)
    ids = [directory.directory_id for directory in request.directories]
    _require(bool(ids) and ZERO_ID not in ids, "directories", "one or more, each with an id", ids)
    _check_each_once("directories", [str(each) for each in ids])
    versions = (request.min_metadata_version, request.max_metadata_version)
    _require(0 < versions[0] <= versions[1], "metadata versions", "a range above 0", versions)


def check_heartbeat(request: HeartbeatRequest) -> None:
    _require(request.broker_id >= 0, "broker_id", "0 or more", request.broker_id)
    _require(request.broker_epoch >= 0, "broker_epoch", "that of the registration", request.broker_epoch)
    _check_each_once("offline_directory_ids", [str(each) for each in request.offline_directory_ids])
    _require(request.number >= 0, "number", "0 or more", request.number)


def check_alter_partition(request: AlterPartitionRequest) -> None:
    _require(request.broker_id >= 0, "broker_id", "0 or more", request.broker_id)
    _check_each_once("partitions", [f"{each.topic_id}-{each.partition}" for each in request.partitions])


def check_report_exit(request: ReportExitRequest) -> None:
    _require(request.incarnation_id != ZERO_ID, "incarnation_id", "that of a process", request.incarnation_id)


def check_create_topics(request: CreateTopicsRequest) -> None:
    _check_each_once("topics", [topic.name for topic in request.topics])


def check_delete_topics(request: DeleteTopicsRequest) -> None:
    _check_each_once("names", request.names)


def check_create_partitions(request: CreatePartitionsRequest) -> None:
    _check_each_once("topics", [topic.name for topic in request.topics])


def check_reassignments(request: AlterPartitionReassignmentsRequest) -> None:
    _check_each_once("partitions", [f"{each.topic}-{each.partition}" for each in request.partitions])


def check_elect_leaders(request: ElectLeadersRequest) -> None:
    if request.partitions is not None:
        _check_each_once("partitions", [repr(each) for each in request.partitions])


def check_describe_configs(request: DescribeConfigsRequest) -> None:
    _check_each_once("resources", [_resource(each) for each in request.resources])


def check_alter_configs(request: IncrementalAlterConfigsRequest) -> None:
    _check_each_once("resources", [_resource(each) for each in request.resources])
    for each in request.resources:
        _check_each_once(f"changes of {_resource(each)}", [dotted(change.name) for change in each.changes])


def _resource(each: ConfigResourceName | AlteredResource) -> str:
    return f"{each.resource_type.name.lower()} {each.resource_name!r}"


def _check_each_once(field: str, names: Sequence[str]) -> None:
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    _require(not repeated, field, "each once", repeated)


def _require(holds: bool, field: str, expected: str, found: object) -> None:
    if not holds:
        raise InvalidRequest(f"{field}: expected {expected}, found {found}")
