"""How the spec of a running cluster may change: brokers and coordinators may come, and go one by one; all else takes a
stop. Pure.
"""

from collections.abc import Collection, Container, Mapping
from typing import Any

from rayka.actors.names import nodes_with
from rayka.config import ClusterSpec
from rayka.config_model import dotted
from rayka.errors import ConfigError
from rayka.ids import Role, role_of


def refusal(running: ClusterSpec, wanted: ClusterSpec, gone: Container[int] = ()) -> str:
    """The first difference that cannot be made while the cluster runs, and what to do; empty when there is none.

    Which Ray to use is not part of the cluster, and neither is how its nodes are written: by counts or one by one.
    Brokers and coordinators among those that are `gone` may be missing from what is wanted.
    """
    stop = f"stop it first with `rayka stop --cluster {running.name}`"
    difference = _setting_difference(running, wanted)
    if difference:
        return f"{difference}; {stop}, or choose another name"
    found, expected = (list(nodes_with(each, Role.CONTROLLER)) for each in (running, wanted))
    if found != expected:
        return (
            f"controllers {found}, not {expected}; {stop}: a new one starts with `rayka start --replace ID` and gets "
            "its vote with `rayka quorum voters add ID`, from one that is to go take it with `rayka quorum voters "
            "remove ID` before the stop"
        )
    kept = [each for each in running.roles if each in wanted.roles]
    changed = [each for each in kept if running.roles[each] != wanted.roles[each]]
    if changed:
        found_roles, expected_roles = (", ".join(each.roles[changed[0]]) for each in (running, wanted))
        return f"node {changed[0]} as {found_roles}, not as {expected_roles}; {stop}"
    surplus = [each for each in running.roles if each not in wanted.roles and each not in gone]
    if surplus:
        return (
            f"{role_of(surplus[0])} {surplus[0]}, which the spec does not have; keep it in the spec, or end it for "
            f"good with `rayka broker drain {surplus[0]}`, then `rayka broker remove {surplus[0]}`"
        )
    return ""


def added_brokers(running: ClusterSpec, wanted: ClusterSpec) -> tuple[int, ...]:
    """The brokers and coordinators that a spec which is not refused has more, ascending."""
    return tuple(each for each in wanted.roles if each not in running.roles)


def with_broker(spec: ClusterSpec, broker_id: int) -> ClusterSpec:
    """The same cluster, which has that broker in any case."""
    return _with_nodes(
        spec, {broker_id: (role_of(broker_id),), **spec.roles}, f"with {role_of(broker_id)} {broker_id}"
    )


def without_broker(spec: ClusterSpec, broker_id: int) -> ClusterSpec:
    """The same cluster without that broker. Raises ConfigError where it could not be one, and for a controller."""
    if Role.CONTROLLER in spec.roles[broker_id]:
        raise ConfigError(f"node {broker_id} is a controller: expected one that is none")
    rest = {each: roles for each, roles in spec.roles.items() if each != broker_id}
    return _with_nodes(spec, rest, f"without {role_of(broker_id)} {broker_id}")


def united(specs: Collection[ClusterSpec]) -> ClusterSpec | None:
    """One spec with the nodes of all of these, which differ in nothing else: with brokers that came later, and with
    those that have gone. None of none.
    """
    if not specs:
        return None
    roles = {each: found for spec in specs for each, found in spec.roles.items()}
    return _with_nodes(next(iter(specs)), roles, "the running nodes")


def _with_nodes(spec: ClusterSpec, roles: Mapping[int, Collection[Role]], what: str) -> ClusterSpec:
    values = spec.model_dump(exclude_unset=True, exclude={"nodes", "controllers", "brokers", "coordinators"})
    nodes = [{"id": each, "roles": list(found)} for each, found in roles.items()]
    return ClusterSpec.of({**values, "nodes": nodes}, what=what)


def _setting_difference(running: ClusterSpec, wanted: ClusterSpec) -> str:
    if running.data_dirs != wanted.data_dirs:
        return f"data_dir {', '.join(running.data_dirs)}, not {', '.join(wanted.data_dirs)}"
    found, expected = _settings(running), _settings(wanted)
    return next(
        (f"{key} {found[key]}, not {expected[key]}" for key in found if found[key] != expected[key]), ""
    )


def _settings(spec: ClusterSpec) -> dict[str, Any]:
    values = {"name": spec.name, "transport": spec.transport, "resources": spec.resources.model_dump()}
    return {**values, **{dotted(key): value for key, value in spec.config.model_dump(mode="json").items()}}
