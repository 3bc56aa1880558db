"""Shares of internal partitions for coordinators that hold none (decision 049).

A coordinator that is younger than the internal topics would idle otherwise: groups stay with brokers until an operator
reassigns partitions. A coordinator that holds any internal partition is left alone, so that no reassignment of an
operator is undone. A coordinator that returns takes its leads by elections of preferred leaders only.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from rayka.controller.controller_timers import ShareWithCoordinators
from rayka.controller.placeable_directories import placeable_directories
from rayka.controller.reassignment import Reassigning
from rayka.controller.request_context import RequestContext
from rayka.ids import TopicPartition, is_internal
from rayka.metadata.metadata_records import MetadataRecord
from rayka.shard.shard import Result, Steps


def share_with_coordinators(
    context: RequestContext, _: ShareWithCoordinators
) -> Steps[MetadataRecord, list[int]]:
    """Begins reassignments to active coordinators that hold no internal partition and take new replicas. Response: the
    ids of these coordinators.
    """
    image = context.image
    replicas = {
        TopicPartition(topic.name, number): partition.target_replicas
        for topic in image.topics.values()
        if is_internal(topic.name)
        for number, partition in enumerate(topic.partitions)
    }
    holders = set(chain.from_iterable(replicas.values()))
    coordinators = [each for each in image.brokers.values() if each.is_coordinator]
    can_hold = [
        each.broker_id
        for each in coordinators
        if each.is_active and placeable_directories(image, context.config, each)
    ]
    newcomers = [each for each in can_hold if each not in holders]
    if newcomers:
        wanted = shared(list(replicas.values()), [each.broker_id for each in coordinators], newcomers)
        reassigning = Reassigning(context)
        for name, before, after in zip(replicas, replicas.values(), wanted, strict=True):
            if before != after:
                yield reassigning.move(name, after)
        for each in newcomers:
            # A returned broker takes its leads as soon as it is in sync.
            context.returned.on_unfenced(each)
    return Result((), newcomers)


def shared(
    replicas: Sequence[tuple[int, ...]], coordinators: Iterable[int], newcomers: Sequence[int]
) -> list[tuple[int, ...]]:
    """The new replicas of each partition, as many as before, with the newcomers among them.

    Newcomers replace brokers, then coordinators that hold more replicas. A newcomer becomes the first replica where
    another coordinator is first more often. No other replica moves.
    """
    shares = _Shares(replicas, tuple(coordinators), newcomers)
    shares.replace_brokers()
    while shares.level_replicas() or shares.level_firsts():
        pass
    return [tuple(each) for each in shares.replicas]


class _Shares:
    """The replicas of each partition, coordinators first, while they are shared."""

    def __init__(
        self, replicas: Sequence[tuple[int, ...]], coordinators: Sequence[int], newcomers: Sequence[int]
    ) -> None:
        self._coordinators = coordinators
        self._newcomers = newcomers
        self.replicas = [sorted(each, key=lambda node_id: node_id not in coordinators) for each in replicas]
        self._held = Counter(chain.from_iterable(self.replicas))

    def replace_brokers(self) -> None:
        for each in self.replicas:
            while free := [newcomer for newcomer in self._newcomers if newcomer not in each]:
                count = sum(node_id in self._coordinators for node_id in each)
                if count == len(each):
                    break
                chosen = min(free, key=lambda newcomer: self._held[newcomer])
                del each[-1]
                each.insert(count, chosen)
                self._held[chosen] += 1

    def level_replicas(self) -> bool:
        """Moves one replica from the fullest coordinator to the emptiest newcomer; False if both are even."""
        least = min(self._newcomers, key=lambda newcomer: self._held[newcomer])
        most = max(self._coordinators, key=lambda node_id: (self._held[node_id], node_id))
        if self._held[most] - self._held[least] <= 1:
            return False
        chosen = next(each for each in self.replicas if most in each and least not in each)
        chosen[chosen.index(most)] = least
        self._held[most] -= 1
        self._held[least] += 1
        return True

    def level_firsts(self) -> bool:
        """Makes one newcomer the first replica instead of a node that is first more often; False if none gains."""
        firsts = Counter(each[0] for each in self.replicas)
        for newcomer in sorted(self._newcomers, key=lambda newcomer: firsts[newcomer]):
            own = (each for each in self.replicas if newcomer in each)
            chosen = max(own, key=lambda each: firsts[each[0]], default=[newcomer])
            if firsts[chosen[0]] - firsts[newcomer] > 1:
                chosen.remove(newcomer)
                chosen.insert(0, newcomer)
                return True
        return False
