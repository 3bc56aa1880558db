"""The controller: the state machine that decides over brokers, topics and leaders."""
