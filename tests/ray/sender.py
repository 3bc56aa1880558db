"""A producer that runs while things are killed, and what of it must be in the topic afterwards."""

import threading
import time
from collections import Counter
from itertools import pairwise

import rayka
from rayka.cluster import Cluster

_KEYS = 50
_WAIT_S = 150


class Sender(threading.Thread):
    """Sends numbers with acks=all until it is told to stop, and keeps what became of each."""

    def __init__(self, cluster: Cluster, topic: str, *, pause_s: float = 0.0, width: int = 1) -> None:
        """`width`: the digits of a number, zeros before it."""
        super().__init__(name="sender")
        self._cluster = cluster
        self.topic = topic
        self.pause_s = pause_s
        self._width = width
        self._producer = rayka.Producer(cluster=cluster, acks="all", linger_ms=2)
        self._has_new = threading.Condition()
        self._is_stopping = False
        self.acknowledged: dict[int, rayka.RecordMetadata] = {}
        self.times: list[float] = []
        self.taken_s: list[float] = []
        self.failed: list[BaseException] = []

    def run(self) -> None:
        with self._producer:
            number = 0
            while not self._is_stopping:
                self._send(number)
                number += 1
                if self.pause_s:
                    time.sleep(self.pause_s)
                elif number % 200 == 0:
                    self._producer.flush(timeout=_WAIT_S)

    def _send(self, number: int) -> None:
        began_s = time.monotonic()

        def on_delivery(error: BaseException | None, metadata: rayka.RecordMetadata | None) -> None:
            with self._has_new:
                if metadata is not None:
                    self.acknowledged[number] = metadata
                    self.times.append(time.monotonic())
                    self.taken_s.append(self.times[-1] - began_s)
                elif error is not None:
                    self.failed.append(error)
                self._has_new.notify_all()

        self._producer.send(
            self.topic, b"%0*d" % (self._width, number), key=b"%d" % (number % _KEYS), on_delivery=on_delivery
        )

    def await_acknowledged(self, count: int) -> None:
        """Waits until so many more records are acknowledged, which takes leaders that serve."""
        with self._has_new:
            wanted = len(self.acknowledged) + count
            is_done = self._has_new.wait_for(lambda: len(self.acknowledged) >= wanted, timeout=_WAIT_S)
            assert is_done, f"{len(self.acknowledged)} of {wanted}; {self.failed[:1]}"

    def longest_gap_s(self, since: float, until: float = float("inf")) -> float:
        """The longest time without an acknowledgement, between two moments of the monotonic clock."""
        times = [since, *(each for each in list(self.times) if since <= each <= until)]
        times.append(min(until, time.monotonic()))
        return max(later - earlier for earlier, later in pairwise(times))

    def stop(self) -> None:
        self._is_stopping = True
        self.join(_WAIT_S)
        assert not self.is_alive()

    def check(self) -> list[rayka.Record]:
        """Every acknowledged record is read exactly at its offset, none twice, those of a key in their order; all there
        are.
        """
        assert self.failed == []
        records = list(rayka.read(self.topic, cluster=self._cluster))
        found = {(each.partition, each.offset): int(each.value or b"-1") for each in records}
        assert len(found) == len(records), "no offset twice"
        lost = {
            number: metadata
            for number, metadata in self.acknowledged.items()
            if found.get((metadata.partition, metadata.offset)) != number
        }
        assert lost == {}
        assert [each for each, count in Counter(found.values()).items() if count > 1] == []
        newest: dict[int, int] = {}
        for place in sorted(found):
            number = found[place]
            assert number > newest.get(number % _KEYS, -1), f"{number} at {place} is out of order"
            newest[number % _KEYS] = number
        return records
