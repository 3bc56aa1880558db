"""What is formatted before actors are made: all at once, what a start that broke off left, and what was lost.

Needs no Ray: the jobs run in this process, as they do on the caller's own Ray node.
"""

import shutil
from collections.abc import Collection
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from rayka.actors import formatting
from rayka.actors.formatting import FormatPlan, plan_formatting
from rayka.actors.found_directories import look_at
from rayka.actors.names import node_directories
from rayka.actors.node_placement import NodePlacement, Site, place
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ConfigError, StorageError, UnavailableError
from rayka.ids import METADATA_TOPIC
from rayka.raft.snapshot import decode_snapshot

CONTROLLERS = (3001, 3002, 3003)
ALL = (1, *CONTROLLERS)
FIRST_CHECKPOINT = f"{METADATA_TOPIC}-0/{0:020d}-{0:010d}.checkpoint"


@pytest.fixture
def spec(tmp_path: Path) -> ClusterSpec:
    return ClusterSpec(name="formatted", controllers=3, data_dir=str(tmp_path))


def directory(spec: ClusterSpec, node_id: int) -> Path:
    return Path(node_directories(spec, node_id)[0])


def plan(spec: ClusterSpec, replace: Collection[int | str] = (), seed: int = 7) -> FormatPlan:
    """What is to be made, as the disk is now."""
    paths = [each for id in spec.roles for each in node_directories(spec, id)]
    return plan_formatting(spec, look_at(paths), replace, Random(seed))


def execute(spec: ClusterSpec, planned: FormatPlan, *, steps: int = 99) -> None:
    """Formats as planned, and breaks off after so many directories were touched."""
    placed = {each: NodePlacement(spec, each, "here") for each in spec.roles}
    jobs = [(formatting.format_brokers, [(placed[each], ids)]) for each, ids in planned.brokers.items()]
    if planned.voters:
        jobs += [
            (lambda one: formatting.prepare_controllers(one, planned.voters), [placed[each]])
            for each in planned.controllers
        ]
    jobs += [
        (formatting.format_controllers, [(placed[each], given)])
        for each, given in planned.controllers.items()
    ]
    for job, argument in jobs[:steps]:
        job(argument)


def identity(spec: ClusterSpec, node_id: int) -> dict[str, str]:
    lines = directory(spec, node_id).joinpath("meta.properties").read_text().splitlines()
    return dict(line.split("=") for line in lines)


def check_agreement(spec: ClusterSpec) -> None:
    """All controllers are of one cluster, know the same voters, and are these voters."""
    identities = {each: identity(spec, each) for each in CONTROLLERS}
    assert len({each["cluster.id"] for each in identities.values()}) == 1
    for node_id in CONTROLLERS:
        path = directory(spec, node_id) / FIRST_CHECKPOINT
        voters = decode_snapshot(path.read_bytes(), str(path)).voters
        assert voters is not None
        assert {each.node_id: str(each.directory_id) for each in voters.voters} == {
            id: each["directory.id"] for id, each in identities.items()
        }


def test_a_new_cluster_is_formatted_whole_and_nothing_is_left_to_do(spec: ClusterSpec) -> None:  # A48
    execute(spec, plan(spec))
    check_agreement(spec)
    again = plan(spec)
    assert (again.brokers, again.voters, again.controllers) == ({}, None, {})


@pytest.mark.parametrize("steps", range(8))
def test_formatting_that_broke_off_anywhere_is_finished_by_the_next_start(
    spec: ClusterSpec, steps: int
) -> None:
    execute(spec, plan(spec), steps=steps)  # a broker, three checkpoints, three controllers
    execute(spec, plan(spec))
    check_agreement(spec)
    assert identity(spec, 1)["node.id"] == "1"


@pytest.mark.parametrize("lost", [1, 3001, 3003])
def test_a_directory_that_is_missing_is_named_and_not_made_again(spec: ClusterSpec, lost: int) -> None:
    execute(spec, plan(spec))
    shutil.rmtree(directory(spec, lost))
    advice = f"more nodes than before, .* let [a-z]+-{lost} start empty: `rayka start --replace {lost}`"
    with pytest.raises(StorageError, match=f"{directory(spec, lost)}.*{advice}"):
        plan(spec)


def test_a_controller_that_lost_all_but_its_first_checkpoint_does_not_come_back_as_itself(
    spec: ClusterSpec,
) -> None:
    """It had a log: its vote may be in what was lost (A55)."""
    execute(spec, plan(spec))
    lost = directory(spec, 3002)
    lost.joinpath("meta.properties").unlink()
    lost.joinpath(f"{METADATA_TOPIC}-0", "quorum-state").write_text("{}")
    with pytest.raises(StorageError, match=str(lost)):
        plan(spec)


@pytest.mark.parametrize("node", [3003, "3003"], ids=["in Python", "on the command line"])
def test_a_replaced_controller_is_an_observer_of_the_same_cluster(
    spec: ClusterSpec, node: int | str
) -> None:  # A55
    execute(spec, plan(spec))
    former = identity(spec, 3003)
    shutil.rmtree(directory(spec, 3003))
    execute(spec, plan(spec, replace=[node]))
    now = identity(spec, 3003)
    assert now["cluster.id"] == former["cluster.id"]
    assert now["directory.id"] != former["directory.id"]
    assert not directory(spec, 3003).joinpath(FIRST_CHECKPOINT).exists()


def test_replacing_a_directory_that_is_there_is_refused(spec: ClusterSpec) -> None:
    execute(spec, plan(spec))
    with pytest.raises(StorageError, match="remove it first"):
        plan(spec, replace=[3003])


@pytest.mark.parametrize("wiped", [CONTROLLERS, ()], ids=["gone", "there"])
def test_the_metadata_cannot_be_replaced_as_a_whole(spec: ClusterSpec, wiped: Collection[int]) -> None:
    execute(spec, plan(spec))
    properties = directory(spec, 1) / "meta.properties"
    properties.write_text(properties.read_text() + f"cluster.id={identity(spec, 3001)['cluster.id']}\n")
    for each in wiped:
        shutil.rmtree(directory(spec, each))
    with pytest.raises(ConfigError, match="no other controller has the metadata"):
        plan(spec, replace=CONTROLLERS)


def test_controllers_of_two_clusters_are_refused_by_name(spec: ClusterSpec, tmp_path: Path) -> None:
    execute(spec, plan(spec))
    other = spec.model_copy(update={"data_dir": str(tmp_path / "other")})
    execute(other, plan(other, seed=8))
    shutil.rmtree(directory(spec, 3002))
    shutil.copytree(directory(other, 3002), directory(spec, 3002))
    with pytest.raises(StorageError) as raised:
        plan(spec)
    for said in (identity(spec, 3001)["cluster.id"], identity(spec, 3002)["cluster.id"], "controller-3002"):
        assert said in str(raised.value)


def test_a_node_that_the_spec_does_not_have_cannot_be_replaced(spec: ClusterSpec) -> None:
    with pytest.raises(ConfigError, match="no node 3004"):
        plan(spec, replace=[3004])


# ---- Places --------------------------------------------------------------------------------------------------------


def homes(spec: ClusterSpec, seen: dict[str, list[int]], cpus: dict[str, float]) -> dict[int, str]:
    sites = {
        ray_node: Site({"CPU": cpus[ray_node]}, [path for id in ids for path in node_directories(spec, id)])
        for ray_node, ids in seen.items()
    }
    placed = place(spec, sites, spec.roles, {})
    return {id: each.ray_node_id for id, each in placed.items()}


def test_new_controllers_are_spread_over_the_ray_nodes(spec: ClusterSpec) -> None:
    found = homes(spec, {"a": [], "b": [], "c": []}, {"a": 1, "b": 1, "c": 1})
    assert found == {1: "a", 3001: "a", 3002: "b", 3003: "c"}


def test_a_node_lives_where_its_disk_is_even_if_others_live_there(spec: ClusterSpec) -> None:
    assert homes(spec, {"a": [], "b": list(ALL)}, {"a": 1, "b": 1}) == dict.fromkeys(ALL, "b")


def test_a_ray_node_without_the_resources_gets_none(spec: ClusterSpec) -> None:
    assert set(homes(spec, {"a": [], "b": []}, {"a": 0, "b": 1}).values()) == {"b"}
    with pytest.raises(UnavailableError, match="no Ray node has what the spec asks for"):
        homes(spec, {"a": []}, {"a": 0})


def test_a_new_node_goes_where_its_path_is_not_taken(spec: ClusterSpec) -> None:
    taken = Site({"CPU": 1.0}, foreign=node_directories(spec, 1))
    assert place(spec, {"a": taken, "b": Site({"CPU": 1.0})}, [1], {})[1].ray_node_id == "b"


def test_a_broker_that_runs_though_it_is_not_declared_is_in_no_others_way(spec: ClusterSpec) -> None:
    """As one does after a removal that was killed on its way."""
    sites = {"a": Site({"CPU": 1.0}), "b": Site({"CPU": 1.0})}
    placed = place(spec, sites, [1], {2: "a", 3001: "a"})
    assert placed[1].ray_node_id == "a"


# ---- Brokers with several directories ----


@pytest.fixture
def two_disks(tmp_path: Path) -> ClusterSpec:
    """A cluster of one broker with two directories, which are formatted."""
    dirs = [str(tmp_path / each) for each in ("one", "two")]
    spec = ClusterSpec(name="formatted", data_dir=dirs)
    execute(spec, plan(spec))
    return spec


def ids(spec: ClusterSpec) -> list[UUID]:
    return [each.directory_id for each in look_at(node_directories(spec, 1)).values()]


def test_a_broker_with_one_of_its_directories_is_started_and_nothing_is_made(two_disks: ClusterSpec) -> None:
    shutil.rmtree(node_directories(two_disks, 1)[1])
    planned = plan(two_disks)
    assert (planned.brokers, planned.controllers, planned.voters) == ({}, {}, None)


def test_a_broker_with_none_of_its_directories_is_refused(two_disks: ClusterSpec) -> None:
    for each in node_directories(two_disks, 1):
        shutil.rmtree(each)
    with pytest.raises(StorageError, match=r"these directories are missing: .*/one/.*/two/.*--replace 1"):
        plan(two_disks)


@pytest.mark.parametrize("is_data_dir", [True, False])
def test_one_directory_is_replaced_and_the_other_stays(two_disks: ClusterSpec, is_data_dir: bool) -> None:
    one, two = node_directories(two_disks, 1)
    before = ids(two_disks)
    shutil.rmtree(two)
    planned = plan(two_disks, replace=[f"1:{two_disks.data_dirs[1] if is_data_dir else two}"], seed=8)
    assert {each: list(paths) for each, paths in planned.brokers.items()} == {1: [two]}
    execute(two_disks, planned)
    after = ids(two_disks)
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)
    assert one != two


def test_a_directory_that_is_there_or_would_be_the_only_one_is_not_replaced(two_disks: ClusterSpec) -> None:
    one, two = node_directories(two_disks, 1)
    with pytest.raises(StorageError, match="two/formatted/broker-1 of broker-1 is there"):
        plan(two_disks, replace=[f"1:{two}"])
    shutil.rmtree(one)
    shutil.rmtree(two)
    with pytest.raises(StorageError, match="these directories are missing"):
        plan(two_disks, replace=[f"1:{two}"])


@pytest.mark.parametrize(
    ("replace", "said"),
    [
        ("x", "expected the id of a node, or ID:PATH, found 'x'"),
        ("1:", "expected the id of a node, or ID:PATH, found '1:'"),
        ("7:/mnt", "no node 7 in cluster"),
        ("1:/mnt", "/mnt is none of several directories of broker-1: "),
        ("3001:/mnt", "/mnt is none of several directories of controller-3001: "),
    ],
)
def test_a_replacement_that_cannot_be_made_is_refused_with_the_reason(
    two_disks: ClusterSpec, replace: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(two_disks, replace=[replace])
