"""Ray nodes that are not as rayka's own, in a Ray that others use, too: one whose image lacks rayka, one that starts no
worker, one that Ray runs on with another Python. All are real; a `sitecustomize` makes their workers so.
"""

import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import ray

from rayka.actors import node_handles, ray_nodes
from rayka.actors.found_directories import look_at
from rayka.actors.names import supervisor_name
from rayka.actors.node_handles import only_start
from rayka.actors.node_logs import find_logs, last_lines
from rayka.actors.ray_internals import part
from rayka.actors.ray_nodes import own_ray_node_id, run_on, run_on_all
from rayka.cluster import Cluster
from rayka.errors import StorageError, UnavailableError
from tests.ray.machines import ON_MACHINES, Machines, homes
from tests.ray.support import broker_pid, kill, running, wait_until
from tests.rays import RayNodes

pytestmark = pytest.mark.ray
NO_RAYKA = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "rayka":
            raise ModuleNotFoundError("No module named 'rayka'")

sys.meta_path.insert(0, Missing())
"""
NO_WORKER = """
import sys, time
if any("default_worker" in each for each in sys.orig_argv):
    time.sleep(3600)
"""


@pytest.fixture(scope="module")
def machines(rays: RayNodes) -> Iterator[Machines]:
    machines = Machines(rays, 1)
    yield machines
    machines.close()


@pytest.fixture
def add_foreign(rays: RayNodes, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Adds a Ray node whose workers begin with this program, with the resources of a machine or without; its id."""
    added = []

    def add(program: str, *, has_resources: bool = True) -> str:
        directory = tmp_path / f"python-{len(added)}"
        directory.mkdir()
        directory.joinpath("sitecustomize.py").write_text(program)
        added.append(
            rays.add_node(
                num_cpus=1,
                resources={"machine": 1} if has_resources else {},
                env_vars={"PYTHONPATH": str(directory)},
            )
        )
        return str(added[-1].node_id)

    yield add
    for each in added:
        rays.remove_node(each)


def test_a_ray_node_without_rayka_is_skipped_by_start_and_supervisor_and_named_where_a_disk_is_missing(
    machines: Machines, add_foreign: Callable[..., str], tmp_path: Path
) -> None:
    foreign, unable = add_foreign(NO_RAYKA), add_foreign(NO_RAYKA, has_resources=False)
    fields = {"name": "guest", "data_dir": str(tmp_path / "data"), "resources": ON_MACHINES}
    with Cluster.start(**fields) as cluster:
        assert set(homes(cluster).values()) == set(machines.ray_node_ids)
        node_handles.end(node_handles.find("guest", 1))
        running(cluster)
        said = "\n".join(line for _, line in last_lines(find_logs(supervisor_name("guest")), 1000)[0])
        assert f"Ray node {foreign} was skipped: " in said
        assert unable not in said
    shutil.rmtree(tmp_path / "data" / "guest" / "broker-1")
    with pytest.raises(
        StorageError, match=f"broker-1;.*Ray node {foreign} was skipped: .*No module named 'rayka'"
    ) as raised:
        Cluster.start(**fields)
    assert unable not in str(raised.value)  # it has not the resources that the spec asks for
    with pytest.raises(UnavailableError, match=f"Ray node {foreign} did not run look_at: .*'rayka'"):
        run_on(foreign, look_at, [])


def test_all_ray_nodes_are_asked_and_one_that_starts_no_worker_holds_up_no_other(
    machines: Machines, add_foreign: Callable[..., str], tmp_path: Path
) -> None:
    able = [own_ray_node_id(), *machines.ray_node_ids]
    run_on_all(able, 60, look_at, [])  # from now on there is a worker
    silent = add_foreign(NO_WORKER)
    answers = run_on_all([silent, *able], 12, look_at, [str(tmp_path)])
    assert sorted(answers.results) == sorted(able)
    assert "no free worker" in answers.failures[silent]


def test_a_job_for_which_there_was_no_worker_in_time_does_not_begin() -> None:
    """It waits at Ray still: to cancel it can end the caller's process."""
    begun: list[str] = []
    ray_nodes._run_with(None, time.time() + 60, partial(begun.append, "in time"))
    with pytest.raises(TimeoutError, match="before there was a worker"):
        ray_nodes._run_with(None, time.time() - 1, partial(begun.append, "late"))
    assert begun == ["in time"]


def interpreters() -> tuple[str, bool]:
    """Where the worker's Python is, and whether it was named to Ray."""
    return sys.prefix, "py_executable" in ray.get_runtime_context().runtime_env


def test_jobs_run_in_a_worker_as_ray_starts_it_where_that_runs_the_callers_interpreter(
    machines: Machines,
) -> None:
    (ray_node_id,) = machines.ray_node_ids
    assert run_on(ray_node_id, interpreters) == (sys.prefix, False)
    assert run_on_all([ray_node_id], 60, interpreters).results == {ray_node_id: (sys.prefix, False)}


@pytest.fixture
def add_with_other_python(
    rays: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], str]]:
    """Adds a Ray node that Ray runs on with another Python, which begins with this program; its id."""
    added = []

    def add(program: str) -> str:
        directory = tmp_path / "other"
        venv.create(directory, symlinks=True)
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(directory)}))
        packages.joinpath("all.pth").write_text(
            f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
        )
        packages.joinpath("sitecustomize.py").write_text(program)
        with monkeypatch.context() as patch:
            patch.setattr(
                sys, "executable", str(directory / "bin" / "python")
            )  # Ray starts its workers with it
            added.append(rays.add_node(num_cpus=1, resources={"other": 1}))
        return str(added[-1].node_id)

    yield add
    for each in added:
        rays.remove_node(each)


@pytest.mark.parametrize("program", ["", NO_RAYKA])
def test_jobs_run_with_the_callers_interpreter_where_ray_runs_with_another_one(
    add_with_other_python: Callable[[str], str], program: str
) -> None:
    other = add_with_other_python(program)
    assert run_on(other, interpreters) == (sys.prefix, True)
    assert run_on_all([other], 60, interpreters).results == {other: (sys.prefix, True)}


class FoundActor(NamedTuple):
    """An actor of a cluster, as Ray has it on record."""

    is_named: bool  # whether its interpreter is
    ray_node_id: str
    pid: int


def actors_of(cluster_name: str) -> dict[str, FoundActor]:
    """The actors of the cluster that live, by name."""
    table = part("ray.core.generated.gcs_pb2", "ActorTableData")
    state = part("ray._private.state", "state")
    assert table is not None
    assert state is not None
    records = map(table.FromString, state._connect_and_get_accessor().get_actor_table(None, "ALIVE"))
    return {
        each.name: FoundActor("py_executable" in each.serialized_runtime_env, each.node_id.hex(), each.pid)
        for each in records
        if each.name.startswith(f"{cluster_name}/")
    }


def test_actors_run_in_workers_as_ray_starts_them_where_these_run_the_callers_interpreter(
    machines: Machines, tmp_path: Path
) -> None:
    run_on_all(machines.ray_node_ids, 60, interpreters)
    with Cluster.start(name="plain", data_dir=str(tmp_path)), only_start("plain", 30):
        wait_until(lambda: len(actors_of("plain")) == 4)
        found = actors_of("plain")
        assert set(found) == {"plain/broker-1", "plain/controller-3001", "plain/supervisor", "plain/start"}
        named = [name for name, each in found.items() if each.is_named]
        assert named == ["plain/supervisor"]  # it may be restarted on any Ray node


def test_the_interpreter_is_named_where_the_process_has_a_runtime_environment_of_its_own(
    ray_address: str, run: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    program = """
import ray, sys
from rayka.actors import ray_nodes
for own in (None, {"py_executable": "another"}, {"env_vars": {"A": "a"}}):
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR", runtime_env=own)
    print(ray_nodes.actor_environment([ray.get_runtime_context().get_node_id()]))
    ray.shutdown()
    ray_nodes._matching.clear()
"""
    done = run(sys.executable, "-c", program, ray_address)
    named = str({"py_executable": sys.executable})
    assert done.stdout.splitlines() == ["{}", named, named], done.stderr


def test_nodes_run_with_the_callers_interpreter_where_ray_runs_with_another_one(
    add_with_other_python: Callable[[str], str], tmp_path: Path
) -> None:
    other = add_with_other_python(NO_RAYKA)
    there = {role: {"resources": {"other": 0.01}} for role in ("broker", "controller")}
    with Cluster.start(name="away", data_dir=str(tmp_path), resources=there) as cluster:
        assert set(homes(cluster).values()) == {other}
        assert all(each.is_named for each in actors_of("away").values())
        former = broker_pid(cluster)
        kill(former)
        wait_until(
            lambda: "away/broker-1" in (found := actors_of("away")) and found["away/broker-1"].pid != former
        )
        running(cluster)
