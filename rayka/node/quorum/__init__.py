"""One replica of a quorum on a node: its directory, its log, and its calls to the other replicas."""
