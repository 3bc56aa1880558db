"""Histories of one partition, step by step, on the real nodes in the simulator: what an operator would see.

A scenario is a file of `scenarios/`: comments that tell the story, and for each step a command line, a line `----` and
what came of it: answers, then every replica with its role, leader epoch, high watermark and records (`epoch:value`).
The outcome is the test: it is compared as a whole, and a change of it is to be read like code.
`python -m tests.sim.partition_scenarios --rewrite [NAME]` writes the outcomes anew.

    cluster replicas=1,2,3 min_isr=2     begins; the partition's first replica leads it
    send a acks=all [to=2] [sequence=0]  one record, to the leader; with a sequence of an idempotent producer
    delete 1                             the records below this offset
    read [from=1]                        what a consumer gets
    late-fetch 3 to=1 epoch=0 offset=2   what a replica asked for in an earlier epoch arrives now
    kill 1, start 1, stop 1              a process; `power-loss 1` a machine, `wipe 1` a disk
    pause 1, resume 1
    cut 1->2 | cut 1 2                   a link, one way or both ways; node 3001 is the controller; `mend` ends it all
    fill 1, rot 1 0, mend-disk 1         a disk
    swap 1 2, swap-back 1                two brokers are started on each other's directories; and on their own again
    create name replicas=4               another topic, with a replication factor
    reassign 1,2,9                       other replicas for the partition
    wait 500                             milliseconds
    until leader=2 | isr=1,2 | all=5     until this one leads, these are in sync, or all have so many records
"""

import sys
from collections.abc import Callable, Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

from rayka.errors import ApiError, ErrorCode
from rayka.ids import TopicIdPartition
from rayka.metadata.image import PartitionImage
from rayka.partition.partition import Partition
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import NO_SEQUENCE, ProducerSequence, split_batches
from rayka.protocol.fetch import FetchPartition, FetchRequest
from rayka.protocol.produce import ACKS_NONE, ProducePartition, ProduceRequest
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    NewTopic,
    Reassignment,
)
from rayka.sim.checks.data_history import Send
from rayka.sim.checks.replica_checkers import batches_of
from rayka.sim.loop import PROCESS, START_US, Process
from rayka.sim.run_options import CLIENT_ID, SimOptions
from rayka.sim.simulation import Quiet, Simulation
from rayka.sim.world.simulated_network import SimPort

DIRECTORY = Path(__file__).parent / "scenarios"
SEPARATOR = "----"
_TOPIC = "orders"
_CONTROLLER = 3001
_TIMEOUT_MS = 1_500
_PATIENCE_MS = 30_000
_CONFIG = {
    "broker_session_timeout_ms": 2_000,
    "broker_heartbeat_interval_ms": 200,
    "replica_lag_time_max_ms": 1_000,
    "replica_fetch_wait_max_ms": 500,
    "replica_fetch_backoff_ms": 100,
    "auto_leader_rebalance_enable": False,
}


class Scenario:
    """One running cluster and its one partition."""

    def __init__(self) -> None:
        self._sim: Simulation | None = None
        self._names: dict[str, Callable[..., Iterator[str]]] = {
            "cluster": self._cluster, "send": self._send, "read": self._read, "late-fetch": self._late_fetch,
            "delete": self._delete, "kill": self._kill,
            "start": self._start, "stop": self._stop, "power-loss": self._power_loss, "wipe": self._wipe,
            "pause": self._pause, "resume": self._resume, "cut": self._cut, "mend": self._mend, "fill": self._fill,
            "rot": self._rot, "mend-disk": self._mend_disk, "wait": self._wait, "until": self._until,
            "swap": self._swap, "swap-back": self._swap_back, "create": self._create, "reassign": self._reassign,
        }  # fmt: skip

    def close(self) -> None:
        if self._sim is not None:
            self._sim.close()

    def run(self, line: str) -> str:
        """What comes of one command."""
        command, *words = line.split()
        options = dict(each.split("=", 1) for each in words if "=" in each)
        given = [each for each in words if "=" not in each]
        said = list(self._names[command](*given, **options))
        return "\n".join([*said, *self._picture()])

    # ---- The picture -------------------------------------------------------------------------------------------------

    def _picture(self) -> Iterator[str]:
        violation = self.sim.checkers.violation
        if violation is not None:
            yield f"VIOLATION {violation}"
        state = self._state()
        for node_id in sorted(state.replicas):
            yield f"  {node_id}  {self._describe(node_id)}"
        eligible = (
            f", eligible {_listed(state.eligible_leader_replicas)}" if state.eligible_leader_replicas else ""
        )
        leader = state.leader_id if state.has_leader else "none"
        yield f"  leader {leader} epoch {state.leader_epoch}, in sync {_listed(state.isr)}{eligible}"

    def _describe(self, node_id: int) -> str:
        machine = self.sim.cluster.machines[node_id]
        if machine.process is None:
            return "down"
        if machine.process.is_paused:
            return "paused"
        if machine.start_failure:
            return f"refuses to start: {machine.start_failure}"
        partition = self._partition(node_id)
        if partition is None:
            return "has no log"
        role = "leader  " if partition.is_leader else "follower"
        problem = " (its log has failed)" if partition.failure or partition.log.failure else ""
        records = " ".join(_records(partition)) or "-"
        return f"{role} epoch {partition.leader_epoch}  hw {partition.high_watermark}  {records}{problem}"

    def _partition(self, node_id: int) -> Partition | None:
        broker = self.sim.cluster.machines[node_id].broker
        parts = broker._parts if broker is not None else None
        found = parts.replicas.partitions if parts is not None else ()
        return next((each for each in found if each.topic_partition.topic == _TOPIC), None)

    @property
    def sim(self) -> Simulation:
        assert self._sim is not None, "a scenario begins with: cluster"
        return self._sim

    def _state(self) -> PartitionImage:
        image = self.sim.ledger.newest_image
        state = image.partition(TopicIdPartition(image.topics[_TOPIC].topic_id, 0))
        assert state is not None
        return state

    # ---- Time --------------------------------------------------------------------------------------------------------

    def _go_on(self, duration_ms: int, is_done: Callable[[], bool] | None = None) -> None:
        now_ms = (self.sim.loop.now_us - START_US) // 1_000
        for until_ms in range(now_ms + 10, now_ms + duration_ms + 10, 10):
            self.sim.run_until_ms(until_ms)
            if is_done is not None and is_done():
                return

    def _wait(self, duration_ms: str) -> Iterator[str]:
        self._go_on(int(duration_ms))
        return iter(())

    def _until(self, *, leader: str = "", isr: str = "", all: str = "") -> Iterator[str]:
        def is_done() -> bool:
            state = self._state()
            logs = [self._partition(each) for each in state.replicas]
            return (
                (not leader or state.leader_id == int(leader))
                and (not isr or sorted(state.isr) == [int(each) for each in isr.split(",")])
                and (not all or [each.high_watermark for each in logs if each] == [int(all)] * len(logs))
            )

        self._go_on(_PATIENCE_MS, is_done)
        if not is_done():
            yield f"not within {_PATIENCE_MS} ms"

    def _ask(self, node_id: int, request: Any) -> Any:
        """The answer, or the ApiError."""
        process = Process(CLIENT_ID, 1)
        context = Context()
        context.run(PROCESS.set, process)
        asking = _asking(self.sim.network.port(process), node_id, request)
        task = self.sim.loop.create_task(asking, context=context)
        self._go_on(_PATIENCE_MS, task.done)
        assert task.done(), self.sim.checkers.violation
        return task.result()

    # ---- Commands ----------------------------------------------------------------------------------------------------

    def _cluster(self, *, replicas: str, min_isr: str = "1", unclean: str = "false") -> Iterator[str]:
        assignment = tuple(int(each) for each in replicas.split(","))
        options = SimOptions(
            seed=1, voters=1, brokers=max(assignment), clients=1, ops_per_second=0.0, faults_per_minute=0.0,
            latency_ms=1.0, jitter_ms=0.0, sync_ms=1.0, config=_CONFIG,
        )  # fmt: skip
        self._sim = Simulation(options)
        self._sim.begin()
        self._go_on(_PATIENCE_MS, lambda: all(each.is_serving for each in self.sim.cluster.machines.values()))
        configs = {"min.insync.replicas": min_isr, "unclean.leader.election.enable": unclean}
        topic = NewTopic(_TOPIC, configs=configs, assignments=(assignment,))
        answer = self._ask(_CONTROLLER, CreateTopicsRequest((topic,)))
        assert answer.topics[0].error_code is ErrorCode.NONE, answer
        self._go_on(_PATIENCE_MS, lambda: all(self._partition(each) is not None for each in assignment))
        self._go_on(100)
        return iter(())

    def _send(self, value: str, *, acks: str = "all", to: str = "", sequence: str = "") -> Iterator[str]:
        node_id = int(to) if to else self._state().leader_id
        topic_id = self.sim.ledger.newest_image.topics[_TOPIC].topic_id
        sends, is_idempotent = self.sim.data_history.sends, bool(sequence)
        if value.encode() not in sends:  # else it is sent again
            send = Send(CLIENT_ID, len(sends), _TOPIC, 0, value.encode(), ACKS_NONE, is_idempotent, 0)
            self.sim.data_history.begin(send)
        numbered = ProducerSequence(CLIENT_ID, 0, int(sequence)) if is_idempotent else NO_SEQUENCE
        records = encode_batch([value.encode()], timestamps_ms=1_700_000_000_000, sequence=numbered)
        partition = ProducePartition(topic_id, 0, records)
        request = ProduceRequest({"all": -1}.get(acks) or int(acks), _TIMEOUT_MS, (partition,))
        answer = self._ask(node_id, request)
        if isinstance(answer, ApiError):
            yield f"{value}: {answer.code.name}"
        elif answer.partitions[0].error_code is not ErrorCode.NONE:
            yield f"{value}: {answer.partitions[0].error_code.name}"
        else:
            yield f"{value} is acknowledged at offset {answer.partitions[0].base_offset}"

    def _read(self, **options: str) -> Iterator[str]:
        node_id = int(options["from"]) if "from" in options else self._state().leader_id
        topic_id = self.sim.ledger.newest_image.topics[_TOPIC].topic_id
        answer = self._ask(node_id, FetchRequest(0, 1, 1 << 20, (FetchPartition(topic_id, 0, 0, 1 << 20),)))
        if isinstance(answer, ApiError):
            yield f"read: {answer.code.name}"
            return
        (result,) = answer.partitions
        if result.error_code is not ErrorCode.NONE:
            yield f"read: {result.error_code.name}"
            return
        yield f"read: {' '.join(_read_values(result.records)) or 'nothing'}"

    def _delete(self, before_offset: str) -> Iterator[str]:
        topic_id = self.sim.ledger.newest_image.topics[_TOPIC].topic_id
        self.sim.replication.truths[TopicIdPartition(topic_id, 0)].deleted_up_to = int(before_offset)
        deleted = DeleteRecordsPartition(topic_id, 0, int(before_offset))
        answer = self._ask(self._state().leader_id, DeleteRecordsRequest(_TIMEOUT_MS, (deleted,)))
        yield _told("deletion", answer.partitions[0])

    def _late_fetch(self, node_id: str, *, to: str, epoch: str, offset: str) -> Iterator[str]:
        image = self.sim.ledger.newest_image
        partition = FetchPartition(
            image.topics[_TOPIC].topic_id, 0, int(offset), 1 << 20,
            current_leader_epoch=int(epoch), last_fetched_epoch=int(epoch), log_start_offset=0,
        )  # fmt: skip
        broker_epoch = image.brokers[int(node_id)].broker_epoch
        request = FetchRequest(
            0, 1, 1 << 20, (partition,), replica_id=int(node_id), replica_epoch=broker_epoch
        )
        answer = self._ask(int(to), request)
        code = answer.code if isinstance(answer, ApiError) else answer.partitions[0].error_code
        yield f"late fetch: {code.name}"
        self._go_on(100)

    def _create(self, name: str, *, replicas: str) -> Iterator[str]:
        answer = self._ask(_CONTROLLER, CreateTopicsRequest((NewTopic(name, 1, int(replicas)),)))
        yield _told(name, answer.topics[0])
        topic = self.sim.ledger.newest_image.topics.get(name)
        if topic is not None:
            (partition,) = topic.partitions
            yield f"{name}: replicas {_listed(partition.replicas)}, in sync {_listed(partition.isr)}"

    def _reassign(self, replicas: str) -> Iterator[str]:
        reassignment = Reassignment(_TOPIC, 0, tuple(int(each) for each in replicas.split(",")))
        answer = self._ask(_CONTROLLER, AlterPartitionReassignmentsRequest((reassignment,)))
        yield _told("reassignment", answer.partitions[0])
        self._go_on(_TIMEOUT_MS)

    def _kill(self, node_id: str) -> Iterator[str]:
        self.sim.cluster.kill(int(node_id))
        return iter(())

    def _start(self, node_id: str) -> Iterator[str]:
        self.sim.cluster.start(int(node_id))
        machine = self.sim.cluster.machines[int(node_id)]
        self._go_on(_PATIENCE_MS, lambda: machine.is_serving)
        self._go_on(20)
        return iter(())

    def _stop(self, node_id: str) -> Iterator[str]:
        self.sim.cluster.stop(int(node_id))
        self._go_on(_PATIENCE_MS, lambda: self.sim.cluster.machines[int(node_id)].process is None)
        return iter(())

    def _power_loss(self, node_id: str) -> Iterator[str]:
        self.sim.replication.on_damaged(int(node_id), "power loss", False)
        self.sim.cluster.kill(int(node_id), is_silent=True)
        self.sim.cluster.machines[int(node_id)].disk.power_loss(_Worst())  # type: ignore[arg-type]
        return iter(())

    def _wipe(self, node_id: str) -> Iterator[str]:
        machine = self.sim.cluster.machines[int(node_id)]
        self.sim.cluster.kill(int(node_id), is_silent=True)
        done: list[None] = []
        self.sim.repairs.wipe(machine, lambda: done.append(None))
        self._go_on(_PATIENCE_MS, lambda: bool(done))
        return iter(())

    def _pause(self, node_id: str) -> Iterator[str]:
        process = self.sim.cluster.machines[int(node_id)].process
        assert process is not None, node_id
        process.is_paused = True
        return iter(())

    def _resume(self, node_id: str) -> Iterator[str]:
        process = self.sim.cluster.machines[int(node_id)].process
        assert process is not None, node_id
        self.sim.loop.resume(process)
        self._go_on(20)
        return iter(())

    def _cut(self, *links: str) -> Iterator[str]:
        if len(links) == 2:
            a, b = map(int, links)
            self.sim.network.links.cut([(a, b), (b, a)])
        else:
            sender, receiver = map(int, links[0].split("->"))
            self.sim.network.links.cut([(sender, receiver)])
        return iter(())

    def _mend(self) -> Iterator[str]:
        self.sim.network.heal()
        return iter(())

    def _fill(self, node_id: str) -> Iterator[str]:
        self.sim.cluster.machines[int(node_id)].disk.fill_up(0)
        return iter(())

    def _mend_disk(self, node_id: str) -> Iterator[str]:
        self.sim.repairs.mend_disk(self.sim.cluster.machines[int(node_id)])
        self._go_on(_PATIENCE_MS, lambda: self.sim.cluster.machines[int(node_id)].is_serving)
        self._go_on(20)
        return iter(())

    def _rot(self, node_id: str, place: str) -> Iterator[str]:
        """A bit of the batch at that place of the log; the last one has none behind it, and cannot be chosen."""
        partition = self._partition(int(node_id))
        assert partition is not None, node_id
        disk = self.sim.cluster.machines[int(node_id)].disk
        names = [each for each in disk.names_in(partition.log.directory) if each.endswith(".log")]
        count = sum(1 for _ in batches_of(partition.log, partition.log.log_start_offset))
        self.sim.replication.on_damaged(int(node_id), "bit rot", True)
        disk.rot(f"{partition.log.directory}/{names[0]}", int(place) / (count - 1), 30)
        return iter(())

    def _swap(self, one: str, other: str) -> Iterator[str]:
        machines = self.sim.cluster.machines
        self.sim.cluster.swap(machines[int(one)], machines[int(other)])
        self._go_on(20)
        return iter(())

    def _swap_back(self, node_id: str) -> Iterator[str]:
        machine = self.sim.cluster.machines[int(node_id)]
        self.sim.cluster.undo_swap(machine)
        self._go_on(_PATIENCE_MS, lambda: all(each.is_serving for each in self.sim.cluster.machines.values()))
        self._go_on(20)
        return iter(())


class _Worst:
    """What a power cut takes is all that it can."""

    def randint(self, low: int, high: int) -> int:
        return low

    def random(self) -> float:
        return 0.0

    def randrange(self, end: int) -> int:
        return 0

    def choice(self, options: Any) -> Any:
        return options[0]

    def randbytes(self, count: int) -> bytes:
        return bytes(count)


async def _asking(port: SimPort, node_id: int, request: Any) -> Any:
    try:
        return await port.call(node_id, request, 2 * _TIMEOUT_MS)
    except ApiError as error:
        return error


def _told(what: str, result: Any) -> str:
    is_done = result.error_code is ErrorCode.NONE
    return f"{what}: {'done' if is_done else f'{result.error_code.name}: {result.error_message}'}"


def _listed(ids: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, sorted(ids)))}]"


def _records(partition: Partition) -> Iterator[str]:
    for batch in batches_of(partition.log, partition.log.log_start_offset):
        if not batch.is_crc_valid():
            yield f"{batch.leader_epoch}:(rotten)"
            continue
        for value in decode(batch, check_crc=False).values_list():
            yield f"{batch.leader_epoch}:{(value or b'').decode()}"


def _read_values(records: Any) -> Iterator[str]:
    for batch in split_batches(records):
        if not batch.is_crc_valid():
            yield "(CRC wrong)"
            return
        for value in decode(batch).values_list():
            yield (value or b"").decode()


# ---- Files -----------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    return sorted(each.stem for each in DIRECTORY.glob("*.txt"))


def read(name: str) -> str:
    return (DIRECTORY / f"{name}.txt").read_text()


def play(text: str) -> str:
    """The same scenario with the outcomes of now."""
    scenario, lines = Scenario(), []
    is_outcome = False
    with Quiet():
        for line in text.splitlines():
            if line == SEPARATOR:
                lines += [SEPARATOR, scenario.run(lines[-1])]
                is_outcome = True
            elif not line or not is_outcome:
                lines.append(line)
                is_outcome = False
        scenario.close()
    return "\n".join(lines) + "\n"


def main(*arguments: str) -> None:
    wanted = [each for each in arguments if not each.startswith("--")]
    for name in wanted or names():
        played = play(read(name))
        if "--rewrite" in arguments:
            (DIRECTORY / f"{name}.txt").write_text(played)
        else:
            print(played)


if __name__ == "__main__":
    main(*sys.argv[1:])
