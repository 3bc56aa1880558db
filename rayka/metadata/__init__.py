"""The cluster's metadata: its records, the immutable image they make, and deltas between images."""
