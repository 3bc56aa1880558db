"""What a consumer does: which partitions it reads, from where, and how fetched batches become records."""
