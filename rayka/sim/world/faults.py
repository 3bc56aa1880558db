"""The faults of a run, drawn before it begins, as a list: a subset of it can be replayed, so a failure can be shrunk.

What a fault may hit keeps the promise under test honest: a voter's synced bytes are lost (wiped, rotten) only for a
minority of the voters in one run, and those of one broker; everything else may happen to all of them, and at once.
"""

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayka.sim.run_options import SimOptions


class FaultKind(StrEnum):
    """The kinds of faults. The value is the name in a trace."""

    KILL = "kill"  # the process ends; the page cache survives
    POWER_LOSS = "power-loss"  # the machine ends; what was not synced is lost or torn
    POWER_LOSS_ALL = "power-loss-all"
    STOP = "stop"  # a controlled shutdown, and a start
    PAUSE = "pause"
    ISOLATE = "isolate"  # a node and all others, both ways
    CUT_LINK = "cut-link"  # one link, both ways
    CUT_ONE_WAY = "cut-one-way"  # one link, one way
    DEAFEN = "deafen"  # a node receives nothing, but sends
    SPLIT = "split"  # two halves
    CLOG = "clog"  # one link is slow
    SLOW_DISK = "slow-disk"
    FULL_DISK = "full-disk"
    DISK_ERROR = "disk-error"  # the next sync fails
    WALL_CLOCK = "wall-clock"  # it jumps
    BIT_ROT = "bit-rot"  # a bit of the log is flipped, and the process restarts
    WIPE = "wipe"  # the disk is replaced by an empty one
    SWAP = "swap"  # two nodes are started on each other's directories


DAMAGING = (FaultKind.WIPE, FaultKind.BIT_ROT)
_RARE = (*DAMAGING, FaultKind.POWER_LOSS_ALL, FaultKind.FULL_DISK, FaultKind.DISK_ERROR)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: when it begins, how long it lasts, which node it hits. `amount` is what the kind makes of it, in [0,
    1).
    """

    number: int
    kind: FaultKind
    begin_ms: int
    duration_ms: int
    node_id: int
    peer_ids: tuple[int, ...]
    amount: float

    def __str__(self) -> str:
        peers = ",".join(map(str, self.peer_ids))
        return f"#{self.number} {self.kind} of {self.node_id}{' and ' * bool(peers)}{peers} for {self.duration_ms} ms"


def draw_faults(options: "SimOptions") -> list[Fault]:
    """The faults of the run, in order of their time: those that were chosen of all that its seed draws."""
    random = Random(f"faults {options.seed}")
    if not options.faults_per_minute or not options.fault_kinds:
        return []
    faults: list[Fault] = []
    damaged: list[int] = []
    at_ms = 0.0
    while True:
        at_ms += random.expovariate(1) * 60_000 / options.faults_per_minute
        if at_ms >= options.seconds * 1000:
            only = options.only_faults
            return [each for each in faults if only is None or each.number in only]
        fault = _draw(random, options, len(faults), int(at_ms))
        if fault.kind in DAMAGING and not _may_damage(options, damaged, fault.node_id):
            continue
        faults.append(fault)


def _may_damage(options: "SimOptions", damaged: list[int], node_id: int) -> bool:
    """Whether this one may lose what it had synced, too; only a broker may lose it twice."""
    if node_id in damaged:
        return node_id not in options.controller_ids
    for group, damaged_max in options.damage_limits:
        if node_id in group and sum(each in group for each in damaged) >= damaged_max:
            return False
    damaged.append(node_id)
    return True


def _draw(random: Random, options: "SimOptions", number: int, begin_ms: int) -> Fault:
    kind = random.choice(options.fault_kinds)
    if kind in _RARE:
        kind = random.choice((kind, random.choice(options.fault_kinds)))
    node_ids = options.node_ids
    # Most faults hit what is under test: the quorum, or the replicas.
    holders = (*options.broker_ids, *options.coordinator_ids)
    tested, others_too = (holders, True) if options.topics else (options.controller_ids, False)
    among = tested if random.random() < 0.7 else node_ids
    if kind is FaultKind.BIT_ROT and not others_too:
        among = options.controller_ids
    node_id = random.choice(among)
    known = (*node_ids, *options.client_ids, *options.data_client_ids)
    if kind is FaultKind.SWAP:
        kinds = (options.broker_ids, options.coordinator_ids, options.controller_ids)
        known = next(each for each in kinds if node_id in each)
    others = [each for each in known if each != node_id]
    return Fault(
        number,
        kind,
        begin_ms,
        int(random.choice((50, 500, 2_000, 8_000)) * (0.5 + random.random())),
        node_id,
        _peers(random, kind, others),
        random.random(),
    )


def _peers(random: Random, kind: FaultKind, others: list[int]) -> tuple[int, ...]:
    if kind in (FaultKind.CUT_LINK, FaultKind.CUT_ONE_WAY, FaultKind.CLOG):
        return (random.choice(others),)
    if kind is FaultKind.SWAP and others:
        return (random.choice(others),)
    if kind in (FaultKind.ISOLATE, FaultKind.DEAFEN):
        return tuple(others)
    if kind is FaultKind.SPLIT:
        return tuple(each for each in others if random.random() < 0.5)
    return ()
