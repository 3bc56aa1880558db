"""How the spec of a running cluster may change: nodes may come; they go one by one and by name; settings change by a
restart of each node in turn. What a disk or an actor is known by cannot change without a stop. Pure.
"""

from collections.abc import Collection, Container, Mapping

from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ConfigError
from rayka.ids import Role, is_combined, role_of


def refusal(running: ClusterSpec, wanted: ClusterSpec, gone: Container[int] = ()) -> str:
    """The first difference that cannot be made while the cluster runs, and what to do; empty when there is none.

    Which Ray to use is not part of the cluster, and neither is how its nodes are written: by counts or one by one.
    Those that are `gone` may be missing from what is wanted.
    """
    stop = f"stop it first with `rayka stop --cluster {running.name}`"
    if running.data_dirs != wanted.data_dirs:
        found_paths, expected_paths = (", ".join(each.data_dirs) for each in (running, wanted))
        return f"data_dir {found_paths}, not {expected_paths}; {stop}, or choose another name"
    kept = [each for each in running.roles if each in wanted.roles]
    changed = [each for each in kept if running.roles[each] != wanted.roles[each]]
    if changed:
        found_roles, expected_roles = (", ".join(each.roles[changed[0]]) for each in (running, wanted))
        return f"node {changed[0]} as {found_roles}, not as {expected_roles}; {stop}"
    surplus = [each for each in running.roles if each not in wanted.roles and each not in gone]
    if surplus:
        end = (
            _how_to_end(running, surplus)
            or f"{stop}: a node that is broker and controller goes with a stop only"
        )
        return (
            f"{role_of(surplus[0])} {surplus[0]}, which the spec does not have; keep it in the spec, or {end}"
        )
    return ""


def _how_to_end(running: ClusterSpec, surplus: Collection[int]) -> str:
    """The commands; empty where there are none."""
    first = next(iter(surplus))
    if is_combined(running.roles[first]):
        return ""
    if running.roles[first] == (Role.CONTROLLER,):
        names = " ".join(str(each) for each in surplus if running.roles[each] == (Role.CONTROLLER,))
        return f"end it for good with `rayka quorum remove {names}`"
    return f"end it for good with `rayka broker drain {first}`, then `rayka broker remove {first}`"


def added_nodes(running: ClusterSpec, wanted: ClusterSpec) -> tuple[int, ...]:
    """The nodes that a spec which is not refused has more, ascending."""
    return tuple(each for each in wanted.roles if each not in running.roles)


def with_broker(spec: ClusterSpec, broker_id: int) -> ClusterSpec:
    """The same cluster, which has that broker in any case."""
    return with_nodes(spec, {broker_id: (role_of(broker_id),)})


def without_broker(spec: ClusterSpec, broker_id: int) -> ClusterSpec:
    """The same cluster without that broker. Raises ConfigError where it could not be one, and for a controller."""
    if Role.CONTROLLER in spec.roles[broker_id]:
        raise ConfigError(f"node {broker_id} is a controller: expected one that is none")
    return without_nodes(spec, (broker_id,))


def with_nodes(spec: ClusterSpec, roles: Mapping[int, Collection[Role]]) -> ClusterSpec:
    """The same cluster, which has these nodes in any case; those that it has stay as they are."""
    return _with_roles(spec, {**roles, **spec.roles}, f"with {_named(roles)}")


def without_nodes(spec: ClusterSpec, node_ids: Collection[int]) -> ClusterSpec:
    """The same cluster without these nodes. Raises ConfigError where it could not be one."""
    rest = {each: roles for each, roles in spec.roles.items() if each not in node_ids}
    return _with_roles(spec, rest, f"without {_named(node_ids)}")


def united(specs: Collection[ClusterSpec]) -> ClusterSpec | None:
    """One spec with the nodes of all of these, which differ in nothing else: with brokers that came later, and with
    those that have gone. None of none.
    """
    if not specs:
        return None
    roles = {each: found for spec in specs for each, found in spec.roles.items()}
    return _with_roles(next(iter(specs)), roles, "the running nodes")


def _with_roles(spec: ClusterSpec, roles: Mapping[int, Collection[Role]], what: str) -> ClusterSpec:
    counted = {"nodes", "controllers", "brokers", "coordinators", "scaling"}
    values = spec.model_dump(exclude_unset=True, exclude=counted)
    nodes = [{"id": each, "roles": list(found)} for each, found in roles.items()]
    whole = ClusterSpec.of({**values, "nodes": nodes}, what=what)
    kept = {each: getattr(spec, each) for each in ("brokers", "coordinators", "scaling")}
    return whole.model_copy(update=kept)


def _named(node_ids: Collection[int]) -> str:
    return ", ".join(f"{role_of(each)} {each}" for each in node_ids)
