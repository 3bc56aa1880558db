"""What an `Admin` does: topics, partitions, configurations, brokers and the quorum, shown and changed."""
