"""The nodes: asynchronous, on asyncio and the two ports alone; the same code under Ray, in one process and
simulated.
"""
