"""Configurations described and changed. Kafka: DescribeConfigsRequest, IncrementalAlterConfigsRequest."""

from enum import IntEnum

from rayka.errors import ErrorCode
from rayka.ids import NO_OFFSET
from rayka.ports import Message, Request
from rayka.protocol.request_parts import check_each_once

# Keys that clients and the controller both name.
MIN_ISR = "min.insync.replicas"
CORDONED = "cordoned.log.dirs"
# "true": the broker goes because the load needs fewer.
LEAVING = "scaling.leaving"
# When the broker's machine goes, a wall clock; 0: Ray does not say when.
DRAIN_DEADLINE = "machine.drain.deadline.ms"
MOVES_MAX = "balancer.moves.max"


class ResourceType(IntEnum):
    """What a configuration belongs to; Kafka's `ConfigResource.Type` numbers."""

    TOPIC = 2
    BROKER = 4


class ConfigSource(IntEnum):
    """Where a value comes from; Kafka's `ConfigEntry.ConfigSource`, the strongest first."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigEntry(Message, frozen=True, array_like=True):
    """One key in force, with its value as text."""

    name: str
    value: str
    source: ConfigSource
    is_read_only: bool = False


class _ResourceMessage(Message, frozen=True, array_like=True):
    """What messages about one resource begin with. It stays as it is: a message gets new fields at its own end."""

    resource_type: ResourceType
    resource_name: str


class ConfigResourceName(_ResourceMessage, frozen=True, array_like=True):
    """A topic by name, a broker by its id, or with an empty name all brokers."""


class AlterConfigsResult(_ResourceMessage, frozen=True, array_like=True):
    """What became of one resource of the request."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class DescribedConfig(_ResourceMessage, frozen=True, array_like=True):
    """The keys of one resource, by name."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    entries: tuple[ConfigEntry, ...] = ()


class DescribeConfigsResponse(Message, frozen=True, array_like=True):
    """One description for each resource, in order."""

    resources: tuple[DescribedConfig, ...]


class DescribeConfigsRequest(Request[DescribeConfigsResponse], frozen=True, array_like=True):
    """What is in force for these resources; asked of the active controller."""

    resources: tuple[ConfigResourceName, ...]

    def check(self) -> None:
        check_each_once("resources", map(_resource, self.resources))


class AlterConfigOp(IntEnum):
    """Kafka's `AlterConfigOp.OpType`; lists do not exist here."""

    SET = 0
    DELETE = 1


class ConfigChange(Message, frozen=True, array_like=True):
    """One key set to a text, or deleted, so that the default counts again."""

    name: str
    op: AlterConfigOp
    value: str = ""


class AlteredResource(_ResourceMessage, frozen=True, array_like=True):
    """All changes of one resource: made together or not at all."""

    changes: tuple[ConfigChange, ...]


class IncrementalAlterConfigsResponse(Message, frozen=True, array_like=True):
    """One result for each resource, in order; a broker that has applied up to `metadata_offset` knows them."""

    resources: tuple[AlterConfigsResult, ...]
    metadata_offset: int = NO_OFFSET


class IncrementalAlterConfigsRequest(Request[IncrementalAlterConfigsResponse], frozen=True, array_like=True):
    """Changes configurations, each resource on its own. `is_scaling`: the supervisor asks, which alone says of a broker
    that it goes by the load.
    """

    resources: tuple[AlteredResource, ...]
    is_scaling: bool = False

    def check(self) -> None:
        check_each_once("resources", map(_resource, self.resources))
        for each in self.resources:
            names = [change.name.replace("_", ".") for change in each.changes]  # a key has two spellings
            check_each_once(f"changes of {_resource(each)}", names)


def _resource(each: _ResourceMessage) -> str:
    return f"{each.resource_type.name.lower()} {each.resource_name!r}"
