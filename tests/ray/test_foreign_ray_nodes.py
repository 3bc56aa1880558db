"""Ray nodes that are not as rayka's own, in a Ray that others use, too: one whose image lacks rayka, one that starts no
worker, one that Ray runs on with another Python. All are real; a `sitecustomize` makes their workers so.
"""

import shutil
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster as RayNodes

from rayka.actors import launch
from rayka.actors.found_directories import look_at
from rayka.actors.on_ray_node import own_ray_node_id, run_on, run_on_all
from rayka.cluster import Cluster
from rayka.errors import StorageError, UnavailableError
from tests.ray.machines import ON_MACHINES, Machines, homes
from tests.ray.support import running

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
def add_foreign(rays: RayNodes, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Adds a Ray node with the resources of a machine whose workers begin with this program; its id."""
    added = []

    def add(program: str) -> str:
        directory = tmp_path / f"python-{len(added)}"
        directory.mkdir()
        directory.joinpath("sitecustomize.py").write_text(program)
        added.append(
            rays.add_node(num_cpus=1, resources={"machine": 1}, env_vars={"PYTHONPATH": str(directory)})
        )
        return str(added[-1].node_id)

    yield add
    for each in added:
        rays.remove_node(each)


def test_a_ray_node_without_rayka_is_skipped_by_start_and_supervisor_and_named_where_a_disk_is_missing(
    machines: Machines, add_foreign: Callable[[str], str], tmp_path: Path
) -> None:
    foreign = add_foreign(NO_RAYKA)
    fields = {"name": "guest", "data_dir": str(tmp_path / "data"), "resources": ON_MACHINES}
    with Cluster.start(**fields) as cluster:
        assert set(homes(cluster).values()) == set(machines.ray_node_ids)
        launch.end(launch.find("guest", 1))
        running(cluster)
    shutil.rmtree(tmp_path / "data" / "guest" / "broker-1")
    with pytest.raises(
        StorageError, match=f"broker-1;.*Ray node {foreign} was skipped: .*No module named 'rayka'"
    ):
        Cluster.start(**fields)
    with pytest.raises(UnavailableError, match=f"Ray node {foreign} did not run look_at: .*'rayka'"):
        run_on(foreign, look_at, [])


def test_all_ray_nodes_are_asked_and_one_that_starts_no_worker_holds_up_no_other(
    machines: Machines, add_foreign: Callable[[str], str], tmp_path: Path
) -> None:
    able = [own_ray_node_id(), *machines.ray_node_ids]
    run_on_all(able, 60, look_at, [])  # from now on there is a worker
    silent = add_foreign(NO_WORKER)
    answers = run_on_all([silent, *able], 12, look_at, [str(tmp_path)])
    assert sorted(answers.results) == sorted(able)
    assert "no free worker" in answers.failures[silent]


def interpreters() -> tuple[str, bool]:
    """Where the worker's Python is, and whether it was named to Ray."""
    return sys.prefix, "py_executable" in ray.get_runtime_context().runtime_env


def test_jobs_run_in_a_worker_as_ray_starts_it_where_that_runs_the_callers_interpreter(
    machines: Machines,
) -> None:
    (ray_node_id,) = machines.ray_node_ids
    assert run_on(ray_node_id, interpreters) == (sys.prefix, False)
    assert run_on_all([ray_node_id], 60, interpreters).results == {ray_node_id: (sys.prefix, False)}


@pytest.mark.parametrize("program", ["", NO_RAYKA])
def test_jobs_run_with_the_callers_interpreter_where_ray_runs_with_another_one(
    rays: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    venv.create(tmp_path, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path)}))
    packages.joinpath("all.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    )
    packages.joinpath("sitecustomize.py").write_text(program)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))  # Ray starts its workers with it
        other = rays.add_node(num_cpus=1)
    try:
        assert run_on(other.node_id, interpreters) == (sys.prefix, True)
        assert run_on_all([other.node_id], 60, interpreters).results == {other.node_id: (sys.prefix, True)}
    finally:
        rays.remove_node(other)
