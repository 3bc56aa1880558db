"""User code in a group of Ray actors: `rayka.workers`."""
