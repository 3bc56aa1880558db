"""The handover that a member offers to its face: it is ready once the topics of what is new are known.

Invariant: `ready` is offered until the face has read it or the core wants something else. Kafka: ConsumerCoordinator.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from rayka.client.group.group_membership import Handover
from rayka.client.group.topic_watch import TopicWatch
from rayka.config import ConsumerConfig
from rayka.errors import RaykaError

logger = logging.getLogger(__name__)


class HandoverOffer:
    """See the module. Belongs to the loop. `spawn` runs a coroutine as a task of the member, `interrupt` ends the poll
    that is under way.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        topics: TopicWatch,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        interrupt: Callable[[], object],
    ) -> None:
        self.ready: Handover | None = None
        self._offered: Handover | None = None
        self._config = config
        self._topics = topics
        self._spawn = spawn
        self._interrupt = interrupt

    def __repr__(self) -> str:
        return f"<HandoverOffer {self._offered} is_ready={self.ready is not None}>"

    def offer(self, handover: Handover | None) -> None:
        """What the core wants now takes the place of what it wanted before."""
        if handover == self._offered:
            return
        self._offered, self.ready = handover, None
        if handover is not None and handover.added:
            self._spawn(self._prepare(handover))
        elif handover is not None:
            self._set_ready(handover)

    def _set_ready(self, ready: Handover) -> None:
        self.ready = ready
        self._interrupt()

    async def _prepare(self, handover: Handover) -> None:
        """Learns the topics of what is added, until they are known or the core wants something else."""
        while handover is self._offered:
            try:
                added = await self._topics.learn(handover.added or (), self._config.group_id or "")
            except RaykaError as error:
                logger.debug("group %r: topics: %s", self._config.group_id, error)
                await asyncio.sleep(self._config.retry_backoff_ms / 1000)
                continue
            if handover is self._offered:
                self._set_ready(replace(handover, added=added))
            return
