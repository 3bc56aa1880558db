"""One partition's replica on one broker: appending, reading, and how far it is committed."""
