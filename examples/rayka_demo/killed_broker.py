"""The demo's fault: the process of a broker that leads is killed while records are on their way to it."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

from rayka.actors import node_handles
from rayka.actors.names import actor_name
from rayka.actors.ray_nodes import run_on
from rayka.client import io_thread
from rayka.client.admin.admin import Admin
from rayka.cluster import Cluster
from rayka.errors import UnavailableError
from rayka.ids import NO_NODE, node_name

_ANSWER_TIMEOUT_S = 10.0
_IN_SYNC_TIMEOUT_S = 60.0
_POLL_S = 0.1


class Failure:
    """One broker whose process is killed, and how long writing paused for it."""

    def __init__(self, cluster: Cluster, admin: Admin, topic: str) -> None:
        self._cluster = cluster
        self._admin = admin
        self._topic = topic
        self._killed_at = 0.0
        self.node_name = ""
        self.actor_name = ""
        self.lead_count = 0
        self.pause_seconds = 0.0

    def kill(self) -> None:
        """Kills the process that leads the topic's first partition, wherever it runs, as `kill -9` does."""
        partitions = self._admin.describe_topic(self._topic).partitions
        broker_id = next(each.leader_id for each in partitions if each.leader_id != NO_NODE)
        handles = {broker_id: node_handles.find(self._cluster.name, broker_id)}
        processes = io_thread.run(
            partial(node_handles.processes, handles, _ANSWER_TIMEOUT_S), 2 * _ANSWER_TIMEOUT_S
        )
        if broker_id not in processes:
            raise UnavailableError(
                f"{actor_name(self._cluster.name, broker_id)} did not say which process it is"
            )
        process = processes[broker_id]
        self.node_name, self.actor_name = node_name(broker_id), actor_name(self._cluster.name, broker_id)
        self.lead_count = sum(each.leader_id == broker_id for each in partitions)
        self._killed_at = time.monotonic()
        run_on(process.ray_node_id, _kill, process.pid)

    def timed(self, acknowledgements: Iterable[int]) -> Iterator[int]:
        """The acknowledgements as they come; the longest wait for one, from the kill on, is the pause."""
        before = self._killed_at
        for each in acknowledgements:
            now = time.monotonic()
            self.pause_seconds = max(self.pause_seconds, now - before)
            before = now
            yield each

    def await_in_sync(self) -> None:
        """Returns when every replica of the topic is in sync: the broker is back and has what it missed.

        Raises UnavailableError when that takes more than a minute.
        """
        deadline = time.monotonic() + _IN_SYNC_TIMEOUT_S
        while True:
            partitions = self._admin.describe_topic(self._topic).partitions
            if all(len(each.isr) == len(each.replicas) for each in partitions):
                return
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"replicas of {self._topic!r} are not in sync {_IN_SYNC_TIMEOUT_S:g} s after the end of "
                    f"{self.actor_name}: see `rayka topic describe {self._topic}`"
                )
            time.sleep(_POLL_S)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
