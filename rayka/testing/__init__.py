"""Fakes behind the two ports, and the in-process cluster made of them."""
