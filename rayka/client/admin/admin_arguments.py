"""What an `Admin` is given, checked before anything is sent: a wrong type is a TypeError that names the argument."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rayka.client.admin.admin_partitions import Assignment
from rayka.errors import ApiError, InvalidReplicaAssignment
from rayka.ids import TopicPartition
from rayka.protocol.topics import DEFAULT_COUNT

_COUNT_MAX = 2**31 - 1
Assignments = Sequence[Sequence[int]]


def topic_name(name: Any, what: str = "name") -> str:
    """A topic's name."""
    if not isinstance(name, str):
        raise TypeError(f"{what}: expected str, found {type(name).__name__}")
    return name


def names_of(names: Any) -> tuple[str, ...] | None:
    """Several names; None stays None: all."""
    if isinstance(names, str):
        raise TypeError("names: expected a list of topics, found one str")
    return None if names is None else tuple(topic_name(each, "names") for each in names)


def node_id_of(node_id: Any) -> int:
    """A node's id."""
    if not _is_int(node_id):
        raise TypeError(f"node_id: expected int, found {type(node_id).__name__}")
    return int(node_id)


def count_or_default(count: Any, name: str, error: type[ApiError]) -> int:
    """A count given by the user, or the cluster's default: -1 is how the protocol says that, and is none here."""
    return (
        DEFAULT_COUNT
        if count is None
        else count_of(count, name, error, ", or None for the cluster's default")
    )


def count_of(count: Any, name: str, error: type[ApiError], otherwise: str = "") -> int:
    """A count of 1 or more."""
    if not _is_int(count):
        raise TypeError(f"{name}: expected int, found {type(count).__name__}")
    if not 1 <= count <= _COUNT_MAX:
        raise error(f"{name}: expected 1 or more, below 2**31{otherwise}; found {count}")
    return int(count)


def assignments_of(assignments: Any) -> tuple[tuple[int, ...], ...]:
    """The replicas of each partition. Raises InvalidReplicaAssignment."""
    if not isinstance(assignments, Sequence) or isinstance(assignments, str):
        raise TypeError(
            f"assignments: expected the replicas of each partition, such as [[1, 2], [2, 3]], found {assignments!r}"
        )
    if not assignments:
        raise InvalidReplicaAssignment(
            "assignments: expected the replicas of one partition at least, found none"
        )
    return tuple(replicas_of(each, f"assignments[{n}]") for n, each in enumerate(assignments))


def replicas_of(replicas: Any, what: str) -> tuple[int, ...]:
    """The replicas of one partition, by broker id. Raises InvalidReplicaAssignment."""
    if not isinstance(replicas, Iterable) or isinstance(replicas, str):
        raise TypeError(f"{what}: expected broker ids such as [1, 2, 3], found {replicas!r}")
    found = tuple(replicas)
    if not all(_is_int(each) for each in found):
        raise TypeError(f"{what}: expected broker ids such as [1, 2, 3], found {found!r}")
    if not found or len(set(found)) < len(found):
        raise InvalidReplicaAssignment(f"{what}: expected one broker or more, each once; found {list(found)}")
    return found


def partitions_of(partitions: Any) -> tuple[TopicPartition, ...] | None:
    """The partitions, each once, sorted; None stays None: all."""
    if partitions is None:
        return None
    found = list(partitions)
    for each in found:
        _check_partition(each)
    return tuple(sorted(dict.fromkeys(found)))


def assignment_of(reassignments: Any) -> Assignment:
    """The target of each partition; None cancels."""
    if not isinstance(reassignments, Mapping):
        raise TypeError(
            f"reassignments: expected a dict of TopicPartition to replicas or None, found {reassignments!r}"
        )
    for each in reassignments:
        _check_partition(each)
    return {
        tp: None if to is None else replicas_of(to, f"replicas of {tp}") for tp, to in reassignments.items()
    }


def offsets_of(offsets: Any) -> dict[TopicPartition, int]:
    """The offset of each partition."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets: expected a dict of TopicPartition to offset, found {offsets!r}")
    for tp, offset in offsets.items():
        _check_partition(tp)
        if not _is_int(offset):
            raise TypeError(f"offset of {tp}: expected int, found {type(offset).__name__}")
    return dict(offsets)


def _check_partition(partition: Any) -> None:
    if not isinstance(partition, TopicPartition):
        raise TypeError(f"expected a rayka.TopicPartition, found {partition!r}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
