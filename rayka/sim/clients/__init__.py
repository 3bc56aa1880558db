"""The users of a simulated cluster: clients of topics, records and hosted state machines, and operators."""
