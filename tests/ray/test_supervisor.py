"""Where the supervisor puts a node that has no actor. Needs no Ray."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from rayka.actors.found_directories import FoundDirectory
from rayka.actors.names import formatted_directories, node_directories
from rayka.actors.placement import able_ray_nodes
from rayka.actors.supervisor import place_found
from rayka.config import ClusterSpec

CPUS = {"CPU": 1.0}


@pytest.fixture
def spec(tmp_path: Path) -> ClusterSpec:
    return ClusterSpec(name="kept", brokers=3, data_dir=[str(tmp_path / "a"), str(tmp_path / "b")])


def on_disk(spec: ClusterSpec, *node_ids: int) -> dict[str, FoundDirectory]:
    """What is found where the directories of these nodes are."""
    return {
        path: FoundDirectory(is_formatted=True, node_id=each)
        for each in node_ids
        for path in formatted_directories(spec, each)
    }


def homes(
    spec: ClusterSpec,
    missing: list[int],
    found: Mapping[str, Mapping[str, FoundDirectory]],
    running: Mapping[int, str] | None = None,
) -> dict[int, str]:
    placed = place_found(spec, missing, found, dict.fromkeys(found, CPUS), running or {})
    return {node_id: placement.ray_node_id for node_id, placement in placed.items()}


def test_a_node_is_made_where_its_disk_is_though_others_are_emptier(spec: ClusterSpec) -> None:
    running = {1: "new", 3: "new"}
    assert homes(spec, [2], {"old": {}, "new": on_disk(spec, 2)}, running) == {2: "new"}


def test_a_node_whose_disk_is_nowhere_is_not_made(spec: ClusterSpec) -> None:
    assert homes(spec, [2, 3], {"a": on_disk(spec, 3), "b": {}}) == {3: "a"}
    assert homes(spec, [2], {"a": {}, "b": {}}) == {}


def test_a_directory_that_is_not_formatted_is_no_disk(spec: ClusterSpec) -> None:
    path = node_directories(spec, 2)[0]
    assert homes(spec, [2], {"a": {path: FoundDirectory(is_formatted=False)}}) == {}


def test_a_node_goes_where_most_of_its_directories_are(spec: ClusterSpec) -> None:
    one, *_ = node_directories(spec, 2)
    some = {one: FoundDirectory(is_formatted=True, node_id=2)}
    assert homes(spec, [2], {"a": some, "b": on_disk(spec, 2)}) == {2: "b"}


def test_a_disk_that_several_see_is_served_where_the_fewest_nodes_of_its_role_are(spec: ClusterSpec) -> None:
    both = on_disk(spec, 2)
    assert homes(spec, [2], {"a": both, "b": both}, {1: "a", 3001: "b"}) == {2: "b"}
    assert homes(spec, [2], {"a": both, "b": both}, {1: "b", 3: "b"}) == {2: "a"}


def test_where_the_disk_is_but_not_the_resources_no_actor_is_made(spec: ClusterSpec) -> None:
    found, ray_nodes = {"a": on_disk(spec, 2), "b": on_disk(spec, 3)}, {"a": {"CPU": 0.0}, "b": CPUS}
    assert list(place_found(spec, [2, 3], found, ray_nodes, {})) == [3]
    assert able_ray_nodes(spec, [2, 3], ray_nodes) == ["b"]
