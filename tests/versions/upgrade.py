"""An upgrade: a cluster of one version becomes one of another, node by node, under clients of both: producers, and
members of one group.

`python -m tests.versions.upgrade --from COMMIT` tries one from a commit of this repository to what is checked out.
"""

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.versions.mixed_cluster import BROKERS, CONTROLLERS, MixedCluster
from tests.versions.packages import THIS, Version, version_at

_PAUSE_S, _WAIT_S, _BATCH = 0.005, 60, 500
TOPIC, GROUP = "kept", "readers"
_LATER_FIRST = 1_000_000  # the first number that a producer of the later version sends
_PASSING = ("IllegalGeneration", "RebalanceInProgress", "UnknownMemberId")


class _Client(threading.Thread):
    """Runs until it is told to stop; what it raised is raised then."""

    def __init__(self, handle: Any, version: Version) -> None:
        super().__init__(daemon=True)
        self.handle = handle
        self.version = version
        self.is_stopping = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error

    def work(self) -> None:
        raise AssertionError("made by a subclass")

    def end(self) -> None:
        self.is_stopping = True
        self.join(_WAIT_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


class Producing(_Client):
    """Sends numbers one after another, from the first one on; `acknowledged` says where they are when it has ended."""

    def __init__(self, handle: Any, version: Version, first: int) -> None:
        super().__init__(handle, version)
        self.first = first
        self.acknowledged: dict[tuple[int, int], int] = {}

    def work(self) -> None:
        with self.version.get("client.producer.producer.Producer")(
            cluster=self.handle, acks="all"
        ) as producer:
            futures = []
            while not self.is_stopping:
                futures.append(producer.send(TOPIC, b"%d" % (self.first + len(futures))))
                time.sleep(_PAUSE_S)
            for number, each in enumerate(futures, self.first):
                at = each.result(timeout=_WAIT_S)
                self.acknowledged[at.partition, at.offset] = number


class Consuming(_Client):
    """A member of a group that commits what it was given; records of a refused commit are given once more."""

    def __init__(self, handle: Any, version: Version) -> None:
        super().__init__(handle, version)
        self.values: list[int] = []
        self.refusal_count = 0

    def work(self) -> None:
        passing = tuple(self.version.get(f"errors.{each}") for each in _PASSING)
        consumer_type = self.version.get("client.consumer.consumer.Consumer")
        options = {"group_id": GROUP, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with consumer_type(TOPIC, cluster=self.handle, **options) as consumer:
            while not self.is_stopping:
                records = consumer.poll(timeout_ms=100, max_records=_BATCH)
                self.values += [int(each.value) for each in records]
                if records:
                    try:
                        consumer.commit()
                    except passing:
                        self.refusal_count += 1


def upgrade(directory: Path, former: Version, later: Version) -> int:
    """From one version to the other, with a step back on the way; how many records were kept. Raises AssertionError
    where a record, an offset of a group or a node's step is missing.
    """
    cluster = MixedCluster(directory)
    try:
        cluster.start_all(former)
        former_handle, later_handle = (cluster.handle(each) for each in (former, later))
        with former.get("client.admin.admin.Admin")(cluster=former_handle) as admin:
            admin.create_topic(TOPIC, partitions=2)
        producers = Producing(former_handle, former, 0), Producing(later_handle, later, _LATER_FIRST)
        members = Consuming(former_handle, former), Consuming(later_handle, later)
        producers[0].start()
        members[0].start()

        def join() -> None:
            producers[1].start()
            members[1].start()

        _roll(cluster, former, later, half_way=join)
        with later.get("client.admin.admin.Admin")(cluster=later_handle) as admin:
            assert "by-former" in admin.list_topics()
            admin.create_topic("by-later", partitions=1)
        cluster.crash(1, later)
        for each in producers:
            each.end()
        sent = producers[0].acknowledged | producers[1].acknowledged
        cluster.until_none(lambda: _missing(members, sent))
        for each in members:
            each.end()
        given = Counter(value for each in members for value in each.values)
        assert given.keys() == set(sent.values()), "the group has each record, and no other"
        if not any(each.refusal_count for each in members):
            assert set(given.values()) == {1}, "the group has each record once"
        assert all(each.values for each in members), "members of both versions are given records"
        _read_again(later_handle, later, sent)
        return len(sent)
    finally:
        cluster.close()


def _missing(members: Sequence[Consuming], sent: Mapping[tuple[int, int], int]) -> int:
    """How many records the group has not been given; none where a member has failed, which is told when it ends."""
    is_running = all(each.error is None for each in members)
    return len(set(sent.values()).difference(*(each.values for each in members))) if is_running else 0


def _roll(cluster: MixedCluster, former: Version, later: Version, *, half_way: Callable[[], None]) -> None:
    """Brokers first, the active controller last; the first broker goes back once."""
    cluster.replace(BROKERS[0], later)
    cluster.replace(BROKERS[0], former)
    half_way()
    for each in BROKERS:
        cluster.replace(each, later)
    with former.get("client.admin.admin.Admin")(cluster=cluster.handle(former)) as admin:
        admin.create_topic("by-former", partitions=1)  # by a former controller, on later brokers
    active = cluster.active()
    for each in (*(each for each in CONTROLLERS if each != active), active):
        cluster.replace(each, later)
    assert set(cluster.versions().values()) == {later.name}


def _read_again(handle: Any, version: Version, sent: Mapping[tuple[int, int], int]) -> None:
    """By the later version: every record at the offset that was acknowledged, and where the group has come to."""
    read = version.get("client.consumer.reader.read")
    assert {(each.partition, each.offset): int(each.value) for each in read(TOPIC, cluster=handle)} == sent
    with version.get("client.admin.admin.Admin")(cluster=handle) as admin:
        committed = admin.group_offsets(GROUP)
        assert sum(each.offset for each in committed) == len(sent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="revision", required=True, metavar="COMMIT")
    revision = parser.parse_args().revision
    with (
        tempfile.TemporaryDirectory() as directory,
        version_at(Path(directory, "package"), revision) as former,
    ):
        begin_s, begin_cpu_s = time.monotonic(), time.process_time()
        sent = upgrade(Path(directory, "data"), former, THIS)
    took = f"{time.monotonic() - begin_s:.1f} s, {time.process_time() - begin_cpu_s:.1f} s of processor time"
    print(f"{revision} became what is checked out, node by node; {sent} records kept; {took}")


if __name__ == "__main__":
    main()
