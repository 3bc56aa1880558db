"""Which disks are a cluster's: told by the ids of cluster and directory, whatever their paths. Needs no Ray, but for
the last test.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from rayka.actors import node_handles
from rayka.actors.disk_search import learn, split_by_identity
from rayka.actors.found_directories import FoundDirectory, look_around
from rayka.actors.names import formatted_directories, node_directories
from rayka.actors.supervisor_handle import Identities
from rayka.cluster import Cluster
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import StorageError
from tests.ray.support import running, wait_until

OURS, OLDER = "cluster-now", "cluster-before"
SPEC = ClusterSpec(name="kept", brokers=2, controllers=3, data_dir=["/a", "/b"])
NOTHING_KNOWN = Identities()


def uuid(node_id: int, generation: int = 0) -> UUID:
    return UUID(int=node_id * 1_000 + generation)


def disks(*node_ids: int, cluster_id: str = OURS, generation: int = 0) -> dict[str, FoundDirectory]:
    """The directories of these nodes; those of another generation were formatted at another time."""
    return {
        path: FoundDirectory(
            is_formatted=True,
            cluster_id=cluster_id,
            node_id=each,
            directory_id=uuid(each, 10 * generation + number),
        )
        for each in node_ids
        for number, path in enumerate(formatted_directories(SPEC, each))
    }


KNOWN = learn(SPEC, {"here": disks(*SPEC.roles)}, NOTHING_KNOWN, {})


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (disks(2, cluster_id=OLDER), f"belongs to cluster {OLDER}, expected cluster {OURS}"),
        (
            disks(2, generation=1),
            f"is an older disk of broker-2: its directory id is {uuid(2, 10)}, expected",
        ),
        (
            {path: disks(1)[node_directories(SPEC, 1)[0]] for path in node_directories(SPEC, 2)},
            "belongs to broker-1",
        ),
        ({path: FoundDirectory(is_formatted=True) for path in node_directories(SPEC, 2)}, "is damaged"),
        (
            {path: FoundDirectory(False, problem="EIO") for path in node_directories(SPEC, 2)},
            "cannot be read: EIO",
        ),
    ],
    ids=["of-another-cluster", "replaced-since", "of-another-node", "damaged", "unreadable"],
)
def test_a_disk_that_is_not_the_nodes_is_refused_with_the_ray_node_and_the_reason(
    found: dict[str, FoundDirectory], reason: str
) -> None:
    kept, refused = split_by_identity(SPEC, {"a": found, "b": disks(2)}, KNOWN)
    assert kept == {"a": {}, "b": disks(2)}
    assert [each for each in refused if "/a/kept/broker-2 on Ray node a " in each and reason in each]


def test_a_disk_that_never_registered_has_no_cluster_and_is_the_nodes_by_its_directory_id() -> None:
    for generation, count in ((0, 2), (1, 0)):
        kept, _ = split_by_identity(SPEC, {"a": disks(2, cluster_id="", generation=generation)}, KNOWN)
        assert len(kept["a"]) == count


def test_the_cluster_is_the_one_that_most_controllers_are_of() -> None:
    seen = {"a": disks(1, 2, 3001, 3002), "b": disks(1, 3003, cluster_id=OLDER)}
    learned = learn(SPEC, seen, NOTHING_KNOWN, {})
    assert learned.cluster_id == OURS
    assert learned.directory_ids == {each: KNOWN.directory_ids[each] for each in (1, 2, 3001, 3002)}


def test_disks_of_two_clusters_with_equally_many_controllers_are_refused() -> None:
    every = SPEC.roles
    with pytest.raises(
        StorageError, match=f"disks of 2 clusters .* of cluster {OLDER} /a/kept/controller-3001 on"
    ):
        learn(SPEC, {"a": disks(*every), "b": disks(*every, cluster_id=OLDER)}, NOTHING_KNOWN, {})


def test_two_disks_of_a_node_are_refused_unless_one_is_on_record_or_in_use() -> None:
    seen = {"a": disks(*SPEC.roles), "b": disks(2, generation=1)}
    with pytest.raises(StorageError, match="/a/kept/broker-2 is there with several identities"):
        learn(SPEC, seen, NOTHING_KNOWN, {})
    assert learn(SPEC, seen, KNOWN, {}) == KNOWN
    assert learn(SPEC, seen, NOTHING_KNOWN, {2: "b"}).directory_ids[2] == {uuid(2, 10), uuid(2, 11)}


def test_a_disk_that_fails_hides_no_other_one_of_its_machine(tmp_path: Path) -> None:
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    broken.joinpath("meta.properties").mkdir(parents=True)
    whole.mkdir()
    found = look_around([str(broken), str(whole)], [str(tmp_path)])
    assert "cannot read" in found[str(broken)].problem
    assert found[str(whole)] == FoundDirectory(is_formatted=False)


@pytest.mark.ray
def test_the_supervisor_does_not_start_a_node_on_the_disk_of_an_older_cluster_or_one_that_was_replaced(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"name": "strict", "data_dir": str(tmp_path)}
    cluster = start(**fields)
    properties = tmp_path / "strict" / "broker-1" / "meta.properties"
    right = properties.read_text()
    for key, said in (("cluster.id", "belongs to cluster"), ("directory.id", "is an older disk of broker-1")):
        wrong = [f"{key}={uuid(7)}" if line.startswith(key) else line for line in right.splitlines()]
        properties.write_text("\n".join(wrong))
        node_handles.end(node_handles.find("strict", 1))
        wait_until(lambda: node_handles.find("strict", 1) is None)
        with pytest.raises(StorageError, match=f"refused: {properties.parent} on Ray node .* {said}"):
            start(**fields)
        assert node_handles.find("strict", 1) is None
        properties.write_text(right)
        running(cluster)
