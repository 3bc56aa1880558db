"""This process's connection to Ray: to the running one, or for `Cluster.start`, to a local one that dies with the
process.

A process has one connection. One that the user made is used as it is. `auto` is, in this order: the connection there
is, RAY_ADDRESS, the Ray that `rayka start` left running, the one that `ray start` started last on this machine, the
only one that runs here; RAY_ADDRESS=local ends the search after the second. Clients never start a Ray.
"""

import logging
import os
import socket
from typing import Any

import ray
import ray._private.worker as ray_worker
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.services import find_bootstrap_address, find_gcs_addresses

from rayka import forks
from rayka.actors.ray_process import cpus, remembered
from rayka.errors import ConfigError, UnavailableError

AUTO = "auto"
_LOCAL = "local"  # Ray's word for: none that others started
_PROBE_TIMEOUT_S = 5.0
_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


def connect(address: str = AUTO) -> str:
    """Connects to a running Ray and returns its address; starts none.

    Raises UnavailableError when none can be reached and in a forked child, ConfigError when this process is connected
    to another one.
    """
    forks.refuse()
    if ray.is_initialized():
        return _same(address)
    found = _only(candidates(address))
    _probe(found)
    logging.getLogger("ray").setLevel(logging.ERROR)  # a warning that the token is used, at every command
    # As Ray does when it searches by itself, but not when it is told an address: use a token that is at hand.
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    try:
        ray.init(address=found, **_QUIET)
    except (ConnectionError, ray.exceptions.RayError, RuntimeError) as error:
        raise UnavailableError(_refused(found, error)) from error
    return current_address()


def connect_or_start(address: str = AUTO, *, temp_dir: str | None = None) -> str:
    """As `connect`; with `auto` and no Ray running, or none to prefer, starts a local one that ends with this process.

    `temp_dir` is where that one keeps its files (see `ray_process.make_temp_dir`); Ray's own choice without.
    """
    forks.refuse()
    if ray.is_initialized() or len(candidates(address)) == 1:
        return connect(address)
    ray.init(address="local", num_cpus=cpus(), include_dashboard=False, _temp_dir=temp_dir, **_QUIET)
    return current_address()


def silence() -> None:
    """Has Ray print no more of what happens on its nodes on this process's standard output, for commands that have an
    output of their own; `log_to_driver` leaves out only what workers print.
    """
    ray_worker.print_to_stdstream = lambda *_, **__: None


def candidates(address: str = AUTO) -> list[str]:
    """The Rays that `address` may mean for a process that has no connection yet; `connect` takes one that is alone."""
    named = os.environ.get("RAY_ADDRESS", "")
    if address != AUTO:
        return [address]
    if named not in ("", AUTO, _LOCAL):
        return [named]
    left_running = remembered()
    if left_running is not None:
        return [left_running.address]
    running = [] if named == _LOCAL else sorted(find_gcs_addresses())
    started_last = find_bootstrap_address(None)
    return [started_last] if started_last in running else running


def current_address() -> str:
    """The address of the Ray that this process is connected to."""
    address: str = ray.get_runtime_context().gcs_address
    return address


def _same(address: str) -> str:
    current = current_address()
    if address not in (AUTO, current):
        raise ConfigError(
            f"this process is connected to the Ray at {current}, not to {address}; "
            "call ray.shutdown() first, or leave the address out"
        )
    return current


def _only(found: list[str]) -> str:
    if not found:
        raise UnavailableError(
            "no Ray runs on this machine; start one with `rayka start` or `ray start --head`"
        )
    if len(found) > 1:
        raise UnavailableError(
            f"several Rays run on this machine: {', '.join(found)}; choose one with --address or RAY_ADDRESS"
        )
    return found[0]


def _probe(address: str) -> None:
    """Raises at once where `ray.init` would try for minutes: the address of a Ray that has gone."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ConfigError(
            f"Ray address {address!r}: expected HOST:PORT of a Ray whose machines this process runs on"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_TIMEOUT_S).close()
    except OSError as error:
        raise UnavailableError(
            f"no Ray answers at {address} ({error.strerror or error}); start one with `rayka start`, or give another "
            "address (--address, RAY_ADDRESS)"
        ) from error


def _refused(address: str, error: BaseException) -> str:
    cause = str(error.__cause__ or error)
    if "AuthenticationError" in cause:
        return (
            f"the Ray at {address} asks for a token; set RAY_AUTH_MODE=token and have its token in ~/.ray/auth_token "
            "or RAY_AUTH_TOKEN"
        )
    return f"cannot connect to the Ray at {address}: {error}"
