"""The nodes as Ray actors, and calls to them: the only package below `rayka.cluster` that imports Ray.

Importing it sets two variables that Ray reads once, when it is imported itself:

1. Under `uv run`, Ray's hook would zip the working directory and build a whole environment again for its workers.
2. Where nobody chose a RAY_AUTH_MODE, Ray turns token authentication on by itself when it starts something and a
   token is at hand, but not when it connects to an address it was told. A client with a token may talk to a Ray
   without authentication, not the other way round; so a token at hand means `token`.
"""

import os
from pathlib import Path

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

_TOKEN_FILE = Path("~/.ray/auth_token")  # where Ray keeps it when no variable says otherwise


def has_auth_token() -> bool:
    """Whether Ray would find a token for its authentication."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or _TOKEN_FILE.expanduser().exists()


if "RAY_AUTH_MODE" not in os.environ and has_auth_token():
    os.environ["RAY_AUTH_MODE"] = "token"
