"""Resolves the cluster of a client: a name, found through Ray, or a handle given by the caller.

The client package imports no Ray. One late import leads from a name to `rayka.cluster`: the only exception in the
import contract. Kafka has `bootstrap.servers` for this.
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
    """The view of a cluster that a client needs. `rayka.Cluster` and the cluster of `rayka.testing` are handles."""

    @property
    def name(self) -> str:
        """The cluster's name, for messages."""
        ...

    def network(self, transport: Transport = "auto") -> Network:
        """A new caller to the cluster's nodes, whose calls are awaited on the client's loop.

        With the transport `ray` the caller uses no direct lane.
        """
        ...


def resolve(cluster: "str | ClusterHandle") -> ClusterHandle:
    """The cluster's handle.

    Raises ClusterNotFound for a name that no running cluster has, UnavailableError in a forked child.
    """
    forks.refuse()
    if isinstance(cluster, str):
        from rayka.cluster import find

        return find(cluster)
    if isinstance(cluster, ClusterHandle):
        return cluster
    raise TypeError(f"cluster: expected a name or a rayka.Cluster, found {type(cluster).__name__}")
