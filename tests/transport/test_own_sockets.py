"""A process that forks does not share the sockets of its lanes, neither its callers' nor its servers'."""

import subprocess
import sys

import pytest

_SCRIPT = """
import asyncio, multiprocessing, os, signal, socket, sys
from rayka.transport.lane import open_lane
from tests.transport.lane_support import NODE_ID, call, connected, offer, raw_connection, until

def sockets():
    found = set()
    for each in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{each}"))
        except OSError:
            pass
    return {each for each in found if each.startswith("socket:")}

def child(mine, end):
    signal.alarm(40)  # ends a child whose parent failed
    os.write(end, b"%d" % len(sockets() & mine))
    os.close(release)
    os.read(go_on, 1)
    os._exit(0)

def fork(mine, end):
    if sys.argv[1] == "multiprocessing":
        multiprocessing.get_context("fork").Process(target=child, args=(mine, end), daemon=True).start()
    elif os.fork() == 0:
        child(mine, end)

async def main():
    global go_on, release
    others = sockets()  # the event loop's own
    start, end = os.pipe()
    go_on, release = os.pipe()
    async with connected() as (server, lane):
        remote = await open_lane(NODE_ID, offer(server, over_tcp=True))
        unwelcome = await raw_connection(server)  # shows no ticket; the test's own socket
        await until(lambda: server._greeting)
        mine = sockets() - others
        mine.remove(os.readlink(f"/proc/self/fd/{unwelcome.fileno()}"))
        fork(mine, end)
        print("of", len(mine), "sockets the child has", os.read(start, 10).decode())
        print("parent goes on:", (await lane.send(call(b"x")))[0])
        lane.close()
        remote.close()
        await until(lambda: "connections=0" in repr(server))
        print("the server noticed the end of both lanes")
        name = offer(server).local_name
        server.close()
        with socket.socket(socket.AF_UNIX) as late:
            print("nothing listens:", late.connect_ex(b"\\0" + name.encode()) != 0)
        unwelcome.close()
    os.write(release, b"!")

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
def test_a_forked_child_has_no_socket_of_its_parents_lanes_and_the_parent_goes_on(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, how], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.splitlines() == [
        "of 7 sockets the child has 0",  # two listen, two lanes with two ends each, and the greeting one
        "parent goes on: b'produce|header|x'",
        "the server noticed the end of both lanes",
        "nothing listens: True",
    ]
