"""What people write: configuration of topics, nodes, clients and the cluster, checked where it enters."""
