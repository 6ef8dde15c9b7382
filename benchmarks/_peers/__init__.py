"""Other programs on Kovasznay flow, each run by the Python of its own environment.

``python -m benchmarks._peers.NAME TASK``, where TASK is JSON: see ``_common.Task``. A
script prints one line of JSON: the curve and what it ran with.
"""
