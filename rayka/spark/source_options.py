"""The options of `spark.read.format("rayka")`, checked where they enter.

Names and meanings are those of Spark's Kafka connector; Spark hands them over in lower case, so case never matters. An
unknown option is a ConfigError that names the nearest known one, and one that the connector has but rayka has not says
so: nothing is accepted and ignored.
"""

import difflib
import json
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

import msgspec

from rayka.errors import ConfigError
from rayka.options import Transport
from rayka.spark.schema import COLUMNS, HEADERS_COLUMN

DEFAULT_CLUSTER = "rayka"
_KNOWN = (
    "cluster", "rayAddress", "subscribe", "startingOffsets", "endingOffsets", "includeHeaders", "columns",
    "failOnDataLoss", "minPartitions", "transport",
)  # fmt: skip
_NOT_YET = (
    "subscribePattern", "assign", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "groupId", "groupIdPrefix", "isolationLevel",
    "maxRecordsPerPartition",
)  # fmt: skip
# Without a meaning in batch reads, the only ones that there are.
_OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_OF_WRITES = ("topic",)
_NO_CHOICE = "kafka."  # the connector passes these on to its Kafka client
_BOOLEANS = MappingProxyType({"true": True, "false": False})


class Bound(IntEnum):
    """An end of a partition's log, as the connector writes it in JSON."""

    LATEST = -1
    EARLIEST = -2


Offsets = (
    Bound | Mapping[str, Mapping[int, int]]
)  # one bound for all, or topic -> partition -> offset or bound


class ReadOptions(msgspec.Struct, frozen=True):
    """The options of a read. `ray_address` empty: the Ray of the session, else the running Ray."""

    topics: tuple[str, ...]
    cluster: str = DEFAULT_CLUSTER
    ray_address: str = ""
    starting_offsets: Offsets = Bound.EARLIEST
    ending_offsets: Offsets = Bound.LATEST
    columns: tuple[str, ...] = COLUMNS
    fail_on_data_loss: bool = True
    min_partitions: int = 0
    transport: Transport = "auto"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "ReadOptions":
        """Parses the options that Spark hands over. Raises ConfigError: option, allowed values, value found."""
        values = {_canonical(name): value for name, value in given.items()}
        topics = _names("subscribe", values.get("subscribe", ""))
        if not topics:
            raise ConfigError('rayka source: option "subscribe" is missing; give topics as "a" or "a,b"')
        return cls(
            topics=topics,
            cluster=values.get("cluster", DEFAULT_CLUSTER),
            ray_address=values.get("rayAddress", ""),
            starting_offsets=_offsets(values, "startingOffsets", topics, Bound.EARLIEST),
            ending_offsets=_offsets(values, "endingOffsets", topics, Bound.LATEST),
            columns=_columns(values),
            fail_on_data_loss=_boolean(values, "failOnDataLoss", default=True),
            min_partitions=_count(values, "minPartitions"),
            transport=_transport(values),
        )


def _canonical(name: str) -> str:
    by_lower = {known.lower(): known for known in _KNOWN}
    lower = name.lower()
    if lower in by_lower:
        return by_lower[lower]
    for option in _NOT_YET:
        if lower == option.lower():
            raise ConfigError(f'rayka source: option "{option}" is not supported yet; remove it')
    for option in _OF_STREAMS:
        if lower == option.lower():
            raise ConfigError(
                f'rayka source: option "{option}" is for streams, and the format "rayka" cannot be read as a stream yet'
            )
    for option in _OF_WRITES:
        if lower == option.lower():
            raise ConfigError(
                f'rayka source: option "{option}" is for writes; name topics to read with "subscribe"'
            )
    if lower.startswith(_NO_CHOICE):
        raise ConfigError(
            f'rayka source: option "{name}" is for a Kafka client; name a cluster with "cluster"'
        )
    near = difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.5)
    hint = (
        f'the nearest known option is "{by_lower[near[0]]}"'
        if near
        else f"known options: {', '.join(_KNOWN)}"
    )
    raise ConfigError(f'rayka source: unknown option "{name}"; {hint}')


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if len(set(names)) < len(names):
        raise ConfigError(f'rayka source: option "{option}" names something twice: {text!r}')
    return names


def _columns(values: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = _boolean(values, "includeHeaders", default=False)
    available = (*COLUMNS, HEADERS_COLUMN) if with_headers else COLUMNS
    there_are = f"there are {', '.join(available)}"
    if "columns" not in values:
        return available
    by_lower = {name.lower(): name for name in available}
    asked = _names("columns", values["columns"])
    for name in asked:
        if name.lower() == HEADERS_COLUMN and not with_headers:
            raise ConfigError('rayka source: column "headers" needs the option "includeHeaders" to be "true"')
        if name.lower() not in by_lower:
            raise ConfigError(f'rayka source: option "columns": unknown column {name!r}; {there_are}')
    if not asked:
        raise ConfigError(f'rayka source: option "columns" is empty; {there_are}')
    return tuple(by_lower[name.lower()] for name in asked)


def _boolean(values: Mapping[str, str], option: str, *, default: bool) -> bool:
    text = values.get(option, str(default))
    if text.lower() not in _BOOLEANS:
        raise ConfigError(f'rayka source: option "{option}" is "true" or "false", found {text!r}')
    return _BOOLEANS[text.lower()]


def _transport(values: Mapping[str, str]) -> Transport:
    text = values.get("transport", "auto")
    match text.lower():
        case "auto" | "ray" as known:
            return known
    raise ConfigError(f'rayka source: option "transport" is "auto" or "ray", found {text!r}')


def _count(values: Mapping[str, str], option: str) -> int:
    if option not in values:
        return 0
    text = values[option]
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f'rayka source: option "{option}" is a number of at least 1, found {text!r}')
    return int(text)


# ---- Offsets -------------------------------------------------------------------------------------------------------


def _offsets(values: Mapping[str, str], option: str, topics: tuple[str, ...], default: Bound) -> Offsets:
    text = values.get(option)
    if text is None or text.lower() == default.name.lower():
        return default
    if text.lower() in ("earliest", "latest"):
        raise ConfigError(
            f'rayka source: option "{option}" of a batch read cannot be "{text}": it would read nothing'
        )
    shape = f'"{default.name.lower()}" or JSON such as {{"{topics[0]}":{{"0":12,"1":{default.value}}}}}'
    try:
        parsed = json.loads(text)
        offsets = {topic: _of_topic(each) for topic, each in parsed.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f'rayka source: option "{option}" is {shape}, found {text!r} ({error})') from error
    if set(offsets) != set(topics):
        raise ConfigError(
            f'rayka source: option "{option}" must give offsets for exactly the topics of "subscribe":'
            f" expected {', '.join(topics)}, found {', '.join(offsets) or 'none'}"
        )
    _refuse_other_bounds(offsets, option, default)
    return offsets


def _of_topic(partitions: Mapping[str, int]) -> dict[int, int]:
    for partition, offset in partitions.items():
        if not partition.isdecimal() or type(offset) is not int or offset < Bound.EARLIEST:
            raise ValueError(f"partition {partition!r} with offset {offset!r}")
    return {int(partition): offset for partition, offset in partitions.items()}


def _refuse_other_bounds(offsets: Mapping[str, Mapping[int, int]], option: str, allowed: Bound) -> None:
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            if offset < 0 and offset != allowed:
                raise ConfigError(
                    f'rayka source: option "{option}" of a batch read: {topic}-{partition} cannot be {offset};'
                    f" {allowed.value} stands for {allowed.name.lower()}"
                )
