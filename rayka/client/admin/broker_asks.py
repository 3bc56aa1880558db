"""What the active controller is asked about brokers, and told of them, beside what an `Admin` does: by the supervisor
and by the simulator, over an `Ask`, whatever stands behind it.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeVar

from rayka.errors import ErrorCode, error_for
from rayka.ports import Request
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    ConfigResourceName,
    DescribeConfigsRequest,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.events import RecordEventRequest

NO_TOPIC = ("",)  # so that no partition is named
ResponseT = TypeVar("ResponseT")


class Ask(Protocol):
    """Asks the active controller. Raises RaykaError, and TimeoutError where none answers in time."""

    async def __call__(self, request: Request[ResponseT]) -> ResponseT: ...


async def describe_brokers(ask: Ask, broker_ids: Collection[int]) -> dict[int, DescribedConfig]:
    """The configuration of these brokers."""
    if not broker_ids:
        return {}
    names = tuple(ConfigResourceName(ResourceType.BROKER, str(each)) for each in broker_ids)
    resources = (await ask(DescribeConfigsRequest(names))).resources
    return dict(zip(broker_ids, resources, strict=True))


def values_of(key: str, configs: Iterable[DescribedConfig]) -> list[int]:
    """The numbers that a key has in these configurations."""
    return [int(entry.value) for each in configs for entry in each.entries if entry.name == key]


async def mark_brokers(
    ask: Ask, key: str, marks: Mapping[int, str | None], *, is_scaling: bool = False
) -> None:
    """Sets that key of brokers, or takes it back, in one request. Raises what the controller refuses it with."""
    altered = tuple(
        AlteredResource(ResourceType.BROKER, str(broker_id), (_change(key, value),))
        for broker_id, value in marks.items()
    )
    request = IncrementalAlterConfigsRequest(altered, is_scaling=is_scaling)
    for result in (await ask(request)).resources:
        if result.error_code is not ErrorCode.NONE:
            raise error_for(result.error_code, result.error_message)


def _change(key: str, value: str | None) -> ConfigChange:
    return ConfigChange(key, AlterConfigOp.DELETE if value is None else AlterConfigOp.SET, value or "")


async def record_event(ask: Ask, timestamp_ms: int, kind: str, node_ids: Iterable[int], reason: str) -> None:
    """Has it among the events of the cluster."""
    await ask(RecordEventRequest.of_nodes(timestamp_ms, kind, node_ids, reason))
