"""Configurations of topics and brokers, described and changed while the cluster runs.

All changes of one resource are made, or none. The classes that check specifications check changes, too. Three keys have
consequences at once:
- A change of `min.insync.replicas` first clears the eligible leader replicas (ELR), which hold all committed records
  only under the old value (B42).
- With unclean elections allowed, partitions without a leader get one.
- A machine's drain mark moves the broker's leads. A repeated mark does so again, because the first controller may have
  died in between.

Only the supervisor sets `scaling.leaving`, the mark of a broker that leaves by the load; every caller may delete it.

While the cluster has ELR, the log has a value of `min.insync.replicas` for all brokers from the first record on: a
value in the nodes' own configuration could change between two runs, and no record would clear the ELR.

Kafka: `ConfigurationControlManager`, `ControllerConfigurationValidator`, `ConfigHelper` (sources of values).
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from rayka.config.broker_config import (
    BROKER_KEYS,
    BROKER_SYNONYMS,
    DYNAMIC_BROKER_KEYS,
    UNIFORM_BROKER_KEYS,
    BrokerConfig,
)
from rayka.config.config_model import dotted, snake
from rayka.config.topic_config import TopicConfig
from rayka.controller import incidents
from rayka.controller.decided_events import DecidedEvents
from rayka.controller.placeable_directories import is_draining
from rayka.controller.request_context import RequestContext
from rayka.errors import (
    ApiError,
    BrokerIdNotRegistered,
    ConfigError,
    InvalidConfig,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import ConfigResource, MetadataImage, broker_config, topic_config
from rayka.metadata.metadata_records import ClearElrRecord, MetadataRecord, config_record
from rayka.protocol.configs import (
    CORDONED,
    DRAIN,
    DRAIN_DEADLINE,
    LEAVING,
    MIN_ISR,
    AlterConfigOp,
    AlterConfigsResult,
    AlteredResource,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ResourceType,
)
from rayka.shard.shard import RECORDS_PER_BATCH_MAX, Result, Steps

UNCLEAN_ELECTION = "unclean.leader.election.enable"
_ALL_BROKERS = ""
_REMEMBERED_MAX = 64
_READ_HERE = frozenset(BrokerConfig.model_fields) - frozenset(BROKER_KEYS)
# A description of all keys of one resource takes a third of a millisecond.
_STEPS_PER_RESOURCE = 20


def bootstrap_configs(config: BrokerConfig) -> list[MetadataRecord]:
    """The first configuration of a new cluster: the `min.insync.replicas` of its specification, for all brokers."""
    return [config_record(ResourceType.BROKER, _ALL_BROKERS, MIN_ISR, str(config.min_insync_replicas))]


def unheeded_min_isr(image: MetadataImage, config: BrokerConfig) -> str:
    """A warning that the `min.insync.replicas` of the specification is not in force; empty if it is."""
    in_force = broker_config(image, config).min_insync_replicas
    if snake(MIN_ISR) not in config.model_fields_set or in_force == config.min_insync_replicas:
        return ""
    return (
        f"the specification says {MIN_ISR} {config.min_insync_replicas}, which counts when a cluster is created; "
        f"in force is {in_force}: set it for all brokers to change it"
    )


# ---- Describing ------------------------------------------------------------------------------------------------------


def describe_configs(
    context: RequestContext, request: DescribeConfigsRequest
) -> Steps[MetadataRecord, DescribeConfigsResponse]:
    """Describes every key of each resource: the value in force, and its source."""
    image = context.image

    def described(resource_type: ResourceType, name: str) -> DescribedConfig:
        try:
            _check_resource(image, resource_type, name)
        except ApiError as refusal:
            return DescribedConfig(resource_type, name, refusal.code, str(refusal))
        entries = _topic_entries if resource_type is ResourceType.TOPIC else _broker_entries
        config = _started_with(context, _broker_id(name) if resource_type is ResourceType.BROKER else None)
        return DescribedConfig(resource_type, name, entries=tuple(entries(image, name, config)))

    resources = []
    for each in request.resources:
        resources.append(described(each.resource_type, each.resource_name))
        for _ in range(_STEPS_PER_RESOURCE):
            yield None
    return Result((), DescribeConfigsResponse(tuple(resources)))


def value_on(context: RequestContext, broker_id: int, key: str) -> str:
    """The value in force for a dotted key on the broker, by the settings that the broker has reported."""
    return broker_config(context.image, _started_with(context, broker_id), broker_id).texts()[key]


def _started_with(context: RequestContext, broker_id: int | None) -> BrokerConfig:
    """The configuration that the broker, or with None any broker, reported to be started with; without a report the
    controller's own. The controller's own may be older: a change of broker keys does not restart controllers.
    """
    brokers = context.image.brokers
    asked = sorted(brokers) if broker_id is None else [broker_id]
    for each in asked:
        settings = context.loads.started_with(brokers[each]) if each in brokers else None
        if settings is not None:
            return _with_reported(context.config, tuple(sorted(settings.items())))  # pyright: ignore[reportArgumentType]
    return context.config


@lru_cache(_REMEMBERED_MAX)
def _with_reported(own: BrokerConfig, reported: tuple[tuple[str, str], ...]) -> BrokerConfig:
    kept = {key: getattr(own, key) for key in own.model_fields_set if key not in BROKER_KEYS}
    try:
        theirs = {key: value for key, value in reported if snake(key) not in _READ_HERE}
        return BrokerConfig.parse({**kept, **theirs}, what="settings of a broker")
    except ConfigError:
        # A broker of another release has reported a key that this one does not take.
        return own


def _topic_entries(image: MetadataImage, name: str, config: BrokerConfig) -> Iterator[ConfigEntry]:
    own = image.topic_configs(name)
    for key, value in topic_config(image, config, name).texts().items():
        source = ConfigSource.DYNAMIC_TOPIC
        if key not in own:
            synonym = BROKER_SYNONYMS.get(snake(key))
            source = (
                ConfigSource.DEFAULT if synonym is None else _source(image, None, dotted(synonym), config)
            )
        yield ConfigEntry(key, value, source)


def _broker_entries(image: MetadataImage, name: str, config: BrokerConfig) -> Iterator[ConfigEntry]:
    broker_id = _broker_id(name)
    for key, value in broker_config(image, config, broker_id).texts().items():
        source = _source(image, broker_id, key, config)
        yield ConfigEntry(key, value, source, is_read_only=snake(key) not in DYNAMIC_BROKER_KEYS)


def _source(image: MetadataImage, broker_id: int | None, key: str, config: BrokerConfig) -> ConfigSource:
    if broker_id is not None and key in image.broker_configs(broker_id):
        return ConfigSource.DYNAMIC_BROKER
    if key in image.broker_configs(None):
        return ConfigSource.DYNAMIC_DEFAULT_BROKER
    return ConfigSource.STATIC_BROKER if snake(key) in config.model_fields_set else ConfigSource.DEFAULT


# ---- Changing --------------------------------------------------------------------------------------------------------


def alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> Steps[MetadataRecord, IncrementalAlterConfigsResponse]:
    """Changes configurations; each resource has its own result or error in the response. All changes are in one batch,
    and the elections that follow come after it.
    """
    alteration = _Alteration(context, is_scaling=request.is_scaling)
    results = []
    for resource in request.resources:
        results.append(alteration.try_alter(resource))
        yield None
    yield alteration.records
    yield from alteration.elections()
    next_offset = yield None
    # Before an active controller on a machine that drains resigns, a balance gives way, and moves off it begin.
    timers = context.timers.look_now(context.now_ms) if alteration.has_marks else ()
    return Result((), IncrementalAlterConfigsResponse(tuple(results), next_offset), timers)


class _Alteration:
    """The changes of one request; each change of a resource counts the earlier ones."""

    def __init__(self, context: RequestContext, *, is_scaling: bool) -> None:
        self._context = context
        self._is_scaling = is_scaling
        self._events = DecidedEvents(context)
        self._image = context.image
        self._is_unclean_changed = False
        # Brokers whose mark of a machine's drain the request sets or deletes.
        self.drains: dict[int, None] = {}
        # Whether the request changes a mark of a drain of any cause.
        self.has_marks = False
        self.records: list[MetadataRecord] = []

    def try_alter(self, resource: AlteredResource) -> AlterConfigsResult:
        try:
            self._alter(resource)
        except ApiError as refusal:
            return AlterConfigsResult(
                resource.resource_type, resource.resource_name, refusal.code, str(refusal)
            )
        return AlterConfigsResult(resource.resource_type, resource.resource_name)

    def elections(self) -> Iterator[MetadataRecord | None]:
        """Yields elections of partitions without a leader, if unclean elections have become allowed, and of partitions
        led by brokers whose machine drains. A broker whose machine drains no more takes its leads back as a returned
        broker does.
        """
        if not self._is_unclean_changed and not self.drains:
            return
        delta = MetadataDelta(self._image)
        for record in self.records:
            delta.replay(record)
        image = delta.apply(self._image.next_offset + len(self.records))
        then = self._context._replace(image=image).elections()
        for key, partition in self._image.partitions() if self._is_unclean_changed else ():
            chosen = None if partition.has_leader else then.change(key).build()
            yield chosen if chosen is not None and chosen.leader_id >= 0 else None
        for broker_id in self.drains:
            if not is_draining(image, broker_id):
                self._context.returned.on_unfenced(broker_id)
                continue
            for key in self._context.replicas.of(broker_id).held:
                yield then.change(key).build() if then.partition(key).leader_id == broker_id else None

    def _alter(self, resource: AlteredResource) -> None:
        _check_resource(self._image, resource.resource_type, resource.resource_name)
        before = self._image.configs.get(ConfigResource(resource.resource_type, resource.resource_name), {})
        try:
            after = self._checked(resource, before)
        except ConfigError as error:
            raise InvalidConfig(str(error)) from error
        # An operator's drain cordons its broker, and ends when the cordon is removed.
        if after.get(CORDONED) != "*":
            after.pop(DRAIN, None)
        changed = [name for name in sorted({**before, **after}) if before.get(name) != after.get(name)]
        records = self._records(resource, {name: after.get(name) for name in changed})
        if len(self.records) + len(records) > RECORDS_PER_BATCH_MAX:
            raise InvalidRequest(
                f"{_what(resource)}: its changes and those before it make more than {RECORDS_PER_BATCH_MAX:,} records, "
                "which are committed together; use another request for it"
            )
        self.records += records
        self._is_unclean_changed |= UNCLEAN_ELECTION in changed
        self.has_marks |= not {DRAIN, DRAIN_DEADLINE, LEAVING}.isdisjoint(changed)
        if resource.resource_name and any(
            dotted(snake(each.name)) == DRAIN_DEADLINE for each in resource.changes
        ):
            self.drains[int(resource.resource_name)] = None

    def _checked(self, resource: AlteredResource, before: Mapping[str, str]) -> dict[str, str]:
        """The resource's own configuration after the changes, by dotted key. Raises ConfigError, InvalidRequest."""
        what = _what(resource)
        kind = TopicConfig if resource.resource_type is ResourceType.TOPIC else BrokerConfig
        keys = [dotted(kind.field_of(change.name, what=what)) for change in resource.changes]
        own = {key: value for key, value in before.items() if key not in keys}
        own |= {change.name: change.value for change in resource.changes if change.op is AlterConfigOp.SET}
        if kind is TopicConfig:
            return TopicConfig.parse(own, what=what).overrides()
        self._check_broker_keys(resource, keys)
        texts = self._context.config.with_dynamic(own, what=what).overrides()
        return {dotted(snake(key)): texts[dotted(snake(key))] for key in own}

    def _check_broker_keys(self, resource: AlteredResource, keys: Sequence[str]) -> None:
        for key, change in zip(keys, resource.changes, strict=True):
            if snake(key) not in DYNAMIC_BROKER_KEYS:
                raise InvalidRequest(
                    f"{_what(resource)}: {key!r} takes effect when a node starts; set it in the cluster's specification"
                )
            if resource.resource_name != _ALL_BROKERS and snake(key) in UNIFORM_BROKER_KEYS:
                raise InvalidRequest(
                    f"{_what(resource)}: the controller goes by {key!r} too, so no broker has its own; set it for all"
                )
            if key == LEAVING and change.op is AlterConfigOp.SET:
                self._check_goes(resource)
            if key == DRAIN and change.op is AlterConfigOp.SET:
                raise InvalidRequest(f"{_what(resource)}: {DRAIN!r} is set by `rayka broker drain`; use that")
            if key == CORDONED and resource.resource_name and change.op is AlterConfigOp.SET:
                self._check_paths(int(resource.resource_name), change)
            is_min_isr = key == MIN_ISR and change.op is AlterConfigOp.DELETE
            if is_min_isr and self._image.has_eligible_leader_replicas:
                raise InvalidRequest(
                    f"all brokers: {key!r} cannot be deleted while there are eligible leader replicas; set it"
                )

    def _check_goes(self, resource: AlteredResource) -> None:
        """Raises InvalidRequest unless the supervisor marks one broker. Nothing would remove a mark that another caller
        sets, and the broker would never take a replica again.
        """
        if not self._is_scaling or resource.resource_name == _ALL_BROKERS:
            raise InvalidRequest(
                f"{_what(resource)}: {LEAVING!r} is set by the cluster, of a broker that goes by the load; to empty a "
                "broker, use `rayka broker drain`; to keep one that goes, delete the key"
            )

    def _check_paths(self, broker_id: int, change: ConfigChange) -> None:
        """Raises InvalidConfig for a directory that this broker does not have; what is set for all brokers may be one
        of some of them.
        """
        named = BrokerConfig.parse({change.name: change.value}, what=f"broker {broker_id}").cordoned_paths
        own = [each.path for each in self._image.brokers[broker_id].directories]
        unknown = sorted(named - {posixpath.normpath(each) for each in own} - {"*"})
        if unknown:
            raise InvalidConfig(
                f"broker {broker_id}: {change.name!r}: expected some of {own}, found {unknown}"
            )

    def _records(self, resource: AlteredResource, values: Mapping[str, str | None]) -> list[MetadataRecord]:
        records: list[MetadataRecord] = []
        if MIN_ISR in values and self._image.has_eligible_leader_replicas:
            records.append(ClearElrRecord(topic_name=resource.resource_name))
        records += [
            config_record(resource.resource_type, resource.resource_name, name, value)
            for name, value in values.items()
        ]
        if CORDONED in values and resource.resource_name:
            cordoned = incidents.cordoned(int(resource.resource_name), values[CORDONED] or "")
            records += self._events.records(cordoned)
        return records


def _check_resource(image: MetadataImage, resource_type: ResourceType, name: str) -> None:
    """Raises UnknownTopicOrPartition, BrokerIdNotRegistered, and InvalidRequest if the name is no id of a broker."""
    if resource_type is ResourceType.TOPIC:
        if name not in image.topics:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        return
    broker_id = _broker_id(name)
    if broker_id is not None and broker_id not in image.brokers:
        raise BrokerIdNotRegistered(
            f"broker {broker_id} is not registered; those that are: {sorted(image.brokers)}"
        )


def _broker_id(name: str) -> int | None:
    if name == _ALL_BROKERS:
        return None
    if not name.isdecimal():
        raise InvalidRequest(f"resource: expected a broker's id, or nothing for all brokers, found {name!r}")
    return int(name)


def _what(resource: AlteredResource) -> str:
    if resource.resource_type is ResourceType.TOPIC:
        return f"topic {resource.resource_name!r}"
    return f"broker {resource.resource_name}" if resource.resource_name else "all brokers"
