"""The producer: gathers records into batches, sends batches to partition leaders, and reports the outcomes."""
