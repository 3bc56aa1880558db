"""The consumer as a member of a group: its brain without IO, and the node that runs it."""
