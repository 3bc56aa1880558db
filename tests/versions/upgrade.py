"""An upgrade: a cluster of one version becomes one of another, node by node, under clients of both.

`python -m tests.versions.upgrade --from COMMIT` tries one from a commit of this repository to what is checked out.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.versions.mixed_cluster import BROKERS, CONTROLLERS, MixedCluster
from tests.versions.packages import THIS, Version, version_at

_PAUSE_S, _WAIT_S, _BATCH = 0.005, 60, 500
TOPIC, GROUP = "kept", "readers"


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
    """Sends numbers one after another; `count` were acknowledged when it has ended."""

    count = 0

    def work(self) -> None:
        with self.version.get("client.producer.producer.Producer")(
            cluster=self.handle, acks="all"
        ) as producer:
            futures = []
            while not self.is_stopping:
                futures.append(producer.send(TOPIC, b"%d" % len(futures)))
                time.sleep(_PAUSE_S)
            for each in futures:
                each.result(timeout=_WAIT_S)
            self.count = len(futures)


class Consuming(_Client):
    """A member of a group, which commits what it was given."""

    def __init__(self, handle: Any, version: Version) -> None:
        super().__init__(handle, version)
        self.values: list[int] = []

    def work(self) -> None:
        consumer_type = self.version.get("client.consumer.consumer.Consumer")
        options = {"group_id": GROUP, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with consumer_type(TOPIC, cluster=self.handle, **options) as consumer:
            while not self.is_stopping:
                records = consumer.poll(timeout_ms=100, max_records=_BATCH)
                self.values += [int(each.value) for each in records]
                if records:
                    consumer.commit()


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
        clients = Producing(former_handle, former), Consuming(former_handle, former)
        for each in clients:
            each.start()
        _roll(cluster, former, later)
        with later.get("client.admin.admin.Admin")(cluster=later_handle) as admin:
            assert "by-former" in admin.list_topics()
            admin.create_topic("by-later", partitions=1)
        cluster.crash(1, later)
        clients[0].end()
        sent = clients[0].count
        cluster.until_none(lambda: clients[1].error is None and sent - len(clients[1].values))
        clients[1].end()
        assert sorted(clients[1].values) == list(range(sent)), "the group has each record once"
        _read_again(later_handle, later, sent)
        return sent
    finally:
        cluster.close()


def _roll(cluster: MixedCluster, former: Version, later: Version) -> None:
    """Brokers first, the active controller last; the first broker goes back once."""
    cluster.replace(BROKERS[0], later)
    cluster.replace(BROKERS[0], former)
    for each in BROKERS:
        cluster.replace(each, later)
    with former.get("client.admin.admin.Admin")(cluster=cluster.handle(former)) as admin:
        admin.create_topic("by-former", partitions=1)  # by a former controller, on later brokers
    active = cluster.active()
    for each in (*(each for each in CONTROLLERS if each != active), active):
        cluster.replace(each, later)
    assert set(cluster.versions().values()) == {later.name}


def _read_again(handle: Any, version: Version, sent: int) -> None:
    """By the later version: every record, and where the group of the former one has come to."""
    read = version.get("client.consumer.reader.read")
    assert sorted(int(each.value) for each in read(TOPIC, cluster=handle)) == list(range(sent))
    with version.get("client.admin.admin.Admin")(cluster=handle) as admin:
        committed = admin.group_offsets(GROUP)
        assert sum(each.offset for each in committed) == sent


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
