"""Beyond one machine and one fit: sparse text, data larger than memory, many devices.

``--only`` takes names of problems; those that the file has are not run again without
it. The file is written after every problem.
"""

import json

from benchmarks._report import progress
from benchmarks._scale import text

PROBLEMS = {
    "text_udhr": text.udhr,
    "text_fortunes": text.fortunes,
}


def run(args):
    known = {}
    if args.out is not None and args.out.exists():
        known = json.loads(args.out.read_text())["problems"]
    problems = dict(known)
    for name in args.only or [name for name in PROBLEMS if name not in known]:
        progress(name)
        problems[name] = PROBLEMS[name](args)
        args.write({"problems": problems, "notes": NOTES})
    return {"problems": problems, "notes": NOTES}


NOTES = [
    "text_*: seconds to a loss within 1e-4 of the optimum, C = 1; the peers are the "
    "solvers of LogisticRegression.",
]
