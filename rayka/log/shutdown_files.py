"""How the last process left a data directory, and what this process leaves for the next.

Files: `.kafka_cleanshutdown` is written last, when everything was synced, and removed at start (B30). `.rayka_boot` has
the kernel's boot id with the broker epoch, and the boot id under which all logs of the directory were last known to be
whole. Under the same boot id the page cache has kept every append, so a killed process lost nothing. Its
logs are still scanned, because it may have died in the middle of a write, but only their tails can be torn.

Invariant: after a failure of the disk no later process takes either file for a clean shutdown. Kafka:
`CleanShutdownFileHandler`.
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
        # Directories of logs that were not opened since an unclean shutdown.
        self._unrecovered: set[str] = set()
        # Directories of logs that were found damaged while they were open in this process.
        self._found_damaged: set[str] = set()
        # The power may have been cut since the logs were written.
        self._is_torn = False
        self._has_failed = False
        self.was_clean = False
        # The broker has lost nothing since it had this epoch.
        self.previous_broker_epoch = NO_EPOCH
        # The last epoch that the broker is known to have had, whatever was lost since.
        self.known_broker_epoch = NO_EPOCH

    # ---- What the last process left --------------------------------------------------------------------------

    async def take_over(self, log_paths: Sequence[str]) -> None:
        """Reads how the last process left these logs. The clean-shutdown file is durably gone on return, before
        anything is written.
        """
        clean = self._read_json(self._clean_path)
        if clean is not None:
            self.was_clean = True
            self.previous_broker_epoch = clean.get("brokerEpoch", NO_EPOCH)
            # The epoch stays known until this process registers.
            self.record_broker_epoch(self.previous_broker_epoch)
            self._disk.unlink(self._clean_path)
        elif self._boot.get("bootId") == self._boot_id:
            self.previous_broker_epoch = self._boot.get("brokerEpoch", NO_EPOCH)
        # Also without such a file: a process that removed it may have been killed before this sync, and then a power
        # cut brings the file back.
        await self._disk.sync([], [self._path])
        if any(is_given_up(self._disk, path) for path in log_paths):
            # Other replicas may have the records that this one goes on without.
            self.previous_broker_epoch = NO_EPOCH
        self.known_broker_epoch = max(self.previous_broker_epoch, self._boot.get("brokerEpoch", NO_EPOCH))
        if clean is None:
            self._is_torn = self._boot.get("recoveredBootId") != self._boot_id
            self._unrecovered = set(log_paths)
        self._maybe_record_recovery()

    def _read_json(self, path: str) -> dict[str, Any] | None:
        """The object in a small file; None when the file is missing or torn."""
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
        """Records that every log has been opened or deleted under this boot id, so that the next start may rely on it.

        1. The power is cut.
        2. The next process recovers some logs and is killed.
        3. Under the same boot id the process after it meets the other logs, which may still be torn.
        """
        if not self._unrecovered and self._boot.get("recoveredBootId") != self._boot_id:
            self._write_boot({**self._boot, "version": 0, "recoveredBootId": self._boot_id})

    def record_broker_epoch(self, broker_epoch: int) -> None:
        """The broker has registered. A later process on the same boot may say that it has lost nothing since (H3)."""
        registered = {"version": 0, "bootId": self._boot_id, "brokerEpoch": broker_epoch}
        self._write_boot({**self._boot, **registered})

    def _write_boot(self, content: dict[str, Any]) -> None:
        """Writes the boot file, unless the disk has failed. On a full disk the file stays as it was: the next process
        knows less, and takes logs for torn, or the broker for one that lost something.
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
        """Writes the clean-shutdown file, once everything is synced; not if a log was found damaged or was never
        recovered.
        """
        if not self._unrecovered and not self._found_damaged:
            content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
            await replace_durably(self._disk, {self._clean_path: content})

    async def on_hung(self) -> None:
        """As `on_failed`, off the event loop: any call may wait for this disk for ever. Returns when the disk
        answers.
        """
        self._has_failed = True
        with suppress(StorageError):
            await self._disk.discard(self._boot_path)

    def on_failed(self) -> None:
        """The disk failed. It may hold other bytes than were written, so no later start may take the directory for
        whole.

        The broker's epoch stays true. If even that cannot be written, the next process waits for the end of the
        broker's session.
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
