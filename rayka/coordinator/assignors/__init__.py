"""Which member of a group reads which partition: pure functions that the leader of a group runs (E9)."""
