"""Describes and changes configurations. Kafka: DescribeConfigsRequest, IncrementalAlterConfigsRequest."""

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
# "true": an operator drains the broker.
DRAIN = "broker.drain"
MOVES_MAX = "balancer.moves.max"


class ResourceType(IntEnum):
    """The kind of a configured resource, by Kafka's `ConfigResource.Type` numbers."""

    TOPIC = 2
    BROKER = 4


class ConfigSource(IntEnum):
    """The origin of a value, the strongest first; Kafka's `ConfigEntry.ConfigSource`."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigEntry(Message, frozen=True, array_like=True):
    """One key in effect, with its value as text."""

    name: str
    value: str
    source: ConfigSource
    is_read_only: bool = False


class _ResourceMessage(Message, frozen=True, array_like=True):
    """Begins messages about one resource. It gets no new field: a message gets new fields at its own end."""

    resource_type: ResourceType
    resource_name: str


class ConfigResourceName(_ResourceMessage, frozen=True, array_like=True):
    """A topic by name, a broker by id, or all brokers by an empty name."""


class AlterConfigsResult(_ResourceMessage, frozen=True, array_like=True):
    """The result for one resource of the request."""

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
    """Asks the active controller for the configuration in effect of these resources."""

    resources: tuple[ConfigResourceName, ...]

    def check(self) -> None:
        check_each_once("resources", map(_resource, self.resources))


class AlterConfigOp(IntEnum):
    """Kafka's `AlterConfigOp.OpType`, without the operations on lists."""

    SET = 0
    DELETE = 1


class ConfigChange(Message, frozen=True, array_like=True):
    """Sets one key to a text, or deletes the key, so that its default counts again."""

    name: str
    op: AlterConfigOp
    value: str = ""


class AlteredResource(_ResourceMessage, frozen=True, array_like=True):
    """The changes of one resource: all are made, or none."""

    changes: tuple[ConfigChange, ...]


class IncrementalAlterConfigsResponse(Message, frozen=True, array_like=True):
    """One result for each resource, in order. A broker that has applied `metadata_offset` knows the changes."""

    resources: tuple[AlterConfigsResult, ...]
    metadata_offset: int = NO_OFFSET


class IncrementalAlterConfigsRequest(Request[IncrementalAlterConfigsResponse], frozen=True, array_like=True):
    """Changes configurations; the failure of one resource does not affect the others."""

    resources: tuple[AlteredResource, ...]
    # The supervisor asks. Only the supervisor may mark a broker as leaving because the load needs fewer brokers.
    is_scaling: bool = False

    def check(self) -> None:
        check_each_once("resources", map(_resource, self.resources))
        for each in self.resources:
            # A key has two spellings.
            names = [change.name.replace("_", ".") for change in each.changes]
            check_each_once(f"changes of {_resource(each)}", names)


def _resource(each: _ResourceMessage) -> str:
    return f"{each.resource_type.name.lower()} {each.resource_name!r}"
