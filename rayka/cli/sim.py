"""`rayka sim`: the simulator's command (rayka.sim.command), as a verb of `rayka`."""

from rayka.sim.command import sim

__all__ = ["sim"]
