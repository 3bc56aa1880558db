"""The two ports through which a node touches the world: the network and the disk.

A node uses asyncio and these, nothing else, so the simulator can run it on virtual time with a faulty network and a
faulty disk. Real ones: `rayka.actors.ray_network`, `rayka.log.local_disk`; in-process: `rayka.testing`.
"""

import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

Buffer = bytes | bytearray | memoryview | np.ndarray
ResponseT = TypeVar("ResponseT", covariant=True)


# ---- Network -------------------------------------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A value that crosses an actor boundary.

    Evolves by appended fields with defaults; a receiver ignores unknown trailing fields.
    """


class Request(Message, Generic[ResponseT], frozen=True, array_like=True):
    """A request whose answer is a `ResponseT`; `rayka.protocol.apis` names its API."""

    def check(self) -> None:
        """Raises the ApiError of a request that is invalid in every state. Called before the handler."""


class Network(Protocol):
    """Calls from one caller to the nodes of one cluster.

    Kafka presumes one ordered connection between a caller and a node. The port keeps this promise: calls of one
    caller to one node *start* there in the order in which `call` was invoked, and after a failure no older call starts
    any more.
    """

    def call(self, node_id: int, request: "Request[ResponseT]", timeout_ms: int) -> "Awaitable[ResponseT]":
        """The node's future answer: an awaitable to be awaited once, or a `rayka.protocol.later.Later`.

        Raises NetworkException (the call broke off: it may or may not have been executed) or RequestTimedOut.
        """
        ...

    async def node_ids(self) -> Sequence[int]:
        """Ids of the nodes that a caller may ask first, ascending. Kafka: bootstrap.servers."""
        ...


# ---- Disk ----------------------------------------------------------------------------------------------------------


class FileIdentity(Message, frozen=True, array_like=True):
    """The inode of a path, and the file's current size."""

    device: int
    inode: int
    size_bytes: int


class FileSlice(ABC):
    """A range of bytes of a file that is read, or sent straight from the file, at a later time.

    A slice keeps its file open, so removing, renaming or replacing the file does not change the bytes. Truncation in
    place would change them: a file is never cut below the end of an existing slice. The file is closed when the slice
    is collected.
    """

    __slots__ = ("path", "position", "size")

    def __init__(self, path: str, position: int, size: int) -> None:
        self.path = path
        self.position = position
        self.size = size

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path} {self.position}+{self.size}>"

    @abstractmethod
    def identity(self) -> FileIdentity:
        """The identity of the slice's file."""

    @abstractmethod
    def read(self) -> np.ndarray:
        """All bytes of the slice. Raises StorageError."""

    def send(self, connection: socket.socket, begin: int, bytes_max: int) -> int:
        """Sends bytes from `begin` on, as many as the connection takes now; returns their number.

        Raises StorageError for the file, OSError for the connection.
        """
        return connection.send(self.read()[begin : begin + bytes_max].data)


class Lock(Protocol):
    """A held lock on a directory; the process's death releases it."""

    def release(self) -> None: ...


class Slice(NamedTuple):
    """A step of a job that asks for nothing: reports the bytes read and written since the previous step."""

    size_bytes: int


class Job(Protocol):
    """Long work on files. Jobs, their steps and answers can be pickled, because a job may run in another process."""

    def run(self, disk: "Disk") -> Generator[Any, Any, None]:
        """Yields steps and receives the answer to each; a `Slice` comes every few milliseconds and is answered by None.

        The job may be ended at any step, and in another process at any point.
        """
        ...


class JobDied(Exception):
    """The process that ran a job ended, or could not be started. Part of the job's output may exist."""


class RunningJob(Protocol):
    """A job that runs."""

    async def next(self, answer: object) -> Any:
        """Sends the answer to the last step (None before the first) and returns the next step, None at the end.

        Raises the job's own errors, and JobDied.
        """
        ...

    async def end(self) -> None:
        """Ends the job, which writes nothing afterwards. Costs nothing for a job at its end."""
        ...


class Disk(Protocol):
    """Files by path.

    All calls but `sync`, `copy_prefix` and `discard` are synchronous and buffered by the page cache. Only synced bytes
    survive a power cut; a created, renamed or removed name survives only after a sync of its directory.

    Bytes that a reader may have mapped are never cut off or overwritten (decision 039): `copy_prefix` and `rename`
    replace such a file, `cut` is for bytes that no reader was given. Every method raises `StorageError`, naming the
    path and the cause, when the disk fails (EIO) or the path is missing, and `PassingStorageError` when the disk is
    full or read-only. After a failed sync the caller takes the directory offline and never retries.

    An awaited call delays no call of another data directory; data directories are the ones locked by `lock`. An awaited
    call waits while no descriptor is free, and raises StorageError when the disk hangs.
    """

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def identity(self, path: str) -> FileIdentity: ...

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Creates the directory and its missing parents; an existing one is fine."""
        ...

    async def discard(self, path: str) -> None:
        """Removes a file, or a directory with its content; does nothing for a missing path.

        Works off the event loop, which many or large files would block.
        """
        ...

    def read_at(self, path: str, position: int, size_bytes: int) -> bytes:
        """Up to size_bytes from position; shorter only at the end of the file."""
        ...

    def slice(self, path: str, position: int, size_bytes: int) -> FileSlice:
        """A part of the file, to be read or sent later. Raises StorageError when the file does not reach so far."""
        ...

    def map(self, path: str) -> memoryview:
        """The file's bytes as they are now, read-only. The view stays valid after rename, unlink and appends."""
        ...

    def append(self, path: str, buffers: Sequence[Buffer]) -> int:
        """Writes the buffers one after another at the end, creating the file if missing; returns where they begin.

        When it raises, a prefix of the buffers may be in the file (a torn write).
        """
        ...

    def write(self, path: str, data: Buffer) -> None:
        """A new file with this content, replacing what was there by a new inode (write aside and rename).

        A process crash leaves the old content or the new. A power cut before `sync` may also leave a torn new one, so
        a reader must be able to tell, or the content is synced under another name and then renamed.
        """
        ...

    async def copy_prefix(self, source: str, target: str, size_bytes: int) -> None:
        """Copies the first `size_bytes` of `source` to the new file `target` and syncs the copy; a failure leaves none.

        The sync comes first because the copy will replace a file that may have been synced: a rename must not publish
        less than was durable.
        """
        ...

    def cut(self, path: str, size_bytes: int) -> None:
        """Truncates the file to `size_bytes`, in place.

        Until the file is synced a power cut may bring the bytes back, even behind bytes appended since. The bytes must
        therefore be none that count as synced.
        """
        ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def lock(self, path: str) -> Lock:
        """Takes the lock file of a data directory. Raises StorageError naming the process that holds the lock."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def boot_id(self) -> str:
        """An id of the machine's boot: another id means that unsynced bytes in the page cache were lost."""
        ...

    def start(self, job: Job) -> RunningJob:
        """Runs a job away from the event loop, at a low priority. Several slices may be reported as one."""
        ...

    async def sync(
        self, files: Sequence[str], directories: Sequence[str], *, in_background: bool = False
    ) -> None:
        """Makes the content of the files, then the names in the directories, durable; all are of one data directory.

        A sync `in_background` delays no sync that acknowledgements wait for. A file that was renamed or removed since
        is skipped.
        """
        ...
