"""The state machines of coordinators: groups with their offsets. Beside them the assignors, which members run."""
