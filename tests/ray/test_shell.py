"""The shell of a node without Ray: what it answers while its node cannot start, and how it crashes."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayka.actors.node_placement import NodePlacement, wall_clock_ms
from rayka.actors.ray_network import pack_call, unpack_answer
from rayka.actors.shell import CRASHES_MAX, FILE_NAME, WINDOW_MS, NodeShell, recent_crashes, record_crash
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import BrokerNotAvailable, InvalidRequest, StorageError
from rayka.node.settings import NodeSettings
from rayka.ports import Message
from rayka.protocol.apis import BROKER
from rayka.protocol.caller import Answer
from rayka.protocol.membership import MetadataRequest, NodeState, StatusRequest, StatusResponse
from rayka.protocol.wire import Failure, RequestHeader, decode, encode


class Node:
    """Starts when `refusals` is empty; raises the last of them before."""

    serves = BROKER

    def __init__(self, settings: NodeSettings, refusals: list[Exception]) -> None:
        self.settings = settings
        self._refusals = refusals

    async def start(self) -> None:
        if self._refusals:
            raise self._refusals.pop()

    async def stop(self) -> None: ...

    def kill(self) -> None: ...

    async def handle(self, _: StatusRequest) -> StatusResponse:
        return StatusResponse(1, (), NodeState.RUNNING, 0, "", ())


@pytest.fixture(autouse=True)
def no_object_stays_frozen() -> Iterator[None]:
    """A shell is made for a process of its own."""
    yield
    gc.unfreeze()


def in_shell(directory: Path, refusals: list[Exception], check: Callable[[NodeShell], Awaitable[Any]]) -> Any:
    """What `check` gives for a shell whose node refuses to start so often."""
    placement = NodePlacement(ClusterSpec(data_dir=str(directory)), 1, "here")

    async def run() -> Any:
        shell = NodeShell(lambda settings: Node(settings, refusals), placement)
        try:
            return await check(shell)
        finally:
            await shell.stop()

    return asyncio.run(run())


def test_the_modules_of_a_node_are_no_work_for_its_garbage_collector(tmp_path: Path) -> None:
    async def frozen(shell: NodeShell) -> tuple[int, int]:
        return gc.get_freeze_count(), len(gc.get_objects())

    frozen_count, others_count = in_shell(tmp_path, [], frozen)
    assert frozen_count > 10 * others_count


async def status(shell: NodeShell) -> StatusResponse:
    body, _ = await answer(shell, "status", StatusRequest())
    return decode(StatusResponse, body)


async def answer(shell: NodeShell, api_name: str, request: Message) -> Answer:
    call = pack_call(encode(RequestHeader()).body, encode(request))
    return unpack_answer(await shell.handle(api_name, call))


async def status_when(shell: NodeShell, state: NodeState) -> StatusResponse:
    """The node's status once it is in that state."""
    for _ in range(3_000):
        found = await status(shell)
        if found.state is state:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"still {found.state}, expected {state}")


def test_a_node_that_refuses_to_start_is_failed_and_answers_only_status_with_the_reason(
    tmp_path: Path,
) -> None:
    async def check(shell: NodeShell) -> tuple[StatusResponse, Failure]:
        failed = await status_when(shell, NodeState.FAILED)
        body, payload = await answer(shell, "metadata", MetadataRequest())
        assert payload is None
        return failed, decode(Failure, body)

    failed, refusal = in_shell(tmp_path, [StorageError("no such directory")] * 9, check)
    assert failed.detail == "no such directory"
    assert (failed.node_id, failed.data_dirs) == (1, (str(tmp_path / "rayka" / "broker-1"),))
    assert isinstance(refusal.error(), BrokerNotAvailable)
    assert "broker-1 is failed: no such directory" in refusal.error_message


def test_a_node_that_was_refused_tries_again_and_serves_when_the_cause_is_gone(tmp_path: Path) -> None:
    async def check(shell: NodeShell) -> list[str]:
        found = [await status_when(shell, each) for each in (NodeState.FAILED, NodeState.RUNNING)]
        return [each.detail for each in found]

    assert in_shell(tmp_path, [StorageError("locked")], check) == ["locked", ""]


def test_arguments_that_are_no_call_are_answered(tmp_path: Path) -> None:
    async def check(shell: NodeShell) -> Failure:
        await status_when(shell, NodeState.RUNNING)
        body, payload = unpack_answer(await shell.handle("status", (b"short",)))
        assert payload is None
        return decode(Failure, body)

    assert isinstance(in_shell(tmp_path, [], check).error(), InvalidRequest)


def test_three_crashes_within_a_minute_are_remembered_and_older_ones_forgotten(tmp_path: Path) -> None:
    for now_ms in (0, 1_000, 2_000, WINDOW_MS + 1_000):
        record_crash(str(tmp_path), now_ms)
    assert recent_crashes(str(tmp_path), WINDOW_MS + 1_000) == [2_000, WINDOW_MS + 1_000]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"9" * 5_000, "\u00b2 \u0663".encode()])
def test_a_file_of_crashes_that_holds_none_hinders_no_crash_from_being_recorded(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / FILE_NAME).write_bytes(content + b"\n900")
    record_crash(str(tmp_path), 1_000)
    assert recent_crashes(str(tmp_path), 1_000) == [900, 1_000]


def test_a_node_that_crashed_three_times_is_not_started_again_at_once(tmp_path: Path) -> None:
    directory = tmp_path / "rayka" / "broker-1"
    directory.mkdir(parents=True)
    for _ in range(CRASHES_MAX):
        record_crash(str(directory), wall_clock_ms())

    async def check(shell: NodeShell) -> StatusResponse:
        return await status_when(shell, NodeState.FAILED)

    assert "crashed 3 times within a minute" in in_shell(tmp_path, [], check).detail


def test_an_unexpected_exception_ends_the_process_and_is_recorded(tmp_path: Path) -> None:
    directory = tmp_path / "rayka" / "broker-1"
    directory.mkdir(parents=True)
    script = (
        "import sys; from pathlib import Path; from tests.ray import test_shell as t\n"
        "async def check(shell): await t.status_when(shell, t.NodeState.FAILED)\n"
        "t.in_shell(Path(sys.argv[1]), [KeyError('a bug')], check)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert "KeyError: 'a bug'" in done.stderr
    assert (directory / "crash-times").read_text().isdigit()


def test_a_node_does_not_keep_the_niceness_of_a_worker_where_it_may_give_it_up() -> None:
    program = (
        "import os\n"
        "from rayka.actors.shell import take_usual_niceness\n"
        "def niceness(): return os.getpriority(os.PRIO_PROCESS, 0)\n"
        "usual = niceness()\n"
        "os.nice(5)\n"
        "try: os.setpriority(os.PRIO_PROCESS, 0, usual); os.nice(5)\n"
        "except OSError: usual = niceness()\n"
        "take_usual_niceness()\n"
        "print(niceness() <= usual)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n", done.stderr
