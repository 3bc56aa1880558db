"""A machine's disk in the simulator: the memory disk, whose syncs take virtual time.

Invariant: a process that is gone changes nothing any more; one that tries is told so, and it counts as a bug of the
node (`dead_writers`). What a power cut would leave of the metadata log is known without asking the node.
"""

import asyncio
import posixpath
from collections.abc import Callable, Sequence
from random import Random

from rayka.errors import StorageError
from rayka.ports import Lock
from rayka.protocol.batch_format import CRC_START, HEADER_BYTES, LENGTH_FIELD_END
from rayka.raft.snapshot import parse_snapshot_name
from rayka.sim.loop import PROCESS
from rayka.sim.trace import Trace
from rayka.testing.memory_disk import MemoryDisk, Operation

_LONG_SYNC_MS = 100


class SimDisk(MemoryDisk):
    """One machine's disk. `slowness` multiplies what a sync takes; `on_rename` is called for every replaced file."""

    def __init__(
        self,
        node_id: int,
        sync_ms: float,
        random: Random,
        trace: Trace,
        on_rename: Callable[[int, str], None],
    ) -> None:
        super().__init__()
        self.node_id = node_id
        self.slowness = 1.0
        self.dead_writers: list[str] = []
        self.busy_until_ms = 0  # with a long sync
        self._sync_ms = sync_ms
        self._random = random
        self._trace = trace
        self._on_rename = on_rename
        self.sync_count = 0  # whatever makes more or less durable counts
        # By directory: when it was looked at, and the end.
        self._durable_ends: dict[str, tuple[int, int]] = {}
        self._scanned: dict[int, tuple[int, int]] = {}  # by inode: bytes looked at, and the next offset

    # ---- Changes -----------------------------------------------------------------------------------------------------

    def _maybe_fail(self, operation: Operation, action: str, path: str) -> None:
        if operation == "write":
            self._check_writer(action, path)
        super()._maybe_fail(operation, action, path)

    def rename(self, source: str, target: str) -> None:
        self._check_writer("rename", target)
        super().rename(source, target)
        self._on_rename(self.node_id, target)

    def unlink(self, path: str) -> None:
        self._check_writer("unlink", path)
        super().unlink(path)

    def remove_directory(self, path: str) -> None:
        self._check_writer("remove", path)
        super().remove_directory(path)

    def lock(self, path: str) -> Lock:
        self._check_writer("lock", path)
        return super().lock(path)

    def names_in(self, directory: str) -> list[str]:
        """The names in the directory, none if it is missing."""
        return self.list(directory) if self.exists(directory) else []

    async def _while_syncing(self) -> None:
        self._check_writer("sync", "")
        duration_ms = self._sync_ms * self.slowness * (0.5 + self._random.random())
        if duration_ms > _LONG_SYNC_MS:
            self.busy_until_ms = int(asyncio.get_running_loop().time() * 1000 + duration_ms)
        await asyncio.sleep(duration_ms / 1000)
        self._check_writer("sync", "")
        self._trace.add(self.node_id, "sync")

    def _on_synced(self) -> None:
        self.sync_count += 1

    def power_loss(self, random: Random) -> None:
        self.sync_count += 1
        super().power_loss(random)

    def _check_writer(self, action: str, path: str) -> None:
        process = PROCESS.get()
        if process is not None and not process.is_alive:
            self.dead_writers.append(f"{process!r}: {action} {path}")
            raise StorageError(f"{path}: {process!r} is gone and must not {action}")

    def rot(self, path: str, where: float, bit: int) -> None:
        """Flips a bit that the CRC of some whole batch covers; `where`, from 0 to 1, says how far into the log.

        Offset and epoch of a batch lie outside of its CRC: as in Kafka, nothing can tell that they rot.
        """
        size_bytes, position, batches = self.size(path), 0, []
        data = self.read_at(path, 0, size_bytes)
        while position + HEADER_BYTES <= size_bytes:
            batches.append(position)
            position += LENGTH_FIELD_END + int.from_bytes(data[position + 8 : position + 12], "big")
        if len(batches) >= 2:
            begin = batches[int(where * (len(batches) - 1))]
            self.flip_bit(path, begin + CRC_START + bit % 40, bit % 8)

    # ---- What would be left ------------------------------------------------------------------------------------------

    def durable_end(self, directory: str) -> int:
        """The log end offset, or the end of the newest snapshot, that a power cut at its worst would leave."""
        known = self._durable_ends.get(directory)
        if known is None or known[0] != self.sync_count:
            names = self.durable_names(directory)
            end = max(self._durable_log_end(directory, names), _newest_snapshot_end(names))
            known = self._durable_ends[directory] = (self.sync_count, end)
        return known[1]

    def _durable_log_end(self, directory: str, names: Sequence[str]) -> int:
        newest = next((name for name in reversed(names) if name.endswith(".log")), "")
        file = self.durable_file(f"{directory}/{newest}") if newest else None
        if file is None:
            return 0
        base_offset = int(posixpath.splitext(newest)[0])
        inode, data, synced_bytes = file
        position, end = self._scanned.get(inode, (0, base_offset))
        if position > synced_bytes:  # it was cut
            position, end = 0, base_offset
        while position + HEADER_BYTES <= synced_bytes:
            size_bytes = LENGTH_FIELD_END + int.from_bytes(data[position + 8 : position + 12], "big")
            if size_bytes < HEADER_BYTES or position + size_bytes > synced_bytes:
                break
            first = int.from_bytes(data[position : position + 8], "big")
            end = first + int.from_bytes(data[position + 23 : position + 27], "big") + 1
            position += size_bytes
        self._scanned[inode] = position, end
        return end


def _newest_snapshot_end(names: Sequence[str]) -> int:
    """The names ascend, and those of snapshots begin with their ends."""
    ids = map(parse_snapshot_name, reversed(names))
    return next((each.offset for each in ids if each is not None), 0)
