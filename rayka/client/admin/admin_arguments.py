"""Checks of the arguments of `Admin`, before anything is sent: a wrong type is a TypeError that names the argument."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rayka.client.admin.admin_partitions import Assignment
from rayka.client.arguments import int_of, is_int, partition_of, text_of, whole_number_of
from rayka.errors import ApiError, InvalidReplicaAssignment
from rayka.ids import TopicPartition
from rayka.protocol.topics import DEFAULT_COUNT

_COUNT_MAX = 2**31 - 1
Assignments = Sequence[Sequence[int]]


def names_of(names: Any) -> tuple[str, ...] | None:
    """Several names; None stays None: all."""
    if isinstance(names, str):
        raise TypeError("names: expected a list of topics, found one str")
    return None if names is None else tuple(text_of(each, "names") for each in names)


def count_or_default(count: Any, name: str, error: type[ApiError]) -> int:
    """A count of 1 or more, or for None the protocol's sign for the cluster's default. A caller's -1 is refused."""
    if count is None:
        return DEFAULT_COUNT
    return count_of(count, name, error, ", or None for the cluster's default")


def count_of(count: Any, name: str, error: type[ApiError], otherwise: str = "") -> int:
    """A count of 1 or more."""
    if not 1 <= whole_number_of(count, name) <= _COUNT_MAX:
        raise error(f"{name}: expected 1 or more, below 2**31{otherwise}; found {count}")
    return int(count)


def assignments_of(assignments: Any) -> tuple[tuple[int, ...], ...] | None:
    """The replicas of each partition; None stays None. Raises InvalidReplicaAssignment."""
    if assignments is None:
        return None
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
    if not all(is_int(each) for each in found):
        raise TypeError(f"{what}: expected broker ids such as [1, 2, 3], found {found!r}")
    if not found or len(set(found)) < len(found) or not all(0 <= each < 2**31 for each in found):
        raise InvalidReplicaAssignment(
            f"{what}: expected one broker or more, below 2**31, each once; found {list(found)}"
        )
    return found


def partitions_of(partitions: Any) -> tuple[TopicPartition, ...] | None:
    """The partitions, each once, sorted; None stays None: all."""
    if partitions is None:
        return None
    return tuple(sorted(dict.fromkeys(partition_of(each) for each in partitions)))


def assignment_of(reassignments: Any) -> Assignment:
    """The target of each partition; None cancels."""
    if not isinstance(reassignments, Mapping):
        raise TypeError(
            f"reassignments: expected a dict of TopicPartition to replicas or None, found {reassignments!r}"
        )
    return {
        partition_of(tp): None if to is None else replicas_of(to, f"replicas of {tp}")
        for tp, to in reassignments.items()
    }


def paths_of(paths: Any) -> dict[TopicPartition, str]:
    """The data directory of each replica."""
    if not isinstance(paths, Mapping):
        raise TypeError(f"replicas: expected a dict of TopicPartition to a directory's path, found {paths!r}")
    return {partition_of(tp): text_of(path, f"directory of {tp}") for tp, path in paths.items()}


def offsets_of(offsets: Any) -> dict[TopicPartition, int]:
    """The offset of each partition."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets: expected a dict of TopicPartition to offset, found {offsets!r}")
    return {partition_of(tp): int_of(offset, f"offset of {tp}") for tp, offset in offsets.items()}
