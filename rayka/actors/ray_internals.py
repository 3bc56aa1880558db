"""The parts of Ray beyond its public interface that rayka needs, each with the consequence in a version that
lacks it.
"""

import importlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TOKENS = "ray._private.authentication.authentication_token_setup"
_PAUSE_S = 1.0
_logger = logging.getLogger(__name__)


def part(module: str, name: str) -> Any | None:
    """Returns that name in that module of Ray; None in a version without it."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def use_token_at_hand() -> None:
    """Makes Ray use a token that is at hand. Ray does so when it searches for a Ray itself, but not for a given
    address.

    Without the part: RAY_AUTH_MODE=token has to be set where a token is asked for.
    """
    enable = part(_TOKENS, "maybe_enable_token_auth_if_token_available")
    if enable is not None:
        enable(warn_if_disabled=False)


def make_token() -> None:
    """Makes a token under token authentication if there is none, because `ray start` refuses to start without one.

    Without the part: the user makes one with `ray get-auth-token --generate`, as `ray start` says.
    """
    ensure = part(_TOKENS, "ensure_token_if_auth_enabled")
    if ensure is not None:
        ensure(create_token_if_missing=True)


def try_token(address: str) -> None:
    """Asks the head of a Ray once whether this process may talk to it. Raises Ray's AuthenticationError.

    Without the part: `ray.init` asks twenty times in as many seconds, and prints a line about each.
    """
    ensure, client = part(_TOKENS, "ensure_token_if_auth_enabled"), part("ray._raylet", "GcsClient")
    refusal: type[Exception] | None = part("ray.exceptions", "AuthenticationError")
    if ensure is None or client is None or refusal is None:
        return
    # A client that is to have a token, and has none, would end the process.
    ensure(create_token_if_missing=False)
    try:
        client(address=address)
    except refusal:
        raise
    except Exception as error:  # `ray.init` tries again, or says what is wrong
        _logger.debug("the head of the Ray at %s did not answer: %r", address, error)


def name_driver_in_utf8() -> None:
    """Escapes bytes that are no UTF-8 in the name that Ray gives a driver. Ray takes the command line as the name, and
    Ray's table of jobs holds text only.

    Without the part: Ray raises UnicodeEncodeError for such a command line.
    """
    naming: Callable[[], str] | None = part("ray._private.utils", "get_entrypoint_name")
    if naming is None:
        return
    name = naming().encode(errors="backslashreplace").decode()
    sys.modules["ray._private.utils"].__dict__["get_entrypoint_name"] = lambda: name


def address_file() -> Path:
    """Returns the file to which `ray start` writes the address of the Ray that it started, and that `ray.init("auto")`
    reads.

    Without the part: Ray's default.
    """
    find: Callable[[None], str] | None = part("ray._common.utils", "get_ray_address_file")
    if find is not None:
        return Path(find(None))
    return Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray", "ray_current_cluster")


def keep_title(title: str) -> None:
    """Gives this process a lasting title. Ray sets one at the begin and end of each call, by the method's name.

    Without the part: Ray's titles.
    """
    setting: Callable[[str], None] | None = part("ray._raylet", "setproctitle")
    if setting is not None:
        setting(title)
        sys.modules["ray._raylet"].__dict__["setproctitle"] = lambda _: None


class PacedSubscriber:
    """The subscription of a process to Ray's messages about nodes and workers, with a pause after an empty answer.

    A question waits until there is a message. A head that is gone answers at once without one, and Ray's thread asks
    again and again, which takes a processor for as long as the head is away. The end of the connection ends the pause.
    """

    def __init__(self, subscriber: Any, has_ended: Any) -> None:
        self._subscriber, self._has_ended = subscriber, has_ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subscriber, name)

    def poll(self, *arguments: Any, **options: Any) -> Any:
        answer = self._subscriber.poll(*arguments, **options)
        if answer is None or answer[-1] is None:
            self._has_ended.wait(_PAUSE_S)
        return answer


def pace_messages() -> None:
    """Makes the present connection ask for messages through a PacedSubscriber. Without the part: as Ray does."""
    worker = part("ray._private.worker", "global_worker")
    subscriber, has_ended = (
        getattr(worker, each, None) for each in ("gcs_error_subscriber", "threads_stopped")
    )
    if worker is not None and subscriber is not None and has_ended is not None:
        worker.gcs_error_subscriber = PacedSubscriber(subscriber, has_ended)


def suppress_messages(is_suppressed: Callable[[str], bool]) -> None:
    """Keeps Ray's messages about nodes and workers, if `is_suppressed` picks them, off this process's standard output.
    Ray's option `log_to_driver` leaves out only the output of workers.

    Without the part: they are printed.
    """
    printing: Callable[..., None] | None = part("ray._private.worker", "print_to_stdstream")
    if printing is None:
        return

    def print_others(data: Any, *arguments: Any, **options: Any) -> None:
        if not is_suppressed("\n".join(data["lines"])):
            printing(data, *arguments, **options)

    sys.modules["ray._private.worker"].__dict__["print_to_stdstream"] = print_others
