"""What planners began and no planner looks after: marks of nodes that were to go, rooms of nodes that were to come.
Needs no Ray.
"""

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from rayka.actors import scaling_rooms
from rayka.actors.cluster_looks import leftover_registrations, remove_leftover_marks
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ErrorCode
from rayka.ids import Role
from rayka.ports import Request
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from tests.controller.admin_support import cluster, create
from tests.controller.support import Machine

A_COORDINATOR = 1001


@pytest.fixture
def machine() -> Machine:
    """Two brokers and a coordinator, of which one broker and the coordinator are to go."""
    return marked_machine()


def marked_machine(*replicas: tuple[int, ...]) -> Machine:
    """With a topic of partitions with these replicas."""
    machine = cluster(2)
    if replicas:
        create(machine, *replicas)
    machine.start(A_COORDINATOR, roles=(Role.COORDINATOR,))
    goes = (ConfigChange("scaling.leaving", AlterConfigOp.SET, "true"),)
    altered = tuple(AlteredResource(ResourceType.BROKER, str(each), goes) for each in (2, A_COORDINATOR))
    results = machine.handle(IncrementalAlterConfigsRequest(altered, is_scaling=True)).resources
    assert [each.error_code for each in results] == [ErrorCode.NONE] * 2
    return machine


def remove(machine: Machine, ranged: Collection[Role]) -> list[int]:
    async def ask(request: Request[Any], /) -> Any:
        return machine.handle(request)

    return asyncio.run(remove_leftover_marks(ask, ranged))


def marked(machine: Machine) -> list[int]:
    return [each for each in machine.image.brokers if machine.image.broker_configs(each)]


@pytest.mark.parametrize(
    ("ranged", "left"),
    [
        ((), []),
        ((Role.COORDINATOR,), [A_COORDINATOR]),
        ((Role.BROKER,), [2]),
        ((Role.BROKER, Role.COORDINATOR), [2, A_COORDINATOR]),
    ],
    ids=["none-comes-and-goes", "coordinators-do", "brokers-do", "both-do"],
)
def test_marks_of_fixed_roles_are_removed(
    machine: Machine, ranged: Collection[Role], left: list[int]
) -> None:
    assert remove(machine, ranged) == [each for each in (2, A_COORDINATOR) if each not in left]
    assert marked(machine) == left
    count = len(machine.records)
    assert remove(machine, ranged) == []
    assert len(machine.records) == count


@pytest.mark.parametrize(
    ("counts", "left"),
    [
        ({"brokers": {"min": 1, "max": 4}, "coordinators": {"min": 1, "max": 2}}, []),
        ({"brokers": {"min": 3, "max": 4}, "coordinators": {"min": 1, "max": 2}}, [3]),
        ({"brokers": 1, "coordinators": {"min": 1, "max": 2}}, [3, 4]),
        ({"brokers": 4, "coordinators": {"min": 2, "max": 3}}, [3, 4, 1002]),
        ({"brokers": 3}, [3, 4, 1002]),
    ],
    ids=[
        "all-come-and-go",
        "one-is-declared-now",
        "brokers-do-not",
        "all-are-declared-now",
        "none-comes-and-goes",
    ],
)
def test_a_room_that_no_planner_looks_after_is_given_back(counts: dict[str, Any], left: list[int]) -> None:
    """Of a role whose count is a number, and of nodes that the specification has."""
    assert scaling_rooms.leftover(ClusterSpec.of(counts), [3, 4, 1002]) == left


@pytest.mark.parametrize(
    ("counts", "running", "gone"),
    [
        ({"brokers": 1}, [1], [2, A_COORDINATOR]),
        ({"brokers": 1}, [1, 2], [A_COORDINATOR]),
        ({"brokers": 2}, [1], [A_COORDINATOR]),
        ({"brokers": {"min": 1, "max": 3}}, [1], [A_COORDINATOR]),
    ],
    ids=["both", "one-has-an-actor", "one-is-declared", "one-is-a-planners"],
)
def test_a_node_that_has_gone_leaves_its_registration(
    counts: dict[str, Any], running: list[int], gone: list[int]
) -> None:
    def found(machine: Machine) -> list[int]:
        async def ask(request: Request[Any], /) -> Any:
            return machine.handle(request)

        return asyncio.run(leftover_registrations(ask, ClusterSpec.of(counts), running))

    assert found(marked_machine()) == gone
    assert found(marked_machine((2,))) == [each for each in gone if each != 2]
