"""What a run looks like: every knob drawn from the seed, so that each run is another mixture (swarm testing).

A kind of fault is on in some runs and off in others: bugs hide behind faults that occur too often as well as behind
those that never do. Kafka: the seeds of `RaftEventSimulationTest`; FoundationDB's swarm of knobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from rayka.ids import FIRST_BROKER_ID, FIRST_CONTROLLER_ID, FIRST_COORDINATOR_ID
from rayka.shard.runtime import STEPS_PER_TURN
from rayka.sim.world.faults import DAMAGING, FaultKind

# What the consumer group of a run looks like: how its members read and commit, and what happens to its topics.
#
# Drawn from the seed by a random of its own, so what else the seed draws stays as it is.


_SHARE = 0.5  # of the seeds; runs without topics, or with compacted ones, have no group
_DEATHS = 0.25  # of the groups
_PARTITIONS_MAX = 6  # of a topic that grows


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The group of one run. `static_count` members have a `group_instance_id`, the others have none."""

    assignor: str = "range"
    static_count: int = 0
    is_automatic: bool = False  # members commit by themselves, every second
    grows: bool = False  # its topics get more partitions
    has_zombies: bool = False  # members stand still, and a dead one's last commit comes late
    has_death: bool = False  # members do not come and go; one of them dies, and does not come back

    def next_partition_count(self, partition_count: int) -> int:
        """The next number of partitions of a topic; the same number when the topic is large enough."""
        return min(partition_count + 1, max(_PARTITIONS_MAX, partition_count))


def draw_group(seed: int) -> dict[str, Any]:
    """Members, coordinators and the plan; half of the seeds have no members unless these are asked for."""
    random = Random(f"group swarm {seed}")
    members = random.choice((2, 3, 3, 4)) * (random.random() < _SHARE)
    return {
        "members": members,
        "coordinators": random.choice((1, 1, 2)),
        "group": GroupPlan(
            assignor=random.choice(("range", "roundrobin", "sticky", "cooperative-sticky")),
            static_count=random.choice((0, 0, 1, 4)),
            is_automatic=random.random() < 0.5,
            grows=random.random() < 0.5,
            has_zombies=random.random() < 0.5,
            has_death=Random(f"group death {seed}").random() < _DEATHS,
        ),
    }


# What the brokers of a run do that come and go, and the balancing and healing that this asks for.
#
# Drawn from the seed by a random of its own, so what else the seed draws stays as it is.


BROKERS_MIN = 3  # that are there at the begin, and the largest replication factor


@dataclass(frozen=True, slots=True)
class ElasticPlan:
    """The pace of brokers that come and go, and whether a broker dies for good."""

    scaling_pause_s: float = 4.0  # between what the operator does: brokers that join or leave, balances
    flap_pause_s: float = 8.0  # between brokers that end and begin several times
    has_death: bool = False
    # Between machines that Ray drains, one after another, of two at a time; 0 for none.
    drain_pause_s: float = 0.0


def draw_elastic(seed: int) -> ElasticPlan:
    """The plan, for a run that is asked for brokers that come."""
    random = Random(f"elastic swarm {seed}")
    return ElasticPlan(
        scaling_pause_s=random.choice((1.0, 4.0)),
        flap_pause_s=random.choice((4.0, 15.0)),
        has_death=random.random() < 0.6,
        drain_pause_s=random.choice((0.0, 3.0, 10.0)),
    )


def elastic_config(seed: int) -> dict[str, Any]:
    """Healing and balances within a run."""
    random = Random(f"elastic config {seed}")
    return {
        "broker_unavailable_timeout_ms": random.choice((3_000, 8_000)),
        "balancer_settle_ms": random.choice((500, 3_000)),
        "balancer_moves_max": random.choice((1, 2, 10)),
        "reassignment_replication_throttled_rate": random.choice((5_000, 100_000_000)),
        "replica_lag_time_max_ms": random.choice((2_000, 10_000)),
        "replica_fetch_wait_max_ms": 500,
        "leader_imbalance_check_interval_seconds": 5,
    }


CLIENT_ID = 9001  # clients are nodes of the network, too
PRODUCER_ID = 9101
CONSUMER_ID = 9201
OPERATOR_ID = 9301
REGISTER_CLIENT_ID = 9401
GROUP_MEMBER_ID = 9501
GROUP_OPERATOR_ID = 9601
SCALING_ID = 9701
DRAINER_ID = 9801
_COPY_BYTES = 100_000
_RESTLESS_MAX = 3  # brokers whose sessions may end without a fault
_EVERYDAY = tuple(kind for kind in FaultKind if kind is not FaultKind.SWAP)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that producers write to and consumers read."""

    name: str
    partition_count: int = 1
    replication_factor: int = 3
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")


@dataclass(frozen=True, slots=True)
class LanePlan:
    """The direct lanes of a run; without any it is as with the transport `ray`."""

    share: float = 0.0  # of the pairs of a caller and a node that get one
    latency_ms: float = 0.1
    jitter_ms: float = 0.1
    breaks: float = 0.0  # of the calls, while which their lane breaks
    death_news_ms: float = 0.0  # how much later than a message Ray tells of the end of a process


NO_LANES = LanePlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """One run. `faults_per_minute` 0 is a cluster without faults."""

    seed: int
    seconds: float = 60.0
    voters: int = 3
    brokers: int = 3
    comers: int = 0  # brokers that are not there at the begin: they join, and any broker may leave
    elastic: ElasticPlan = field(default_factory=ElasticPlan)
    coordinators: int = 0
    combined: bool = False  # the voters are brokers, too
    clients: int = 2
    ops_per_second: float = 10.0
    voter_changes: bool = False
    topics: tuple[TopicPlan, ...] = ()
    producers: int = 2
    consumers: int = 1
    records_per_second: float = 20.0
    members: int = 0  # of a group that reads all topics
    group: GroupPlan = field(default_factory=GroupPlan)
    compacts_offsets: bool = False  # what the group commits is compacted, and loaded from what is left
    registers: int = 0  # clients of a toy state machine that brokers host
    compacts: bool = False  # topics keep the newest record of each key
    expires: bool = False  # topics lose what is old, or more than they may have, within a run
    operations_per_minute: float = 0.0  # what an operator asks about partitions
    faults_per_minute: float = 20.0
    fault_kinds: tuple[FaultKind, ...] = tuple(FaultKind)
    only_faults: tuple[int, ...] | None = None
    latency_ms: float = 1.0
    jitter_ms: float = 1.0
    loss: float = 0.0
    duplication: float = 0.0
    lanes: LanePlan = NO_LANES
    sync_ms: float = 2.0
    steps_per_turn: int = STEPS_PER_TURN  # of a long request to the controller
    config: dict[str, Any] = field(default_factory=dict)
    checks: bool = True

    def __post_init__(self) -> None:
        assert not self.combined or self.brokers >= self.voters, "a combined cluster has no controller alone"

    @property
    def controller_ids(self) -> tuple[int, ...]:
        first = FIRST_BROKER_ID if self.combined else FIRST_CONTROLLER_ID
        return tuple(range(first, first + self.voters))

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The brokers of the beginning, then the brokers that come."""
        return tuple(range(FIRST_BROKER_ID, FIRST_BROKER_ID + self.brokers + self.comers))

    @property
    def coordinator_ids(self) -> tuple[int, ...]:
        return tuple(range(FIRST_COORDINATOR_ID, FIRST_COORDINATOR_ID + self.coordinators))

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Controllers, then brokers, then coordinators; a node that is both is there once."""
        return tuple(dict.fromkeys((*self.controller_ids, *self.broker_ids, *self.coordinator_ids)))

    @property
    def client_ids(self) -> tuple[int, ...]:
        return tuple(range(CLIENT_ID, CLIENT_ID + self.clients))

    @property
    def producer_ids(self) -> tuple[int, ...]:
        return tuple(range(PRODUCER_ID, PRODUCER_ID + self.producers)) if self.topics else ()

    @property
    def consumer_ids(self) -> tuple[int, ...]:
        return tuple(range(CONSUMER_ID, CONSUMER_ID + self.consumers)) if self.topics else ()

    @property
    def group_member_ids(self) -> tuple[int, ...]:
        return tuple(range(GROUP_MEMBER_ID, GROUP_MEMBER_ID + self.members)) if self.topics else ()

    @property
    def data_client_ids(self) -> tuple[int, ...]:
        ids = (*self.producer_ids, *self.consumer_ids, *self.group_member_ids, OPERATOR_ID)
        if self.members and self.group.grows:
            ids = (*ids, GROUP_OPERATOR_ID)
        if self.comers:
            ids = (*ids, SCALING_ID, DRAINER_ID)
        return ids if self.topics else ()

    @property
    def damage_limits(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """How many nodes may lose what they had synced: a minority of the voters; one of several brokers and the
        coordinators.
        """
        holders = (*self.broker_ids, *self.coordinator_ids)
        return (self.controller_ids, (self.voters - 1) // 2), (holders, min(1, self.brokers - 1))


def swarm(seed: int, **chosen: Any) -> SimOptions:
    """The options that a seed stands for; what is `chosen`, and not None, is as given."""
    random = Random(f"swarm {seed}")
    drawn: dict[str, Any] = {
        "voters": random.choice((1, 3, 3, 3, 3, 5, 5)),
        "brokers": random.choice((1, 2, 3)),
        "clients": random.choice((1, 2, 3)),
        "ops_per_second": random.choice((2.0, 5.0, 10.0, 20.0)),
        "faults_per_minute": random.choice((6.0, 15.0, 30.0, 60.0)),
        "fault_kinds": tuple(kind for kind in _EVERYDAY if random.random() < 0.5),
        "latency_ms": random.choice((0.2, 1.0, 5.0, 20.0)),
        "jitter_ms": random.choice((0.1, 1.0, 10.0, 50.0)),
        "loss": random.choice((0.0, 0.0, 0.001, 0.01, 0.05)),
        "duplication": random.choice((0.0, 0.0, 0.01, 0.05)),
        "sync_ms": random.choice((0.1, 1.0, 5.0, 30.0)),
        "config": _config(random),
        "voter_changes": random.random() < 0.25,
    }
    drawn |= _data(seed, chosen.get("brokers") or drawn["brokers"])
    drawn["config"] |= drawn.pop("replication")
    if drawn["voter_changes"]:  # a voter that was removed leaves fewer that may lose their disks
        drawn["fault_kinds"] = tuple(kind for kind in drawn["fault_kinds"] if kind not in DAMAGING)
        drawn["config"]["controller_quorum_auto_join_enable"] = False
    drawn |= _apart(seed, drawn["fault_kinds"])
    drawn["lanes"] = _lanes(seed)
    drawn["elastic"] = draw_elastic(seed)
    drawn["comers"] = _comers(seed) if _may_have_comers(drawn, chosen) else 0
    drawn |= _together(seed, drawn, chosen)
    drawn |= {name: value for name, value in chosen.items() if value is not None}
    if drawn["comers"]:
        drawn |= _elastic(seed, drawn, chosen)
    if not drawn["members"] and chosen.get("coordinators") is None:
        drawn["coordinators"] = 0
    if drawn["combined"]:
        drawn["brokers"] = max(drawn["brokers"], drawn["voters"])
    if drawn["members"]:
        drawn["config"] = drawn["config"] | _group_config(drawn["brokers"] + drawn["coordinators"])
        # A copy of the offsets must be faster than members commit, however slow the network is.
        if drawn["comers"]:
            drawn["config"]["replica_fetch_max_bytes"] = _COPY_BYTES
        if drawn["compacts_offsets"]:
            drawn["config"] = drawn["config"] | _compacted_offsets(seed)
    if drawn["compacts"]:
        drawn |= _compacted(seed, drawn)
    if drawn["expires"]:
        drawn |= _expiring(seed, drawn)
    holder_count = drawn["brokers"] + drawn["comers"] + drawn["coordinators"]
    is_restless = holder_count > _RESTLESS_MAX or drawn["members"]
    if is_restless and chosen.get("config") is None:
        drawn["config"] = _at_rest(drawn["config"])
    return SimOptions(seed=seed, **drawn)


def _apart(seed: int, fault_kinds: tuple[FaultKind, ...]) -> dict[str, Any]:
    """What most runs have not, drawn for itself: the other draws of a seed stay as they were."""
    random = Random(f"apart swarm {seed}")
    is_combined, has_swaps = random.random() < 0.25, random.random() < 0.25
    return {
        "combined": is_combined,
        "fault_kinds": (*fault_kinds, *((FaultKind.SWAP,) * has_swaps)),
        "steps_per_turn": random.choice((1, 2, STEPS_PER_TURN)),
        "registers": random.choice((0, 0, 0, 2)),
        "compacts": Random(f"compaction swarm {seed}").random() < 0.2,
        "expires": Random(f"retention swarm {seed}").random() < 0.2,
        "compacts_offsets": Random(f"compacted offsets swarm {seed}").random() < 1 / 3,
    }


def _together(seed: int, drawn: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """The group, and whether topics lose records beside it.

    All that is chosen goes together. A chosen group leaves out drawn compaction and retention; chosen compaction,
    retention and comers leave out a drawn group. One half of the seeds combine all that they draw. In the other half a
    group gives way to compaction and comers, and retention gives way to the group.
    """
    if chosen.get("members") is not None:
        group = draw_group(seed)
        return group | {"compacts": False, "expires": False} if chosen["members"] else group
    is_left_out = any(chosen.get(each) for each in ("comers", "compacts", "expires"))
    combines = not is_left_out and Random(f"together swarm {seed}").random() < 0.5
    group = _grouped(seed, drawn, gives_way=drawn["compacts"] and not combines)
    if is_left_out or (drawn["comers"] and not combines):
        group["members"] = 0
    if group["members"] and not combines:
        group["expires"] = False
    return group


def _grouped(seed: int, drawn: dict[str, Any], *, gives_way: bool) -> dict[str, Any]:
    """A group in some of the runs with topics, which get partitions for several members."""
    group = draw_group(seed)
    if gives_way or not drawn["topics"] or not group["members"]:
        return group | {"members": 0}
    random = Random(f"group topics {seed}")
    counts = [random.choice((1, 2, 4)) for _ in drawn["topics"]]
    topics = (
        replace(each, partition_count=count) for each, count in zip(drawn["topics"], counts, strict=True)
    )
    return group | {"topics": tuple(topics)}


def _comers(seed: int) -> int:
    """Brokers that come, in one of eight runs."""
    random = Random(f"comers swarm {seed}")
    return random.choice((2, 3)) if random.random() < 0.125 else 0


def _may_have_comers(drawn: dict[str, Any], chosen: dict[str, Any]) -> bool:
    """Not where something is chosen that is another with them."""
    others = ("brokers", "combined", "comers", "coordinators", "members", "topics")
    return bool(drawn["topics"]) and all(chosen.get(each) is None for each in others)


def _elastic(seed: int, drawn: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """Brokers enough for three replicas while some are away, topics worth a balance, and no disk that is lost beside
    the one of a broker that dies for good. What is chosen stays.
    """
    random = Random(f"elastic topics {seed}")
    brokers = max(BROKERS_MIN, drawn["brokers"])
    topics = tuple(
        replace(_topic(random, f"data{number}", brokers), partition_count=random.choice((2, 3, 5)))
        for number in range(random.choice((1, 2)))
    )
    left_out = (*DAMAGING, FaultKind.WALL_CLOCK)
    found = {
        "voters": random.choice((1, 3, 3)),
        "brokers": brokers,
        "combined": False,
        "ops_per_second": random.choice((1.0, 3.0)),  # of other topics a few, which take part in balances
        "consumers": 1,
        "topics": tuple(replace(each, replication_factor=max(2, each.replication_factor)) for each in topics),
        "faults_per_minute": random.choice((0.0, 6.0, 15.0, 30.0)),
        "fault_kinds": tuple(each for each in drawn["fault_kinds"] if each not in left_out),
        "config": drawn["config"] | elastic_config(seed),
    }
    return {name: value for name, value in found.items() if chosen.get(name) is None}


def _compacted(seed: int, drawn: dict[str, Any]) -> dict[str, Any]:
    """The topics, compacted all the time, some by maps that are too small for one cleaning."""
    random = Random(f"compacted topics {seed}")
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": "1200",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": random.choice(("1000", "10000")),
        "min.compaction.lag.ms": random.choice(("0", "0", "5000")),
    }
    config = {
        "log_cleaner_backoff_ms": random.choice((100, 1_000)),
        "log_cleaner_dedupe_buffer_size": random.choice((1 << 10, 1 << 20)),
    }
    topics = tuple(replace(each, configs=each.configs | configs) for each in drawn["topics"])
    return {"topics": topics, "config": drawn["config"] | config}


def _expiring(seed: int, drawn: dict[str, Any]) -> dict[str, Any]:
    """The topics, by age, by size, or both; compacted ones are compacted, too (F28)."""
    random = Random(f"expiring topics {seed}")
    retention_ms, retention_bytes = random.choice(
        (("1000", "-1"), ("5000", "-1"), ("-1", "3000"), ("5000", "3000"))
    )
    configs = {
        "cleanup.policy": "compact,delete" if drawn["compacts"] else "delete",
        "segment.bytes": "1200",
        "retention.ms": retention_ms,
        "retention.bytes": retention_bytes,
        "file.delete.delay.ms": random.choice(("0", "1000")),
    }
    config = {"log_retention_check_interval_ms": random.choice((100, 1_000))}
    topics = tuple(replace(each, configs=each.configs | configs) for each in drawn["topics"])
    return {"topics": topics, "config": drawn["config"] | config}


def _group_config(holder_count: int) -> dict[str, Any]:
    """Groups that form and end within a run."""
    return {
        "offsets_topic_num_partitions": 2,
        "offsets_topic_replication_factor": min(3, holder_count),
        "group_initial_rebalance_delay_ms": 100,
        "group_min_session_timeout_ms": 1_000,
    }


def _compacted_offsets(seed: int) -> dict[str, Any]:
    """Coordinators load a log of small segments that are compacted all the time, also by maps that are too small for
    one cleaning, and without the tombstones of what was removed a moment ago.
    """
    random = Random(f"compacted offsets {seed}")
    return {
        "offsets_topic_segment_bytes": 1_200,
        "log_cleaner_backoff_ms": random.choice((100, 1_000)),
        "log_cleaner_dedupe_buffer_size": random.choice((1 << 10, 1 << 20)),
        "log_cleaner_delete_retention_ms": random.choice((1_000, 24 * 3_600 * 1_000)),
    }


def _lanes(seed: int) -> LanePlan:
    """Drawn for itself, too. A lane may be slower than Ray, so that calls of either way overtake those of the other."""
    random = Random(f"lanes swarm {seed}")
    return LanePlan(
        share=random.choice((0.0, 0.5, 1.0, 1.0)),
        latency_ms=random.choice((0.1, 1.0, 20.0)),
        jitter_ms=random.choice((0.01, 1.0, 20.0)),
        breaks=random.choice((0.0, 0.001, 0.01, 0.05)),
        death_news_ms=random.choice((0.0, 100.0, 1_000.0)),
    )


def _at_rest(config: dict[str, Any]) -> dict[str, Any]:
    """Heartbeats at most half a session apart; Kafka logs an error for more (KAFKA-19432).

    A session that ends between two of them ends without any fault, again and again. That makes elections, which a few
    brokers still find time between; of many there is always one that has just been fenced. And a group needs a
    coordinator for as long as a rebalance lasts.
    """
    half_ms = config["broker_session_timeout_ms"] // 2
    return config | {"broker_heartbeat_interval_ms": min(config["broker_heartbeat_interval_ms"], half_ms)}


def with_faults(options: SimOptions, numbers: Sequence[int]) -> SimOptions:
    """The same run with only these of its faults."""
    return replace(options, only_faults=tuple(numbers))


def _data(seed: int, brokers: int) -> dict[str, Any]:
    """Draws topics with records, in most runs, and their producers, consumers and operators."""
    random = Random(f"data swarm {seed}")
    replication = _replication(random)
    if random.random() < 0.25:
        return {"topics": (), "replication": replication}
    return {
        "topics": tuple(
            _topic(random, f"data{number}", brokers) for number in range(random.choice((1, 1, 2)))
        ),
        "producers": random.choice((1, 2, 3)),
        "consumers": random.choice((1, 1, 2)),
        "records_per_second": random.choice((5.0, 15.0, 40.0)),
        "operations_per_minute": random.choice((0.0, 0.0, 10.0, 30.0)),
        "replication": replication,
    }


def _replication(random: Random) -> dict[str, Any]:
    """Draws how soon a follower is late, and how much it fetches at once."""
    return {
        "replica_lag_time_max_ms": random.choice((500, 2_000, 10_000)),
        "replica_fetch_wait_max_ms": random.choice((50, 200, 500)),
        "replica_fetch_max_bytes": random.choice((500, 1 << 20)),
        "replica_fetch_backoff_ms": random.choice((50, 1_000)),
        "replica_high_watermark_checkpoint_interval_ms": random.choice((200, 5_000)),
        "leader_imbalance_check_interval_seconds": random.choice((2, 300)),
    }


def _topic(random: Random, name: str, brokers: int) -> TopicPlan:
    """Three replicas and two in sync are what most people have; the rest is what they meet on the way."""
    replication_factor = min(brokers, random.choice((1, 2, 3, 3, 3, 3)))
    configs = {
        "min.insync.replicas": str(min(replication_factor, random.choice((1, 2, 2, 2)))),
        "segment.bytes": str(random.choice((1_200, 10_000, 1 << 20))),
    }
    if random.random() < 0.15:
        configs["unclean.leader.election.enable"] = "true"
    if random.random() < 0.2:
        configs["flush"] = "batch"
    if random.random() < 0.1:
        configs["message.timestamp.type"] = "LogAppendTime"
    return TopicPlan(name, random.choice((1, 1, 2)), replication_factor, configs)


def _config(random: Random) -> dict[str, Any]:
    """Timeouts and sizes; some runs with snapshots so frequent that everything is about them."""
    election_ms = random.choice((150, 500, 1_000))
    snapshot_bytes = random.choice((2_000, 20_000, 20 << 20))
    return {
        "controller_quorum_election_timeout_ms": election_ms,
        "controller_quorum_fetch_timeout_ms": 2 * election_ms,
        "controller_quorum_request_timeout_ms": 2 * election_ms,
        "controller_quorum_election_backoff_max_ms": election_ms,
        "controller_quorum_auto_join_enable": random.random() < 0.5,
        "metadata_log_max_record_bytes_between_snapshots": snapshot_bytes,
        "metadata_max_retention_bytes": random.choice((4_000, 40_000, 100 << 20)),
        "log_segment_delete_delay_ms": 1_000,  # so runs are long enough for it
        "broker_session_timeout_ms": random.choice((2_000, 9_000)),
        "broker_heartbeat_interval_ms": random.choice((500, 2_000)),
    }
