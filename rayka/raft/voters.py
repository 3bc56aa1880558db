"""The voters. A voter is a node *and* its directory (A55). Pure values.

Invariant: at least one voter, ascending by node id, each id once. Kafka: `VoterSet`; without endpoints, for a node is
reached by its id.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from rayka.errors import InvariantBroken
from rayka.ids import NO_OFFSET, ReplicaKey


class VersionRange(msgspec.Struct, frozen=True, array_like=True):
    """The versions of the feature `kraft.version` that a voter knows, both ends included (A58)."""

    lowest: int
    highest: int

    def __contains__(self, version: int) -> bool:
        return self.lowest <= version <= self.highest


# The finalised `kraft.version`: voters are known by node and directory.
KRAFT_VERSION = 1
SUPPORTED_KRAFT_VERSIONS = VersionRange(1, 1)


class VoterSet(msgspec.Struct, frozen=True, array_like=True):
    """The voters of a quorum, ascending by node id; at least one.

    `kraft_versions` stands beside `voters`; it is empty while all know exactly what this code knows.
    """

    voters: tuple[ReplicaKey, ...]
    kraft_versions: tuple[VersionRange, ...] = ()

    def __post_init__(self) -> None:
        node_ids = [voter.node_id for voter in self.voters]
        if not node_ids or node_ids != sorted(set(node_ids)):
            raise ValueError(f"voters are one or more nodes, ascending, each once; found {node_ids}")
        if self.kraft_versions and len(self.kraft_versions) != len(node_ids):
            raise ValueError(
                f"each of the voters {node_ids} has one version range, found {self.kraft_versions}"
            )

    def __repr__(self) -> str:
        return f"<VoterSet {[voter.node_id for voter in self.voters]}>"

    def __contains__(self, replica: ReplicaKey) -> bool:
        return replica in self.voters

    def is_only(self, replica: ReplicaKey) -> bool:
        """Whether this replica votes alone: its own vote is a majority (A5)."""
        return self.voters == (replica,)

    @property
    def majority(self) -> int:
        """How many voters are more than half of them."""
        return len(self.voters) // 2 + 1

    def with_id(self, node_id: int) -> ReplicaKey | None:
        """The voter of this node id, whatever its directory."""
        return next((voter for voter in self.voters if voter.node_id == node_id), None)

    def kraft_versions_of(self, voter: ReplicaKey) -> VersionRange:
        """What the voter says it knows."""
        if not self.kraft_versions:
            return SUPPORTED_KRAFT_VERSIONS
        return self.kraft_versions[self.voters.index(voter)]

    # ---- Changes -----------------------------------------------------------------------------------------------------

    def with_voter(self, voter: ReplicaKey) -> "VoterSet":
        """These voters and one more; its id is not among them yet (A56)."""
        if self.with_id(voter.node_id) is not None:
            raise InvariantBroken(f"{self!r} has {voter!r}")
        return _voter_set([*self._entries(), (voter, SUPPORTED_KRAFT_VERSIONS)])

    def without_voter(self, voter: ReplicaKey) -> "VoterSet | None":
        """These voters but one; None when it is not among them, or none would be left (A57)."""
        if voter not in self.voters or len(self.voters) == 1:
            return None
        return _voter_set(entry for entry in self._entries() if entry[0] != voter)

    def with_kraft_versions(self, voter: ReplicaKey, kraft_versions: VersionRange) -> "VoterSet":
        """These voters, one of which knows other versions than it did (A58)."""
        return _voter_set(
            (each, kraft_versions if each == voter else known) for each, known in self._entries()
        )

    def has_overlapping_majority(self, other: "VoterSet") -> bool:
        """Whether any majority of one shares a voter with any of the other: at most one voter came and one went
        (A59).
        """
        came = sum(voter not in self.voters for voter in other.voters)
        gone = sum(voter not in other.voters for voter in self.voters)
        return came <= 1 and gone <= 1

    def _entries(self) -> Sequence[tuple[ReplicaKey, VersionRange]]:
        return [(voter, self.kraft_versions_of(voter)) for voter in self.voters]


def _voter_set(entries: Iterable[tuple[ReplicaKey, VersionRange]]) -> VoterSet:
    ordered = sorted(entries, key=lambda entry: entry[0].node_id)
    versions = tuple(known for _, known in ordered)
    all_usual = all(known == SUPPORTED_KRAFT_VERSIONS for known in versions)
    return VoterSet(tuple(voter for voter, _ in ordered), () if all_usual else versions)


# The voter sets that snapshot and log hold, each with the offset from which it counts (A24, A56, A59).
#
# A set counts from the moment its record is appended, committed or not, and a truncation brings the set before it back.
# Invariants: offsets strictly rise; neighbours, but for the 0-0 checkpoint's, which is a guess of the operator that
# formatted the disk, differ by at most one voter that came and one that went. Kafka: `VoterSetHistory`,
# `TreeMapLogHistory`, `KRaftVersionHistory`.


class _Entry(NamedTuple):
    offset: int
    voters: VoterSet | None
    kraft_version: int
    voters_offset: int


class VoterSetHistory:
    """Begins with the voters of the 0-0 checkpoint, if there is one, at offset -1."""

    def __init__(self, bootstrap: VoterSet | None) -> None:
        self._entries = [_Entry(NO_OFFSET, bootstrap, KRAFT_VERSION if bootstrap else 0, NO_OFFSET)]

    def __repr__(self) -> str:
        return f"<VoterSetHistory {[(entry.offset, entry.voters) for entry in self._entries]}>"

    @property
    def voters(self) -> VoterSet | None:
        """The newest; None when no record ever named the voters."""
        return self._entries[-1].voters

    @property
    def kraft_version(self) -> int:
        """The newest finalised `kraft.version`."""
        return self._entries[-1].kraft_version

    @property
    def voters_offset(self) -> int:
        """Offset of the record that made the newest set; -1 when it is that of the 0-0 checkpoint."""
        return self._entries[-1].voters_offset

    @property
    def is_bootstrap(self) -> bool:
        """Whether snapshot and log say nothing yet: the 0-0 checkpoint alone knows the voters (A24)."""
        return len(self._entries) == 1 and self._entries[0].offset == NO_OFFSET

    def voters_at(self, end_offset: int) -> VoterSet | None:
        """The set that the records below the offset add up to: what a snapshot of them says."""
        return self._at(end_offset).voters

    def add_voters(self, offset: int, voters: VoterSet) -> None:
        """A VotersRecord was appended at the offset."""
        before = self._entries[-1]
        former = before.voters if before.voters_offset != NO_OFFSET else None
        if former is not None and not former.has_overlapping_majority(voters):
            raise InvariantBroken(f"{self!r}: {voters!r} at once")
        self._add(_Entry(offset, voters, before.kraft_version, offset))

    def add_kraft_version(self, offset: int, kraft_version: int) -> None:
        """A KRaftVersionRecord was appended at the offset."""
        self._add(_Entry(offset, self.voters, kraft_version, self.voters_offset))

    def truncate_to(self, end_offset: int) -> None:
        """Records from the offset on are gone, and with them what they said."""
        while self._entries[-1].offset >= end_offset and len(self._entries) > 1:
            self._entries.pop()

    def restart_at(self, end_offset: int, voters: VoterSet | None, kraft_version: int) -> None:
        """A snapshot takes the place of everything below its end offset, and of all else."""
        self._entries = [_Entry(end_offset - 1, voters, kraft_version, end_offset - 1)]

    def forget_before(self, end_offset: int) -> None:
        """Keeps what is needed to name the voters at the offset and later."""
        while len(self._entries) > 1 and self._entries[1].offset < end_offset:
            self._entries.pop(0)

    def _add(self, entry: _Entry) -> None:
        if entry.offset <= self._entries[-1].offset:
            raise InvariantBroken(f"{self!r}: {entry!r} goes back")
        self._entries.append(entry)

    def _at(self, end_offset: int) -> _Entry:
        return next(
            (entry for entry in reversed(self._entries) if entry.offset < end_offset), self._entries[0]
        )
