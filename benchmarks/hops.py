"""Where the time of one acks=all write goes: by Ray's remote methods, and by the direct lane.

`python -m benchmarks.hops --svg rayka/docs/where-the-time-goes.svg` measures and draws. One record of 1 KB is in flight
at a time, so the notes between its send and its result are its own (`hop_marks`); of the two followers the one that
answers last is followed. Nothing in rayka knows of this: the functions are wrapped from outside in each process.
"""

import os
import statistics
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

import rayka
from benchmarks import hop_marks
from benchmarks.harness import quantile
from benchmarks.hop_drawing import Drawn, Hop, drawing
from benchmarks.hop_marks import Note
from benchmarks.stage import cpu_seconds, local_ray, pid_of, running_cluster
from rayka.options import Transport

APPLICATION, IO_THREAD, LEADER, FOLLOWER = "application's thread", "client's IO thread", "leader", "follower"
BEGIN, END = "send", "result"
# What ends at each mark that is passed in turn, in which lane it is drawn, and whether it is a way between them.
HOPS = (
    Hop("the IO thread begins", "send(), and over to the IO thread", IO_THREAD, is_way=True),
    Hop("the call is encoded", "batch and call encoded", IO_THREAD),
    Hop("the call arrives", "to the leader", LEADER, is_way=True),
    Hop("the append begins", "in order, decoded, checked", LEADER),
    Hop("the append ends", "appended", LEADER),
    Hop("the fetch is answered", "the parked fetch wakes, reads, is answered", LEADER),
    Hop("the records are there", "to the follower", FOLLOWER, is_way=True),
    Hop("the copy is made", "decoded, checked, appended", FOLLOWER),
    Hop("the next fetch is encoded", "the next fetch", FOLLOWER),
    Hop("the fetch arrives", "to the leader", LEADER, is_way=True),
    Hop("the fetch is recorded", "in order, decoded, checked", LEADER),
    Hop("the answer is ready", "high watermark, the parked produce wakes", LEADER),
    Hop("the answer is there", "to the client", IO_THREAD, is_way=True),
    Hop(END, "the future done, over to the application", APPLICATION, is_way=True),
)
BROKERS, WARM_CALLS = 3, 50
TRANSPORTS: tuple[Transport, ...] = ("ray", "auto")
_OF_CLIENT = ("the IO thread begins", "the call is encoded", "the answer is there")
_OF_FOLLOWER = ("the records are there", "the copy is made", "the next fetch is encoded")


@dataclass(frozen=True, slots=True)
class Write:
    """One write, from the send to the result."""

    begin_ns: int
    end_ns: int


class Notes:
    """The notes by process and mark, to be searched by time."""

    def __init__(self, notes: Sequence[Note]) -> None:
        self._at: dict[tuple[int, str], list[int]] = {}
        for note in notes:
            self._at.setdefault((note.pid, note.name), []).append(note.at_ns)

    def pids(self, name: str, write: Write) -> list[int]:
        """The processes that passed the mark during the write."""
        return [
            pid for pid, each in self._at if each == name and self.first(pid, name, write.begin_ns, write)
        ]

    def first(self, pid: int, name: str, after_ns: int, write: Write) -> int | None:
        """When the process passed the mark first, from a time on, if that was during the write."""
        moments = self._at.get((pid, name), [])
        place = bisect_left(moments, after_ns)
        return moments[place] if place < len(moments) and moments[place] <= write.end_ns else None

    def last(self, pid: int, name: str, before_ns: int, write: Write) -> int | None:
        """When the process passed the mark last, up to a time, if that was during the write."""
        moments = self._at.get((pid, name), [])
        place = bisect_right(moments, before_ns) - 1
        return moments[place] if place >= 0 and moments[place] >= write.begin_ns else None


def path_of(write: Write, notes: Notes, client_pid: int) -> list[int] | None:
    """When each mark was passed, in their order; None where a note is missing, as when a follower fetched late."""
    leaders = notes.pids("the append ends", write)
    if len(leaders) != 1:
        return None
    leader = leaders[0]
    found: dict[str, int | None] = {END: write.end_ns}
    for name in _OF_CLIENT:
        found[name] = notes.first(client_pid, name, write.begin_ns, write)
    for name in ("the call arrives", "the append begins", "the append ends", "the answer is ready"):
        found[name] = notes.first(leader, name, write.begin_ns, write)
    recorded = found["the fetch is recorded"] = notes.last(
        leader, "the fetch is recorded", found["the answer is ready"] or 0, write
    )
    found["the fetch arrives"] = notes.last(leader, "the fetch arrives", recorded or 0, write)
    found |= _of_last_follower(write, notes, leader, found["the fetch arrives"] or 0)
    found["the fetch is answered"] = notes.last(
        leader, "the fetch is answered", found["the records are there"] or 0, write
    )
    moments = [found[hop.mark] for hop in HOPS]
    path = [each for each in moments if each is not None]
    return path if len(path) == len(HOPS) and path == sorted(path) else None


def _of_last_follower(write: Write, notes: Notes, leader: int, before_ns: int) -> dict[str, int | None]:
    """The notes of the follower whose next fetch is the last one before a time."""
    latest: dict[str, int | None] = dict.fromkeys(_OF_FOLLOWER)
    for pid in notes.pids("the copy is made", write):
        copied = notes.first(pid, "the copy is made", write.begin_ns, write) or 0
        fetches = notes.first(pid, "the next fetch is encoded", copied, write) or 0
        if pid != leader and fetches <= before_ns and fetches > (latest["the next fetch is encoded"] or 0):
            arrives = notes.last(pid, "the records are there", copied, write)
            latest = dict(zip(_OF_FOLLOWER, (arrives, copied, fetches), strict=True))
    return latest


# ---- Measuring -------------------------------------------------------------------------------------------------------


@contextmanager
def noting() -> Iterator[Path]:
    """This process and those that are started within the block take notes; gives their directory."""
    hop_marks.check()
    with tempfile.TemporaryDirectory(prefix="rayka-bench-") as name:
        start = "from benchmarks import hop_marks\nhop_marks.install()\n"
        (Path(name) / "sitecustomize.py").write_text(start)
        root = str(Path(__file__).resolve().parent.parent)
        paths = [name, root, *filter(None, [os.environ.get("PYTHONPATH")])]
        before = dict(os.environ)
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), hop_marks.DIRECTORY_VARIABLE: name}
        try:
            hop_marks.install()
            yield Path(name)
        finally:
            os.environ.clear()
            os.environ.update(before)


def measure(*, quick: bool) -> dict[Transport, Drawn]:
    """The hops of the median write, by each transport; the two in turn."""
    rounds, calls = (2, 50) if quick else (6, 400)
    with noting() as notes_directory, local_ray() as directory:
        with ExitStack() as stack:
            sides = {
                each: _Side(
                    stack.enter_context(running_cluster(directory, brokers=BROKERS, transport=each)), each
                )
                for each in TRANSPORTS
            }
            for _ in range(rounds):
                for side in sides.values():
                    side.write(calls)
        notes = Notes(hop_marks.read(notes_directory))
    return {each: _drawn(side.writes, notes, side.spent) for each, side in sides.items()}


class _Side:
    """A cluster with one transport: its writes, and the processor time that they took."""

    def __init__(self, cluster: rayka.Cluster, transport: Transport) -> None:
        self._topic = "hops"
        self._producer = rayka.Producer(cluster=cluster, linger_ms=0, transport=transport)
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic(self._topic, replication_factor=BROKERS, configs={"min.insync.replicas": "2"})
            leader_id = admin.describe_topic(self._topic).partitions[0].leader_id
        self._pids = {"client": os.getpid(), "leader": pid_of(cluster, node_id=leader_id)}
        others = [each for each in range(1, BROKERS + 1) if each != leader_id]
        self._pids |= {f"follower {each}": pid_of(cluster, node_id=each) for each in others}
        self.writes: list[Write] = []
        self.spent = dict.fromkeys(self._pids, 0.0)
        self._write_all(WARM_CALLS)

    def write(self, calls: int) -> None:
        """One record after the other."""
        spent = cpu_seconds(lambda: self.writes.extend(self._write_all(calls)), self._pids)
        self.spent = {name: self.spent[name] + each for name, each in spent.items()}

    def _write_all(self, calls: int) -> list[Write]:
        writes, value = [], bytes(1000)
        for _ in range(calls):
            begin_ns = time.perf_counter_ns()
            self._producer.send(self._topic, value=value).result()
            writes.append(Write(begin_ns, time.perf_counter_ns()))
        return writes


def _drawn(writes: Sequence[Write], notes: Notes, spent: Mapping[str, float]) -> Drawn:
    paths = [(each, path_of(each, notes, os.getpid())) for each in writes]
    whole = [(write.begin_ns, *path) for write, path in paths if path is not None]
    if not whole:
        raise RuntimeError(f"none of {len(writes)} writes has a note of every hop")
    hops = [
        statistics.median(path[place + 1] - path[place] for path in whole) / 1e3 for place in range(len(HOPS))
    ]
    totals = [(each.end_ns - each.begin_ns) / 1e3 for each in writes]
    a_write = {name: 1e6 * each / len(writes) for name, each in spent.items()}
    return Drawn(
        HOPS, tuple(hops), quantile(totals, 0.5), quantile(totals, 0.99), len(whole), len(writes), a_write
    )


@click.command()
@click.option("--quick", is_flag=True, help="Few writes: to see that it works.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draws into this file.")
def main(quick: bool, svg: Path | None) -> None:
    """Measures where the time of one acks=all write goes, prints it and draws it."""
    before, after = (measured := measure(quick=quick))["ray"], measured["auto"]
    for number, hop in enumerate(HOPS, 1):
        times = f"{before.hops_us[number - 1]:8.0f} {after.hops_us[number - 1]:8.0f} µs"
        print(f"{number:3d} {times}  {hop.lane}: {hop.text}")
    for name, drawn in (("by Ray", before), ("direct", after)):
        spent = ", ".join(f"{role} {each:.0f}" for role, each in drawn.cpu_us.items())
        print(
            f"{name}: p50 {drawn.p50_us:.0f}, p99 {drawn.p99_us:.0f} µs; processor time a write in µs: {spent}"
        )
        print(f"  {drawn.whole} of {drawn.writes} writes have a note of every hop")
    if svg is not None:
        svg.write_text(drawing(before, after))


if __name__ == "__main__":
    sys.exit(main())
