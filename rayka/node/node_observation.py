"""What a checker may see of a running node that no request answers: to read, not to change."""

from collections.abc import Collection, Sequence
from typing import Protocol

from rayka.errors import StorageError
from rayka.metadata.image import MetadataImage
from rayka.partition.partition import Partition
from rayka.raft.quorum import Quorum


class ObservedBroker(Protocol):
    """A broker whose directories are open: the metadata that it has applied, the replicas that it holds, why others
    could not be opened, the paths where the disk has failed, and the epoch of its registration (-1 before the first).
    """

    @property
    def image(self) -> MetadataImage: ...
    @property
    def partitions(self) -> Collection[Partition]: ...
    @property
    def unusable(self) -> Sequence[StorageError]: ...
    @property
    def offline_directories(self) -> Sequence[str]: ...
    @property
    def broker_epoch(self) -> int: ...


class ObservedController(Protocol):
    """A controller whose log is open: the core of its replica, and its state machine, which holds the records below
    `replayed_offset`. One that takes requests may be ahead of what is committed.
    """

    @property
    def quorum(self) -> Quorum: ...
    @property
    def replayed_offset(self) -> int: ...
    @property
    def takes_requests(self) -> bool: ...

    def image(self) -> MetadataImage: ...
