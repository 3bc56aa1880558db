"""Bytes a second that several works share: in their order, at whatever rate holds, never more than the rate allows."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from rayka.node.tasks import LOOK_MS, Pace
from tests.node.replica_support import run


def wanted() -> bool:
    return True


def test_what_is_spent_is_waited_for_first_come_first_served() -> None:
    async def main() -> None:
        loop, ended = asyncio.get_running_loop(), list[tuple[str, float]]()
        pace, begin_s = Pace(lambda: 100.0), loop.time()

        async def spend(name: str, size_bytes: int) -> None:
            await pace.spend(size_bytes, wanted)
            ended.append((name, round(loop.time() - begin_s, 2)))

        await asyncio.gather(spend("large", 400), spend("small", 10))
        assert ended == [("large", 4.0), ("small", 4.1)]
        await asyncio.sleep(60)  # time without work earns nothing
        begin_s = loop.time()
        await spend("later", 100)
        assert ended[-1] == ("later", 1.0)

    run(main)


def test_work_that_is_not_wanted_any_more_waits_no_longer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        begin_s, end_s = loop.time(), loop.time() + 5
        await Pace(lambda: 1.0).spend(1 << 40, lambda: loop.time() < end_s)
        assert 5 <= loop.time() - begin_s < 5 + 2 * LOOK_MS / 1000

    run(main)


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=8),
    st.lists(st.sampled_from((1.0, 10.0, 5_000.0, 1e9)), min_size=1, max_size=5),
)
def test_never_more_is_spent_than_the_rates_allow_and_the_last_rate_counts_soon(
    sizes: list[int], rates: list[float]
) -> None:
    """Each rate holds for three seconds; the last one for ever."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()

        def rate_at(second: float) -> float:
            return rates[min(int(second / 3), len(rates) - 1)]

        pace, done_bytes = Pace(lambda: rate_at(loop.time() - begin_s)), 0
        for each in sizes:
            await pace.spend(each, wanted)
            done_bytes += each
            elapsed_s = loop.time() - begin_s
            # A look counts its whole second at the rate of its end.
            allowed = sum(max(rate_at(second), rate_at(second + 1)) for second in range(int(elapsed_s) + 1))
            assert done_bytes <= allowed + max(rates) / 1000
        late_s = 3 * (len(rates) - 1) + LOOK_MS / 1000 + sum(sizes) / rates[-1]
        assert loop.time() - begin_s <= late_s + 0.01

    run(main)
