"""Random lives of a cluster that balances and heals by itself: every replica set is legal, and it comes to rest."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller_timers import LOOK_INTERVAL_MS
from rayka.controller.placeable_directories import draining_brokers
from rayka.protocol.load import BalanceRequest, CancelBalanceRequest, LoadReport, PartitionLoad
from rayka.protocol.topics import AlterPartitionReassignmentsRequest, Reassignment
from tests.controller.admin_support import cluster, create, fence
from tests.controller.test_balance_run import complete_all, status, under_way
from tests.controller.test_draining import drain
from tests.controller.test_healing import complete, look

BROKERS, PARTITIONS, MB, MOVES_MAX = (1, 2, 3, 4, 5), 10, 1_000_000, 2
CONFIG = BrokerConfig(
    balancer_moves_max=MOVES_MAX, balancer_settle_ms=10_000, broker_unavailable_timeout_ms=60_000
)
REST_LOOKS, REST_LOOK_MS = 20, 20_000


class Life:
    """The cluster, and what is known of each partition: its size, and how many replicas it has to have."""

    def __init__(self, data: st.DataObject) -> None:
        draw = data.draw
        self._draw = draw
        factor = draw(st.integers(1, 3))
        placed = [draw(st.permutations(BROKERS))[:factor] for _ in range(PARTITIONS)]
        self.sizes = draw(st.lists(st.integers(0, 20), min_size=PARTITIONS, max_size=PARTITIONS))
        self.machine = cluster(len(BROKERS), CONFIG)
        create(self.machine, *map(tuple, placed))
        self.factor, self.begun_count = factor, 0
        self.operators: dict[int, tuple[int, ...]] = {}  # the reassignments of an operator
        self.report()

    def report(self) -> None:
        topic = self.machine.image.topics["orders"]
        for broker_id, broker in self.machine.image.brokers.items():
            held = [
                number for number, each in enumerate(topic.partitions) if broker_id in each.target_replicas
            ]
            named = tuple(
                PartitionLoad(
                    topic.topic_id,
                    number,
                    topic.partitions[number].leader_id == broker_id,
                    self.sizes[number] * MB,
                )
                for number in held[:8]
            )
            size_bytes = sum(self.sizes[number] for number in held) * MB
            load = LoadReport(1_000, 0, 10_000 * MB, size_bytes, len(held), partitions=named)
            if not broker.is_fenced:
                self.machine.heartbeat(broker_id, load=load)

    def look(self, after_ms: int = LOOK_INTERVAL_MS) -> None:
        """None of our moves begins beside an operator's, and never more than the bound are under way. Beside a machine
        that drains only those off it go on.
        """
        before = under_way(self.machine)
        look(self.machine, after_ms)
        begun = [each for each in under_way(self.machine) if each not in before]
        self.begun_count += len(begun)
        is_balancing = status(self.machine).under_way_count  # of healing it is no rule
        assert not (begun and is_balancing and self._operators_under_way())
        assert len(under_way(self.machine)) <= MOVES_MAX + len(self.operators)
        going = draining_brokers(self.machine.image)
        off = [
            number
            for number in under_way(self.machine)
            if not set(going).isdisjoint(self.machine.partition(number=number).removing_replicas)
        ]
        assert not going or is_balancing <= len(off)
        self.check()

    def _operators_under_way(self) -> list[int]:
        moving = under_way(self.machine)
        self.operators = {
            each: target
            for each, target in self.operators.items()
            if each in moving and self.machine.partition(number=each).target_replicas == target
        }
        return list(self.operators)

    def check(self) -> None:
        for each in self.machine.image.topics["orders"].partitions:
            stays = [replica for replica in each.replicas if replica not in each.adding_replicas]
            assert len(set(each.target_replicas)) == len(each.target_replicas) == self.factor, each
            assert len(stays) == self.factor, each  # what a cancel goes back to is whole, too

    def reassign(self, number: int, replicas: tuple[int, ...] | None) -> None:
        request = AlterPartitionReassignmentsRequest((Reassignment("orders", number, replicas),))
        self.machine.handle(request)
        if replicas is None:
            self.operators.pop(number, None)
        elif self.machine.partition(number=number).is_reassigned:
            self.operators[number] = self.machine.partition(number=number).target_replicas

    def act(self) -> None:
        """Something happens."""
        draw, machine = self._draw, self.machine
        number = draw(st.integers(0, PARTITIONS - 1))
        match draw(st.integers(0, 10)):
            case 0:
                fenced = [each for each, broker in machine.image.brokers.items() if broker.is_fenced]
                if len(fenced) < 2:
                    fence(machine, draw(st.sampled_from([each for each in BROKERS if each not in fenced])))
            case 1:
                for broker_id, broker in list(machine.image.brokers.items()):
                    if broker.is_fenced:
                        machine.heartbeat(broker_id)
            case 2:
                self.reassign(number, tuple(draw(st.permutations(BROKERS))[: self.factor]))
            case 3:
                self.reassign(number, None)
            case 4:
                machine.change_controller()
            case 5:
                machine.handle(CancelBalanceRequest())
            case 6:
                going = draining_brokers(machine.image)
                drain(machine, *(going or [number % len(BROKERS) + 1]), deadline=None if going else "0")
            case 7 if status(machine).waits_for == "" and not under_way(machine):
                self.balance()
            case _:
                self.end_moves()
        self.check()

    def balance(self) -> None:
        self.report()
        if not any(each.is_fenced for each in self.machine.image.brokers.values()):
            self.machine.handle(BalanceRequest(MOVES_MAX))

    def end_moves(self) -> None:
        for number in under_way(self.machine):
            partition = self.machine.partition(number=number)
            brokers = self.machine.image.brokers
            if partition.has_leader and all(brokers[each].is_active for each in partition.adding_replicas):
                complete(self.machine, number)


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_every_replica_set_is_legal_and_the_cluster_comes_to_rest(data: st.DataObject) -> None:
    life = Life(data)
    for _ in range(data.draw(st.integers(0, 25))):
        life.act()
        life.report()
        life.look()
    for broker_id in BROKERS:
        life.machine.heartbeat(broker_id)
    drain(life.machine, *BROKERS, deadline=None)
    begun_before, quiet = life.begun_count, 0
    for _ in range(200):
        complete_all(life.machine)
        life.report()
        count = life.begun_count
        life.look(REST_LOOK_MS)
        quiet = 0 if life.begun_count > count or under_way(life.machine) else quiet + 1
        if quiet > REST_LOOKS:
            break
    assert quiet > REST_LOOKS, status(life.machine)
    assert life.begun_count - begun_before <= 3 * PARTITIONS
