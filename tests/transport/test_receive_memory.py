"""Memory that answers are received into: used again, but never under a view of what was received before."""

import asyncio
import threading

import numpy as np
import pyarrow as pa
import pytest

from rayka.protocol.caller import Answer
from rayka.protocol.wire import Payload
from rayka.transport.lane import open_lane
from rayka.transport.receive_memory import FREE_BYTES_MAX, ReceiveMemory
from tests.transport.lane_support import NODE_ID, call, connected, offer, run, served

SIZE = 3 << 20
BLOCK = 4 << 20


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_block_is_used_again_when_what_was_received_into_it_is_gone() -> None:
    memory = ReceiveMemory()
    first = memory.take(SIZE)
    assert (first.size, first.flags.writeable, memory.free_bytes) == (SIZE, True, 0)
    place = address(first)
    del first
    assert memory.free_bytes == BLOCK
    assert address(memory.take(SIZE + 1)) == place


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[100:200],
        lambda array: array[100:200].view(np.int32)[1:],
        lambda array: memoryview(array)[100:200],
        lambda array: pa.py_buffer(array[8:]).slice(8, 100),
        lambda array: pa.Array.from_buffers(pa.int8(), 9, [None, pa.py_buffer(memoryview(array)[8:])])[2:],
    ],
    ids=["slice", "other type", "memoryview", "arrow buffer", "arrow array"],
)
def test_a_block_is_not_used_again_while_there_is_a_view_of_it(view: object) -> None:
    memory = ReceiveMemory()
    array = memory.take(SIZE)
    kept = view(array)  # type: ignore[operator]
    array.flags.writeable = False
    del array
    assert memory.free_bytes == 0
    del kept
    assert memory.free_bytes == BLOCK


def test_the_last_view_may_end_in_another_thread() -> None:
    memory = ReceiveMemory()
    held = [memory.take(SIZE)[1:]]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert memory.free_bytes == BLOCK


def test_what_is_kept_free_is_bounded() -> None:
    memory = ReceiveMemory()
    arrays = [memory.take(SIZE) for _ in range(2 * FREE_BYTES_MAX // BLOCK)]
    assert len(set(map(address, arrays))) == len(arrays)
    arrays.clear()
    assert memory.free_bytes == FREE_BYTES_MAX


@pytest.mark.parametrize("size", [0, 1, 1000, (16 << 20) + 1])
def test_small_and_huge_payloads_are_not_kept(size: int) -> None:
    memory = ReceiveMemory()
    assert memory.take(size).size == size
    assert memory.free_bytes == 0


def test_an_answer_that_is_kept_stays_as_it_was_while_others_arrive() -> None:
    count = 0

    async def handle(api_name: str, header: bytes, body: bytes, payload: Payload) -> Answer:
        nonlocal count
        count += 1
        return b"", np.full(SIZE, count, dtype=np.uint8)

    async def test() -> None:
        async with connected(handle) as (_, lane):
            kept = []
            for _ in range(6):
                _, payload = await lane.send(call())
                assert isinstance(payload, np.ndarray)
                kept.append(payload[::2])
                del payload
                kept = kept[-3:]
                await asyncio.sleep(0)
            assert [set(np.unique(each).tolist()) for each in kept] == [{4}, {5}, {6}]

    run(test())


class RecordingMemory(ReceiveMemory):
    """Keeps every array that was taken."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[np.ndarray] = []

    def take(self, size: int) -> np.ndarray:
        taken = super().take(size)
        self.taken.append(taken)
        return taken


def test_an_answers_payload_is_the_memory_that_it_was_received_into() -> None:
    memory = RecordingMemory()

    async def test() -> None:
        async with served() as server:
            lane = await open_lane(NODE_ID, offer(server), memory)
            _, payload = await lane.send(call(b"", bytes(SIZE)))
            (taken,) = memory.taken
            assert isinstance(payload, np.ndarray)
            assert np.shares_memory(payload, taken)
            assert (address(payload), payload.size) == (address(taken), SIZE)
            lane.close()

    run(test())
