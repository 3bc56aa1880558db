"""How the process before left a data directory, and what this one leaves to be known to the next.

Files: `.kafka_cleanshutdown` (B30: written last when everything was synced, removed at start), and beside it
`.rayka_boot`: the kernel's boot id with the broker epoch, and the boot id under which all logs here were last known to
be whole. Under the same boot id the page cache has kept every append, so a killed process lost nothing (design §4); its
logs are still scanned, because it may have died in the middle of a write, but only their tails can be torn.

Invariant: after a failure of the disk neither file says anything that a later process could take for a clean shutdown.
Kafka: `CleanShutdownFileHandler`.
"""

import json
import logging
import posixpath
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rayka.errors import PassingStorageError, StorageError
from rayka.ids import NO_EPOCH
from rayka.log.checkpoint_files import is_given_up, replace_durably
from rayka.log.recovery import Tearing
from rayka.ports import Disk

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
BOOT_FILE = ".rayka_boot"
_logger = logging.getLogger(__name__)


class ShutdownFiles:
    """The two files of one data directory."""

    def __init__(self, disk: Disk, path: str, on_full: Callable[[PassingStorageError], None]) -> None:
        self._disk = disk
        self._path = path
        self._clean_path = posixpath.join(path, CLEAN_SHUTDOWN_FILE)
        self._boot_path = posixpath.join(path, BOOT_FILE)
        self._on_full = on_full
        self._boot_id = disk.boot_id()
        self._boot: dict[str, Any] = self._read_json(self._boot_path) or {}
        self._unrecovered: set[str] = set()  # directories of logs not opened since an unclean shutdown
        self._found_damaged: set[str] = set()  # directories of logs that were open in this process
        self._is_torn = False  # whether the power may have been cut since they were written
        self._has_failed = False
        self.was_clean = False
        self.previous_broker_epoch = NO_EPOCH  # since which nothing is lost
        self.known_broker_epoch = NO_EPOCH  # whatever was lost since

    def __repr__(self) -> str:
        return f"<ShutdownFiles {self._path} clean={self.was_clean} unrecovered={len(self._unrecovered)}>"

    # ---- What the last process left --------------------------------------------------------------------------

    async def take_over(self, log_paths: Sequence[str]) -> None:
        """Reads how the last process left these logs; its clean-shutdown file must be gone for good before anything is
        written.
        """
        clean = self._read_json(self._clean_path)
        if clean is not None:
            self.was_clean = True
            self.previous_broker_epoch = clean.get("brokerEpoch", NO_EPOCH)
            self.record_broker_epoch(self.previous_broker_epoch)  # it stays so until this process registers
            self._disk.unlink(self._clean_path)
        elif self._boot.get("bootId") == self._boot_id:
            self.previous_broker_epoch = self._boot.get("brokerEpoch", NO_EPOCH)
        # Also where it is gone already: the process that removed it may have been killed before this sync, and then a
        # power cut brings it back.
        await self._disk.sync([], [self._path])
        if any(is_given_up(self._disk, path) for path in log_paths):
            self.previous_broker_epoch = NO_EPOCH  # other replicas may have what this one goes on without
        self.known_broker_epoch = max(self.previous_broker_epoch, self._boot.get("brokerEpoch", NO_EPOCH))
        if clean is None:
            self._is_torn = self._boot.get("recoveredBootId") != self._boot_id
            self._unrecovered = set(log_paths)
        self._maybe_record_recovery()

    def _read_json(self, path: str) -> dict[str, Any] | None:
        """The object in a small file; None when it is missing or torn."""
        if not self._disk.exists(path):
            return None
        try:
            value = json.loads(self._disk.read_at(path, 0, self._disk.size(path)))
        except ValueError:
            _logger.warning("%s is damaged and counts as missing", path)
            return None
        return value if isinstance(value, dict) else None

    def tearing(self, log_path: str, *, is_always_synced: bool) -> Tearing:
        """What the end of the last process may have done to a log."""
        if log_path in self._found_damaged:
            return Tearing.SHORT_TAIL
        if self.was_clean:
            return Tearing.NOTHING
        if not self._is_torn or log_path not in self._unrecovered:
            return Tearing.SHORT_TAIL
        return Tearing.TAIL if is_always_synced else Tearing.ANYWHERE

    # ---- What this one leaves --------------------------------------------------------------------------------

    def on_recovered(self, log_path: str) -> None:
        """The log was opened, or is gone."""
        self._unrecovered.discard(log_path)
        self._found_damaged.discard(log_path)
        self._maybe_record_recovery()

    def on_damaged(self, log_path: str) -> None:
        """The log, open here, was found damaged."""
        self._found_damaged.add(log_path)

    def _maybe_record_recovery(self) -> None:
        """Once every log has been opened, or deleted, under this boot id, the next start may rely on that.

        1. The power is cut. 2. The next process recovers some logs and is killed. 3. Under the same boot id
        the one after it meets the other logs, and they may still be torn.
        """
        if not self._unrecovered and self._boot.get("recoveredBootId") != self._boot_id:
            self._write_boot({**self._boot, "version": 0, "recoveredBootId": self._boot_id})

    def record_broker_epoch(self, broker_epoch: int) -> None:
        """The broker has registered. A later process on the same boot may say that it lost nothing since
        (H3).
        """
        registered = {"version": 0, "bootId": self._boot_id, "brokerEpoch": broker_epoch}
        self._write_boot({**self._boot, **registered})

    def _write_boot(self, content: dict[str, Any]) -> None:
        """Not after a failure: then the file has nothing more to say. On a full disk it stays what it was: the next
        process knows less then, and takes logs for torn, or the broker for one that lost something.
        """
        if self._has_failed or content == self._boot:
            return
        try:
            self._disk.write(self._boot_path, json.dumps(content).encode())
        except PassingStorageError as error:
            self._on_full(error)
        else:
            self._boot = content

    async def record_clean(self, broker_epoch: int) -> None:
        """Everything here is synced. Not said where a log was found damaged, or was never recovered."""
        if not self._unrecovered and not self._found_damaged:
            content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
            await replace_durably(self._disk, {self._clean_path: content})

    async def on_hung(self) -> None:
        """As `on_failed`, off the event loop: any call may wait for this disk for ever. Ends when the disk answers."""
        self._has_failed = True
        with suppress(StorageError):
            await self._disk.discard(self._boot_path)

    def on_failed(self) -> None:
        """The disk failed: what it holds is not what was written to it, so no later start may take it for that.

        Which epoch the broker had stays true; where that cannot be written, its successor waits for the session to end.
        """
        self._has_failed = True
        try:
            if self._disk.exists(self._boot_path):
                self._disk.unlink(self._boot_path)
        except StorageError as error:
            _logger.error("%s: %s; its next start may report a clean shutdown", self._path, error)
            return
        epoch = self._boot.get("brokerEpoch", NO_EPOCH)
        try:
            self._disk.write(self._boot_path, json.dumps({"version": 0, "brokerEpoch": epoch}).encode())
        except StorageError as error:
            _logger.warning(
                "%s: %s; no later process will know that it had epoch %d", self._path, error, epoch
            )
