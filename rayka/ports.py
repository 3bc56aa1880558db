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
    """What crosses an actor boundary. Evolves by appending fields with defaults; unknown trailing ones are ignored."""


class Request(Message, Generic[ResponseT], frozen=True, array_like=True):
    """A request whose answer is a `ResponseT`; `rayka.protocol.apis` names its API."""

    def check(self) -> None:
        """Raises the ApiError that refuses a request which no state could make right; before its handler is called."""


class Network(Protocol):
    """Calls from one caller to the nodes of one cluster.

    Kafka presumes one ordered connection between a caller and a node. The port keeps that promise: calls of one
    caller to one node *start* there in the order in which `call` was invoked, and after a failure none of the older
    calls starts any more.
    """

    def call(self, node_id: int, request: "Request[ResponseT]", timeout_ms: int) -> "Awaitable[ResponseT]":
        """The node's answer to come: what is awaited once, or a `rayka.protocol.later.Later`.

        Raises NetworkException (the call broke off: it may or may not have been executed) or RequestTimedOut.
        """
        ...

    async def node_ids(self) -> Sequence[int]:
        """Ids of the nodes that can be asked first, ascending: the bootstrap servers of this network."""
        ...


# ---- Disk ----------------------------------------------------------------------------------------------------------


class FileIdentity(Message, frozen=True, array_like=True):
    """Which inode a path leads to, and its size in bytes now."""

    device: int
    inode: int
    size_bytes: int


class FileSlice(ABC):
    """Bytes of a file that are read, or sent from where they are, when their turn comes.

    A slice keeps its file open, so removing, renaming or replacing the file meanwhile changes nothing. Cutting it in
    place would: a file is not cut within a slice that was given. The file is let go of with the slice.
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
        """Which file it is cut from."""

    @abstractmethod
    def read(self) -> np.ndarray:
        """All of its bytes. Raises StorageError."""

    def send(self, connection: socket.socket, begin: int, bytes_max: int) -> int:
        """Sends bytes from `begin` on, as many as the connection takes now; returns how many.

        Raises StorageError for the file, OSError for the connection.
        """
        return connection.send(self.read()[begin : begin + bytes_max].data)


class Lock(Protocol):
    """A held lock on a directory; the process's death releases it."""

    def release(self) -> None: ...


class Slice(NamedTuple):
    """A step of a job: so many bytes were read and written since the last one."""

    size_bytes: int


class Job(Protocol):
    """Work on files that takes long. It may run in another process, so it pickles, and so do its steps and answers."""

    def run(self, disk: "Disk") -> Generator[Any, Any, None]:
        """Yields its steps, each `Slice` after some milliseconds, and takes the answer to each; that to a `Slice` is
        None. It may be ended at any step, and in another process anywhere.
        """
        ...


class JobDied(Exception):
    """The process that ran a job ended, or could not be started; what it wrote may be there in part."""


class RunningJob(Protocol):
    """One job under way."""

    async def next(self, answer: object) -> Any:
        """Takes the answer to the last step, None for the first, and returns the next step; None at the end. Raises
        what the job raises, and JobDied.
        """
        ...

    async def end(self) -> None:
        """Afterwards the job writes nothing more. Costs nothing where it has come to its end."""
        ...


class Disk(Protocol):
    """Files by path. All calls but `sync`, `copy_prefix` and `discard` are synchronous and buffered by the page cache;
    only what was synced survives a power cut, and a created, renamed or removed name only after a sync of its
    directory.

    What a reader may have mapped is never cut off or overwritten (design §3): `copy_prefix` and `rename` replace such
    a file, `cut` is for bytes that no reader was given. Every method raises `StorageError`, naming the path and the
    cause, when the disk fails (EIO) or the path is missing, and `PassingStorageError` when the disk is full or
    read-only. After a failed sync the caller takes the directory offline and never retries.

    Calls that are awaited hold up none of other data directories, which are those whose locks were taken here. They
    wait where no descriptor is free, and raise StorageError when the disk has not answered for long: it hangs.
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
        """Removes the directory with all that is in it, or the file, off the event loop, which many files or large ones
        would hold up. One that is gone is passed over.
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
        """Copies the first size_bytes of source to a new file, target, and syncs that copy before it returns. When it
        raises there is no target.

        The copy is about to replace a file that may have been synced: a rename must not publish less than was there.
        """
        ...

    def cut(self, path: str, size_bytes: int) -> None:
        """Takes everything from size_bytes on off the file, in place. Until the file is synced a power cut may bring it
        back, also behind bytes that were appended since: so it must be nothing that counts as synced.
        """
        ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def lock(self, path: str) -> Lock:
        """Takes the lock file of a data directory; raises StorageError that names the holder when another process has
        it.
        """
        ...

    def free_bytes(self, path: str) -> int: ...

    def boot_id(self) -> str:
        """Changes when the machine restarts, and with it what the page cache held is gone."""
        ...

    def start(self, job: Job) -> RunningJob:
        """Runs a job on these files away from the event loop, at a low priority. Several slices may be told as one."""
        ...

    async def sync(
        self, files: Sequence[str], directories: Sequence[str], *, in_background: bool = False
    ) -> None:
        """Makes the content of the files, then the names in the directories, all of one data directory, survive a power
        cut. What is synced `in_background` holds up no sync that acknowledgements wait for.

        A file that no longer exists (renamed or removed meanwhile) is passed over.
        """
        ...
