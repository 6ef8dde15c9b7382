"""Hostile input: 10,000 cases an estimator, each to end in numbers or a clear error.

Shapes, scales from 1e-200 to 1e200, ties, constants, collinear and duplicated columns,
NaN and infinities, dtypes, memory orders, read-only arrays, pandas and polars, labels
of all types, zero and huge weights, extreme parameters, and every solver: see
``_hostile_cases.py``. ``--only`` takes names of estimators, ``--samples`` the number of
cases an estimator. A run is a block of 250 cases, written when it is complete; a file
is continued where it ends, one estimator after the other in turns, the one with the
fewest cases first.

Nearly all of the time is compilation, so the programs are compiled as in the tests,
with little optimisation, and kept on disk, and the cases of a block are sorted: those
of one solver and shape follow each other.
"""

import json
import time

import numpy as np

from benchmarks._hostile_cases import CLASSES, SHAPES, draw, violation
from benchmarks._report import progress, summary
from sklearn_gn import enable_compilation_cache

CASES, BLOCK = 10_000, 250
QUICK = 8
SHOWN = 5  # violations of a block, as they stand in the file


def case_number(name, number):
    """The case of a number: the same one in every run."""
    rng = np.random.default_rng([number, 7])
    return draw(name, lambda options: options[rng.integers(len(options))])


def block(name, first, n_cases):
    """Figures of some cases in a row."""
    start, found, longest = time.process_time(), [], 0.0
    cases = {k: case_number(name, k) for k in range(first, first + n_cases)}
    for number in sorted(cases, key=lambda k: _programs(cases[k])):
        began = time.process_time()
        wrong = violation(cases[number])
        longest = max(longest, time.process_time() - began)
        if wrong:
            found.append({"case": number, "wrong": wrong})
    return {
        "first": first,
        "cases": n_cases,
        "violations": len(found),
        "cpu_seconds": time.process_time() - start,
        "longest_cpu_seconds": longest,
        "found": found[:SHOWN],
    }


def _programs(case):
    """What decides first of all which programs a case compiles."""
    return str(case["solver"]), case["shape"][1], case["shape"][0]


def run(args):
    names = args.only or sorted(CLASSES)
    runs = {name: [] for name in names} | _known_runs(args.out)
    n_cases, size = (QUICK, QUICK) if args.quick else (args.samples or CASES, BLOCK)
    if not args.quick:
        enable_compilation_cache(args.data / "compiled")

    def done(name):
        return sum(each["cases"] for each in runs[name])

    while done(name := min(names, key=done)) < n_cases:
        runs[name].append(block(name, done(name), size))
        args.write(_answer(runs))
        progress(name, done(name), "cases,", runs[name][-1]["violations"], "violations")
    return _answer(runs)


def _known_runs(path):
    """Blocks that a file has, by estimator."""
    if path is None or not path.exists():
        return {}
    problems = json.loads(path.read_text())["problems"]
    return {name: p["methods"]["hostile"]["runs"] for name, p in problems.items()}


def _problem(runs):
    total = sum(each["violations"] for each in runs)
    return {
        "description": f"{sum(each['cases'] for each in runs):,} cases of "
        f"{len(SHAPES)} shapes",
        "methods": {
            "hostile": {"settings": {}, "runs": runs, "summary": summary(runs)}
        },
        "target": {
            "method": "hostile",
            "figure": "violations",
            "statistic": "sum",
            "at_most": 0,
            "value": total,
            "passed": total == 0,
        },
    }


def _answer(runs):
    problems = {name: _problem(runs[name]) for name in runs if runs[name]}
    return {"problems": problems, "notes": []}
