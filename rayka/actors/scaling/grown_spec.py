"""The spec of a cluster whose brokers come and go: with those that there are beyond the declared ones. Pure."""

from collections.abc import Collection, Iterable

from rayka.config import ClusterSpec, NodeSpec
from rayka.ids import FIRST_COORDINATOR_ID, Role


def grown(spec: ClusterSpec, broker_ids: Iterable[int]) -> ClusterSpec:
    """The same cluster with these brokers, too: between which counts they come and go stays as it is."""
    added = [each for each in dict.fromkeys(broker_ids) if each not in spec.roles]
    if not added:
        return spec
    roles = {**spec.roles, **dict.fromkeys(added, (Role.BROKER,))}
    nodes = tuple(NodeSpec(id=each, roles=roles[each]) for each in sorted(roles))
    return spec.model_copy(update={"nodes": nodes})


def declared(spec: ClusterSpec) -> ClusterSpec:
    """The same cluster without brokers that have come and may go."""
    others = come_and_gone(spec, spec.roles)
    nodes = tuple(NodeSpec(id=each, roles=roles) for each, roles in spec.roles.items() if each not in others)
    return spec.model_copy(update={"nodes": nodes}) if others else spec


def as_it_is(wanted: ClusterSpec, node_ids: Collection[int]) -> ClusterSpec:
    """What a start is to bring up or find: the declared nodes and, where brokers come and go, those that have come."""
    return grown(wanted, come_and_gone(wanted, node_ids))


def come_and_gone(spec: ClusterSpec, node_ids: Iterable[int]) -> list[int]:
    """Those of these nodes that are brokers beyond the declared ones; none where brokers do not come and go."""
    if spec.broker_range is None:
        return []
    return sorted(each for each in node_ids if spec.broker_range.min < each < FIRST_COORDINATOR_ID)


def free_id(spec: ClusterSpec, taken: Collection[int]) -> int:
    """The id of the next broker that comes: the lowest that none has."""
    assert spec.broker_range is not None, spec
    return next(each for each in range(spec.broker_range.min + 1, FIRST_COORDINATOR_ID) if each not in taken)
