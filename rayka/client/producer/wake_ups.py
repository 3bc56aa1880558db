"""When the sender looks at what its producer has gathered: by itself, or woken earlier.

A part of the accumulator. Invariant: whatever is due is looked at in time, for a wake-up counts only until the drain
that it brings about; one too many costs nothing but the look. Kafka: `Sender.wakeup`.
"""

from collections.abc import Callable

from rayka.client.producer.partition_queue import NEVER


class WakeUps:
    """See the module."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self.looks_ms = NEVER  # when the sender drains, if nothing wakes it earlier
        self._wake = wake
        self._drain_count = 0
        self._woken_in = -1  # how many drains there had been at the last wake-up

    def __repr__(self) -> str:
        return f"<WakeUps looks_ms={self.looks_ms} woken={self._woken_in == self._drain_count}>"

    def is_due(self, soonest_ms: float) -> bool:
        """Whether something is due before the sender looks, and no wake-up is on its way."""
        return soonest_ms < self.looks_ms and self._woken_in != self._drain_count

    def wake(self) -> None:
        """To be called without the accumulator's lock, which the sender takes first thing. An interrupt behind the
        wake-up, or a drain that begins then, costs only another wake-up.
        """
        drain_count = self._drain_count
        self._wake()
        self._woken_in = drain_count

    def wake_in_time(self, soonest_ms: float) -> None:
        """The sender looks before what is here is due."""
        if self.is_due(soonest_ms):
            self.wake()

    def on_drain(self) -> None:
        """The sender looks now, under the lock."""
        self._drain_count += 1
