"""Peers that do what no peer of ours does, and addresses out of reach: cut off, counted, others unaffected."""

import asyncio
import gc
import select
import socket
import tracemalloc

import pytest

from rayka.errors import NetworkException
from rayka.protocol.caller import Answer
from rayka.protocol.wire import Payload
from rayka.transport import lane_server, stream
from rayka.transport.frames import CALL_PAYLOAD_BYTES_MAX, FrameKind, encode_frame
from rayka.transport.greeting import GREETING_BYTES, WELCOME, LaneOffer, Tickets
from rayka.transport.lane import Lane, Lanes, NodeKey, open_lane
from rayka.transport.lane_server import LaneServer
from rayka.transport.receive_memory import ReceiveMemory
from rayka.transport.stream import End
from tests.transport.lane_support import (
    HOST,
    NODE_ID,
    WAIT_S,
    call,
    connected,
    echo,
    greeted,
    offer,
    raw_connection,
    run,
    served,
    until,
)

MANY = 1_000
NOWHERE = "255.255.255.255"  # no machine has it


async def answers(lane: Lane, text: bytes) -> bool:
    """Whether a call by the lane is answered."""
    return (await lane.send(call(text)))[0].endswith(text)


def records_of(payload: Payload | None) -> Payload:
    """Those of an answer that is no failure."""
    assert payload is not None
    return payload


# ---- Many ----------------------------------------------------------------------------------------------------------


def test_a_thousand_connections_at_once_that_show_nothing_are_closed_and_counted_and_lanes_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_server, "GREETING_S", 1.0)

    async def body() -> None:
        async with connected() as (server, lane):
            begging = [await raw_connection(server) for _ in range(MANY)]
            assert await answers(lane, b"while they wait")
            await until(
                lambda: (
                    server.cut_off["it showed no ticket in time"] + server.cut_off["there are too many"]
                    == MANY
                )
            )
            await until(lambda: not server._greeting)
            another = await open_lane(NODE_ID, offer(server))
            assert await answers(another, b"afterwards")
            another.close()
            for each in begging:
                each.close()

    run(body())


def test_an_idle_connection_holds_a_few_kilobytes_at_each_end() -> None:
    count = 200

    async def body() -> None:
        async with served() as server:
            await (first := await open_lane(NODE_ID, offer(server))).send(call())
            memory = ReceiveMemory()
            gc.collect()
            tracemalloc.start()
            lanes = [await open_lane(NODE_ID, offer(server), memory) for _ in range(count)]
            for each in lanes:
                await each.send(call(b"", bytes(100_000)))
            try:
                await until(lambda: gc.collect() >= 0 and tracemalloc.get_traced_memory()[0] < 16_000 * count)
            finally:
                tracemalloc.stop()
            for each in (first, *lanes):
                each.close()

    run(body())


# ---- Wrong frames and tickets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"\xff" * 64, "kind"),
        (bytes(encode_frame(FrameKind.ANSWER, 1, b"", b"")[0]), "expected a call, found an answer"),
        (bytes(encode_frame(FrameKind.FAILURE, 1, b"", b"")[0]), "expected a call, found an answer"),
        (bytes(4) * 2 + (4 << 30).to_bytes(8, "little") + bytes(8) + b"\x01" + bytes(7), "found 4294967296"),
    ],
)
def test_what_a_server_cannot_take_is_counted_and_said(
    sent: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with connected() as (server, lane):
            connection = await greeted(server)
            connection.send(sent)
            await until(lambda: server.cut_off[End.NO_FRAME] == 1)
            assert await answers(lane, b"others")
            connection.close()

    run(body())
    (message,) = [each.message for each in caplog.records]
    assert said in message


def test_a_call_from_a_node_ends_the_lane_of_its_caller() -> None:
    async def body() -> None:
        listening = socket.create_server((HOST, 0))
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        opening = asyncio.ensure_future(
            open_lane(NODE_ID, LaneOffer("", HOST, listening.getsockname()[1], bytes(32)))
        )
        node, _ = await loop.sock_accept(listening)
        while len(await loop.sock_recv(node, GREETING_BYTES)) < GREETING_BYTES:
            pass
        await loop.sock_sendall(node, WELCOME)
        lane = await opening
        asked = asyncio.ensure_future(lane.send(call()))
        await loop.sock_recv(node, 1_000)
        await loop.sock_sendall(node, bytes(encode_frame(FrameKind.CALL, 0, b"", b"", api_name="produce")[0]))
        with pytest.raises(NetworkException, match="expected an answer, found a call"):
            await asked
        for each in (node, listening):
            each.close()

    run(body())


def test_a_stranger_at_a_nodes_address_does_not_count_as_a_lane() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async def body() -> None:
        async with await asyncio.start_server(answer, HOST, 0) as other:
            port = other.sockets[0].getsockname()[1]
            with pytest.raises(NetworkException, match="is no lane"):
                await open_lane(NODE_ID, LaneOffer("", HOST, port, bytes(32)))

    run(body())


def announced(payload_bytes: int) -> bytes:
    """The head of a call that is to have so many bytes of records."""
    head = bytearray(bytes(encode_frame(FrameKind.CALL, 1, b"", bytes(1 << 20), api_name="produce")[0]))
    head[8:16] = payload_bytes.to_bytes(8, "little")
    return bytes(head)


def test_half_a_large_frame_whose_peer_stops_there_holds_its_own_connection_only() -> None:
    async def body() -> None:
        async with connected() as (server, lane):
            connection = await greeted(server)
            connection.send(announced(CALL_PAYLOAD_BYTES_MAX))
            for number in range(50):
                assert await answers(lane, b"%d" % number)
            connection.close()
            await until(lambda: server.cut_off[End.PARTIAL_FRAME] == 1)

    run(body())


# ---- Peers that stop in the middle of a frame ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [announced(1000)[:10], announced(1000), announced(3 << 20) + bytes(100_000)],
    ids=["half a prefix", "a head", "a part of large records"],
)
def test_a_peer_that_stops_in_the_middle_of_a_frame_is_cut_off_and_counted(
    sent: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream, "PARTIAL_FRAME_S", 0.05)

    async def body() -> None:
        async with connected() as (server, lane):
            connection = await greeted(server)
            await asyncio.get_running_loop().sock_sendall(connection, sent)
            await until(lambda: server.cut_off[End.STALLED] == 1)
            assert server._memory.unfinished.held_bytes == 0
            assert await answers(lane, b"others")
            assert server.cut_off == {End.STALLED: 1}
            connection.close()

    run(body())
    assert [each.message.rpartition(": ")[2] for each in caplog.records] == ["nothing arrived for 0.05 s"]


def test_a_frame_whose_rest_came_while_the_process_did_not_run_is_taken() -> None:
    """Where timers go before sockets, as on uvloop, what has arrived is not read yet."""

    async def body() -> None:
        async with served() as server:
            connection = await greeted(server)
            frame = encode_frame(FrameKind.CALL, 1, b"body", b"", api_name="produce")[0]
            connection.send(bytes(frame)[:10])
            await until(lambda: len(server._connections) == 1)
            (served_end,) = server._connections
            await until(lambda: served_end._stream._progress_timer is not None)
            connection.send(bytes(frame)[10:])
            select.select([served_end._stream._socket], [], [], WAIT_S)  # no turn of the event loop
            served_end._stream._check_progress()
            assert await asyncio.get_running_loop().sock_recv(connection, 1_000)
            assert not server.cut_off
            connection.close()

    run(body())


def test_the_time_in_which_a_connection_is_held_back_does_not_count() -> None:
    async def body() -> None:
        async with served() as server:
            connection = await greeted(server)
            connection.send(announced(1000))
            await until(lambda: len(server._connections) == 1)
            (served_end,) = server._connections
            held_back = served_end._stream
            await until(lambda: held_back._progress_timer is not None)
            held_back.set_paused(True)
            held_back._check_progress()
            held_back.set_paused(False)
            held_back._check_progress()
            connection.send(bytes(1000))
            assert await asyncio.get_running_loop().sock_recv(connection, 2_000)
            assert not server.cut_off
            connection.close()

    run(body())


def test_calls_that_are_not_whole_hold_a_bounded_number_of_bytes_and_small_ones_do_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, size, bound = 10, 3 << 20, 4 << 20
    monkeypatch.setattr(lane_server, "UNFINISHED_BYTES_MAX", bound)

    async def body() -> None:
        async with connected() as (server, lane):
            unfinished = server._memory.unfinished
            stopped = [await greeted(server) for _ in range(count)]
            for each in stopped:
                each.send(announced(size))
            await until(lambda: repr(unfinished).endswith(f" waiting={count - 2}>"))
            assert bound < unfinished.held_bytes < bound + size
            for number in range(20):
                assert await answers(lane, b"%d" % number)
            assert await answers(lane, bytes(500_000))
            large = lane.send(call(b"", bytes(size)))
            await until(lambda: repr(unfinished).endswith(f" waiting={count - 1}>"))
            for each in stopped:
                each.close()
            _, payload = await large
            assert len(records_of(payload)) == size
            assert (server.cut_off, unfinished.held_bytes) == ({End.PARTIAL_FRAME: count}, 0)

    run(body())


def test_a_peer_that_is_cut_off_gives_its_memory_to_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    count, size = 6, 3 << 20
    monkeypatch.setattr(stream, "PARTIAL_FRAME_S", 0.1)
    monkeypatch.setattr(lane_server, "UNFINISHED_BYTES_MAX", size)

    async def body() -> None:
        async with connected() as (server, lane):
            stopped = [await greeted(server) for _ in range(count)]
            for each in stopped:
                each.send(announced(size))
            await until(lambda: server._memory.unfinished.has_waiting)
            _, payload = await lane.send(call(b"", bytes(size)))
            assert len(records_of(payload)) == size
            await until(lambda: not server._memory.unfinished.held_bytes)
            assert server.cut_off == {End.STALLED: count}
            for each in stopped:
                each.close()

    run(body())


def test_a_peer_that_sends_a_byte_now_and_then_is_cut_off_when_others_wait_for_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 3 << 20
    monkeypatch.setattr(stream, "PARTIAL_FRAME_S", 0.1)
    monkeypatch.setattr(lane_server, "UNFINISHED_BYTES_MAX", 1)

    async def drip(connection: socket.socket) -> None:
        while True:
            await asyncio.get_running_loop().sock_sendall(connection, b"x")
            await asyncio.sleep(0.005)

    async def body() -> None:
        async with connected() as (server, lane):
            connection = await greeted(server)
            connection.send(announced(size))
            await until(lambda: server._memory.unfinished.held_bytes > size)
            dripping = asyncio.ensure_future(drip(connection))
            _, payload = await lane.send(call(b"", bytes(size)))
            assert len(records_of(payload)) == size
            assert server.cut_off == {End.STALLED: 1}
            await asyncio.gather(dripping, return_exceptions=True)
            connection.close()

    run(body())


def test_a_call_of_any_size_is_received_whatever_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_server, "UNFINISHED_BYTES_MAX", 1)

    async def body() -> None:
        async with connected() as (server, lane):
            calls = [call(b"%d" % number, bytes(20 << 20)) for number in range(3)]
            found = await asyncio.gather(*(lane.send(each) for each in calls))
            assert [len(records_of(payload)) for _, payload in found] == [20 << 20] * 3
            assert server._memory.unfinished.held_bytes == 0

    run(body())


def test_a_connection_that_is_held_back_ends_the_call_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two could wait for each other: it for answers, and those for the memory that its half call holds."""
    size = 3 << 20
    monkeypatch.setattr(lane_server, "UNFINISHED_BYTES_MAX", 1)
    monkeypatch.setattr(lane_server, "HELD_BYTES_MAX", 10_000)
    other_arrived = asyncio.Event()

    async def first_waits(_: str, __: bytes, body: bytes, payload: Payload) -> Answer:
        if body == b"first":
            await other_arrived.wait()
        elif body == b"other":
            other_arrived.set()
        return body, payload

    async def body() -> None:
        async with connected(first_waits) as (server, lane):
            loop, connection = asyncio.get_running_loop(), await greeted(server)
            first = encode_frame(FrameKind.CALL, 0, b"first", bytes(10_000), api_name="produce")
            connection.send(b"".join(map(bytes, first)) + announced(size))
            await until(lambda: server._memory.unfinished.held_bytes > size)
            other = lane.send(call(b"other", bytes(size)))
            await until(lambda: server._memory.unfinished.has_waiting)
            try:
                await loop.sock_sendall(connection, bytes(size))
                assert (await other)[0].endswith(b"other")
            finally:
                other_arrived.set()
                connection.close()

    run(body())


# ---- Late tickets, machines that are gone --------------------------------------------------------------------------


def test_a_ticket_that_was_shown_too_late_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with served() as server:
            late = offer(server)
            take = Tickets.take
            monkeypatch.setattr(Tickets, "take", lambda self, ticket, now_s: take(self, ticket, now_s + 30.0))
            with pytest.raises(NetworkException, match="not valid, or expired"):
                await open_lane(NODE_ID, late)
            assert server.cut_off["it showed no valid ticket"] == 1

    run(body())


def test_both_ends_of_a_lane_over_tcp_notice_a_machine_that_is_gone_within_seconds() -> None:
    async def body() -> None:
        async with served() as server:
            lane = await open_lane(NODE_ID, offer(server, over_tcp=True))
            (served_end,) = server._connections
            for stream in (lane._stream, served_end._stream):
                connection = stream._socket
                assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
                idle, again, count = (
                    connection.getsockopt(socket.IPPROTO_TCP, each)
                    for each in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                )
                assert idle + again * count <= 10
            lane.close()

    run(body())


# ---- Unreachable ---------------------------------------------------------------------------------------------------


def test_an_address_that_cannot_be_reached_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    async def ask() -> LaneOffer:
        nonlocal asked
        asked += 1
        return LaneOffer("", NOWHERE, 1, bytes(32))

    async def body() -> None:
        lanes = Lanes()
        while asked < 3:
            assert lanes.get("ray", NodeKey("rayka", NODE_ID), ask) is None
            await asyncio.sleep(0)
        await until(lambda: "opening=0" in repr(lanes))
        lanes.close()

    with caplog.at_level("INFO", logger="rayka.transport"):
        run(body())
    (message,) = [each.message for each in caplog.records]
    assert message.startswith("calls go by Ray, not directly: broker-1 has no lane for this process: ")


def test_a_server_without_a_free_port_says_so_once_and_serves_its_own_machine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        async with served() as taking:
            taken = taking.offer().port
            server = LaneServer(echo)
            server.start(HOST, range(taken, taken + 1))
            assert server.offer().port == 0
            lane = await open_lane(NODE_ID, offer(server))
            assert await answers(lane, b"near")
            with pytest.raises(NetworkException, match="it serves none that can be reached from here"):
                await open_lane(NODE_ID, offer(server, over_tcp=True))
            lane.close()
            server.close()

    run(body())
    (message,) = [each.message for each in caplog.records]
    assert message.startswith("no port for direct calls from other machines")
    assert f"at {HOST} (Address already in use)" in message


def test_a_server_that_may_listen_nowhere_says_so_and_leaves_all_calls_to_ray(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lane_server.secrets, "token_hex", lambda _: "x" * 200)  # too long for a socket's name

    async def body() -> None:
        server = LaneServer(echo)
        server.start("240.0.0.1")  # reserved: not this machine's
        assert (server.offer().local_name, server.offer().port) == ("", 0)
        server.close()

    run(body())
    assert [each.message.partition(":")[0] for each in caplog.records] == [
        "no socket for direct calls from this machine",
        "no port for direct calls from other machines",
    ]
