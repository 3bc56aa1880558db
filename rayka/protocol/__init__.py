"""Everything that crosses an actor boundary: messages by API family, and the record batch."""
