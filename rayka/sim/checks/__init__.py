"""What must always hold in a simulation: what is committed, what clients were told, and the checkers that compare."""
