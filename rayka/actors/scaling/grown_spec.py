"""The spec of a cluster whose brokers or coordinators come and go: with those that there are beyond the declared ones.
Pure.
"""

from collections.abc import Collection, Iterable
from itertools import count

from rayka.config.cluster_config import ClusterSpec, NodeSpec
from rayka.ids import FIRST_BROKER_ID, FIRST_COORDINATOR_ID, Role, role_of

_FIRST_IDS = {Role.BROKER: FIRST_BROKER_ID, Role.COORDINATOR: FIRST_COORDINATOR_ID}


def grown(spec: ClusterSpec, node_ids: Iterable[int]) -> ClusterSpec:
    """The same cluster with these nodes, too: between which counts they come and go stays as it is."""
    added = [each for each in dict.fromkeys(node_ids) if each not in spec.roles]
    if not added:
        return spec
    roles = {**spec.roles, **{each: (role_of(each),) for each in added}}
    nodes = tuple(NodeSpec(id=each, roles=roles[each]) for each in sorted(roles))
    return spec.model_copy(update={"nodes": nodes})


def declared(spec: ClusterSpec) -> ClusterSpec:
    """The same cluster without nodes that have come and may go."""
    others = come_and_gone(spec, spec.roles)
    nodes = tuple(NodeSpec(id=each, roles=roles) for each, roles in spec.roles.items() if each not in others)
    return spec.model_copy(update={"nodes": nodes}) if others else spec


def as_it_is(wanted: ClusterSpec, node_ids: Collection[int]) -> ClusterSpec:
    """What a start is to bring up or find: the declared nodes and, where nodes come and go, those that have come."""
    return grown(wanted, come_and_gone(wanted, node_ids))


def come_and_gone(spec: ClusterSpec, node_ids: Iterable[int]) -> list[int]:
    """Those of these nodes that are beyond the declared ones; none of a role whose nodes do not come and go."""
    first_ids = {role: _first_id(spec, role) for role in spec.ranges}
    return sorted(
        each for each in node_ids if role_of(each) in first_ids and each >= first_ids[role_of(each)]
    )


def free_id(spec: ClusterSpec, role: Role, taken: Collection[int]) -> int:
    """The id of the next node of that role that comes: the lowest that none has."""
    return next(each for each in count(_first_id(spec, role)) if each not in taken)


def _first_id(spec: ClusterSpec, role: Role) -> int:
    """The lowest id of a node that comes and goes."""
    return _FIRST_IDS[role] + spec.ranges[role].min
