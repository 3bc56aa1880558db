"""What a voter must remember of elections, and the file `quorum-state` that holds it (A7, A8).

The file is one JSON object of `data_version` 1. It is replaced durably before the state is acted on: a voter that
forgot its vote could vote twice in one epoch. A missing file is that of a new replica: nothing known, epoch 0 (A9). A
damaged one is None: unlike Kafka's, the driver then does not start, for this replica may have voted. Kafka:
`ElectionState`, `FileQuorumStateStore`.
"""

from typing import Literal
from uuid import UUID

import msgspec

from rayka.ids import NO_NODE, ZERO_ID, ReplicaKey

QUORUM_STATE_FILE = "quorum-state"
# The latest epoch that another node may name: the next one is the last that the header of a batch holds.
EPOCH_MAX = 2**31 - 2
_NO_VOTE = ReplicaKey(NO_NODE, ZERO_ID)


class ElectionState(msgspec.Struct, frozen=True):
    """The newest epoch known, its leader (-1: unknown), and the replica that this node gave its one vote in it
    (None: no replica).
    """

    leader_epoch: int = 0
    leader_id: int = NO_NODE
    voted_key: ReplicaKey | None = None

    def __repr__(self) -> str:
        vote = self.voted_key.node_id if self.voted_key else NO_NODE
        return f"<ElectionState epoch={self.leader_epoch} leader={self.leader_id} voted={vote}>"


class _File(msgspec.Struct, frozen=True, rename="camel"):
    leader_id: int
    leader_epoch: int
    voted_id: int
    voted_directory_id: UUID
    data_version: Literal[1] = msgspec.field(name="data_version", default=1)


def encode_election(election: ElectionState) -> bytes:
    """The content of `quorum-state`."""
    voted = election.voted_key or _NO_VOTE
    content = _File(election.leader_id, election.leader_epoch, voted.node_id, voted.directory_id)
    return msgspec.json.encode(content) + b"\n"


def decode_election(content: bytes) -> ElectionState | None:
    """The state in the file; None when the content is damaged."""
    try:
        stored = msgspec.json.decode(content, type=_File)
    except msgspec.MsgspecError:
        return None
    vote = ReplicaKey(stored.voted_id, stored.voted_directory_id)
    return ElectionState(stored.leader_epoch, stored.leader_id, None if vote == _NO_VOTE else vote)
