"""The runtime that controller and coordinators share: a state machine replicated by a log."""
