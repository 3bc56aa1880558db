"""What a producer does with records: gathers them into batches, sends those to leaders, and reports the outcomes."""
