"""How a client finds its cluster: by name, through Ray, or by a handle that the caller hands over.

The client package knows no Ray. One lazy function leads from a name to `rayka.cluster`: the only exception in
the import contract. Kafka has `bootstrap.servers` for this.
"""

from typing import Protocol, runtime_checkable

from rayka import forks
from rayka.config.client_config import AdminConfig, ConsumerConfig, ProducerConfig
from rayka.options import Transport
from rayka.ports import Network

DEFAULT_CLUSTER = "rayka"
ClientConfig = AdminConfig | ConsumerConfig | ProducerConfig


@runtime_checkable
class ClusterHandle(Protocol):
    """What a client needs of a cluster; `rayka.Cluster` and the cluster of `rayka.testing` are handles."""

    @property
    def name(self) -> str:
        """The cluster's name, for messages."""
        ...

    def network(self, transport: Transport = "auto") -> Network:
        """A new caller to the cluster's nodes, which takes no direct lane with the transport `ray`.

        Its calls are awaited on the client's loop.
        """
        ...


def resolve(cluster: "str | ClusterHandle") -> ClusterHandle:
    """The cluster's handle. Raises ClusterNotFound for a name that no running cluster has, UnavailableError in a
    forked child.
    """
    forks.refuse()
    if isinstance(cluster, str):
        from rayka.cluster import find

        return find(cluster)
    if isinstance(cluster, ClusterHandle):
        return cluster
    raise TypeError(f"cluster: expected a name or a rayka.Cluster, found {type(cluster).__name__}")
