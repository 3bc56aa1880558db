"""A mark of a broker that was to go, after its cluster got a fixed number of brokers. Needs no Ray."""

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from rayka.actors.scaling.leftover_marks import remove_leftover_marks
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
from tests.controller.admin_support import cluster
from tests.controller.support import Machine

A_COORDINATOR = 1001


@pytest.fixture
def machine() -> Machine:
    """Two brokers and a coordinator, of which one broker and the coordinator are to go."""
    machine = cluster(2)
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
def test_what_does_not_come_and_go_is_not_to_go(
    machine: Machine, ranged: Collection[Role], left: list[int]
) -> None:
    assert remove(machine, ranged) == [each for each in (2, A_COORDINATOR) if each not in left]
    assert marked(machine) == left
    count = len(machine.records)
    assert remove(machine, ranged) == []
    assert len(machine.records) == count
