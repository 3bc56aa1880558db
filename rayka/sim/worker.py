"""One of the processes of `rayka sim --jobs`: seeds come in, a line each, and outcomes go out, a line of JSON each."""

import sys

import msgspec

from rayka.sim.results import run_seed


def main() -> None:
    chosen = msgspec.json.decode(sys.argv[1])
    for line in sys.stdin:
        outcome = run_seed(int(line), chosen)
        sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
