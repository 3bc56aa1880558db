"""A version of Ray without anything of what rayka uses beyond Ray's public interface: each use falls back."""

import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ray.util.placement_group import placement_group_table

from rayka.actors import ray_internals, ray_records, scaling_rooms
from rayka.config.cluster_config import ClusterSpec
from tests import tidy
from tests.ray.support import wait_until

pytestmark = pytest.mark.ray
NONE = "00" * 28  # the id of no worker and of no Ray node
INTERNALS: dict[str, tuple[Any, ...]] = {
    "use_token_at_hand": (),
    "name_driver_in_utf8": (),
    "make_token": (),
    "try_token": ("127.0.0.1:1",),
    "address_file": (),
    "keep_title": ("a title",),
    "pace_messages": (),
    "suppress_messages": (bool,),
}
RECORDS: dict[str, tuple[tuple[Any, ...], object]] = {
    "has_process": ((None,), True),  # not taken for lost
    "pending_actors": (("rayka",), {}),
    "free_resources": ((), {}),
    "draining_ray_nodes": ((), {}),
    "has_left": ((NONE,), False),
    "has_exited": ((NONE, NONE), False),
    "was_actor_of": (("rayka", NONE), False),
    "exit_detail": ((NONE,), ""),
    "last_places": (("rayka", ["broker-1"]), {}),
}


@pytest.fixture(autouse=True)
def _missing(ray_address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is asked for, this version of Ray has none."""
    with monkeypatch.context() as patched:
        patched.setattr(ray_internals, "part", lambda _module, _name: None)
        yield


@pytest.fixture
def records() -> ModuleType:
    """The module as such a Ray makes it; the one in use keeps what it has found."""
    found = importlib.util.find_spec(ray_records.__name__)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def functions_of(module: ModuleType) -> list[str]:
    """Its public ones."""
    members = inspect.getmembers(module, inspect.isfunction)
    return [name for name, each in members if each.__module__ == module.__name__ and name[0] != "_"]


@pytest.mark.parametrize("name", INTERNALS)
def test_without_a_part_ray_is_left_as_it_is(name: str) -> None:
    result = getattr(ray_internals, name)(*INTERNALS[name])
    assert result is None or isinstance(result, Path)  # where Ray keeps addresses by default


@pytest.mark.parametrize("name", RECORDS)
def test_without_rays_tables_nothing_is_known(records: ModuleType, name: str) -> None:
    arguments, answer = RECORDS[name]
    assert getattr(records, name)(*arguments) == answer


def test_log_directories_and_lost_machines_come_from_rays_public_interface(
    records: ModuleType,
) -> None:
    assert records.log_directories() == ray_records.log_directories() != {}
    assert records.lost_machines() == ray_records.lost_machines()


def test_a_room_is_asked_for_found_and_given_back(tmp_path: Path) -> None:
    spec = ClusterSpec.of({"name": "roomy", "data_dir": str(tmp_path), "brokers": {"min": 1, "max": 2}})
    scaling_rooms.ask(spec, 2)
    wait_until(lambda: scaling_rooms.find("roomy").get(2, scaling_rooms.Room()).ray_node_id != "")
    scaling_rooms.drop("roomy", 2)
    wait_until(lambda: scaling_rooms.find("roomy") == {})
    states = {each["name"]: each["state"] for each in placement_group_table().values()}
    assert [state for name, state in states.items() if "roomy" in name] == ["REMOVED"]


def test_these_are_all_that_use_a_part_that_may_be_missing(records: ModuleType) -> None:
    users = [each.name for each in tidy.python_files("rayka/") if "ray_internals import part" in each.text]
    assert users == [
        "rayka/actors/ray_records.py",
        "rayka/spark/session.py",
    ]  # the tests of Spark have the last
    assert {*INTERNALS, "part"} == {*functions_of(ray_internals), "part"}
    assert {*RECORDS, "log_directories", "lost_machines"} == {*functions_of(records)}
