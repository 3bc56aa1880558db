"""The story of `rayka demo`: flights, a broker that is killed, a Spark job, and what must come out.

It uses Rayka as a user's program does; the wheel has it, too, beside `rayka`. `story` is where to begin.
"""
