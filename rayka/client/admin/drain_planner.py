"""What is done next with the nodes on machines that Ray drains. A core: no clock, no IO.

Level-triggered: the mark of a broker in the metadata (`machine.drain.deadline.ms`) and the reassignments under way are
all there is to remember, so the next planner goes on. In this order, and a step only where those before it are done:

1. a broker whose machine does not go any more loses its mark, and takes its leads back;
2. a broker whose machine goes gets its mark: others lead, and it gets no new replicas;
3. the quorum's leader resigns in favour of voters whose machines stay;
4. shortly before the machine goes, or once it holds nothing, a broker is stopped under control, so that it leaves the
   ISRs by itself and no producer waits for it;
5. replicas get other brokers: those first that fewest others hold, then the smallest; only what can be copied before
   the machine goes, at the throttle's rate.

Planning is a generator: one step of it is a few milliseconds at most, however many partitions there are. Decision 073.
"""

from collections.abc import Generator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from heapq import merge

from rayka.client.admin.admin_results import BrokerDescription
from rayka.client.admin.drain_plan import Homeless, Plan, Successors
from rayka.client.admin.drain_steps import (
    BYTES_PER_S_MAX,
    NO_DEADLINE,
    Mark,
    Move,
    Resign,
    Seen,
    Step,
    Stop,
    Unmark,
)
from rayka.client.admin.drain_survey import SLICE, Survey, is_moving, take_survey
from rayka.ids import NO_NODE, TopicPartition, node_name

STOP_BEFORE_MS = 5_000
_PLACED_PER_SLICE = 32
_REPORTED_AFTER_MS = 10_000  # what has come to a disk is in the broker's load report by then
_Waiting = tuple[
    int, int, TopicPartition, tuple[int, ...]
]  # others that hold it, bytes, its replicas: by urgency


class DrainPlanner:
    """Plans for one cluster. It remembers which moves it has begun, so that one which an operator cancels stays
    cancelled, of which brokers it has said what is moved, and what has come to disks since they were reported.
    """

    def __init__(self) -> None:
        self._begun: set[tuple[int, TopicPartition]] = set()
        self._told: set[tuple[int, int]] = set()
        self._coming: dict[tuple[TopicPartition, int], tuple[int, int]] = {}  # when last seen, and bytes

    def __repr__(self) -> str:
        return f"<DrainPlanner begun={len(self._begun)}>"

    def plan(self, seen: Seen) -> Generator[None, None, Step | None]:
        """The next step; None where there is nothing to do but wait."""
        self._begun = {each for each in self._begun if each[0] in seen.drains}
        self._told = {each for each in self._told if seen.drains.get(each[0]) == each[1]}
        survey = yield from take_survey(seen)
        self._note_coming(seen, survey)
        for decide in (_unmark, _mark, _resign, _stop):
            step = decide(seen, survey)
            if step is not None:
                return step
        return (yield from self._move(seen, survey))

    def failed(self, step: Step) -> None:
        """The step was not taken: it may be tried again."""
        if isinstance(step, Move):
            self._begun = {each for each in self._begun if each[1] not in step.plan}
            self._told = {each for each in self._told if each[0] not in step.node_ids}

    # ---- Moving ------------------------------------------------------------------------------------------------------

    def _move(self, seen: Seen, survey: Survey) -> Generator[None, None, Step | None]:
        free_count = max(0, seen.moves_max - survey.moving_count)
        for broker_id, deadline_ms in sorted(
            seen.drains.items(), key=lambda each: (each[1] or 1 << 62, each[0])
        ):
            if broker_id not in seen.sizes:
                continue
            is_told = (broker_id, deadline_ms) in self._told
            if is_told and not free_count:
                return None
            chosen, reason = yield from self._choose(broker_id, seen, survey, free_count if is_told else None)
            batch = dict(list(chosen.items())[:free_count])
            if batch or (reason and not is_told):
                self._told.add((broker_id, deadline_ms))
                self._begun.update((broker_id, each) for each in batch)
                kind = "" if is_told else "drain-moves"
                return Move(node_ids=(broker_id,), reason=reason, kind=kind, plan=batch)
        return None

    def _choose(
        self, broker_id: int, seen: Seen, survey: Survey, count_max: int | None
    ) -> Generator[None, None, tuple[Plan, str]]:
        """The moves that can end before the machine goes, the most urgent first, so many or all of them; and what the
        event says of them.
        """
        waiting = yield from self._waiting(broker_id, seen, survey)
        choice = _Choice(self._successors(broker_id, seen, survey), _bytes_left(broker_id, seen, survey))
        for number, (_, size_bytes, tp, target) in enumerate(merge(*waiting)):
            if len(choice.plan) == count_max:
                break
            choice.add(tp, target, size_bytes)
            if number % _PLACED_PER_SLICE == 0:
                yield
        return choice.plan, choice.said() if waiting else ""

    def _waiting(
        self, broker_id: int, seen: Seen, survey: Survey
    ) -> Generator[None, None, list[list[_Waiting]]]:
        """What may move now, in sorted runs: to sort all of it at once takes too long."""
        held, sizes = survey.held[broker_id], seen.sizes[broker_id]
        runs = []
        for begin in range(0, len(held), SLICE):
            run = [
                (survey.others_in_sync(each, broker_id), sizes.get(tp, 0), tp, each.replicas)
                for tp, each in held[begin : begin + SLICE]
                if not is_moving(each) and each.leader_id != NO_NODE and (broker_id, tp) not in self._begun
            ]
            if run:
                runs.append(sorted(run))
            yield
        return runs

    def _successors(self, broker_id: int, seen: Seen, survey: Survey) -> Successors:
        brokers = [
            replace(BrokerDescription.of(each, ()), replica_count=survey.counts[each.node_id])
            for each in seen.cluster.brokers
        ]
        successors = Successors(broker_id, brokers, {*seen.closed, *seen.drains}, seen.disks, may_fill=True)
        for (_, node_id), (_, size_bytes) in self._coming.items():
            successors.expect(node_id, size_bytes)
        return successors

    def _note_coming(self, seen: Seen, survey: Survey) -> None:
        """What is on its way to a disk, or came there just now, takes of its room: it may not be reported yet."""
        begin_ms = seen.now_ms - _REPORTED_AFTER_MS
        self._coming = {key: each for key, each in self._coming.items() if each[0] > begin_ms}
        for tp, node_id in survey.coming:
            size_bytes = max((sizes.get(tp, 0) for sizes in seen.sizes.values()), default=0)
            self._coming[tp, node_id] = seen.now_ms, size_bytes


class _Choice:
    """Moves that are chosen one by one, and what stays for which reason."""

    def __init__(self, successors: Successors, left_bytes: float) -> None:
        """`left_bytes`: as much can be copied in time."""
        self._successors = successors
        self._left_bytes = left_bytes
        self._chosen_bytes = self._late_count = self._homeless_count = self._crowded_count = 0
        self.plan: Plan = {}

    def __repr__(self) -> str:
        return f"<_Choice {self.said()}>"

    def add(self, topic_partition: TopicPartition, replicas: tuple[int, ...], size_bytes: int) -> None:
        """The next replica, if it can be copied in time and has a place."""
        if self._chosen_bytes + size_bytes > self._left_bytes:
            self._late_count += 1
            return
        found = self._successors.place(topic_partition, replicas, size_bytes)
        if isinstance(found, Homeless):
            self._crowded_count += found.is_crowded
            self._homeless_count += not found.is_crowded
        else:
            self.plan[topic_partition] = found
            self._chosen_bytes += size_bytes

    def said(self) -> str:
        """What moves, and what stays."""
        said = [f"{len(self.plan):,} replicas with {self._chosen_bytes:,} bytes are moved to other brokers"]
        for count, why in (
            (self._late_count, "as copying them takes longer than is left"),
            (self._homeless_count, "as no other broker can take them"),
            (self._crowded_count, "as no other broker has room for them"),
        ):
            said += [f"{count:,} stay, {why}"] if count else []
        return "; ".join(said)


def _unmark(seen: Seen, _: Survey) -> Step | None:
    over = tuple(each for each in sorted(seen.marks) if each not in seen.drains)
    if not over:
        return None
    return Unmark(node_ids=over, reason="Ray drains no machine that it is on", kind="drain-ended")


def _mark(seen: Seen, survey: Survey) -> Step | None:
    """Also once more, while one leads what another broker could: a controller may have died on the way."""
    brokers = {each.node_id: each for each in seen.cluster.brokers}
    wanted = {each: seen.drains[each] for each in sorted(seen.drains) if each in brokers}
    new = {each: ms for each, ms in wanted.items() if seen.marks.get(each) != ms}
    again = {each: ms for each, ms in wanted.items() if each in survey.leading}
    marked = {**new, **again}
    if not marked:
        return None
    if not new:
        return Mark(node_ids=tuple(marked), reason="it leads again", deadlines_ms=marked)
    reason = f"Ray drains its machine{_until(new)}: others lead, and it gets no new replicas"
    return Mark(node_ids=tuple(new), reason=reason, kind="drain-begun", deadlines_ms=marked)


def _resign(seen: Seen, _: Survey) -> Step | None:
    quorum = seen.quorum
    successors = tuple(each for each in quorum.voters if each not in seen.drains and each in seen.actors)
    if quorum.leader_id not in seen.drains or not successors:
        return None
    deadline = {quorum.leader_id: seen.drains[quorum.leader_id]}
    named = ", ".join(map(node_name, successors))
    return Resign(
        node_ids=(quorum.leader_id,),
        reason=f"Ray drains its machine{_until(deadline)}: it leads the metadata no more, {named} may follow",
        kind="drain-resigned",
        leader_epoch=quorum.leader_epoch,
        successors=successors,
    )


def _stop(seen: Seen, survey: Survey) -> Step | None:
    if seen.is_changing:
        return None
    here = [
        each.node_id
        for each in seen.cluster.brokers
        if each.node_id in seen.drains and each.node_id in seen.actors
    ]
    late = tuple(each for each in here if _left_ms(each, seen) <= 0)
    if late:
        count = sum(survey.counts[each] for each in late)
        reason = f"its machine goes within seconds; {count:,} replicas are there still"
        return Stop(node_ids=late, reason=reason, kind="drain-stopped")
    empty = tuple(each for each in here if not survey.counts[each] and each not in seen.quorum.voters)
    return Stop(node_ids=empty, reason="it holds nothing any more", kind="drain-stopped") if empty else None


def _left_ms(node_id: int, seen: Seen) -> float:
    """How long until it is to be stopped."""
    deadline_ms = seen.drains[node_id]
    return float("inf") if deadline_ms == NO_DEADLINE else deadline_ms - STOP_BEFORE_MS - seen.now_ms


def _bytes_left(broker_id: int, seen: Seen, survey: Survey) -> float:
    """What can be copied until then, beside what leaves it already: as if all of it went through one broker."""
    leaving_bytes = sum(
        seen.sizes[broker_id].get(tp, 0) for tp, node_id in survey.leaving if node_id == broker_id
    )
    whole = max(0, _left_ms(broker_id, seen)) * min(seen.bytes_per_s, BYTES_PER_S_MAX) / 1000
    return whole - leaving_bytes


def _until(deadlines_ms: Mapping[int, int]) -> str:
    """` until 18:40:05 UTC`, the first of several; empty where Ray names none."""
    known = [each for each in deadlines_ms.values() if each != NO_DEADLINE]
    return f" until {datetime.fromtimestamp(min(known) / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if known else ""
