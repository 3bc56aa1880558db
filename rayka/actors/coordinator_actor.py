"""The `Coordinator` actor: a broker node for internal partitions, or one that is a controller too."""

from rayka.actors.broker_actor import Broker


class Coordinator(Broker):
    """A coordinator as an actor; its node learns from its settings what it is."""
