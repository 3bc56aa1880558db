"""What every test runs under: a temporary directory of its own, and proof that the run leaves nothing behind; and the
one Ray and the cluster that tests share, which start when the first test asks for them.

Four worker processes of pytest-xdist run the tests, for two cores, as tests on Ray mostly wait: one runs those that
start clusters on a Ray that they share, one those that share a cluster (with Spark), one those that start a Ray of
their own, one new seeds of the simulator; then each whatever file is next, or of what is marked `apart` whatever test.
What tests share ends as soon as the next test does without: an idle cluster takes as much as a small test.
`tests/group_times.py` prints how long each took. Temporary files of a worker, those of Ray and of subprocesses
included, go into one directory; it must be empty at the end, but for what pytest keeps of failed tests.
Every process that a test starts inherits its worker's mark in its environment; none may be alive at the end.
"""

import gc
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psutil
import pytest

from tests.group_times import GroupTimes

if TYPE_CHECKING:
    from rayka.cluster import Cluster
    from tests.rays import RayNodes

# Under `uv run`, Ray would build the whole environment again for its workers. Read when ray is imported.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# For every Ray that a test starts: no busy machine holds up the nodes of a cluster by Ray's niceness of 15, no workers
# that nothing could use, and a Ray node that is lost is noticed within 3 s instead of 15; one that is slow has as long.
os.environ.update(
    RAY_worker_niceness="0", RAY_prestart_worker_first_driver="0", RAY_health_check_period_ms="500"
)
# Read when ray is imported, too; `disabled` makes no token in the user's home. Each mode has its smoke test.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

_MARK = "RAYKA_TEST_RUN"
_SHARED_RAY, _SHARED_CLUSTER, _OWN_RAY, _SIM = _GROUPS = ("shared ray", "shared cluster", "own ray", "sim")
_APART = "apart"  # the mark of files each of whose tests is a group of its own
_BYTECODE = "bytecode"
_END_WAIT_S = 90  # a JVM of Spark lingers up to 20 s after its driver
os.environ[_MARK] = str(os.getpid())
_WORKER = os.environ.get("PYTEST_XDIST_WORKER")
# Short, and a worker's not inside that of the process that started it: Ray puts socket paths into it.
_PARENT = Path(os.environ["TMPDIR"]).parent if _WORKER is not None else None
os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="rk-", dir=_PARENT)
# A run starts hundreds of processes. Where bytecode is forbidden, each would compile all that it imports.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(os.environ["TMPDIR"], _BYTECODE)
# A shell that starts the tests in the background has SIGINT ignored, and tests send it to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A shared machine stalls for longer than any honest deadline; CI runs must not depend on luck.
_IS_CI = bool(os.environ.get("CI"))
hypothesis.settings.register_profile("rayka", deadline=None, print_blob=True, derandomize=_IS_CI)
hypothesis.settings.load_profile("rayka")


def _marked_processes() -> list[psutil.Process]:
    """Living processes that some test of this run has started."""
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get(_MARK) == os.environ[_MARK] and process.pid != os.getpid()
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error as error:
            logging.getLogger(__name__).debug("cannot look at process %s: %s", process.pid, error)
    return found


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fails the run when a process outlives it or a file stays in its temporary directory."""
    yield
    psutil.wait_procs(_marked_processes(), timeout=_END_WAIT_S)
    processes = [" ".join(process.cmdline())[:200] for process in _marked_processes()]
    files = sorted(path.name for path in Path(os.environ["TMPDIR"]).iterdir() if not _is_the_runs(path))
    assert not processes, f"processes outlive the tests: {processes}"
    assert not files, f"files were left in the temporary directory: {files}"


@pytest.fixture(scope="session")
def forks() -> Iterator[None]:
    """Workers of the Rays that this process and its subprocesses start begin as forks."""
    from tests.forks import fork_server

    with fork_server():
        yield


@pytest.fixture(scope="session")
def rays(forks: None) -> Iterator["RayNodes"]:
    """The Ray that this process is connected to. Tests may add Ray nodes, and have to remove them."""
    from tests.rays import connected_ray

    with connected_ray(head_cpus=8) as rays:
        yield rays


@pytest.fixture(scope="session")
def cluster(rays: "RayNodes", tmp_path_factory: pytest.TempPathFactory) -> Iterator["Cluster"]:
    """A cluster for tests that leave it as it was; topics have names of their own."""
    from rayka.cluster import Cluster

    with Cluster.start(name="shared", data_dir=str(tmp_path_factory.mktemp("shared"))) as cluster:
        yield cluster


def _is_the_runs(path: Path) -> bool:
    return path.name == _BYTECODE or path.name.startswith("pytest-of-")


def pytest_configure(config: pytest.Config) -> None:
    if _WORKER is None:
        config.pluginmanager.register(GroupTimes())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without garbage collection, which takes a quarter of the time; and what has been made by then is never looked
    at again: modules and thousands of tests, all of which stay.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives tests their groups, all of which one worker runs; the long ones first."""
    groups = {item: _group(item) for item in items}
    for item, group in groups.items():
        if group != _APART:
            item.add_marker(pytest.mark.xdist_group(group))
    ranks = {name: rank for rank, name in enumerate((*_GROUPS, _APART))}
    items.sort(key=lambda item: (ranks.get(groups[item], len(ranks)), str(item.path)))


def _group(item: pytest.Item) -> str:
    marks, fixtures = {each.name for each in item.iter_markers()}, getattr(item, "fixturenames", ())
    if "sim" in marks:
        return _SIM
    if _APART in marks:
        return _APART
    if "rays" in fixtures:
        return _SHARED_CLUSTER if "cluster" in fixtures else _SHARED_RAY
    return _OWN_RAY if marks & {"ray", "lane"} else item.path.name


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends the shared Ray, and with it the cluster and Spark, once no test in a row is left that stands on it. pytest
    itself would keep it to the end of the session; a later test would start another one.
    """
    if nextitem is not None and _stands_on_rays(item) and not _stands_on_rays(nextitem):
        for each in item.session._fixturemanager.getfixturedefs("rays", item) or ():
            each.finish(item._request)  # type: ignore[attr-defined]


def _stands_on_rays(item: pytest.Item) -> bool:
    return "rays" in getattr(item, "fixturenames", ())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests have to say though they passed: `record_property("says", ...)`."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "says":
                terminalreporter.write_line(f"{report.nodeid}: {text}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """Keeps the temporary directory for a look when something failed, but no bytecode."""
    shutil.rmtree(Path(os.environ["TMPDIR"], _BYTECODE), ignore_errors=True)
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        shutil.rmtree(os.environ["TMPDIR"])
