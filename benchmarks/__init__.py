"""Benchmarks: every figure beside the limit that the same machine shows in the same run.

`python -m benchmarks --help` runs them; `README.md` beside this file holds the last run.
"""

import os

# Under `uv run`, Ray would build the whole environment again for its workers. Read when ray is imported.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
