"""The follower of one leader in one epoch: when it gives up on it, what it downloads from it, and where its log is to
be cut (A11, A14, A33, A49).

Kafka: `FollowerState`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from rayka.ids import OffsetAndEpoch
from rayka.log.log import PrefixCopy
from rayka.raft.snapshot_store import SnapshotDownload


class Truncation(NamedTuple):
    """The log is truncated to what the leader has up to `end`, once this is copied."""

    end: OffsetAndEpoch
    copy: PrefixCopy


@dataclass(slots=True, eq=False)
class Follower:
    """`fetch_deadline_ms`: until then the leader must answer a fetch, or the follower no longer believes in it."""

    leader_id: int
    fetch_deadline_ms: int
    next_voter_request_ms: int
    has_fetched_from_leader: bool = False
    download: SnapshotDownload | None = None
    truncation: Truncation | None = None

    def __repr__(self) -> str:
        loading = f" loads={self.download!r}" if self.download else ""
        return f"<Follower of={self.leader_id} until={self.fetch_deadline_ms}{loading}>"

    def on_fetched(self, fetch_deadline_ms: int) -> None:
        """The leader has answered."""
        self.fetch_deadline_ms = fetch_deadline_ms
        self.has_fetched_from_leader = True

    def drop_download(self) -> None:
        if self.download is not None:
            self.download.abandon()
            self.download = None
