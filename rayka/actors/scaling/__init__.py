"""Brokers that come and go by the load: what the supervisor decides, and the steps by which it is done."""
