"""`python -m rayka.sim`: the same as `rayka sim`."""

import sys

from rayka.sim.command import sim

if __name__ == "__main__":
    sys.exit(sim.main(prog_name="python -m rayka.sim", standalone_mode=False))
