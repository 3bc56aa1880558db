"""Rayka: Kafka's log, rebuilt for people who live on Ray."""
