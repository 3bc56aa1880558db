"""Members of a consumer group, rayka's and Kafka's by one face, and how long a group of them takes to settle.

Run as a program this is a member in a process of its own, which can be killed, or a process with many clients, which
says how large it is.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

import psutil

import rayka
from rayka.client.bootstrap import ClusterHandle
from rayka.client.consumer.group_membership import GroupMetadata

_WAIT_S = 60.0
_POLL_S = 0.5


class Member(Protocol):
    """A consumer in a group."""

    rebalances: int

    def subscribe(self) -> None:
        """Begins to join."""

    def poll(self, timeout_s: float) -> list[int]:
        """The partitions of the records that came."""

    def assignment(self) -> set[int]:
        """The partitions that are its own now."""

    def commit(self, offset: int) -> None:
        """Commits that offset of its first partition, and waits for it. Raises what refuses it."""

    def close(self) -> None:
        """Leaves."""


MakeMember = Callable[[Mapping[str, Any]], Member]


class RaykaMember:
    """A `rayka.Consumer`."""

    def __init__(self, cluster: ClusterHandle, topic: str, options: Mapping[str, Any]) -> None:
        self._consumer: rayka.Consumer[Any] = rayka.Consumer(cluster=cluster, config=dict(options))
        self._topic = topic
        self.rebalances = 0

    def subscribe(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._on_assign)

    def _on_assign(self, partitions: object) -> None:
        self.rebalances += 1

    def poll(self, timeout_s: float) -> list[int]:
        return [each.partition for each in self._consumer.poll(timeout_s * 1000)]

    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self, offset: int) -> None:
        self._consumer.commit({min(self._consumer.assignment()): offset})

    @property
    def metadata(self) -> GroupMetadata:
        """Its place in the group."""
        return self._consumer.group_metadata()

    def close(self) -> None:
        self._consumer.close()


class KafkaMember:
    """confluent-kafka's consumer."""

    def __init__(self, address: str, topic: str, options: Mapping[str, Any]) -> None:
        from confluent_kafka import Consumer

        self._consumer = Consumer({"bootstrap.servers": address, **options})
        self._topic = topic
        self._mine: set[int] = set()
        self.rebalances = 0

    def subscribe(self) -> None:
        self._consumer.subscribe([self._topic], on_assign=self._on_assign)

    def _on_assign(self, _: object, partitions: object) -> None:
        self.rebalances += 1

    def poll(self, timeout_s: float) -> list[int]:
        message = self._consumer.poll(timeout_s)
        messages = [message] if message is not None else []
        return [each.partition() for each in messages if each.error() is None]

    def assignment(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def commit(self, offset: int) -> None:
        from confluent_kafka import TopicPartition

        first = min(self.assignment())
        self._consumer.commit(offsets=[TopicPartition(self._topic, first, offset)], asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


class _Polling(threading.Thread):
    """Polls one member until it is to stop. `seen` are the partitions of what came, each with the time."""

    def __init__(self, member: Member, poll_s: float) -> None:
        super().__init__(daemon=True)
        self.member = member
        self.seen: list[tuple[float, int]] = []
        self.mine: set[int] = set()
        self._poll_s = poll_s
        self._is_over = threading.Event()
        self._is_paused = threading.Event()
        self._has_paused = threading.Event()

    def run(self) -> None:
        try:
            while not self._is_over.is_set():
                if self._is_paused.is_set():
                    self._has_paused.set()
                    self._is_over.wait(0.05)
                    continue
                partitions = self.member.poll(self._poll_s)
                now_s = time.perf_counter()
                self.seen += [(now_s, each) for each in partitions]
                self.mine = self.member.assignment()
        finally:
            self.member.close()

    def stop(self) -> None:
        self._is_over.set()

    def pause(self) -> None:
        """From now on another thread polls the member, until `stop`."""
        self._is_paused.set()
        self._has_paused.wait(_WAIT_S)


class PolledGroup:
    """Some members in threads of this process; `with` ends them."""

    def __init__(
        self, make: MakeMember, options: Mapping[str, Any], count: int, poll_s: float = _POLL_S
    ) -> None:
        self.polls = [_Polling(make(options), poll_s) for _ in range(count)]

    def __enter__(self) -> "PolledGroup":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.polls:
            each.stop()
        for each in self.polls:
            if each.is_alive():
                each.join(_WAIT_S)
            elif each.ident is None:
                each.member.close()

    def join(self) -> float:
        """All subscribe and poll from now on; the moment of the last subscription."""
        for each in self.polls:
            each.member.subscribe()
            each.start()
        return time.perf_counter()

    def shares(self, partitions: int, *, others: int = 0) -> bool:
        """Whether each partition is one member's, but for so many that are those of members elsewhere."""
        mine = [each.mine for each in self.polls]
        found = set().union(*mine)
        return all(mine) and sum(map(len, mine)) == len(found) == partitions - others

    def seen(self) -> list[tuple[float, int]]:
        """What all were given, in the order of time."""
        return sorted(moment for each in self.polls for moment in list(each.seen))


class Trickle:
    """Sends a record to each partition in turn, fifty a second to each, while it is entered."""

    def __init__(self, send: Callable[[int], object], close: Callable[[], object], partitions: int) -> None:
        self._send = send
        self._close = close
        self._partitions = partitions
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._is_over.wait(0.02):
            for number in range(self._partitions):
                self._send(number)

    def __enter__(self) -> "Trickle":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(_WAIT_S)
        self._close()


def kafka_sender(address: str, topic: str) -> tuple[Callable[[int], object], Callable[[], object]]:
    """What sends a record to a partition at once, and what ends it."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})

    def send(partition: int) -> None:
        producer.produce(topic, b"x", partition=partition)
        producer.poll(0)

    return send, producer.flush


def until(holds: Callable[[], bool], what: str) -> float:
    """The moment when it holds."""
    deadline_s = time.perf_counter() + _WAIT_S
    while not holds():
        if time.perf_counter() > deadline_s:
            raise RuntimeError(f"not within {_WAIT_S:g} s: {what}")
        time.sleep(0.01)
    return time.perf_counter()


def settle_s(make: MakeMember, options: Mapping[str, Any], members: int, partitions: int) -> float:
    """Seconds from the last subscription until each of the partitions is one member's."""
    with PolledGroup(make, options, members) as group:
        joined_s = group.join()
        what = f"{members} members share {partitions} partitions"
        return until(lambda: group.shares(partitions), what) - joined_s


# ---- In a process of its own -----------------------------------------------------------------------------------------


def member_of(kind: str, address: str, name: str, topic: str) -> MakeMember:
    """A maker of members; `name` is that of rayka's cluster, on the Ray at the address."""
    if kind == "kafka":
        return lambda options: KafkaMember(address, topic, options)
    cluster = rayka.Cluster.connect(name, address=address)
    return lambda options: RaykaMember(cluster, topic, options)


def _footprint(kind: str, address: str, name: str, topic: str, options: Mapping[str, Any]) -> None:
    """Prints threads and memory with one producer and one consumer, and with a hundred of each."""
    make_producer = _producers(kind, address, name, topic)
    make_member = member_of(kind, address, name, topic)
    process, found = psutil.Process(), []
    with ExitStack() as stack:
        for count in (1, int(options["count"]) - 1):
            for number in range(count):
                stack.callback(make_producer())
                member = make_member({"group.id": f"{kind}-{len(found)}-{number}", **options["member"]})
                stack.callback(member.close)
                member.subscribe()
                member.poll(0.1)
            time.sleep(2)
            found.append({"threads": process.num_threads(), "rss": process.memory_info().rss})
        print(json.dumps(found), flush=True)


def _producers(kind: str, address: str, name: str, topic: str) -> Callable[[], Callable[[], object]]:
    """What makes a producer that has sent a record, and gives what ends it."""
    if kind == "kafka":
        from confluent_kafka import Producer

        def make_kafka() -> Callable[[], object]:
            producer = Producer({"bootstrap.servers": address})
            producer.produce(topic, bytes(100))
            producer.flush()
            return producer.flush

        return make_kafka
    cluster = rayka.Cluster.connect(name, address=address)

    def make_rayka() -> Callable[[], object]:
        producer = rayka.Producer(cluster=cluster)
        producer.send(topic, bytes(100)).result()
        return producer.close

    return make_rayka


def main(what: str, kind: str, address: str, name: str, topic: str, options: str) -> None:
    given = json.loads(options)
    if what == "footprint":
        _footprint(kind, address, name, topic, given)
        return
    member = member_of(kind, address, name, topic)(given)
    member.subscribe()
    while True:  # until it is killed
        member.poll(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
