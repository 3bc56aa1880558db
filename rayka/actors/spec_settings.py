"""What differs between the settings of two specs of one cluster, and which nodes a difference concerns. Pure.

A node has the settings of the spec that its actor was made from, until it is made anew. So the nodes that a changed
spec leaves to be restarted are found by looking at them, and a change that broke off goes on where it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rayka.config.broker_config import BROKER_KEYS, CONTROLLER_KEYS, BrokerConfig
from rayka.config.cluster_config import ClusterSpec
from rayka.config.config_model import dotted
from rayka.ids import Role, role_of
from rayka.protocol.configs import MIN_ISR

_RESOURCES = "resources."
_OF_SCALING = ("brokers", "coordinators", "scaling")  # the supervisor goes by them


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One key of the spec, and its values as text."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key} {self.before}, not {self.after}"


def changed_settings(running: ClusterSpec, wanted: ClusterSpec) -> tuple[SettingChange, ...]:
    """Every setting that differs and that nodes can get while the cluster runs, in the order of the spec."""
    before, after = _settings(running), _settings(wanted)
    return tuple(SettingChange(key, before[key], after[key]) for key in before if before[key] != after[key])


def outdated_settings(made_from: ClusterSpec, wanted: ClusterSpec, node_id: int) -> tuple[SettingChange, ...]:
    """Those of them that this node gets when it is made anew; none where it has what is wanted.

    `min.insync.replicas` is not among them: a cluster keeps it in its metadata.
    """
    return tuple(
        each
        for each in changed_settings(made_from, wanted)
        if each.key != MIN_ISR and _concerns(each.key, node_id, wanted)
    )


def _concerns(key: str, node_id: int, spec: ClusterSpec) -> bool:
    if key in _OF_SCALING:
        return False
    if key.startswith(_RESOURCES):
        return key == f"{_RESOURCES}{role_of(node_id)}"
    roles = spec.roles.get(node_id, (role_of(node_id),))
    is_controller_alone = tuple(roles) == (Role.CONTROLLER,)
    return not is_controller_alone if key in _BROKERS else key not in _CONTROLLERS or Role.CONTROLLER in roles


def _settings(spec: ClusterSpec) -> Mapping[str, str]:
    """By key, as text. A spec that a process of another version holds may lack keys of this one, and have others."""
    resources = {f"{_RESOURCES}{role}": _as_text(getattr(spec.resources, role).model_dump()) for role in Role}
    transport = {
        "transport": spec.transport,
        "transport_ports": _as_text(spec.transport_ports and list(spec.transport_ports)),
    }
    scaling = (
        *(spec.ranges.get(role) for role in (Role.BROKER, Role.COORDINATOR)),
        spec.scaling and spec.scaling.model_dump(mode="json"),
    )
    given = {**BrokerConfig().model_dump(mode="json"), **spec.config.model_dump(mode="json")}
    return {
        **dict(zip(_OF_SCALING, map(_as_text, scaling), strict=True)),
        **resources,
        **transport,
        **{dotted(key): _as_text(given[key]) for key in BrokerConfig.model_fields},
    }


def _as_text(value: object) -> str:
    return "none" if value is None else str(value)


_CONTROLLERS = frozenset(map(dotted, CONTROLLER_KEYS))
_BROKERS = frozenset(map(dotted, BROKER_KEYS))
