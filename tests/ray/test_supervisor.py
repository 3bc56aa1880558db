"""Where the supervisor puts a node that has no actor. Needs no Ray."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from rayka.actors.disk_search import place_found
from rayka.actors.found_directories import FoundDirectory
from rayka.actors.names import formatted_directories, node_directories
from rayka.actors.node_placement import Site, able_ray_nodes, place, shortage
from rayka.actors.ray_records import PendingActor, PendingTimes
from rayka.config.cluster_config import ClusterSpec

CPUS = {"CPU": 1.0}


@pytest.fixture
def spec(tmp_path: Path) -> ClusterSpec:
    data_dir = [str(tmp_path / "a"), str(tmp_path / "b")]
    return ClusterSpec(name="kept", brokers=3, data_dir=data_dir, resources={"broker": {"num_cpus": 1}})


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
    free: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[int, str]:
    placed = place_found(spec, missing, found, dict.fromkeys(found, CPUS), running or {}, free=free or {})
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


def test_a_disk_that_several_see_is_served_where_the_resources_are_free(spec: ClusterSpec) -> None:
    both = on_disk(spec, 2, 3)
    found, taken = {"a": both, "b": both}, {"CPU": 0.5}
    assert homes(spec, [2], found, {1: "b"}, {"a": taken, "b": CPUS}) == {2: "b"}
    assert homes(spec, [2], found, {1: "a"}, {"a": {}, "b": {}}) == {2: "b"}, "Ray waits until there is room"
    assert homes(spec, [2], found, {1: "b"}, {"b": CPUS}) == {2: "a"}, "what is free is not known of each"


def test_two_that_are_placed_at_once_do_not_count_on_the_same_room(spec: ClusterSpec) -> None:
    both = on_disk(spec, 2, 3)
    found, free = {"a": both, "b": both}, {"a": CPUS, "b": CPUS}
    assert homes(spec, [2, 3], found, {1: "b", 4: "b", 5: "b"}, free) == {2: "a", 3: "b"}
    sites = {each: Site({"CPU": 1.0}) for each in "ab"}
    placed = place(spec, sites, [2, 3], {1: "b", 4: "b", 5: "b"})
    assert {id: each.ray_node_id for id, each in placed.items()} == {2: "a", 3: "b"}


def test_a_disk_is_worth_more_than_free_resources(spec: ClusterSpec) -> None:
    one, *_ = node_directories(spec, 2)
    some = {one: FoundDirectory(is_formatted=True, node_id=2)}
    found = {"a": some, "b": on_disk(spec, 2)}
    assert homes(spec, [2], found, {}, {"a": CPUS, "b": {}}) == {2: "b"}


def test_a_shortage_names_the_free_and_the_asked_resources(tmp_path: Path) -> None:
    resources = {"broker": {"num_cpus": 2, "resources": {"disk": 0.5}}}
    spec = ClusterSpec(name="kept", data_dir=str(tmp_path), resources=resources)
    assert shortage(spec, 1, {"CPU": 1.5}) == "CPU 1.5 free of 2 asked, disk 0 free of 0.5 asked"
    assert shortage(spec, 1, {"CPU": 2.0, "disk": 0.5}) == ""


def test_an_actor_is_overdue_when_it_waits_too_long_for_the_same_ray_nodes() -> None:
    times = PendingTimes()
    first, second = ({2: PendingActor(each, "a", is_placed=False)} for each in ("1st", "2nd"))
    assert times.overdue(first, ["a"], 0) == {}
    assert times.overdue(first, ["a"], 29) == {}
    assert times.overdue(first, ["a"], 31) == {2: 31}
    assert times.overdue(first, ["a", "b"], 32) == {}, "Ray has its time with the Ray node that has come"
    assert times.overdue(second, ["a", "b"], 63) == {}, "another actor"
    assert times.overdue({}, ["a", "b"], 64) == {}
    assert times.overdue(second, ["a", "b"], 99) == {}, "it had a process meanwhile"
    assert times.overdue(second, ["b", "a"], 130) == {2: 31}


def test_no_actor_is_made_where_the_disk_is_but_not_the_resources(spec: ClusterSpec) -> None:
    found, ray_nodes = {"a": on_disk(spec, 2), "b": on_disk(spec, 3)}, {"a": {"CPU": 0.0}, "b": CPUS}
    assert list(place_found(spec, [2, 3], found, ray_nodes, {})) == [3]
    assert able_ray_nodes(spec, [2, 3], ray_nodes) == ["b"]
