"""Machines that Ray announces to go: what the supervisor does with the nodes on them, while there is time."""
