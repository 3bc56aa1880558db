"""The clock of what runs on one loop."""

from rayka.clock import LoopClock, now_s
from rayka.sim.loop import VirtualLoop


def test_a_clock_goes_on_with_the_loop_that_ran_when_it_was_asked_first() -> None:
    clock, loop = LoopClock(), VirtualLoop()

    async def both() -> tuple[float, float]:
        return clock.now_s(), now_s()

    found = loop.run_until_complete(both())
    assert found[0] == found[1] == loop.time()
    loop.close()
    assert clock.now_s() == loop.time()
