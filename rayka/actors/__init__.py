"""The nodes as Ray actors, and calls to them: the only package below `rayka.cluster` that imports Ray."""
