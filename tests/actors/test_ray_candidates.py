"""Which Rays `auto` may mean for a process that has no connection, and why; what is said of none and of several."""

from collections.abc import Callable

import pytest
import ray

from rayka.actors import ray_connection
from rayka.actors.ray_connection import RayCandidate, candidates, connect
from rayka.actors.ray_process import RayProcess
from rayka.errors import UnavailableError

ONE, OTHER, NAMED = "10.0.0.1:6379", "10.0.0.1:6380", "10.0.0.2:6379"
LEFT = RayProcess(pid=1, started=1, address=OTHER, temp_dir="/tmp/left")
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes this machine one on which these Rays run; it has none yet."""

    def become(
        *running: str, started_last: str | None = None, left: RayProcess | None = None, named: str = ""
    ) -> None:
        monkeypatch.setattr(ray_connection.local_rays, "running", lambda: list(running))
        monkeypatch.setattr(ray_connection.local_rays, "started_last", lambda: started_last)
        monkeypatch.setattr(ray_connection, "remembered", lambda: left)
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setenv("RAY_ADDRESS", named)

    become()
    return become


def test_an_address_that_is_given_is_the_one(machine: Machine) -> None:
    machine(ONE, started_last=ONE, left=LEFT, named=OTHER)
    assert candidates(NAMED) == [RayCandidate(NAMED, "the address given")]


def test_auto_means_ray_address_before_other_rays(machine: Machine) -> None:
    machine(ONE, started_last=ONE, left=LEFT, named=NAMED)
    assert candidates() == [RayCandidate(NAMED, "RAY_ADDRESS")]


@pytest.mark.parametrize("named", ["", "auto", "local"])
def test_auto_means_the_ray_of_rayka_start_before_found_ones(machine: Machine, named: str) -> None:
    machine(ONE, OTHER, started_last=ONE, left=LEFT, named=named)
    assert candidates() == [RayCandidate(OTHER, "the one that `rayka start` left running")]


@pytest.mark.parametrize("named", ["", "auto"])
def test_auto_means_the_ray_started_last_if_it_runs(machine: Machine, named: str) -> None:
    machine(ONE, OTHER, started_last=OTHER, named=named)
    assert candidates() == [RayCandidate(OTHER, "the one that `ray start` started last", is_found=True)]


@pytest.mark.parametrize("started_last", [None, NAMED])
def test_auto_means_the_only_ray_that_runs(machine: Machine, started_last: str | None) -> None:
    machine(ONE, started_last=started_last)
    assert candidates() == [RayCandidate(ONE, "the only one that runs on this machine", is_found=True)]


def test_none_of_several_rays_is_chosen_and_the_error_names_them(machine: Machine) -> None:
    machine(ONE, OTHER, started_last=NAMED)
    assert [each.address for each in candidates()] == [ONE, OTHER]
    with pytest.raises(UnavailableError, match="several Rays run on this machine") as raised:
        connect()
    assert f"{ONE}, {OTHER}; choose one with --address or RAY_ADDRESS" in str(raised.value)


@pytest.mark.parametrize(
    ("running", "named"), [((), ""), ((), "local"), ((ONE,), "local"), ((ONE, OTHER), "local")]
)
def test_with_none_or_none_of_others_the_error_says_how_to_start_one(
    machine: Machine, running: tuple[str, ...], named: str
) -> None:
    machine(*running, started_last=ONE, named=named)
    assert candidates() == []
    with pytest.raises(UnavailableError, match=r"^no Ray runs on this machine; start one with `rayka start`"):
        connect()
