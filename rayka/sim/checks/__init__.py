"""The checkers of a simulation, and what they compare: committed records, and what clients were told."""
