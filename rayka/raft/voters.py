"""Who votes. Kafka: `VoterSet`; a voter is a node *and* its directory (A55)."""

import msgspec

from rayka.ids import ReplicaKey


class VoterSet(msgspec.Struct, frozen=True, array_like=True):
    """The voters of a quorum, ascending by node id; at least one."""

    voters: tuple[ReplicaKey, ...]

    def __post_init__(self) -> None:
        node_ids = [voter.node_id for voter in self.voters]
        if not node_ids or node_ids != sorted(set(node_ids)):
            raise ValueError(f"voters are one or more nodes, ascending, each once; found {node_ids}")

    def __repr__(self) -> str:
        return f"<VoterSet {[voter.node_id for voter in self.voters]}>"

    def is_only(self, replica: ReplicaKey) -> bool:
        """Whether this replica votes alone: its own vote is a majority (A5)."""
        return self.voters == (replica,)
