"""Benchmarks: every figure beside the limit that the same machine shows in the same run.

`python -m benchmarks --help` runs them; `README.md` beside this file holds the last run.
"""
