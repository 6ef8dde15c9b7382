"""Other programs on Kovasznay flow, each run by the Python of its own environment.

``python -m benchmarks._peers.NAME TASK``, where TASK is JSON: see ``_common.Task``. A
script prints one line of JSON: the curve and what it ran with.
"""

import os

# Before any of the packages is imported.
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("DDE_BACKEND", "pytorch")
