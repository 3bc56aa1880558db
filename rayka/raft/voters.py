"""The voter sets of a quorum: the set itself, and the history of the sets that snapshot and log hold (A24, A55-A59).

A voter is a node *and* its directory. Kafka: `VoterSet`, `VoterSetHistory`, `TreeMapLogHistory`, `KRaftVersionHistory`.
Left out: endpoints, because a node is reached by its id.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from rayka.errors import InvariantBroken
from rayka.ids import NO_OFFSET, ReplicaKey


class VersionRange(msgspec.Struct, frozen=True, array_like=True):
    """The versions of the feature `kraft.version` that a voter supports, both ends included (A58)."""

    lowest: int
    highest: int

    def __contains__(self, version: int) -> bool:
        return self.lowest <= version <= self.highest


# The finalised `kraft.version`: voters are known by node and directory.
KRAFT_VERSION = 1
SUPPORTED_KRAFT_VERSIONS = VersionRange(1, 1)


class VoterSet(msgspec.Struct, frozen=True, array_like=True):
    """The voters of a quorum."""

    # At least one, ascending by node id, each id once.
    voters: tuple[ReplicaKey, ...]
    # One for each of `voters`; empty while all support SUPPORTED_KRAFT_VERSIONS.
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
        """True if this replica is the only voter, so that its own vote is a majority (A5)."""
        return self.voters == (replica,)

    @property
    def majority(self) -> int:
        """The number of voters that is more than half."""
        return len(self.voters) // 2 + 1

    def with_id(self, node_id: int) -> ReplicaKey | None:
        """The voter with this node id and any directory."""
        return next((voter for voter in self.voters if voter.node_id == node_id), None)

    def kraft_versions_of(self, voter: ReplicaKey) -> VersionRange:
        """The versions that the voter supports."""
        if not self.kraft_versions:
            return SUPPORTED_KRAFT_VERSIONS
        return self.kraft_versions[self.voters.index(voter)]

    # ---- Changes -----------------------------------------------------------------------------------------------------

    def with_voter(self, voter: ReplicaKey) -> "VoterSet":
        """The set with one more voter, whose node id is new (A56)."""
        if self.with_id(voter.node_id) is not None:
            raise InvariantBroken(f"{self!r} has {voter!r}")
        return _voter_set([*self._entries(), (voter, SUPPORTED_KRAFT_VERSIONS)])

    def without_voter(self, voter: ReplicaKey) -> "VoterSet | None":
        """The set without one voter; None if the replica does not vote or is the last voter (A57)."""
        if voter not in self.voters or len(self.voters) == 1:
            return None
        return _voter_set(entry for entry in self._entries() if entry[0] != voter)

    def with_kraft_versions(self, voter: ReplicaKey, kraft_versions: VersionRange) -> "VoterSet":
        """The set with other supported versions of one voter (A58)."""
        return _voter_set(
            (each, kraft_versions if each == voter else known) for each, known in self._entries()
        )

    def has_overlapping_majority(self, other: "VoterSet") -> bool:
        """True if any two majorities of the sets share a voter: at most one voter was added and one removed (A59)."""
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


class _Entry(NamedTuple):
    """The voters and version from one offset on."""

    offset: int
    voters: VoterSet | None
    kraft_version: int
    # Of the record that named the voters; NO_OFFSET for the 0-0 checkpoint.
    voters_offset: int


class VoterSetHistory:
    """The voter sets of snapshot and log, by offset; the first is the set of the 0-0 checkpoint, at offset -1.

    A set takes effect when its record is appended, committed or not; a truncation restores the previous set.
    Invariants: offsets strictly rise; neighbours differ by at most one added and one removed voter. The set of the 0-0
    checkpoint is exempt, because it is a guess made when the disk was formatted.
    """

    def __init__(self, bootstrap: VoterSet | None) -> None:
        self._entries = [_Entry(NO_OFFSET, bootstrap, KRAFT_VERSION if bootstrap else 0, NO_OFFSET)]

    def __repr__(self) -> str:
        return f"<VoterSetHistory {[(entry.offset, entry.voters) for entry in self._entries]}>"

    @property
    def voters(self) -> VoterSet | None:
        """The newest set; None if no record ever named the voters."""
        return self._entries[-1].voters

    @property
    def kraft_version(self) -> int:
        """The newest finalised `kraft.version`."""
        return self._entries[-1].kraft_version

    @property
    def voters_offset(self) -> int:
        """The offset of the record with the newest set; -1 for the set of the 0-0 checkpoint."""
        return self._entries[-1].voters_offset

    @property
    def is_bootstrap(self) -> bool:
        """True while only the 0-0 checkpoint names voters, not a snapshot or the log (A24)."""
        return len(self._entries) == 1 and self._entries[0].offset == NO_OFFSET

    def voters_at(self, end_offset: int) -> VoterSet | None:
        """The set at the end of the records below the offset, as a snapshot of these records names it."""
        below = (entry.voters for entry in reversed(self._entries) if entry.offset < end_offset)
        return next(below, self._entries[0].voters)

    def add_voters(self, offset: int, voters: VoterSet) -> None:
        """Takes a VotersRecord that was appended at the offset."""
        before = self._entries[-1]
        former = before.voters if before.voters_offset != NO_OFFSET else None
        if former is not None and not former.has_overlapping_majority(voters):
            raise InvariantBroken(f"{self!r}: {voters!r} at once")
        self._add(_Entry(offset, voters, before.kraft_version, offset))

    def add_kraft_version(self, offset: int, kraft_version: int) -> None:
        """Takes a KRaftVersionRecord that was appended at the offset."""
        self._add(_Entry(offset, self.voters, kraft_version, self.voters_offset))

    def truncate_to(self, end_offset: int) -> None:
        """Drops the sets of records from the offset on, which the log has truncated."""
        while self._entries[-1].offset >= end_offset and len(self._entries) > 1:
            self._entries.pop()

    def restart_at(self, end_offset: int, voters: VoterSet | None, kraft_version: int) -> None:
        """Replaces the whole history by the set of a snapshot with this end offset."""
        self._entries = [_Entry(end_offset - 1, voters, kraft_version, end_offset - 1)]

    def forget_before(self, end_offset: int) -> None:
        """Drops the sets that no offset from `end_offset` on needs."""
        while len(self._entries) > 1 and self._entries[1].offset < end_offset:
            self._entries.pop(0)

    def _add(self, entry: _Entry) -> None:
        if entry.offset <= self._entries[-1].offset:
            raise InvariantBroken(f"{self!r}: {entry!r} goes back")
        self._entries.append(entry)
