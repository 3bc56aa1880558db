"""What the supervisor has on record of its cluster. Clients and commands hold it too, so the module imports no code of
nodes or disks.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from rayka.config.cluster_config import ClusterSpec


@dataclass(frozen=True, slots=True)
class Identities:
    """The cluster's id, empty while none is known, and the directory ids of each node, as it was formatted last."""

    cluster_id: str = ""
    directory_ids: Mapping[int, frozenset[UUID]] = field(default_factory=dict)

    def with_nodes(self, directory_ids: Mapping[int, Collection[UUID]], cluster_id: str = "") -> "Identities":
        """The same, but for nodes that were formatted since."""
        formatted = {each: frozenset(ids) for each, ids in directory_ids.items()}
        return Identities(self.cluster_id or cluster_id, {**self.directory_ids, **formatted})

    def without(self, node_id: int) -> "Identities":
        """The same without a node that has gone for good."""
        return replace(self, directory_ids={k: v for k, v in self.directory_ids.items() if k != node_id})


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """What the supervisor knows of its cluster: the spec that is in force, and which disks are its own."""

    spec: ClusterSpec
    identities: Identities
