"""One row in a fresh process: ``python -m benchmarks._gates.worker ROOM/ROW``.

Its last line is a JSON object with the figures. ``--without SWITCH`` turns an automatic
mechanism of the library off; ``asked`` in the answer names those that the fits would
have used. Only the row imports NumPy and the library: the import is one of the things
that are timed.
"""

import argparse
import json
import os
import re
import resource
import sys
import warnings
from pathlib import Path

from benchmarks._gates import rows_of

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def peak_mib():
    """Largest memory of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():  # there, ru_maxrss begins with the memory of the parent
        found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text())
        return int(found[1]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks._gates.worker")
    parser.add_argument("row", metavar="ROOM/ROW")
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--without", metavar="SWITCH")
    parser.add_argument("--core", type=int, help="runs on this one only")
    args = parser.parse_args(argv)
    # Before NumPy and JAX count the cores.
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    if args.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {args.core})
    if args.without is not None:
        from sklearn_gn import _switches as switches

        switches.off.add(args.without)
    room, name = args.row.split("/", 1)
    row = rows_of(room, args.data)[name]
    with warnings.catch_warnings():
        # That a fit does not converge shows in its figures.
        warnings.simplefilter("ignore")
        figures = row.run()
    figures["peak_mib"] = peak_mib()
    if "sklearn_gn._switches" in sys.modules:
        figures["asked"] = sorted(sys.modules["sklearn_gn._switches"].asked)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
