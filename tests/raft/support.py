"""What the tests of the quorum share: one voter on a memory disk, driven by hand as its node would."""

from uuid import UUID

from rayka.config import TopicConfig
from rayka.ids import METADATA_TOPIC_ID, ReplicaKey
from rayka.log.log import Log
from rayka.protocol.fetch import FetchPartition, FetchPartitionResult
from rayka.raft.election_state import ElectionState
from rayka.raft.quorum import Quorum
from rayka.raft.voters import VoterSet
from rayka.testing.memory_disk import MemoryDisk

ME = ReplicaKey(3001, UUID(int=7))
DIRECTORY = "/data/__cluster_metadata-0"


class Voter:
    """The only voter, its log and its disk."""

    def __init__(self, disk: MemoryDisk | None = None, stored: ElectionState | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.log = Log.open(self.disk, DIRECTORY, TopicConfig(), recovery_point=0, now_ms=0)
        self.quorum = Quorum(local=ME, voters=VoterSet((ME,)), log=self.log, stored=stored)

    @classmethod
    def leading(cls, disk: MemoryDisk | None = None, stored: ElectionState | None = None) -> "Voter":
        """Elected, its first record committed."""
        voter = cls(disk, stored)
        voter.elect()
        voter.flush()
        return voter

    def elect(self) -> None:
        for effect in self.quorum.start():
            self.quorum.on_persisted(effect)

    def drain(self) -> bool:
        return self.quorum.drain(now_ms=0, timestamp_ms=5)

    def sync(self) -> bool:
        plan = self.log.unsynced()
        self.disk.sync_now(plan.files, plan.directories)
        self.log.on_synced(plan)
        return self.quorum.on_flushed()

    def flush(self) -> bool:
        return self.drain() and self.sync()

    def fetch(
        self,
        offset: int,
        last_epoch: int = 1,
        *,
        epoch: int = -1,
        high_watermark: int = -1,
        may_wait: bool = True,
    ) -> FetchPartitionResult | None:
        partition = FetchPartition(
            METADATA_TOPIC_ID, 0, offset, 1 << 20, epoch, last_epoch, high_watermark=high_watermark
        )
        return self.quorum.handle_fetch(partition, max_bytes=1 << 20, may_wait=may_wait)
