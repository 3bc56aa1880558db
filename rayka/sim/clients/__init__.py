"""What uses a simulated cluster: clients of topics, of records and of hosted state machines, and operators."""
