"""The direct lanes of a simulation: a second way for hot calls, in order within itself, which opens late and breaks.

`Lanes`, which decides whether there is a lane, opens it beside the calls and pauses after failures, is the real one;
below it sockets are drawn. A lane loses and doubles nothing. Where a link is cut its messages wait and are sent again
at growing intervals, until the lane breaks. When it breaks, at either end, its calls fail at once; of what was on its
way a part from the beginning may still arrive, and nothing after that. So calls of the two ways overtake each other,
and a call of a lane that has ended may be the last to arrive. All chance is drawn for each pair of caller and node from
a random of its own.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from enum import StrEnum
from functools import partial
from random import Random
from typing import Any

from rayka.errors import NetworkException
from rayka.ids import node_name
from rayka.protocol.caller import Answer, Call
from rayka.protocol.later import Later
from rayka.sim.loop import Process, VirtualLoop
from rayka.sim.run_options import SimOptions
from rayka.sim.trace import Trace
from rayka.sim.world.exchange import Endpoint, Exchange, Link, Links
from rayka.transport.greeting import LaneOffer
from rayka.transport.lane import Lanes, NodeKey, fits_lane

# What a simulated lane is made of: a pair of caller and node, with what is drawn for it, and two pipes.


_RESEND_FIRST_US = 200_000  # it doubles, as with TCP
STALLED_US = 10_000_000  # what `rayka.transport.stream.tune` lets TCP wait


class LaneAvailability(StrEnum):
    """Whether a caller and a node have a lane."""

    WORKS = "works"
    NOT_WANTED = "not wanted"  # the caller's transport is `ray`
    NOT_SERVED = "not served"  # the node's transport is `ray`
    UNREACHABLE = "unreachable"


class Pair:
    """A caller and a node, whatever their incarnations: what was drawn for them."""

    def __init__(self, options: SimOptions, caller_id: int, node_id: int) -> None:
        self.node_id = node_id
        self.there: Link = (caller_id, node_id)
        self.back: Link = (node_id, caller_id)
        self.random = Random(f"lane {options.seed} {caller_id} {node_id}")
        others = (LaneAvailability.NOT_WANTED, LaneAvailability.NOT_SERVED, LaneAvailability.UNREACHABLE)
        works = self.random.random() < options.lanes.share
        self.kind = LaneAvailability.WORKS if works else self.random.choice(others)
        self.latency_us = options.lanes.latency_ms * 1000 * (0.5 + self.random.random())
        self.jitter_us = options.lanes.jitter_ms * 1000

    def __str__(self) -> str:
        return f"{self.there[0]}->{self.node_id}"

    def delay_us(self) -> int:
        """The delay of a message, or of a step of the opening."""
        return 1 + int(self.latency_us + self.random.expovariate(1.0) * self.jitter_us)


class Pipe:
    """One direction of a lane: what is put in comes out in its order, or not at all from some place on."""

    def __init__(
        self, loop: VirtualLoop, links: Links, pair: Pair, *, is_back: bool, on_stalled: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._links = links
        self._context = Context()  # what is on its way belongs to no process
        self._pair = pair
        self._link = pair.back if is_back else pair.there
        self._on_stalled = on_stalled
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._last_us = 0
        self._resend_us, self._stalled_us = _RESEND_FIRST_US, 0
        self._is_due = False

    def put(self, arrive: Callable[..., None], *arguments: Any) -> None:
        """Sends something; `arrive` is called where it comes out."""
        delay_us = self._pair.delay_us() + int(self._links.extra_us.get(self._link, 0.0))
        self._last_us = max(self._last_us, self._loop.now_us + delay_us)
        self._queue.append((self._last_us, partial(arrive, *arguments)))
        self._schedule()

    def cut_short(self) -> None:
        """Breaks the lane: only a prefix of the bytes under way arrives."""
        arriving = self._pair.random.randint(0, len(self._queue))
        while len(self._queue) > arriving:
            self._queue.pop()

    def stop(self) -> None:
        """Nothing more arrives."""
        self._queue.clear()

    def _schedule(self, earliest_us: int = 0) -> None:
        if self._queue and not self._is_due:
            self._is_due = True
            when_us = max(earliest_us, self._queue[0][0])
            self._loop.call_at_us(when_us, self._arrive, context=self._context)

    def _arrive(self) -> None:
        self._is_due = False
        if not self._queue or self._queue[0][0] > self._loop.now_us:  # what it was due for has been dropped
            self._schedule()
            return
        if self._link in self._links.cuts:
            self._wait_for_link()
            return
        self._resend_us, self._stalled_us = _RESEND_FIRST_US, 0
        _, arrive = self._queue.popleft()
        self._schedule(self._loop.now_us)
        arrive()

    def _wait_for_link(self) -> None:
        self._stalled_us += self._resend_us
        if self._stalled_us > STALLED_US:
            self._on_stalled()
            return
        self._schedule(self._loop.now_us + self._resend_us)
        self._resend_us *= 2


_REFUSED_SHARE = 0.1  # of the attempts to open a lane that can be opened


class SimLanes:
    """All direct lanes of one simulation. `counts` says what became of them and of their calls."""

    def __init__(self, loop: VirtualLoop, options: SimOptions, trace: Trace, links: Links) -> None:
        self.loop = loop
        self.links = links
        self.context = Context()  # messages on their way belong to no process
        self.breaks = options.lanes.breaks
        self.counts: dict[str, int] = dict.fromkeys(("opened", "refused", "ended", "calls", "cut off"), 0)
        self.endpoints: dict[int, Endpoint] = {}
        self.deliver: Callable[[Endpoint, Exchange], None] = lambda endpoint, exchange: None
        self.trace = trace
        self._options = options
        self._pairs: dict[Link, Pair] = {}
        self._of: dict[Process, Lanes] = {}
        self._open_lanes: dict[SimLane, None] = {}

    def __repr__(self) -> str:
        return f"<SimLanes {list(self._open_lanes)}>"

    def say(self, pair: Pair, what: str) -> None:
        """A line in the trace."""
        self.trace.add(pair.there[0], "lane", f"{pair} {what}")

    def lane_of(self, caller: Process, call: Call) -> "SimLane | None":
        """The lane that this call takes; None: it goes by Ray, and a lane is opened where there can be one."""
        if not self._options.lanes.share or not fits_lane(call):
            return None
        pair = self._pair(caller.node_id, call.node_id)
        if pair.kind is LaneAvailability.NOT_WANTED:
            return None
        lanes = self._of.get(caller)
        if lanes is None:
            lanes = self._of[caller] = Lanes(lambda node_id, offer: self._open(caller, node_id, offer))
        lane = lanes.get(None, NodeKey("sim", call.node_id), partial(self._ask, pair))
        assert lane is None or isinstance(lane, SimLane)
        return lane

    def on_node_gone(self, endpoint: Endpoint, *, is_silent: bool) -> None:
        """The node's process has ended: its sockets close, unless the whole machine is gone."""
        for lane in [each for each in self._open_lanes if each.endpoint is endpoint]:
            lane.on_node_gone(is_silent=is_silent)

    def on_caller_gone(self, caller: Process) -> None:
        """A process that has ended has no lanes any more."""
        lanes = self._of.pop(caller, None)
        if lanes is not None:
            lanes.close()

    def on_ended(self, lane: "SimLane", cause: str, cut_off: int) -> None:
        """A lane's calls have failed."""
        self._open_lanes.pop(lane, None)
        self.counts["ended"] += 1
        self.counts["cut off"] += cut_off
        self.say(lane.pair, f"ended with {cut_off} calls on their way: {cause}")

    # ---- Opening -----------------------------------------------------------------------------------------------------

    async def _ask(self, pair: Pair) -> LaneOffer:
        """Calls the remote method `open_lane`; until it answers, calls go by Ray."""
        options = self._options
        await asyncio.sleep(
            2 * (options.latency_ms + pair.random.expovariate(1.0) * options.jitter_ms) / 1000
        )
        endpoint = self._endpoint(pair)
        ticket = f"{endpoint.process.incarnation}".encode()
        return LaneOffer("", "", 0, b"" if pair.kind is LaneAvailability.NOT_SERVED else ticket)

    async def _open(self, caller: Process, node_id: int, offer: LaneOffer) -> "SimLane":
        """Connects, shows the ticket and is welcome."""
        pair = self._pair(caller.node_id, node_id)
        await asyncio.sleep((pair.delay_us() + pair.delay_us()) / 1e6)
        endpoint = self._endpoint(pair)
        is_valid = offer.ticket == f"{endpoint.process.incarnation}".encode()
        if pair.kind is LaneAvailability.UNREACHABLE or not is_valid or pair.random.random() < _REFUSED_SHARE:
            raise self._refused(pair)
        lane = SimLane(self, pair, caller, endpoint)
        self._open_lanes[lane] = None
        self.counts["opened"] += 1
        self.say(pair, "is open")
        return lane

    def _endpoint(self, pair: Pair) -> Endpoint:
        endpoint = self.endpoints.get(pair.node_id)
        if endpoint is None or pair.there in self.links.cuts or pair.back in self.links.cuts:
            raise self._refused(pair)
        return endpoint

    def _refused(self, pair: Pair) -> NetworkException:
        self.counts["refused"] += 1
        self.say(pair, "cannot be opened")
        return NetworkException(f"{node_name(pair.node_id)} has no lane for this process")

    def _pair(self, caller_id: int, node_id: int) -> Pair:
        pair = self._pairs.get((caller_id, node_id))
        if pair is None:
            pair = self._pairs[caller_id, node_id] = Pair(self._options, caller_id, node_id)
        return pair


class SimLane:
    """One lane, both of its ends: as `rayka.transport.lane.Lane` to its caller."""

    def __init__(self, lanes: SimLanes, pair: Pair, caller: Process, endpoint: Endpoint) -> None:
        self.pair = pair
        self.endpoint = endpoint
        self._lanes = lanes
        self._caller = caller
        self._waiting: dict[Exchange, None] = {}
        self._end = ""
        self._has_node_ended = False
        self._there = Pipe(lanes.loop, lanes.links, pair, is_back=False, on_stalled=self._on_stalled)
        self._back = Pipe(lanes.loop, lanes.links, pair, is_back=True, on_stalled=self._on_stalled)

    def __repr__(self) -> str:
        return f"<SimLane {self.pair} waiting={len(self._waiting)} {self._end or 'open'}>"

    @property
    def is_open(self) -> bool:
        """Whether its caller may send calls."""
        return not self._end

    def send(self, call: Call) -> Later[Answer]:
        """The node's answer, or NetworkException; the call is sent when this returns."""
        lanes, random = self._lanes, self.pair.random
        answer: Later[Answer] = Later(lambda: self._waiting.pop(exchange, None))
        exchange = Exchange(self._caller, call, answer, self, " by lane")
        if self._end:
            exchange.fail(self._end)
            return answer
        lanes.trace.add(self._caller.node_id, "send", f"{exchange.text} {len(call.request.body)} bytes")
        lanes.counts["calls"] += 1
        self._waiting[exchange] = None
        self._there.put(self._deliver, exchange)
        if random.random() < lanes.breaks:
            self._break_soon()
        return answer

    def answer(self, exchange: Exchange, answer: Answer) -> None:
        """The node has answered; whether anything waits for it is seen at the caller's end."""
        if not self._has_node_ended and not self._end:
            self._back.put(self._on_answer, exchange, answer)

    def close(self) -> None:
        """The caller ends it."""
        self._end_here("it was closed on this side")

    def on_node_gone(self, *, is_silent: bool) -> None:
        """The node's process has ended. A machine that is gone does not say so, and is noticed within seconds."""
        if is_silent:
            self._has_node_ended = True
            self._there.stop()
            self._back.stop()
            self._later(int(self.pair.random.uniform(0.1, 1.0) * STALLED_US), self._end_here, "no sign of it")
        else:
            self._end_there("its process ended")

    # ---- Messages ----------------------------------------------------------------------------------------------------

    def _deliver(self, exchange: Exchange) -> None:
        now_there = self._lanes.endpoints.get(self.pair.node_id)
        if now_there is self.endpoint:
            self._lanes.deliver(self.endpoint, exchange)
        elif now_there is not None:  # a process that has begun since knows nothing of this lane
            self._back.put(self._end_here, "it was reset")

    def _on_answer(self, exchange: Exchange, answer: Answer) -> None:
        if exchange.is_awaited():
            self._lanes.trace.add(self._caller.node_id, "answered", exchange.text)
            self._waiting.pop(exchange, None)
            exchange.end(answer)

    # ---- Ends --------------------------------------------------------------------------------------------------------

    def _break_soon(self) -> None:
        """Perhaps before the call arrives, perhaps while it is executed, perhaps while its answer is on its way."""
        random = self.pair.random
        end = random.choice((self._end_here, self._end_there))
        self._later(int(random.random() * 4 * self.pair.delay_us()), end, "it broke")

    def _later(self, delay_us: int, end: Callable[[str], None], cause: str) -> None:
        loop = self._lanes.loop
        loop.call_at_us(loop.now_us + delay_us, end, cause, context=self._lanes.context)

    def _on_stalled(self) -> None:
        self._has_node_ended = True
        self._there.stop()
        self._end_here("nothing was taken for a while")

    def _end_here(self, cause: str) -> None:
        """The caller's end closes: its calls fail now; a part of what it sent may arrive yet."""
        if self._end:
            return
        self._end = cause
        self._there.cut_short()
        self._back.stop()
        self._fail_all()

    def _end_there(self, cause: str) -> None:
        """The node's end closes: nothing arrives there any more; the caller learns it after the answers before it."""
        if not self._has_node_ended:
            self._has_node_ended = True
            self._there.stop()
            self._back.cut_short()
            self._back.put(self._end_here, cause)

    def _fail_all(self) -> None:
        cut_off = [each for each in self._waiting if each.is_awaited()]
        self._lanes.on_ended(self, self._end, len(cut_off))
        for exchange in cut_off:
            self._lanes.trace.add(self._caller.node_id, "broken", f"{exchange.text}: {self._end}")
            exchange.fail(f"the lane ended: {self._end}")
