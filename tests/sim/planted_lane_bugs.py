"""Bugs on purpose in what keeps the order of calls when their way changes, in the form of `planted_bugs`.

No message is lost or doubled and no process ends in these runs: what happens comes from the lanes alone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rayka.errors import NetworkException
from rayka.protocol.caller import Answer, Call
from rayka.protocol.wire import Admission, CallNumber, Inbound, Outbound
from rayka.sim.loop import Process
from rayka.sim.run_options import LanePlan, TopicPlan
from rayka.sim.world.exchange import Exchange
from rayka.sim.world.simulated_lanes import SimLane
from rayka.sim.world.simulated_network import SimNetwork
from rayka.transport.lane import Lanes, NodeKey
from tests.sim.planting import SHORT, PlantedBug, planted, replaced

CHANGING_LANES: dict[str, Any] = {
    "voters": 1,
    "brokers": 3,
    "clients": 1,
    "ops_per_second": 2.0,
    "voter_changes": False,
    "topics": (TopicPlan("data0", 2, 3, {"min.insync.replicas": "2"}),),
    "records_per_second": 40.0,
    "operations_per_minute": 0.0,
    "latency_ms": 1.0,
    "jitter_ms": 0.0,
    "loss": 0.0,
    "duplication": 0.0,
    "lanes": LanePlan(share=1.0, latency_ms=20.0, jitter_ms=10.0, breaks=0.05),
    "faults_per_minute": 0.0,
    "config": {"replica_fetch_wait_max_ms": 200},
}


def takes_calls_of_every_epoch(original: Callable[..., Admission]) -> Any:
    def admit(self: Inbound, call: CallNumber) -> Admission:
        return Admission.START if call.epoch < self._caller(call).epoch else original(self, call)

    return admit


def starts_calls_as_they_arrive(_: Any) -> Any:
    def admit(self: Inbound, call: CallNumber) -> Admission:
        return Admission.START

    return admit


def goes_on_with_the_old_epoch(_: Any) -> Any:
    def on_failure(self: Outbound, call: CallNumber) -> None:
        self.on_answer(call)

    return on_failure


def sends_again_with_the_same_number(original: Callable[..., Any]) -> Any:
    async def send(self: SimNetwork, caller: Process, call: Call) -> Answer:
        try:
            return await original(self, caller, call)
        except NetworkException:
            return await original(self, caller, call)

    return send


@contextmanager
def answers_what_it_breaks_off() -> Iterator[None]:
    """Those of producers, with the answer that the last one got."""
    last: list[Answer] = []

    def remember(original: Callable[..., None]) -> Any:
        def on_answer(self: SimLane, exchange: Exchange, answer: Answer) -> None:
            if exchange.call.api.name == "produce":
                last[:] = [answer]
            original(self, exchange, answer)

        return on_answer

    def answer(original: Callable[..., None]) -> Any:
        def fail(self: Exchange, cause: str) -> None:
            if last and self.call.api.name == "produce":
                self.end(last[0])
            else:
                original(self, cause)

        return fail

    with replaced(SimLane, "_on_answer", remember), replaced(Exchange, "fail", answer):
        yield


def uses_a_lane_that_has_ended(original: Callable[..., Any]) -> Any:
    def get(self: Lanes, connection: object, node: NodeKey, ask: Any) -> Any:
        return self._lanes.get(node) or original(self, connection, node, ask)

    return get


LANE_BUGS = [
    PlantedBug(
        "an inbox takes late calls of a connection that has ended",
        "call-order",
        planted(Inbound, "admit", takes_calls_of_every_epoch),
        7,
        CHANGING_LANES,
        seconds=SHORT,
    ),
    PlantedBug(
        "an inbox starts calls as they arrive",
        "call-order",
        planted(Inbound, "admit", starts_calls_as_they_arrive),
        2,
        CHANGING_LANES,
        seconds=SHORT,
    ),
    PlantedBug(
        "a caller sends a call again by Ray with the same number",
        "call-number",
        planted(SimNetwork, "send", sends_again_with_the_same_number),
        15,
        CHANGING_LANES,
        seconds=SHORT,
    ),
    PlantedBug(
        "a caller goes on with the numbers of a lane that broke",
        "liveness",
        planted(Outbound, "on_failure", goes_on_with_the_old_epoch),
        15,
        CHANGING_LANES,
        seconds=SHORT,
    ),
    PlantedBug(
        "a lane answers the calls that it breaks off",
        "promised",
        answers_what_it_breaks_off,
        15,
        CHANGING_LANES,
        seconds=SHORT,
    ),
    PlantedBug(
        "a lane that has ended is used on",
        "liveness",
        planted(Lanes, "get", uses_a_lane_that_has_ended),
        15,
        CHANGING_LANES,
        seconds=SHORT,
    ),
]
