"""What a machine does from which the ports of direct lanes are blocked for a while; run in its network namespace.

    python -m tests.ray.far_machine RAY_ADDRESS DATA_DIRECTORY

Starts a cluster with a broker on each of two machines and sends records: by a lane over TCP, then with its ports
blocked in both directions, then with these open again. Prints what it saw as one JSON object.
"""

import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import rayka
from rayka.cluster import Cluster
from rayka.ids import Role
from tests.ray.lane_sockets import own_sockets

PORTS = (20_000, 20_100)
MACHINE, NEAR = "machine", "near"  # resources: each machine has one of the first, the other one the second
_ACROSS = [f"ipproto tcp {end} {PORTS[0]}-{PORTS[1]} blackhole".split() for end in ("dport", "sport")]
_TOPIC, _WAIT_S, _SENDS = "far", 90, 40


class Said(logging.Handler):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class Client:
    """A producer that sends one record after the other and keeps where each was acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producer = rayka.Producer(cluster, linger_ms=0)
        self.acknowledged: dict[tuple[int, int], bytes] = {}

    def send(self) -> None:
        """A record to each partition; returns when both are acknowledged."""
        number = len(self.acknowledged)
        for partition in range(2):
            value = b"%d" % (number + partition)
            metadata = self._producer.send(_TOPIC, value, partition=partition).result(_WAIT_S)
            self.acknowledged[metadata.partition, metadata.offset] = value

    def send_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not holds():
            assert time.monotonic() < deadline, f"not within {_WAIT_S} s"
            self.send()

    def check(self) -> None:
        """Every record is read from its leader where it was acknowledged, and no other."""
        self._producer.close()
        records = rayka.read(_TOPIC, cluster=self._cluster, local_reads=False)
        read = [((each.partition, each.offset), each.value) for each in records]
        assert len(read) == len(self.acknowledged)
        assert dict(read) == self.acknowledged


def has_lane_over_tcp() -> bool:
    """Whether this process has a connection to a port of lanes."""
    with own_sockets() as sockets:
        peers = [peer for each in sockets if (peer := peer_of(each)) and PORTS[0] <= peer[1] <= PORTS[1]]
    return bool(peers)


def peer_of(each: socket.socket) -> tuple[str, int] | None:
    """The other end's address; None where it has none of TCP over IPv4."""
    try:
        return each.getpeername() if each.family == socket.AF_INET else None
    except OSError:
        return None


@contextmanager
def blocked() -> Iterator[None]:
    """Meanwhile no packet leaves this machine to or from a port of lanes."""
    for rule in _ACROSS:
        subprocess.run(["ip", "rule", "add", *rule], check=True)
    try:
        yield
    finally:
        for rule in _ACROSS:
            subprocess.run(["ip", "rule", "del", *rule], check=True)


def run(address: str, data_dir: str) -> dict[str, object]:
    """See the module."""
    said = Said()
    logger = logging.getLogger("rayka.transport")
    logger.setLevel(logging.INFO)
    logger.addHandler(said)
    cluster = Cluster.start(
        name="far",
        brokers=2,
        data_dir=data_dir,
        ray={"address": address},
        resources={"broker": {"resources": {MACHINE: 1}}, "controller": {"resources": {NEAR: 0.5}}},
        transport_ports=PORTS,
        config={"default.replication.factor": 2, "min.insync.replicas": 2},
    )
    with rayka.Admin(cluster) as admin:
        admin.create_topic(_TOPIC, partitions=2)
        (partitions,) = {admin.describe_topic(_TOPIC).partitions}
    client = Client(cluster)
    client.send_until(has_lane_over_tcp)
    with blocked():
        said.messages.clear()  # a busy machine may have been too slow for a lane before
        began = time.monotonic()
        for _ in range(_SENDS):
            client.send()
        blocked_s = time.monotonic() - began
        client.send_until(lambda: bool(said.messages) and not has_lane_over_tcp())
    said_while_blocked = list(said.messages)
    client.send_until(has_lane_over_tcp)
    client.check()
    hosts = {each.node_id: each.host for each in cluster.describe().nodes if Role.BROKER in each.roles}
    cluster.stop()
    return {
        "hosts": hosts,
        "leaders": [each.leader_id for each in partitions],
        "acknowledged": len(client.acknowledged),
        "said": said_while_blocked,
        "blocked_s": blocked_s,
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2])))
