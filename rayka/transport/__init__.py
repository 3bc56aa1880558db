"""The direct lane: the hot calls of the network port over sockets that the nodes serve themselves. Without Ray."""
