"""The voter sets that snapshot and log hold, each with the offset from which it counts (A24, A56, A59).

A set counts from the moment its record is appended, committed or not, and a truncation brings the set before it back.
Invariants: offsets strictly rise; neighbours, but for the 0-0 checkpoint's, which is a guess of the operator that
formatted the disk, differ by at most one voter that came and one that went. Kafka: `VoterSetHistory`,
`TreeMapLogHistory`, `KRaftVersionHistory`.
"""

from typing import NamedTuple

from rayka.errors import InvariantBroken
from rayka.ids import NO_OFFSET
from rayka.raft.voters import KRAFT_VERSION, VoterSet


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
