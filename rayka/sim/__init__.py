"""The simulator: the real nodes on virtual time, with a network and disks that fail as a seed says."""
