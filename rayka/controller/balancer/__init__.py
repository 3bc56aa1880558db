"""The balancer: where replicas and leaders should be, and the run that brings them there (decision 062)."""
