"""This process's connection to Ray: to a running one, or for `Cluster.start` to a local one that ends with the process.

A process has one connection, made once however many threads ask for it. A connection that the user made is used as it
is. The address `auto` means, in this order:
1. the connection there is;
2. RAY_ADDRESS;
3. the Ray that `rayka start` left running;
4. the Ray that `ray start` started last on this machine;
5. the only Ray that runs on this machine.

RAY_ADDRESS=local keeps away from Rays that others started: it ends the search after 3, and a start without a connection
makes a local Ray. A start passes over a Ray that was only found and asks for a token which this process does not have:
it is another user's.

The Ray in use, and the reason, is logged once. The level is INFO, but WARNING where `auto` found a Ray that neither the
user named nor rayka started: a program that has not set up its logs shows warnings. Clients never start a Ray.
"""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import ray

from rayka import forks
from rayka.actors import local_rays, ray_head, ray_internals, ray_records
from rayka.actors.names import NAMESPACE
from rayka.actors.ray_head import ConnectionId, connection_id, head_address
from rayka.actors.ray_process import cpus, remembered
from rayka.errors import ConfigError, UnavailableError

AUTO = "auto"
_ADDRESS_VARIABLE = "RAY_ADDRESS"
# Ray's word for: none that others started.
_LOCAL = "local"
_LOCAL_HINT = (
    "RAY_ADDRESS=local keeps away from Rays of others: with it, `rayka start` starts one of your own"
)
_PROBE_TIMEOUT_S = 5.0
_OTHERS_INIT_TIMEOUT_S, _POLL_S = 30.0, 0.02
_FOR_EVER_S = "1000000"
_DEAD_WORKER = re.compile(r"A worker died .*?Worker ID: (?P<worker_id>[0-9a-f]+)", re.DOTALL)
_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}

logger = logging.getLogger(__name__)


class RayCandidate(NamedTuple):
    """A Ray that an address may mean, and why."""

    address: str
    why: str
    # Whether the Ray was neither named by the user nor started by rayka.
    is_found: bool = False


class TokenRefused(UnavailableError):
    """The Ray asks for another token than this process has."""

    # As in `RayCandidate`.
    is_found = False


class _Process:
    """The state of this process's connection."""

    # Held by the thread that makes a connection.
    lock = threading.RLock()
    # The connection whose Ray was named in the log.
    logged: ConnectionId | None = None
    # The connection that was made here, not by the user.
    made: ConnectionId | None = None
    # The address that `made` was asked for, and the candidate that was found for it.
    asked_for = AUTO
    joined: RayCandidate | None = None
    # Whether the raylet of `made` is a process that can be seen here; another container's is not.
    has_seen_node = False
    suppresses_messages = False


os.register_at_fork(after_in_child=lambda: setattr(_Process, "lock", threading.RLock()))


def connect(address: str = AUTO) -> str:
    """Connects to a running Ray and returns its address; starts none.

    Raises UnavailableError when none can be reached and in a forked child, ConfigError when this process is connected
    to another Ray.
    """
    forks.refuse()
    with _Process.lock:
        found = RayCandidate(address, "this process is connected to it")
        if not ray.is_initialized():
            found_here = candidates(address)
            candidate = _single(found_here if len(found_here) == 1 else usable(address) or found_here)
            _Process.asked_for = address
            found = candidate if _join(candidate) else found
        current = _expected_address(address)
        _log(current, found.why, logging.WARNING if found.is_found else logging.INFO)
        return current


def connect_or_start(address: str = AUTO, *, temp_dir: str | None = None, cpus_of_nodes: float = 0) -> str:
    """Connects as `connect`. With `auto` and no Ray running, or none to prefer, starts a local one that ends with this
    process, and declares the CPUs of the machine plus `cpus_of_nodes`.

    `temp_dir` is the directory of that Ray's files (see `ray_process.make_temp_dir`); None: Ray's own choice.
    """
    forks.refuse()
    with _Process.lock:
        is_own = address == AUTO and os.environ.get(_ADDRESS_VARIABLE) == _LOCAL
        if ray.is_initialized() or (not is_own and len(usable(address)) == 1):
            return connect(address)
        _initialize(
            address="local", num_cpus=cpus(cpus_of_nodes), include_dashboard=False, _temp_dir=temp_dir
        )
        _Process.made = connection_id()
        _log(current_address(), "started for this process, and ends with it", logging.INFO)
        return current_address()


def silence() -> None:
    """Keeps all messages of Ray about its nodes off this process's standard output, for commands with an output of
    their own.
    """
    ray_internals.suppress_messages(lambda _: True)


def candidates(address: str = AUTO) -> list[RayCandidate]:
    """Returns the Rays that `address` may mean for a process that has no connection yet. `connect` takes a
    single one.
    """
    named = os.environ.get(_ADDRESS_VARIABLE, "")
    if address != AUTO:
        return [RayCandidate(address, "the address given")]
    if named not in ("", AUTO, _LOCAL):
        return [RayCandidate(named, "RAY_ADDRESS")]
    left_running = remembered()
    if left_running is not None:
        return [RayCandidate(left_running.address, "the one that `rayka start` left running")]
    running = [] if named == _LOCAL else local_rays.running()
    started_last = local_rays.started_last()
    if started_last in running:
        return [RayCandidate(started_last, "the one that `ray start` started last", is_found=True)]
    return [RayCandidate(each, "the only one that runs on this machine", is_found=True) for each in running]


def usable(address: str = AUTO) -> list[RayCandidate]:
    """Returns the candidates that a start may use: all but a Ray that was only found and asks for a token which this
    process does not have.
    """
    found = candidates(address)
    others = [each for each in found if each.is_found and _is_refused_by(each.address)]
    for each in others:
        logger.warning(
            "the Ray at %s asks for a token that this process does not have; it is not used", each.address
        )
    return [each for each in found if each not in others]


def _is_refused_by(address: str) -> bool:
    if not ray_head.is_listening(address, _PROBE_TIMEOUT_S):
        # `_join` asks about the token.
        return False
    ray_internals.use_token_at_hand()
    try:
        ray_internals.try_token(address)
    except ray.exceptions.RayError as error:
        return _is_about_token(error)
    return False


def current_address() -> str:
    """Returns the address of the Ray that this process is connected to."""
    return head_address()


def _join(candidate: RayCandidate) -> bool:
    """Connects to that Ray; False when another thread has connected this process in the same moment.

    Ray ends a process whose Ray has ended. With a connection made here the process lives on, and its clients raise
    RayEnded.
    """
    address = candidate.address
    _probe(address)
    # Else every command warns that the token is used.
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray_internals.use_token_at_hand()
    try:
        with _reconnecting_for_ever() as is_for_ever:
            ray_internals.try_token(address)
            _initialize(address=address)
    except (AssertionError, ConnectionError, ray.exceptions.RayError, RuntimeError) as error:
        if "twice" in str(error) and _have_others_connected():
            return False
        raise _refusal(candidate, error) from error
    _Process.made, _Process.joined = connection_id(), candidate
    _Process.has_seen_node = local_rays.has_node(_Process.made[0])
    if is_for_ever:
        ray_head.outlive(_reconnect)
    return True


def _reconnect() -> bool:
    """Connects this process to the Ray that took the place of one that has ended. True also if another thread has
    connected it. False if there is no such Ray, or if the user made the connection, and so has to end it.

    The new Ray has to be found in the same way as the former one: by the address given, by RAY_ADDRESS, as the one of
    `rayka start`, or of `ray start`. A connection ends with the raylet that it was made through, whatever the head
    does. So the end of the raylet's process is the evidence; a raylet that was never seen gives none.
    """
    with _Process.lock:
        made, joined = _Process.made, _Process.joined
        if not ray.is_initialized() or connection_id() != made:
            return bool(ray.is_initialized())
        if made is None or joined is None or not _Process.has_seen_node or local_rays.has_node(made[0]):
            return False
        there = [each for each in candidates(_Process.asked_for) if each.why == joined.why]
        if len(there) != 1 or there[0].address not in local_rays.running():
            return False
        if not ray_head.is_listening(there[0].address, _PROBE_TIMEOUT_S):
            return False
        logger.warning(
            "the Ray at %s has ended: connecting to the one at %s", joined.address, there[0].address
        )
        ray.shutdown()
        try:
            is_joined = _join(there[0])
        except UnavailableError as error:
            logger.error("%s; connect again with rayka.Cluster.connect()", error)
            return False
        _log(current_address(), there[0].why, logging.INFO)
        return is_joined


def _initialize(**options: Any) -> None:
    """Calls `ray.init` and keeps the program's own signal handlers in force, whatever is on its command line.

    Raises UnavailableError, too, if Ray cannot take the path of the program or of its working directory.
    """
    ray_internals.name_driver_in_utf8()
    try:
        with kept_signal_handlers():
            ray.init(**options, **_QUIET)
    except UnicodeEncodeError as error:
        ray.shutdown()
        raise UnavailableError(
            f"Ray cannot run a program in a directory whose path is no UTF-8: {os.fsencode(error.object)!r}; rename "
            "the directory, or run the program in another one"
        ) from error


@contextmanager
def kept_signal_handlers() -> Iterator[None]:
    """Restores the program's own signal handlers behind the block. `ray.init` replaces the handlers of SIGTERM and of
    fatal signals, a session of Spark that of SIGINT.

    A signal for which the program has no handler of its own keeps the new one: Ray's SIGTERM handler ends the process
    in order, so that exit handlers flush producers. Only the main thread can set handlers; in others Ray leaves SIGTERM
    alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in signal.valid_signals()}
    try:
        yield
    finally:
        for each, handler in before.items():
            if handler not in (None, signal.SIG_DFL, signal.default_int_handler):
                # Also if `signal.getsignal` still names it: native code of Ray replaces handlers behind Python's back.
                # Some signals cannot be handled.
                with suppress(OSError):
                    signal.signal(each, handler)


@contextmanager
def _reconnecting_for_ever() -> Iterator[bool]:
    """Makes Ray wait for ever for a lost head; False if the environment names a time, which stays in force. Ray reads
    the time when it connects.
    """
    if ray_head.RECONNECT_VARIABLE in os.environ:
        yield False
        return
    os.environ[ray_head.RECONNECT_VARIABLE] = _FOR_EVER_S
    try:
        yield True
    finally:
        del os.environ[ray_head.RECONNECT_VARIABLE]


def _have_others_connected() -> bool:
    """Whether `ray.init` in another thread, which came first, has succeeded."""
    deadline_s = time.monotonic() + _OTHERS_INIT_TIMEOUT_S
    while not ray.is_initialized() and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    return bool(ray.is_initialized())


def _log(address: str, why: str, level: int) -> None:
    """Names the Ray of a connection in the log, once. From then on Ray does not print messages that rayka's nodes
    cause, and does not compute while its head is away.
    """
    if not _Process.suppresses_messages:
        _Process.suppresses_messages = True
        ray_internals.suppress_messages(_is_of_rayka)
    connection = connection_id()
    if _Process.logged != connection:
        _Process.logged = connection
        ray_internals.pace_messages()
        logger.log(level, "using the Ray at %s (%s)", address, why)


def _is_of_rayka(message: str) -> bool:
    """Whether a message that Ray is about to print concerns rayka only. All do if rayka made the connection. Else those
    do about the death of a node's process, which Ray restarts and `rayka status` shows.
    """
    try:
        if connection_id() == _Process.made:
            return True
        dead = _DEAD_WORKER.match(message)
        return dead is not None and ray_records.was_actor_of(NAMESPACE, dead["worker_id"])
    except Exception as error:
        # An error would end Ray's thread, which then prints nothing more.
        logger.debug("not known which actor's process died: %r", error)
        return False


def _expected_address(address: str) -> str:
    current = current_address()
    if address not in (AUTO, current):
        raise ConfigError(
            f"this process is connected to the Ray at {current}, not to {address}; "
            "call ray.shutdown() first, or leave the address out"
        )
    return current


def _single(found: list[RayCandidate]) -> RayCandidate:
    if not found:
        raise UnavailableError(
            "no Ray runs on this machine; start one with `rayka start` or `ray start --head`"
        )
    if len(found) > 1:
        addresses = ", ".join(each.address for each in found)
        raise UnavailableError(
            f"several Rays run on this machine: {addresses}; choose one with --address or RAY_ADDRESS; {_LOCAL_HINT}"
        )
    return found[0]


def _probe(address: str) -> None:
    """Raises at once for the address of a Ray that has gone, where `ray.init` would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ConfigError(
            f"Ray address {address!r}: expected HOST:PORT of a Ray whose machines this process runs on"
        )
    try:
        ray_head.try_connection(address, _PROBE_TIMEOUT_S)
    except OSError as error:
        raise UnavailableError(
            f"no Ray answers at {address} ({error.strerror or error}): it has ended, or is just starting or ending; "
            "try again in a few seconds, or give another address (--address, RAY_ADDRESS)"
        ) from error


def _refusal(candidate: RayCandidate, error: BaseException) -> UnavailableError:
    if not _is_about_token(error):
        return UnavailableError(f"cannot connect to the Ray at {candidate.address}: {error}")
    refused = TokenRefused(
        f"the Ray at {candidate.address} asks for a token, and was given none or another one than its own; one is "
        "looked for in RAY_AUTH_TOKEN, in the file that RAY_AUTH_TOKEN_PATH names, and in ~/.ray/auth_token, and is "
        "given unless RAY_AUTH_MODE is disabled" + (f"; {_LOCAL_HINT}" if candidate.is_found else "")
    )
    refused.is_found = candidate.is_found
    return refused


def _is_about_token(error: BaseException) -> bool:
    cause = error.__cause__ or error
    return "AuthenticationError" in f"{type(cause).__name__} {cause}"
