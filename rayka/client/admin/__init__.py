"""The `Admin` client: shows and changes topics, partitions, configurations, groups, brokers and the quorum."""
