"""Beyond one machine and one fit: sparse text, data larger than memory, many devices.

``--only`` takes names of problems; those that the file has are not run again without
it. The file is written after every problem.
"""

import json

from benchmarks._report import progress
from benchmarks._scale import devices, distributed, out_of_core, text

PROBLEMS = {
    "text_udhr": text.udhr,
    "text_fortunes": text.fortunes,
    "out_of_core": out_of_core.run,
    "devices": devices.run,
    "distributed": distributed.run,
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
    "distributed: largest_difference is that of predictions from those of the fit in "
    "one process, over the deviation of y; the workers make a block of rows again "
    "whenever they read it; memory includes Python and the libraries (0.3 GiB).",
    "text_*: seconds to a loss within 1e-4 of the optimum, C = 1; the peers are the "
    "solvers of LogisticRegression. In the committed file every solver had one core.",
    "out_of_core: the file is dropped from the page cache before it is read; "
    "share_of_bound is the longer of read_seconds and product_seconds over the first "
    "epoch, compilation included. --rows N makes a smaller file.",
    "devices: counted in compiled programs; flops_off is the largest distance of the "
    "flops of a device, times k, from those of one; bytes_off that of the bytes of "
    "collective operations from bytes_model, which has a factor for each device where "
    "factors are joined. The sizes of equations and networks are in row_functions.py.",
]
