"""The consumer: its public methods, its fetches, its deliveries, and its membership of a group."""
