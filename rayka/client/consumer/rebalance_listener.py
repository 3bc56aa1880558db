"""The side of a group that is in the thread that polls: changes of the assignment are applied there, with callbacks.

A change (`Handover`) is applied in stages. The order is Kafka's: commit; tell what is revoked or lost; read the new
assignment; tell what was added. A poll may be interrupted at any stage, by Ctrl-C or by its end: the next one goes on
with the stage that is left. A callback that was begun counts as told, so no callback is told twice.

Invariants: no record is handed out between the first stage of a handover and its last; a callback that raises ends
nothing, its error is raised by a poll once the member is settled, or at the end of that poll; nothing here refers to
the consumer, so one that is dropped is gone at once, and leaves its group. Kafka: ConsumerRebalanceListenerInvoker,
ConsumerCoordinator.poll.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any, NamedTuple

from rayka.client.consumer.consumer_coordinator import ConsumerCoordinator
from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.group_membership import Handover
from rayka.ids import TopicPartition


class Stage(Enum):
    """One step of a handover."""

    COMMIT = auto()
    TELL_REVOKED = auto()
    TELL_LOST = auto()
    READ = auto()
    TELL_ADDED = auto()


class RebalanceListener(NamedTuple):
    """The application's callbacks. Each gets a list of partitions. Without `on_lost`, `on_revoke` is called."""

    on_assign: Callable[[list[TopicPartition]], Any] | None = None
    on_revoke: Callable[[list[TopicPartition]], Any] | None = None
    on_lost: Callable[[list[TopicPartition]], Any] | None = None


class HandoverStages:
    """The stages of a handover that are left. True while there are any."""

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        # The stages that are not done, the next one first; none once the member has replaced the handover.
        self.left = deque([Stage.READ])
        if handover.revoked:
            self.left.appendleft(Stage.TELL_LOST if handover.is_lost else Stage.TELL_REVOKED)
        if not handover.is_lost:
            self.left.appendleft(Stage.COMMIT)
        if handover.added is not None:
            self.left.append(Stage.TELL_ADDED)

    def __bool__(self) -> bool:
        return bool(self.left)

    def callback(self, listener: RebalanceListener) -> Callable[[], Any] | None:
        """The callback of a telling stage, which counts as done; None if the application has none."""
        stage, handover = self.left.popleft(), self.handover
        if stage is Stage.TELL_ADDED:
            told, partitions = listener.on_assign, handover.added or ()
        elif stage is Stage.TELL_LOST:
            told, partitions = listener.on_lost or listener.on_revoke, handover.revoked
        else:
            told, partitions = listener.on_revoke, handover.revoked
        return None if told is None else lambda: told(list(partitions))


logger = logging.getLogger(__name__)
Run = Callable[..., Any]


class RebalanceListenerInvoker:
    """Applies the changes of a member's assignment in the thread that polls, and calls the application's callbacks."""

    def __init__(self, coordinator: ConsumerCoordinator, delivery: Delivery) -> None:
        self.coordinator = coordinator
        self.listener = RebalanceListener()
        # A callback runs.
        self.is_telling = False
        self._delivery = delivery
        # The handover that is under way.
        self._stages: HandoverStages | None = None
        # The first error of a callback, until a poll raises it.
        self._error: Exception | None = None

    def polled(self) -> None:
        """Begins `max_poll_interval_ms` anew: the application has polled, or a poll that waits goes on (E6)."""
        self.coordinator.polled_s = time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within the block a poll waits for the IO thread, and no code of the application runs."""
        self.coordinator.is_waiting = True
        try:
            yield
        finally:
            self.polled()
            self.coordinator.is_waiting = False

    @property
    def has_changes(self) -> bool:
        """Whether `apply` has something to do, or to raise."""
        return self._has_handover or self.coordinator.membership.failure is not None

    @property
    def _has_handover(self) -> bool:
        return bool(self._stages) or self.coordinator.ready is not None

    def apply(self, run: Run, commit: Callable[[], object]) -> None:
        """Does all stages of handovers that are due, and raises the failure of the member. `run` waits for a coroutine
        on the loop; `commit` commits the records that were handed out, if commits are automatic.
        """
        while self._has_handover:
            ready = self.coordinator.ready
            if not self._stages and ready is not None:
                self._stages = HandoverStages(ready)
            self._go_on(run, commit)
        if self.coordinator.membership.failure is not None:
            failure = run(self.coordinator.take_failure)
            try:
                if failure is not None:
                    raise failure
            finally:
                # The failure refers to this frame: a consumer that was dropped would stay in its group.
                del failure
        if self._error is not None and self.coordinator.is_settled:
            self.raise_error()

    def raise_error(self) -> None:
        """Raises the error of a callback, if there is one."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            # As in `apply`.
            del error

    def _go_on(self, run: Run, commit: Callable[[], object]) -> None:
        stages = self._stages
        while stages:
            stage = stages.left[0]
            if stage is Stage.COMMIT:
                commit()
                stages.left.popleft()
            elif stage is Stage.READ:
                if not run(self.coordinator.read, stages.handover):
                    stages.left.clear()
                    return
                self._delivery.keep_only(dict.fromkeys(stages.handover.read))
                stages.left.popleft()
            else:
                self._tell(stages.callback(self.listener))

    def _tell(self, callback: Callable[[], Any] | None) -> None:
        if callback is None:
            return
        self.is_telling = True
        try:
            callback()
        except Exception as error:
            if self._error is None:
                self._error = error
            else:
                logger.exception("a callback of the group failed after another one")
        finally:
            # The callback has returned: the join that may follow is not late.
            self.polled()
            self.is_telling = False
