"""What a replica of the quorum can be, and which changes are legal (A1-A3, A9).

The durable part, epoch, leader and vote, is the `ElectionState`; these classes are what it does with it.
Kafka: one class per state, and the table in `QuorumState`. Left out until voters talk to each other:
Follower, and the timers.
"""

from dataclasses import dataclass

import msgspec

from rayka.ids import NO_NODE, ReplicaKey
from rayka.raft.election_state import ElectionState
from rayka.raft.leader import Leader


@dataclass(frozen=True, slots=True)
class Unattached:
    """Knows an epoch, and nobody who leads in it."""


@dataclass(frozen=True, slots=True)
class Resigned:
    """Led this epoch before its process ended. It does not lead or vote in it again: two different records
    could get one offset and epoch (A9).
    """


@dataclass(frozen=True, slots=True)
class Prospective:
    """Asks whether it would be elected, before it raises the epoch."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Has raised the epoch and voted for itself."""


Role = Unattached | Resigned | Prospective | Candidate | Leader

LEGAL_CHANGES: dict[type[Role], tuple[type[Role], ...]] = {
    Unattached: (Prospective,),
    Resigned: (Prospective,),  # by way of Unattached, which an only voter need not wait for (A5)
    Prospective: (Candidate,),
    Candidate: (Leader,),
    Leader: (),
}


def role_after_restart(
    stored: ElectionState | None, local: ReplicaKey, last_epoch: int
) -> tuple[Role, ElectionState]:
    """What a replica starts as (A9). `last_epoch` is that of the last record in its log."""
    if stored is None or stored.leader_epoch < last_epoch:
        return Unattached(), ElectionState(max(last_epoch, 0))
    if stored.leader_id == local.node_id:
        return Resigned(), stored
    if stored.voted_key == local:
        return Candidate(), stored
    return Unattached(), msgspec.structs.replace(stored, leader_id=NO_NODE)
