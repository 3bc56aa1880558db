"""This process's connection to Ray: to the running one, or for `Cluster.start`, to a local one that dies with the
process.

A process has one connection. One that the user made is used as it is. `auto` is, in this order: the connection there
is, RAY_ADDRESS, the Ray that `rayka start` left running, the one Ray that runs on this machine. Clients never start a
Ray.
"""

import logging
import os
import socket
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address

from rayka.actors.ray_process import cpus, remembered
from rayka.errors import ConfigError, UnavailableError

AUTO = "auto"
_PROBE_TIMEOUT_S = 5.0
_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


def connect(address: str = AUTO) -> str:
    """Connects to a running Ray and returns its address; starts none.

    Raises UnavailableError when none can be reached, ConfigError when this process is connected to another one.
    """
    if ray.is_initialized():
        return _same(address)
    found, options = _find(address)
    _probe(found)
    try:
        ray.init(**options, **_QUIET)
    except (ConnectionError, ray.exceptions.RayError, RuntimeError) as error:
        raise UnavailableError(_refused(found, error)) from error
    return current_address()


def connect_or_start(address: str = AUTO, *, temp_dir: str | None = None) -> str:
    """As `connect`; with `auto` and no Ray running, starts a local one that ends with this process.

    `temp_dir` is where that one keeps its files (see `ray_process.make_temp_dir`); Ray's own choice without.
    """
    try:
        return connect(address)
    except UnavailableError:
        if address != AUTO or os.environ.get("RAY_ADDRESS") or remembered():
            raise
    ray.init(address="local", num_cpus=cpus(), include_dashboard=False, _temp_dir=temp_dir, **_QUIET)
    return current_address()


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


def _find(address: str) -> tuple[str, dict[str, Any]]:
    """Host and port of the Ray that `address` means, and what `ray.init` is to be told."""
    if address != AUTO:
        return address, {"address": address}
    if os.environ.get("RAY_ADDRESS"):
        return os.environ["RAY_ADDRESS"], {"address": AUTO}
    left_running = remembered()
    if left_running is not None:
        # Ray's own search, led to this one's directory, sees to its authentication; an explicit address does not.
        return left_running.address, {"address": AUTO, "_temp_dir": left_running.temp_dir}
    try:
        return canonicalize_bootstrap_address(AUTO), {"address": AUTO}
    except ConnectionError:
        raise UnavailableError(
            "no Ray runs on this machine; start one with `rayka start` or `ray start --head`"
        ) from None


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
