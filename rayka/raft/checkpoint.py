"""The 0-0 checkpoint alone: what formatting writes, and who the first voters are (A48)."""

from rayka.errors import StorageError
from rayka.ports import Buffer
from rayka.raft.snapshot import BOOTSTRAP_SNAPSHOT_ID, decode_snapshot, encode_snapshot, snapshot_name
from rayka.raft.voters import VoterSet

checkpoint_name = snapshot_name


def encode_bootstrap_checkpoint(voters: VoterSet, *, timestamp_ms: int) -> bytes:
    """The content of the 0-0 checkpoint."""
    parts = encode_snapshot(BOOTSTRAP_SNAPSHOT_ID, voters, (), timestamp_ms=timestamp_ms)
    return b"".join(map(bytes, parts))


def decode_bootstrap_checkpoint(content: Buffer, path: str) -> VoterSet:
    """The voters. Raises StorageError naming the path when the checkpoint is damaged or not whole."""
    voters = decode_snapshot(content, path).voters
    if voters is None:
        raise StorageError(f"{path} names no voters; restore it, or format the directory anew")
    return voters
