"""What a drain planner sees and what it asks for (decision 073). Values."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rayka.client.admin.drain_plan import Plan
from rayka.client.admin.reported_disks import NO_REPORTS, ReportedDisks
from rayka.ids import NO_NODE, TopicPartition
from rayka.protocol.membership import MetadataResponse

NO_DEADLINE = 0
BYTES_PER_S_MAX = 100_000_000  # what is counted on where the throttle allows more


@dataclass(frozen=True, slots=True)
class Quorum:
    """The leader of the metadata, its epoch, and all voters."""

    leader_id: int = NO_NODE
    leader_epoch: int = -1
    voters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is. `now_ms` and deadlines are of the wall clock, in ms; a deadline is 0 where Ray names none.

    `drains`: the nodes whose machines go, and when; `marks`: the brokers that are marked in the metadata; `closed`:
    those that take no new replicas, marked or cordoned; `sizes`: of what each broker in `drains` that answers holds, in
    bytes; `disks`: what brokers have reported of theirs; `actors`: the nodes that have one; `is_changing`: another
    process starts, restarts or changes the cluster.
    """

    now_ms: int
    drains: Mapping[int, int]
    marks: Mapping[int, int]
    cluster: MetadataResponse
    quorum: Quorum = Quorum()
    closed: Collection[int] = ()
    sizes: Mapping[int, Mapping[TopicPartition, int]] = field(default_factory=dict)
    disks: ReportedDisks = NO_REPORTS
    actors: Collection[int] = ()
    moves_max: int = 10
    bytes_per_s: int = BYTES_PER_S_MAX
    is_changing: bool = False


# ---- Steps ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something to do with these nodes, and why; an event of this `kind`, none where that is empty."""

    node_ids: tuple[int, ...]
    reason: str
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmark(Step):
    """The brokers lead and take replicas as any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark(Step):
    """Others lead what these brokers lead, which get no new replicas; until when, for each."""

    deadlines_ms: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resign(Step):
    """The leader of the quorum gives up this epoch in favour of these voters."""

    leader_epoch: int
    successors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Step):
    """The brokers are stopped under control, and their actors ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Step):
    """Partitions get these replicas."""

    plan: Plan
