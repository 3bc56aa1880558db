"""The world of a simulation: machines with disks, the network between them, and the faults that hit them."""
