"""Hostile input: 10,000 cases an estimator, each to end in numbers or a clear error.

Shapes, scales from 1e-200 to 1e200, ties, constants, collinear and duplicated columns,
NaN and infinities, dtypes, memory orders, read-only arrays, pandas and polars, labels
of all types, zero and huge weights, extreme parameters, and every solver: see
``_hostile_cases.py``. ``--only`` takes names of estimators. A run is a block of 250
cases, written when it is complete; a file is continued where it ends.
"""

import json
import time

import numpy as np

from benchmarks._hostile_cases import CLASSES, SHAPES, draw, violation
from benchmarks._report import progress, summary

CASES, BLOCK = 10_000, 250
QUICK = 8
SHOWN = 5  # violations of a block, as they stand in the file


def case_number(name, number):
    """The case of a number: the same one in every run."""
    rng = np.random.default_rng([number, 7])
    return draw(name, lambda options: options[rng.integers(len(options))])


def block(name, first, n_cases):
    """Figures of some cases in a row."""
    start, found, longest = time.perf_counter(), [], 0.0
    for number in range(first, first + n_cases):
        began = time.perf_counter()
        wrong = violation(case_number(name, number))
        longest = max(longest, time.perf_counter() - began)
        if wrong:
            found.append({"case": number, "wrong": wrong})
    return {
        "first": first,
        "cases": n_cases,
        "violations": len(found),
        "seconds": time.perf_counter() - start,
        "longest_seconds": longest,
        "found": found[:SHOWN],
    }


def run(args):
    names = args.only or sorted(CLASSES)
    known = _known_runs(args.out)
    problems = {}
    for name in names:
        runs = known.get(name, [])
        done = sum(each["cases"] for each in runs)
        n_cases, size = (QUICK, QUICK) if args.quick else (CASES, BLOCK)
        for first in range(done, n_cases, size):
            runs.append(block(name, first, size))
            problems[name] = _problem(runs)
            args.write(_answer({**_others(known, problems), **problems}))
            progress(name, first + size, "cases,", runs[-1]["violations"], "violations")
        problems[name] = _problem(runs)
    return _answer({**_others(known, problems), **problems})


def _known_runs(path):
    """Blocks that a file has, by estimator."""
    if path is None or not path.exists():
        return {}
    problems = json.loads(path.read_text())["problems"]
    return {name: p["methods"]["hostile"]["runs"] for name, p in problems.items()}


def _others(known, problems):
    return {name: _problem(known[name]) for name in known if name not in problems}


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


def _answer(problems):
    return {"problems": problems, "notes": []}
