"""What a checker may see of a quorum's core that none of its users needs: to read, not to change."""

from typing import Protocol

from rayka.ids import OffsetAndEpoch, ReplicaKey
from rayka.log.log import LogRead
from rayka.raft.roles import Role
from rayka.raft.snapshot_store import SnapshotDownload
from rayka.raft.voters import VoterSet


class ObservedSnapshots(Protocol):
    """The snapshots of a replica."""

    @property
    def earliest(self) -> OffsetAndEpoch | None: ...


class ObservedLog(Protocol):
    """The log of a replica, committed or not."""

    @property
    def last_epoch(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def snapshots(self) -> ObservedSnapshots: ...

    def read(self, offset: int, *, max_bytes: int, end_offset: int) -> LogRead: ...


class ObservedQuorum(Protocol):
    """The state of a replica."""

    @property
    def local(self) -> ReplicaKey: ...
    @property
    def role(self) -> Role: ...
    @property
    def epoch(self) -> int: ...
    @property
    def leader_id(self) -> int: ...
    @property
    def election_count(self) -> int: ...
    @property
    def is_persisted(self) -> bool: ...
    @property
    def voters(self) -> VoterSet | None: ...
    @property
    def known_high_watermark(self) -> int: ...
    @property
    def finished_download(self) -> SnapshotDownload | None: ...
    @property
    def log(self) -> ObservedLog: ...
