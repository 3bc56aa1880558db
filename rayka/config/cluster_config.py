"""What people write: configuration of topics, nodes, clients and the cluster, checked where it enters.

Keys are Kafka's dotted names (`min.insync.replicas`) in YAML, dicts and on the command line, and the same in snake_case
as keyword arguments. An unknown key is a ConfigError that names the nearest known one; nothing is accepted and ignored.
The cluster's own keys are here, those of topics, of brokers and of clients in modules of their own, and `config_model`
reads them all; no other module imports pydantic. Each key is one row that says what it does; the guide's page of keys
is made from these rows (`python -m tests.config_page`).
"""

import os.path
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
)

from rayka.config.broker_config import BrokerConfig
from rayka.config.config_model import ConfigModel
from rayka.errors import ConfigError
from rayka.ids import (
    FIRST_BROKER_ID,
    FIRST_CONTROLLER_ID,
    FIRST_COORDINATOR_ID,
    Role,
    is_combined,
    role_of,
)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that a mapping has already; `yaml.SafeLoader` would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = key.tag, str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice; keep one", key.start_mark
                )
            seen.add(name)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml(path: str | Path) -> Any:
    """Returns the file's content as plain values. Raises OSError, UnicodeDecodeError, yaml.YAMLError."""
    return yaml.load(Path(path).read_text(), _Loader)


_COUNT_MAX = 1000
BROKER_TARGETS = ("disk_share", "processor_share", "bytes_in", "bytes_out", "partitions")
COORDINATOR_TARGETS = ("coordinator_processor_share",)


class CountRange(ConfigModel):
    """A count of nodes that follows the load: `brokers: {min: 3, max: 12}`."""

    min: int = Field(ge=1, le=_COUNT_MAX, strict=True)
    max: int = Field(ge=1, le=_COUNT_MAX, strict=True)

    @field_validator("max")
    @classmethod
    def _is_not_below_min(cls, count: int, info: ValidationInfo) -> int:
        least = info.data.get("min", count)
        if count < least:
            raise ValueError(f"expected min, which is {least}, or more")
        return count

    def __str__(self) -> str:
        return f"{self.min} to {self.max}"


class Scaling(ConfigModel):
    """The load at which brokers and coordinators are added and removed.

    A node is added when the average of a target is above the target. A node is removed when, without it, every average
    would be below 70 % of its target. A target that is `null` does not count.
    """

    disk_share: float | None = Field(default=0.7, gt=0, le=1)
    """Which share of brokers' disks may be full."""

    processor_share: float | None = Field(default=0.7, gt=0, le=1)
    """Which share of one core a broker's process may take."""

    bytes_in: int | None = Field(default=None, ge=1)
    """How many bytes a second clients may write to a broker."""

    bytes_out: int | None = Field(default=None, ge=1)
    """How many bytes a second clients may read from a broker."""

    partitions: int | None = Field(default=4_000, ge=1)
    """How many replicas of partitions a broker may hold."""

    coordinator_processor_share: float | None = Field(default=0.7, gt=0, le=1)
    """Which share of one core a coordinator's process may take: the one target of coordinators."""

    out_window_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    """How long the load must be above a target before a node comes, in seconds."""

    in_window_s: float = Field(default=600.0, ge=0, allow_inf_nan=False)
    """How long the load must be low before a node goes, in seconds."""

    never: tuple[Literal["out", "in"], ...] = ()
    """What never happens by itself: `out`, that nodes come; `in`, that they go."""

    def of_coordinators(self) -> Self:
        """The targets of coordinators in the place of those of brokers."""
        others: dict[str, None] = dict.fromkeys(BROKER_TARGETS)
        return self.model_copy(update={**others, "processor_share": self.coordinator_processor_share})


class RaySpec(ConfigModel):
    """Which Ray to use: `auto` is the running one, or a local one is started."""

    address: str = "auto"
    """The Ray that is used: `auto` is the running one, or a local one is started."""


class RoleResources(ConfigModel):
    """What Ray sets aside for one node; never zero, so that Ray's autoscaler sees it as demand."""

    num_cpus: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """CPUs that Ray sets aside for one node."""

    memory: int | None = Field(default=None, gt=0)
    """Bytes of memory that Ray sets aside for one node."""

    resources: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default={})
    """Custom resources of Ray, by name."""


class Resources(ConfigModel):
    """Resources by role."""

    broker: RoleResources = RoleResources(num_cpus=0.05)
    controller: RoleResources = RoleResources(num_cpus=0.02)
    coordinator: RoleResources = RoleResources(num_cpus=0.02)


def _data_dir(value: Any) -> Any:
    paths = value if isinstance(value, list) else [value]
    if not paths or not all(isinstance(each, str) and each for each in paths):
        raise ValueError("expected a directory, or a list of different ones")
    # Relative to where the spec is read: the nodes have other working directories. A home is each machine's own.
    absolute = [each if each.startswith("~") else str(Path(each).absolute()) for each in paths]
    if len(set(map(os.path.normpath, absolute))) < len(absolute):
        raise ValueError("expected a directory, or a list of different ones")
    return absolute if isinstance(value, list) else absolute[0]


NODES_MAX = FIRST_COORDINATOR_ID - FIRST_BROKER_ID  # of one role
_COUNTS = ("controllers", "brokers", "coordinators")
_SECTIONS: Mapping[str, type[ConfigModel]] = {
    "config": BrokerConfig,
    "ray": RaySpec,
    "brokers": CountRange,
    "coordinators": CountRange,
    "scaling": Scaling,
}


class NodeSpec(ConfigModel):
    """One node and what it does: one role, or several in one actor (Kafka's `process.roles`)."""

    id: int = Field(ge=1, strict=True)
    roles: tuple[Role, ...] = Field(min_length=1)

    @field_validator("roles")
    @classmethod
    def _in_order(cls, roles: tuple[Role, ...], info: ValidationInfo) -> tuple[Role, ...]:
        in_order = tuple(each for each in Role if each in roles)
        node_id = info.data.get("id")
        if len(in_order) < len(roles):
            raise ValueError("expected each role once")
        if node_id is not None and role_of(node_id) is not in_order[0]:
            raise ValueError(
                f"node {node_id} has the id of a {role_of(node_id)}; expected brokers from {FIRST_BROKER_ID}, "
                f"coordinators from {FIRST_COORDINATOR_ID}, controllers from {FIRST_CONTROLLER_ID}, a node that is "
                "several with the id of the first of these roles"
            )
        return in_order


def _check_nodes(nodes: tuple[NodeSpec, ...]) -> tuple[NodeSpec, ...]:
    """In the order of ids. Raises ValueError that says why these nodes are no cluster.

    Controllers are all alone or all combined, so the ids of a cluster's nodes say which to ask for the active one
    (decision 032).
    """
    if len({each.id for each in nodes}) < len(nodes):
        raise ValueError("expected each id once")
    for role in (Role.BROKER, Role.CONTROLLER):
        if not any(role in each.roles for each in nodes):
            raise ValueError(f"expected at least one {role}")
    combined = [each.id for each in nodes if is_combined(each.roles)]
    if combined and any(each.roles == (Role.CONTROLLER,) for each in nodes):
        raise ValueError(
            f"expected controllers that are all brokers or coordinators too, or none that is: {combined} are"
        )
    _check_controllers(sum(Role.CONTROLLER in each.roles for each in nodes))
    return tuple(sorted(nodes, key=lambda each: each.id))


def _check_controllers(count: int) -> int:
    """An odd number, as Kafka's documentation advises. Raises ValueError that says why."""
    if count % 2 == 0:
        raise ValueError(
            f"expected an odd number of controllers: {count} survive no more losses than {count - 1}, and each change "
            "waits for one more of them"
        )
    return count


def _count_or_range(least: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        is_count = isinstance(value, int) and not isinstance(value, bool) and least <= value <= NODES_MAX
        if not is_count and not isinstance(value, CountRange):
            raise ValueError(f"expected a count from {least} to {NODES_MAX}, or min and max")
        return value

    return check


def _least(count: int | CountRange) -> int:
    return count.min if isinstance(count, CountRange) else count


def _check_ports(ports: tuple[int, int]) -> tuple[int, int]:
    first, last = ports
    if not 0 < first <= last < 1 << 16:
        raise ValueError("expected the first and the last port, between 1 and 65535")
    return ports


class ClusterSpec(ConfigModel):
    """The whole cluster, declared: what `cluster.yaml` holds.

    Coordinators lead internal partitions, groups among them; where there are none, brokers do.

    With the transport `auto` the nodes serve hot calls over sockets of their own, on a port of `transport_ports` (the
    first and the last one, by default any that is free); with `ray` nothing listens, and every call is a remote method.
    """

    name: str = Field(default="rayka", pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$")
    """The cluster's name, which clients ask for."""

    controllers: Annotated[int, AfterValidator(_check_controllers)] = Field(
        default=1, ge=1, le=NODES_MAX, strict=True
    )
    """How many controllers: an odd number, of which less than half may fail."""

    brokers: Annotated[int | CountRange, BeforeValidator(_count_or_range(1))] = 1
    """How many brokers; or `{min: 3, max: 12}`: between these, by the load. Those from 1 to min stay, the others come
    and go.
    """

    scaling: Scaling | None = None
    """When nodes between min and max come and go, by the keys of the table below."""

    coordinators: Annotated[int | CountRange, BeforeValidator(_count_or_range(0))] = 0
    """How many coordinators of groups; with 0 brokers coordinate. Or `{min: 1, max: 4}`, as of brokers: between these,
    by the load.
    """

    nodes: Annotated[tuple[NodeSpec, ...], AfterValidator(_check_nodes)] | None = None
    """Instead of the three counts: each node with its id and its roles."""

    data_dir: Annotated[str | list[str], BeforeValidator(_data_dir)] = "~/.rayka"
    """Where nodes keep their data; a list spreads partitions over disks."""

    ray: RaySpec = RaySpec()
    """Which Ray: `address`."""

    resources: Resources = Resources()
    """What Ray sets aside for nodes, by role: `num_cpus`, `memory`, `resources`."""

    transport: Literal["auto", "ray"] = "auto"
    """With `auto` nodes serve hot calls over sockets of their own; with `ray` every call is a remote method."""

    transport_ports: Annotated[tuple[int, int], AfterValidator(_check_ports)] | None = None
    """The first and the last port of those sockets; without it any that is free."""

    config: BrokerConfig = BrokerConfig()
    """Configuration of brokers and controllers, by the keys of the next table."""

    @field_validator("config")
    @classmethod
    def _has_brokers_enough(cls, config: BrokerConfig, info: ValidationInfo) -> BrokerConfig:
        """Else no topic could be created without a count of its own."""
        nodes, count = info.data.get("nodes"), info.data.get("brokers", NODES_MAX)
        broker_count = sum(Role.BROKER in each.roles for each in nodes) if nodes else _least(count)
        factor = config.default_replication_factor
        if factor > broker_count:
            raise ValueError(
                f"expected a default.replication.factor of {broker_count} at most, or more brokers than that, "
                f"found {factor}"
            )
        return config

    @property
    def roles(self) -> dict[int, tuple[Role, ...]]:
        """What each node does, by id, ascending; the roles of a node in the order of `Role`."""
        if self.nodes is not None:
            return {each.id: each.roles for each in self.nodes}
        brokers = range(FIRST_BROKER_ID, FIRST_BROKER_ID + _least(self.brokers))
        coordinators = range(FIRST_COORDINATOR_ID, FIRST_COORDINATOR_ID + _least(self.coordinators))
        controllers = range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + self.controllers)
        return {
            **dict.fromkeys(brokers, (Role.BROKER,)),
            **dict.fromkeys(coordinators, (Role.COORDINATOR,)),
            **dict.fromkeys(controllers, (Role.CONTROLLER,)),
        }

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The spec in a YAML file. Raises ConfigError naming the file and the key."""
        try:
            values = read_yaml(path)
        except FileNotFoundError:
            raise ConfigError(
                f"{path}: there is no such file; `rayka init {path}` writes one to start from"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror}; expected a cluster specification in YAML"
            ) from error
        except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or a day that no month has
            raise ConfigError(f"{path}: not YAML: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(
                f"{path}: expected a mapping such as 'name: rayka', found {type(values).__name__}"
            )
        return cls.of(values, what=str(path))

    @classmethod
    def of(cls, values: Mapping[str, Any], *, what: str = "cluster spec") -> Self:
        """The spec from plain values, its sections parsed with their own keys."""
        sections: dict[str, Any] = dict(values)
        for key, section in _SECTIONS.items():
            if isinstance(sections.get(key), Mapping):
                sections[key] = section.parse(sections[key], what=f"{what}, {key}")
        if sections.get("nodes") is not None and any(sections.get(each) is not None for each in _COUNTS):
            raise ConfigError(
                f"{what}: expected either nodes or the counts ({', '.join(_COUNTS)}), found both"
            )
        spec = cls.parse(sections, what=what)
        spec._refuse_idle_targets(what)
        return spec

    def _refuse_idle_targets(self, what: str) -> None:
        """Raises ConfigError for targets of nodes whose count never changes."""
        if self.scaling is None:
            return
        if not self.ranges:
            raise ConfigError(
                f"{what}: scaling: expected brokers: {{min: …, max: …}} beside it, or coordinators, found brokers "
                f"{self.brokers} and coordinators {self.coordinators}, which never change"
            )
        for role, count, names in (
            (Role.BROKER, self.brokers, BROKER_TARGETS),
            (Role.COORDINATOR, self.coordinators, COORDINATOR_TARGETS),
        ):
            idle = [each for each in names if each in self.scaling.model_fields_set]
            if idle and role not in self.ranges:
                raise ConfigError(
                    f"{what}: scaling: {idle[0]}: expected {role}s: {{min: …, max: …}} beside it, found {role}s "
                    f"{count}, which never change"
                )

    @property
    def ranges(self) -> dict[Role, CountRange]:
        """Between which counts the nodes of a role come and go by themselves; without the roles of which none does."""
        counts = {Role.BROKER: self.brokers, Role.COORDINATOR: self.coordinators}
        return {role: count for role, count in counts.items() if isinstance(count, CountRange)}

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """The data directories, expanded."""
        given = [self.data_dir] if isinstance(self.data_dir, str) else self.data_dir
        return tuple(str(Path(each).expanduser().absolute()) for each in given)
