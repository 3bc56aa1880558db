"""A lane between two ends in one process: over the machine's own socket, and over TCP."""

import asyncio
import errno
import os
import socket
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from rayka.errors import ErrorCode, NetworkException
from rayka.protocol.caller import Answer
from rayka.protocol.later import Later
from rayka.protocol.wire import Failure, Payload, encode
from rayka.transport import lane_server, stream
from rayka.transport.frames import CALL_HEAD_BYTES_MAX, FrameKind, encode_frame
from rayka.transport.greeting import (
    GREETING_BYTES,
    MAGIC,
    PROOF_BYTES,
    TICKETS_MAX,
    WELCOME,
    LaneOffer,
    Tickets,
    greeting,
    receive_exactly,
)
from rayka.transport.lane import Lane, fits_lane, open_lane
from rayka.transport.lane_server import LaneServer
from rayka.transport.receive_memory import SCRATCH_BYTES, ReceiveMemory
from rayka.transport.stream import End
from tests.descriptors import limited_to
from tests.transport.lane_support import (
    NODE_ID,
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

MIB = 1 << 20


def has_ipv6() -> bool:
    """Whether this machine has an address of IPv6 for itself."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("over_tcp", [False, True])
@pytest.mark.parametrize("size", [0, 1, 5_000, 300_000, 20 * MIB])
def test_a_call_is_answered_with_its_records(over_tcp: bool, size: int) -> None:
    async def body() -> None:
        records = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
        async with connected(over_tcp=over_tcp) as (_, lane):
            answer, payload = await lane.send(call(b"question", records.tobytes()))
            assert answer == b"produce|header|question"
            assert np.array_equal(payload, records)

    run(body())


def test_several_buffers_arrive_as_one_payload() -> None:
    async def body() -> None:
        async with connected() as (_, lane):
            _, payload = await lane.send(call(b"", b"a" * MIB, b"b" * MIB))
            assert bytes(payload) == b"a" * MIB + b"b" * MIB

    run(body())


def test_the_largest_call_that_takes_a_lane_is_answered_and_a_larger_one_goes_by_ray() -> None:
    """Else it would end the lane, and with it all calls under way, each time that it is sent again."""
    largest = call(bytes(CALL_HEAD_BYTES_MAX - len("produce") - len("header")), b"records")
    larger = largest._replace(request=largest.request._replace(body=largest.request.body + b"x"))
    assert fits_lane(largest._replace(is_hot=True))
    assert not fits_lane(larger._replace(is_hot=True))

    async def body() -> None:
        async with connected() as (_, lane):
            answer, payload = await lane.send(largest)
            assert (len(answer), bytes(payload)) == (CALL_HEAD_BYTES_MAX + len("||"), b"records")
            with pytest.raises(NetworkException):
                await lane.send(larger)

    run(body())


def test_a_failure_is_an_answer_without_payload() -> None:
    async def fail(*_: object) -> Answer:
        return encode(Failure(ErrorCode.INVALID_REQUEST, "no")).body, None

    async def body() -> None:
        async with connected(fail) as (_, lane):
            _, payload = await lane.send(call())
            assert payload is None

    run(body())


def test_answers_come_in_the_order_in_which_the_node_has_them() -> None:
    gates = {b"0": asyncio.Event(), b"1": asyncio.Event()}

    async def gated(_: str, __: bytes, body: bytes, payload: Payload) -> Answer:
        await gates[body].wait()
        return body, payload

    async def body() -> None:
        async with connected(gated) as (_, lane):
            first, second = (asyncio.ensure_future(lane.send(call(each))) for each in gates)
            gates[b"1"].set()
            assert (await second)[0] == b"1"
            assert not first.done()
            gates[b"0"].set()
            assert (await first)[0] == b"0"

    run(body())


def test_calls_are_handed_over_in_the_order_in_which_they_were_sent() -> None:
    started: list[int] = []

    async def note(_: str, __: bytes, body: bytes, payload: Payload) -> Answer:
        started.append(int(body))
        return body, payload

    async def body() -> None:
        async with connected(note) as (_, lane):
            sizes = (0, 300_000, 5, 2 * MIB, 9_000)
            calls = [call(b"%d" % number, bytes(sizes[number % 5])) for number in range(50)]
            await asyncio.gather(*(lane.send(each) for each in calls))

    run(body())
    assert started == list(range(50))


def test_a_call_leaves_at_once_when_no_other_is_under_way_and_else_with_those_of_its_turn() -> None:
    async def body() -> None:
        near, far = socket.socketpair()
        with far:
            far.setblocking(False)
            lane = Lane(NODE_ID, near, ReceiveMemory())
            calls = [asyncio.ensure_future(lane.send(call(b"%d" % number))) for number in range(3)]
            frame_bytes = len(far.recv(MIB))
            await asyncio.sleep(0)
            assert len(far.recv(MIB)) == 2 * frame_bytes
            lane.close()
            await asyncio.gather(*calls, return_exceptions=True)

    run(body())


def test_of_many_calls_in_one_turn_the_first_leave_before_it_is_over() -> None:
    async def body() -> None:
        near, far = socket.socketpair()
        with far:
            far.setblocking(False)
            lane = Lane(NODE_ID, near, ReceiveMemory())
            calls = [lane.send(call())]
            frame_bytes = len(far.recv(MIB))
            calls += [lane.send(call()) for _ in range(40)]
            assert len(far.recv(MIB)) == 32 * frame_bytes
            await asyncio.sleep(0)
            assert len(far.recv(MIB)) == 8 * frame_bytes
            lane.close()
            await asyncio.gather(*calls, return_exceptions=True)

    run(body())


def test_a_connection_with_many_calls_in_flight_holds_up_others_for_a_part_of_them_only() -> None:
    handled: list[bytes] = []

    def note(_: str, __: bytes, body: bytes, payload: Payload) -> Answer:
        handled.append(body)
        return body, payload

    async def body() -> None:
        async with connected(note) as (server, busy):
            other = await open_lane(NODE_ID, offer(server))
            sent = [busy.send(call(b"busy", bytes(1024))) for _ in range(200)] + [other.send(call(b"other"))]
            await asyncio.gather(*sent)
            other.close()
        assert handled.index(b"other") <= 100  # no turn of the loop takes more than the scratch buffer holds

    run(body())


def test_a_call_that_is_answered_at_once_needs_no_task() -> None:
    tasks: list[int] = []

    def answer(_: str, __: bytes, body: bytes, payload: Payload) -> Answer:
        tasks.append(len(asyncio.all_tasks()))
        return body, payload

    async def body() -> None:
        async with connected(answer) as (_, lane):
            before = len(asyncio.all_tasks())
            for number in range(3):
                assert (await lane.send(call(b"%d" % number)))[0] == b"%d" % number
            assert tasks == [before] * 3

    run(body())


def test_when_the_handler_of_an_answer_raises_the_calls_answered_with_it_fail() -> None:
    """They arrived in one piece of the stream, of which the rest is lost: without the lane's end they would wait."""
    raised: list[object] = []

    def take(_: object) -> None:
        raise ZeroDivisionError

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: raised.append(context["exception"])
        )
        async with connected() as (_, lane):
            first, second = lane.send(call(b"first")), lane.send(call(b"second"))
            first.then(take)
            with pytest.raises(
                NetworkException, match="it was closed on this side: what took a frame raised"
            ):
                await second
            assert not lane.is_open
            assert [type(each) for each in raised] == [ZeroDivisionError]

    run(body())


def test_a_call_that_nothing_waits_for_any_more_does_not_disturb_the_others() -> None:
    async def slow(_: str, __: bytes, body: bytes, payload: Payload) -> Answer:
        await asyncio.sleep(0.05)
        return body, payload

    async def body() -> None:
        async with connected(slow) as (_, lane):
            given_up = asyncio.ensure_future(lane.send(call(b"given up")))
            kept = asyncio.ensure_future(lane.send(call(b"kept")))
            await asyncio.sleep(0)
            given_up.cancel()
            assert (await kept)[0] == b"kept"
            assert "waiting=0" in repr(lane)

    run(body())


# ---- The end of a lane ---------------------------------------------------------------------------------------------


def _tasks_of_calls() -> "list[asyncio.Task[Any]]":
    return [each for each in asyncio.all_tasks() if each.get_name() == "produce"]


def test_when_the_node_ends_what_waits_fails_and_nothing_more_is_sent() -> None:
    async def never(*_: object) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    async def body() -> None:
        async with served(never) as server:
            lane = await open_lane(NODE_ID, offer(server))
            waiting = asyncio.ensure_future(lane.send(call()))
            await until(lambda: bool(_tasks_of_calls()))
            for task in _tasks_of_calls():
                task.cancel()
            server.close()
            with pytest.raises(NetworkException, match=r"broker-1 ended: the peer closed"):
                await waiting
            assert not lane.is_open
            with pytest.raises(NetworkException, match="ended"):
                await lane.send(call())

    run(body())


def test_a_call_goes_on_when_its_caller_is_gone() -> None:
    gate, executed = asyncio.Event(), []

    async def slow(_: str, __: bytes, body: bytes, payload: Payload) -> Answer:
        await gate.wait()
        executed.append(body)
        return body, payload

    async def body() -> None:
        async with connected(slow) as (server, lane):
            sent = asyncio.ensure_future(lane.send(call(b"x")))
            await until(lambda: any(each.get_name() == "produce" for each in asyncio.all_tasks()))
            lane.close()
            with pytest.raises(NetworkException):
                await sent
            await until(lambda: "connections=0" in repr(server))
            gate.set()
            await until(lambda: executed == [b"x"])

    run(body())


# ---- Without a valid ticket ----------------------------------------------------------------------------------------


class CountingSocket(socket.socket):
    """Counts what is received by all sockets of its kind."""

    received_bytes = 0

    def recv(self, *arguments: Any) -> bytes:
        data = super().recv(*arguments)
        CountingSocket.received_bytes += len(data)
        return data

    def recv_into(self, *arguments: Any) -> int:
        count = super().recv_into(*arguments)
        CountingSocket.received_bytes += count
        return count


@pytest.mark.parametrize(
    "shown", [bytes(GREETING_BYTES), MAGIC + bytes(32), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2]
)
def test_a_connection_without_a_valid_ticket_is_closed_before_anything_else_is_read(
    shown: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def note(*arguments: Any) -> Answer:
        calls.append(arguments)
        return b"", b""

    monkeypatch.setattr(CountingSocket, "received_bytes", 0)
    monkeypatch.setattr(lane_server, "close_in_children", lambda each: CountingSocket(fileno=each.detach()))

    async def body() -> None:
        async with served(note) as server:
            connection = await raw_connection(server)
            loop = asyncio.get_running_loop()
            frame = encode_frame(FrameKind.CALL, 1, b"", b"", api_name="produce")
            await loop.sock_sendall(connection, shown + bytes(frame[0]))
            assert await _rest(connection) == b""
            assert server.cut_off["it showed no valid ticket"] == 1
            assert "connections=0" in repr(server)
            connection.close()

    run(body())
    assert (CountingSocket.received_bytes, calls) == (GREETING_BYTES, [])


def test_a_ticket_is_valid_once() -> None:
    async def body() -> None:
        async with served() as server:
            once = offer(server)
            lane = await open_lane(NODE_ID, once)
            with pytest.raises(NetworkException, match="ticket is not valid"):
                await open_lane(NODE_ID, once)
            assert (await lane.send(call()))[0]
            lane.close()

    run(body())


def test_a_connection_that_breaks_in_its_greeting_is_not_replaced_by_one_over_tcp() -> None:
    async def body() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as cut:
            cut.bind("\0rayka-cut-in-the-greeting")
            cut.listen()
            cut.setblocking(False)
            async with served() as server:
                whole = server.offer()
                broken = LaneOffer("rayka-cut-in-the-greeting", whole.host, whole.port, whole.ticket)
                opening = asyncio.ensure_future(open_lane(NODE_ID, broken))
                connection, _ = await asyncio.get_running_loop().sock_accept(cut)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.close()
                with pytest.raises(NetworkException):
                    await opening
                assert "connections=0" in repr(server)
                (await open_lane(NODE_ID, whole)).close()  # the ticket was not used

    run(body())


def test_a_ticket_expires_and_the_oldest_gives_way() -> None:
    tickets = Tickets()
    first = tickets.issue(0.0)
    assert not tickets.take(first, 1_000.0)
    second = tickets.issue(0.0)
    later = [tickets.issue(1.0) for _ in range(TICKETS_MAX)]
    assert not tickets.take(second, 1.0)
    assert tickets.take(later[0], 1.0)
    assert not tickets.take(later[0], 1.0)


def test_a_connection_that_shows_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_server, "GREETING_S", 0.05)

    async def body() -> None:
        async with served() as server:
            connection = await raw_connection(server)
            connection.send(b"rayka")
            assert await _rest(connection) == b""
            assert server.cut_off["it showed no ticket in time"] == 1
            connection.close()

    run(body())


def test_a_node_that_serves_no_lane_is_said_so() -> None:
    async def body() -> None:
        with pytest.raises(NetworkException, match="broker-1 has no lane for this process"):
            await open_lane(NODE_ID, LaneOffer("", "", 0, b""))
        with pytest.raises(
            NetworkException, match="broker-1 has no lane for this process: Connection refused"
        ):
            await open_lane(NODE_ID, LaneOffer("rayka-gone", "", 0, bytes(32)))

    run(body())


# ---- Hostile peers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 64,
        bytes(encode_frame(FrameKind.ANSWER, 1, b"", b"")[0]),
        (4 << 30).to_bytes(8, "little") * 2 + bytes(8) + b"\x01" + bytes(7),
    ],
)
def test_what_is_no_call_ends_its_own_connection_and_no_other(sent: bytes) -> None:
    async def body() -> None:
        async with connected() as (server, lane):
            connection = await greeted(server)
            connection.send(sent)
            assert await _rest(connection) == b""
            assert (await lane.send(call(b"still here")))[0].endswith(b"still here")
            connection.close()

    run(body())


def test_half_a_frame_is_counted_when_its_connection_ends() -> None:
    async def body() -> None:
        async with served() as server:
            connection = await greeted(server)
            connection.send(bytes(encode_frame(FrameKind.CALL, 1, b"body", b"", api_name="produce")[0])[:-1])
            connection.close()
            await until(lambda: server.cut_off[End.PARTIAL_FRAME] == 1)

    run(body())


def test_unanswered_calls_of_one_connection_hold_a_bounded_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_server, "HELD_BYTES_MAX", 3 * MIB)
    gate, held, most = asyncio.Event(), 0, 0

    async def hold(_: str, __: bytes, body: bytes, payload: Payload) -> Answer:
        nonlocal held, most
        held += len(payload)
        most = max(most, held)
        await gate.wait()
        held -= len(payload)
        return body, b""

    async def body() -> None:
        async with connected(hold) as (_, lane):
            sent = [asyncio.ensure_future(lane.send(call(b"", bytes(MIB)))) for _ in range(12)]
            await until(lambda: held >= 3 * MIB)
            gate.set()
            await asyncio.gather(*sent)

    run(body())
    assert most <= 4 * MIB


def test_unanswered_calls_of_one_connection_are_bounded_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_server, "UNANSWERED_CALLS_MAX", 3)
    answers: list[Later[Answer]] = []

    def hold(*_: object) -> Later[Answer]:
        answers.append(Later())
        return answers[-1]

    async def body() -> None:
        async with connected(hold) as (_, lane):
            sent = [lane.send(call(bytes(SCRATCH_BYTES))) for _ in range(6)]  # each arrives by itself
            await until(lambda: len(answers) == 3)
            await asyncio.sleep(0.01)
            assert len(answers) == 3
            for place in range(6):
                await until(lambda place=place: len(answers) > place)  # type: ignore[misc]
                answers[place].end((b"", b""))
            await asyncio.gather(*sent)

    run(body())


def test_a_reader_that_takes_nothing_is_cut_off_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "STALLED_S", 0.1)

    async def answer_much(_: str, __: bytes, body: bytes, ___: Payload) -> Answer:
        return body, np.empty(8 * MIB if body == b"much" else 1, dtype=np.uint8)

    async def body() -> None:
        async with connected(answer_much) as (server, lane):
            connection = await greeted(server)
            connection.send(bytes(encode_frame(FrameKind.CALL, 1, b"much", b"", api_name="fetch")[0]))
            await until(lambda: server.cut_off[End.SLOW_PEER] == 1)
            assert (await lane.send(call(b"little")))[0] == b"little"
            connection.close()

    run(body())


def test_a_reader_that_takes_something_has_all_the_time_again() -> None:
    stalls: list[asyncio.TimerHandle] = []

    async def answer_much(_: str, __: bytes, body: bytes, ___: Payload) -> Answer:
        return body, np.empty(256 * MIB, dtype=np.uint8)  # many times what sockets hold

    async def body() -> None:
        async with served(answer_much) as server:
            connection, loop = await greeted(server), asyncio.get_running_loop()
            call_later = loop.call_later

            def noted(delay_s: float, *work: Any) -> asyncio.TimerHandle:
                handle = call_later(delay_s, *work)
                if delay_s == stream.STALLED_S:
                    stalls.append(handle)
                return handle

            loop.call_later = noted  # type: ignore[assignment,method-assign]
            connection.send(bytes(encode_frame(FrameKind.CALL, 1, b"", b"", api_name="fetch")[0]))
            await until(lambda: bool(stalls))
            while len(stalls) < 3:
                await loop.sock_recv(connection, MIB)
            assert [each.cancelled() for each in stalls] == [True] * (len(stalls) - 1) + [False]
            connection.close()

    run(body())


def test_from_a_reader_that_is_slow_no_more_calls_are_taken_until_it_has_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_server, "HELD_BYTES_MAX", 2 * MIB)
    taken = 0

    async def answer_much(_: str, __: bytes, body: bytes, ___: Payload) -> Answer:
        nonlocal taken
        taken += 1
        return body, np.empty(16 * MIB, dtype=np.uint8)

    async def body() -> None:
        async with served(answer_much) as server:
            connection, loop = await greeted(server), asyncio.get_running_loop()
            question = bytes(encode_frame(FrameKind.CALL, 1, b"", b"", api_name="fetch")[0])
            connection.send(question)
            await until(lambda: taken == 1)
            await asyncio.sleep(0.01)
            for _ in range(2):
                connection.send(question)
                await asyncio.sleep(0.01)
            assert taken == 1
            left = 3 * 16 * MIB
            while left > 0:
                left -= len(await loop.sock_recv(connection, MIB))
            assert taken == 3
            assert not server.cut_off
            connection.close()

    run(body())


def test_what_waits_for_a_slow_reader_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "QUEUED_BYTES_MAX", 4 * MIB)

    async def answer_much(_: str, __: bytes, body: bytes, ___: Payload) -> Answer:
        return body, np.empty(3 * MIB, dtype=np.uint8)

    async def body() -> None:
        async with served(answer_much) as server:
            connection = await greeted(server)
            for number in range(3):
                connection.send(bytes(encode_frame(FrameKind.CALL, number, b"", b"", api_name="fetch")[0]))
            await until(lambda: server.cut_off[End.SLOW_PEER] == 1)
            connection.close()

    run(body())


def test_connections_beyond_the_bound_are_refused_and_those_that_are_open_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_server, "CONNECTIONS_MAX", 2)

    async def body() -> None:
        async with connected() as (server, lane):
            second = await open_lane(NODE_ID, offer(server))
            with pytest.raises(NetworkException):
                await open_lane(NODE_ID, offer(server, over_tcp=True))
            assert server.cut_off["there are too many"] == 1
            second.close()
            assert (await lane.send(call()))[0]

    run(body())


def test_connections_that_have_yet_to_show_a_ticket_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_server, "GREETINGS_MAX", 2)

    async def body() -> None:
        async with connected() as (server, lane):
            strangers = [await raw_connection(server) for _ in range(3)]
            await until(lambda: server.cut_off["there are too many"] == 1)
            assert await _rest(strangers[2]) == b""
            for each in strangers:
                each.close()
            assert (await lane.send(call()))[0]

    run(body())


@pytest.mark.skipif(sys.platform != "linux", reason="abstract names are Linux's")
def test_a_stranger_at_the_name_of_a_node_that_ended_learns_nothing_and_is_no_lane() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with served() as server:
            offered = msgspec.structs.replace(server.offer(), host="", port=0)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.bind(b"\0" + offered.local_name.encode())
            stranger.listen()
            stranger.setblocking(False)
            opening = asyncio.ensure_future(open_lane(NODE_ID, offered))
            connection, _ = await loop.sock_accept(stranger)
            asked = await receive_exactly(connection, GREETING_BYTES)
            await loop.sock_sendall(connection, WELCOME * 10)
            with pytest.raises(NetworkException, match="does not know the ticket"):
                await opening
            assert offered.ticket not in asked
            assert await _rest(connection) == b""
            connection.close()

    run(body())


def test_who_knows_the_digest_of_a_ticket_alone_is_not_welcomed() -> None:
    async def body() -> None:
        async with served() as server:
            connection, loop = await raw_connection(server), asyncio.get_running_loop()
            await loop.sock_sendall(connection, greeting(server.offer()))
            proof = await receive_exactly(connection, PROOF_BYTES)
            await loop.sock_sendall(connection, proof)
            assert await _rest(connection) == b""
            assert server.cut_off["it showed no valid ticket"] == 1
            connection.close()

    run(body())


@pytest.mark.parametrize("has_proof", [True, False], ids=["this release", "an older one"])
def test_callers_and_nodes_of_this_release_and_of_older_ones_open_lanes(has_proof: bool) -> None:
    async def body() -> None:
        async with served() as server:
            offered = msgspec.structs.replace(server.offer(), has_proof=has_proof)
            lane = await open_lane(NODE_ID, offered)
            assert (await lane.send(call()))[0]
            with pytest.raises(NetworkException):
                await open_lane(NODE_ID, offered)  # a ticket is for one connection
            lane.close()

    run(body())


def test_connections_leave_half_of_the_descriptors_to_files_and_go_on_when_others_end() -> None:
    async def body() -> None:
        async with served() as server:
            lanes = [await open_lane(NODE_ID, offer(server)) for _ in range(2)]
            lowest = os.open(os.devnull, os.O_RDONLY)
            os.close(lowest)
            with limited_to(2 * lowest):
                with pytest.raises(NetworkException):
                    await open_lane(NODE_ID, offer(server))
                assert server.cut_off["there are too many"] == 1
                lanes.pop().close()
                await until(lambda: len(server._connections) == 1)
                lanes.append(await open_lane(NODE_ID, offer(server)))
                assert [(await each.send(call()))[0] != b"" for each in lanes] == [True, True]
            for each in lanes:
                each.close()

    run(body())


def test_a_node_without_a_free_descriptor_takes_connections_again_when_it_has_one() -> None:
    async def body() -> None:
        async with served() as server:
            loop = asyncio.get_running_loop()
            accept, failed = loop.sock_accept, list[None]()

            async def without_descriptor(listening: socket.socket) -> Any:
                connection, address = await accept(listening)
                if not failed:
                    failed.append(connection.close())
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return connection, address

            loop.sock_accept = without_descriptor  # type: ignore[assignment,method-assign]
            with pytest.raises(NetworkException):
                await open_lane(NODE_ID, offer(server))
            assert server.cut_off["it could not be accepted"] == 1
            (await open_lane(NODE_ID, offer(server))).close()

    run(body())


def test_a_port_that_is_taken_is_passed_over() -> None:
    async def body() -> None:
        async with served() as server:
            taken = server.offer().port
            other = LaneServer(echo)
            other.start("127.0.0.1", (taken, 0))
            assert other.offer().port not in (0, taken)
            other.close()
            await until(lambda: sum(each.get_name() == "accept" for each in asyncio.all_tasks()) == 2)

    run(body())


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_server_at_an_ipv6_address_is_called_over_tcp() -> None:
    async def body() -> None:
        server = LaneServer(echo)
        server.start("::1")
        lane = await open_lane(NODE_ID, offer(server, over_tcp=True))
        assert (await lane.send(call(b"far")))[0].endswith(b"|far")
        lane.close()
        server.close()

    run(body())


# ---- Helpers -------------------------------------------------------------------------------------------------------


async def _rest(connection: socket.socket) -> bytes:
    """What the peer sends until it closes; a reset is an end, too."""
    received = b""
    try:
        while some := await asyncio.get_running_loop().sock_recv(connection, 1_000):
            received += some
    except ConnectionError:
        pass
    return received


def test_the_answer_to_the_last_call_that_waits_leaves_at_once_with_those_before_it() -> None:
    asked: list[Later[Answer]] = []

    def later(*_: object) -> Later[Answer]:
        asked.append(Later())
        return asked[-1]

    async def body() -> None:
        async with served(later) as server:
            caller = await greeted(server)
            with caller:
                for request_id in (1, 2):
                    caller.send(encode_frame(FrameKind.CALL, request_id, b"", b"", api_name="produce")[0])
                await until(lambda: len(asked) == 2)
                asked[0].end((b"first", b""))
                with pytest.raises(BlockingIOError):
                    caller.recv(MIB)
                asked[1].end((b"second", b""))
                answers = caller.recv(MIB)
                assert answers.index(b"first") < answers.index(b"second")

    run(body())
