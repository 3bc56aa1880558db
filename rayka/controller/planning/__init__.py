"""Plans where replicas go: synchronous cores, below the controller that carries their moves out."""
