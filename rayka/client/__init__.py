"""Clients: async brains over the network port, and thin sync facades over one IO thread per process."""
