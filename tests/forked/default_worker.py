"""In place of Ray's program of this name in Rays that tests start: its fork, where there is a server for it."""

import fork_client

fork_client.run(__file__)
