"""The steps' parts that need no Ray: what Ray lacks, and the directories of a broker that comes."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from rayka.actors import scaling_rooms
from rayka.actors.cluster_looks import factor_max
from rayka.actors.found_directories import look_at
from rayka.actors.names import node_directories
from rayka.actors.node_placement import NodePlacement
from rayka.actors.scaled_cluster import ScaledCluster, make_directories
from rayka.actors.scaling_planner import Leave, ScalingStatus, Stay, with_scaled
from rayka.cli.cluster_commands import describe_scaling
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import InvalidReplicationFactor, InvalidRequest, StorageError
from rayka.ids import Role
from rayka.log.meta_properties import META_PROPERTIES_FILE, MetaProperties, encode_meta_properties
from rayka.protocol.configs import (
    AlterConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from rayka.protocol.drains import DrainBrokerRequest, DrainBrokerResponse, DrainCause
from rayka.protocol.membership import MetadataBroker, MetadataPartition, MetadataResponse, MetadataTopic

OURS, MACHINE = "the-cluster", {"broker": {"resources": {"machine": 1}}}


def spec(data_dir: Path) -> ClusterSpec:
    return ClusterSpec.of(
        {"data_dir": str(data_dir), "brokers": {"min": 1, "max": 3}, "resources": MACHINE},
    )


def placed(data_dir: Path) -> NodePlacement:
    return NodePlacement(with_scaled(spec(data_dir), [2]), 2, "here")


def leave_disk(placement: NodePlacement, node_id: int, cluster_id: str) -> Path:
    path = Path(placement.directories[0])
    path.mkdir(parents=True)
    owner = MetaProperties(node_id, UUID(int=5), cluster_id)
    (path / META_PROPERTIES_FILE).write_bytes(encode_meta_properties(owner))
    return path


def test_the_ray_node_that_could_give_most_says_what_is_lacking(tmp_path: Path) -> None:
    free = {"head": {"CPU": 0.01}, "first": {"CPU": 1.0, "machine": 0.0}}
    assert scaling_rooms.lacking(spec(tmp_path), 2, free) == (
        "none of 2 Ray nodes has it free; the closest has machine 0 free of 1 asked, and Ray adds none"
    )
    assert scaling_rooms.lacking(spec(tmp_path), 2, {}) == ""


def test_a_coordinators_shortage_is_by_its_own_resources(tmp_path: Path) -> None:
    resources = {"coordinator": {"num_cpus": 0.5}}
    own = ClusterSpec.of({"coordinators": {"min": 1, "max": 3}, "resources": resources})
    assert "the closest has CPU 0.1 free of 0.5 asked" in scaling_rooms.lacking(
        own, 1002, {"first": {"CPU": 0.1}}
    )


def test_directories_are_made_once_also_by_several_callers(tmp_path: Path) -> None:
    placement = placed(tmp_path)
    make_directories(placement, OURS)
    first = look_at(node_directories(placement.spec, 2))
    make_directories(placement, OURS)
    assert look_at(node_directories(placement.spec, 2)) == first
    assert [each.node_id for each in first.values()] == [2]


def test_a_disk_that_an_earlier_broker_of_that_id_left_is_used_again(tmp_path: Path) -> None:
    placement = placed(tmp_path)
    path = leave_disk(placement, 2, OURS)
    make_directories(placement, OURS)
    assert look_at([str(path)])[str(path)].directory_id == UUID(int=5)


@pytest.mark.parametrize(
    ("node_id", "cluster_id", "says"),
    [
        (2, "another", "belongs to broker-2 of cluster another"),
        (1, OURS, "belongs to broker-1 of cluster the-cluster"),
    ],
    ids=["cluster", "broker"],
)
def test_another_disk_is_not_formatted_for_a_broker(
    tmp_path: Path, node_id: int, cluster_id: str, says: str
) -> None:
    placement = placed(tmp_path)
    leave_disk(placement, node_id, cluster_id)
    with pytest.raises(StorageError, match=f"broker-2 is to be made for broker-2, but {says}"):
        make_directories(placement, OURS)


class FakeController:
    """Looks at a controller that answers a drain so."""

    def __init__(self, answer: DrainBrokerResponse | Exception) -> None:
        self.asked: list[object] = []
        self._answer = answer

    async def ask(self, request: object) -> object:
        self.asked.append(request)
        if isinstance(request, IncrementalAlterConfigsRequest):
            results = tuple(
                AlterConfigsResult(each.resource_type, each.resource_name) for each in request.resources
            )
            return IncrementalAlterConfigsResponse(results)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (DrainBrokerResponse(), ""),
        (DrainBrokerResponse(no_room="disks would be above 80%"), "disks would be above 80%"),
        (InvalidReplicationFactor("too few brokers remain"), "too few brokers remain"),
        (InvalidRequest("no broker leads 1"), "no broker leads 1"),
    ],
)
def test_a_broker_leaves_by_one_request_unless_the_controller_refuses(
    tmp_path: Path, answer: DrainBrokerResponse | Exception, refusal: str
) -> None:
    looks = FakeController(answer)
    steps = ScaledCluster(spec(tmp_path), looks)  # type: ignore[arg-type]
    assert asyncio.run(steps.take(Leave(2, "it is idle"))) == refusal
    assert looks.asked == [DrainBrokerRequest(2, DrainCause.SCALING)]


def test_a_broker_that_stays_after_all_loses_its_mark(tmp_path: Path) -> None:
    looks = FakeController(DrainBrokerResponse())
    steps = ScaledCluster(spec(tmp_path), looks)  # type: ignore[arg-type]
    assert asyncio.run(steps.take(Stay(2, "it is needed"))) == ""
    (asked,) = looks.asked
    assert isinstance(asked, IncrementalAlterConfigsRequest)
    ((altered,),) = (asked.resources,)
    assert [(each.name, each.value) for each in altered.changes] == [("scaling.leaving", "")]


def test_brokers_are_never_fewer_than_a_topic_has_replicas() -> None:
    """Of an internal topic coordinators hold some; what a reassignment removes does not count, what it adds does."""
    nodes = tuple(MetadataBroker(each, "m", False, ()) for each in (1, 2, 3))
    coordinator = MetadataBroker(1001, "m", False, (), roles=(Role.COORDINATOR,))
    offsets = MetadataTopic("__offsets", partitions=(MetadataPartition(0, 1001, 0, (1001, 1, 2), (1001,)),))
    moving = MetadataPartition(0, 1, 0, (1, 3, 2), (1, 2), adding_replicas=(3,), removing_replicas=(2,))
    grows = MetadataPartition(0, 1, 0, (1, 2, 3), (1,), adding_replicas=(2, 3))

    def found(*topics: MetadataTopic) -> int:
        return factor_max(topics, MetadataResponse(OURS, 3001, (*nodes, coordinator), topics, 0))

    assert found() == 1
    assert found(offsets) == 2
    assert found(MetadataTopic("orders", partitions=(moving,)), offsets) == 2
    assert found(MetadataTopic("orders", partitions=(grows,)), offsets) == 3


def test_the_status_says_how_many_there_should_be_and_why() -> None:
    status = ScalingStatus(4, 3, 3, 12, "broker 4 waits for a Ray node")
    assert (
        describe_scaling("brokers", status) == "brokers 3, desired 4 (3 to 12): broker 4 waits for a Ray node"
    )
