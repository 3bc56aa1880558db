"""KRaft: the quorum that keeps `__cluster_metadata`; synchronous, no clock, no disk but the log it is
given.
"""
