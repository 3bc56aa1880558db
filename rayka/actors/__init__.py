"""The nodes as Ray actors, and calls to them: the only package below `rayka.cluster` that imports Ray.

Importing it switches off Ray's hook for `uv run`, which would zip the working directory and build a whole environment
again for its workers. Ray reads the variable once, when it is imported itself.
"""

import os

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
