"""This process's connection to Ray: to the running one, or for `Cluster.start`, to a local one that dies with the
process.

A process has one connection. One that the user made is used as it is. `auto` is, in this order: the connection there
is, RAY_ADDRESS, the Ray that `rayka start` left running, the one Ray that runs on this machine. Clients never start a
Ray.
"""

import logging
import os
from typing import Any

import ray

from rayka.actors.ray_process import cpus, remembered
from rayka.errors import ConfigError, UnavailableError

AUTO = "auto"
_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


def connect(address: str = AUTO) -> str:
    """Connects to a running Ray and returns its address; starts none.

    Raises UnavailableError when none can be reached, ConfigError when this process is connected to another one.
    """
    if ray.is_initialized():
        return _same(address)
    try:
        ray.init(**_target(address), **_QUIET)
    except (ConnectionError, ray.exceptions.RayError, RuntimeError) as error:
        raise UnavailableError(_unreachable(address, error)) from error
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


def _target(address: str) -> dict[str, Any]:
    left_running = None if address != AUTO or os.environ.get("RAY_ADDRESS") else remembered()
    # Ray's own search, led to this one's directory, finds out about its authentication; an explicit address does not.
    return {"address": address, "_temp_dir": left_running.temp_dir} if left_running else {"address": address}


def _unreachable(address: str, error: BaseException) -> str:
    cause = error.__cause__ or error
    if address == AUTO and "Could not find any running Ray" in str(error):
        return "no Ray runs on this machine; start one with `rayka start` or `ray start --head`"
    reason = str(cause).strip().splitlines()[-1] if "AuthenticationError" in str(cause) else str(error)
    return f"cannot reach Ray (address {address}): {reason}; see `rayka doctor`"
