"""What a face does for one handover, stage by stage, and the callbacks that it tells.

A face, sync or async, takes the stages one after another and may be interrupted at any of them, by Ctrl-C or the end of
a poll; it goes on with the stage that is left. A callback that was begun counts as told, so no callback is told twice.
The order is Kafka's: commit, tell what is revoked or lost, read otherwise, tell what was added. Kafka:
ConsumerRebalanceListenerInvoker.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

from rayka.client.group.group_membership import Handover
from rayka.ids import TopicPartition


class Stage(Enum):
    """One thing to do."""

    COMMIT = auto()
    TELL_REVOKED = auto()
    TELL_LOST = auto()
    READ = auto()
    TELL_ADDED = auto()


class Listener(NamedTuple):
    """The application's callbacks; each gets a list of partitions. Without `on_lost`, `on_revoke` is told."""

    on_assign: Callable[[list[TopicPartition]], Any] | None = None
    on_revoke: Callable[[list[TopicPartition]], Any] | None = None
    on_lost: Callable[[list[TopicPartition]], Any] | None = None


class HandoverStages:
    """The stages of a handover that are `left`, the one to be done now first; true while there are any. What is done is
    taken out, and all where the member is to do something else by now.
    """

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.left = deque([Stage.READ])
        if handover.revoked:
            self.left.appendleft(Stage.TELL_LOST if handover.is_lost else Stage.TELL_REVOKED)
        if not handover.is_lost:
            self.left.appendleft(Stage.COMMIT)
        if handover.added is not None:
            self.left.append(Stage.TELL_ADDED)

    def __repr__(self) -> str:
        return f"<HandoverStages {[each.name for each in self.left]} of {self.handover}>"

    def __bool__(self) -> bool:
        return bool(self.left)

    def callback(self, listener: Listener) -> Callable[[], Any] | None:
        """The callback of a telling stage, which is done with that; None where the application has none."""
        stage, handover = self.left.popleft(), self.handover
        if stage is Stage.TELL_ADDED:
            told, partitions = listener.on_assign, handover.added or ()
        elif stage is Stage.TELL_LOST:
            told, partitions = listener.on_lost or listener.on_revoke, handover.revoked
        else:
            told, partitions = listener.on_revoke, handover.revoked
        return None if told is None else lambda: told(list(partitions))
