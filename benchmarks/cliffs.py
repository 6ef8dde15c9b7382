"""Cliffs: neighbours whose scores or seconds differ more than the data explain.

Scans change one quantity in steps of 1.25 to 2 (penalties: ten) and fit with default
settings: rows, columns, classes, shots, noise, periods, penalties, breakpoints, rows
after the last kink, random states. What breaks one of the six rules below is printed
and counted. Scans run two at a time, each in a process of its own with one core and one
BLAS thread; a scan is written when it is complete, and a file is continued where it
ends. ``--only`` takes scans (``rows.FGNSoftmaxHead``) or their quantities (``rows``).
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from benchmarks._cliffs import scans
from benchmarks._report import progress, summary

MINUTES = 25.0
QUICK = ("last_rows.SegmentedRegressor",)
SCORES = {"r2": 1, "log_loss": -1, "share": 1}  # -1: lower is better

LEAST_FALL = 0.003  # of a score that counts, beside two standard errors
SLOWER = 3.0  # most time of a neighbour, over that of the work
LEAST_SECONDS = 0.05  # quicker fits count as if they took so long
BELOW_BASELINE = 0.02
UNSEEN = 0.05  # R2 that a reference reaches and the fit calls noise
DIP = 0.1
SPREAD = 0.01  # of R2 over random states

RULES = {
    1: "more data of the same law, and a worse score",
    2: "more than three times the seconds of a neighbour",
    3: "worse than the mean or the class frequencies",
    4: "diagnose() calls noise what a reference finds",
    5: "a step in the score",
    6: "the score depends on random_state",
}
NOTES = (
    "Rule 1: a score that is lower than with less data by more than .003 and by more "
    "than two standard errors of the paired difference. Rule 2: more than three times "
    "the seconds of a neighbour, times the step in rows, columns, classes or shots; "
    "less than .05 s count as .05 s; a given alpha is compared with 'auto', too. Rule "
    "3: R2 or log loss worse by more than .02 than by the mean or the class "
    "frequencies, and than by a reference. Rule 4: in half of the draws the reference "
    "has an R2 that is higher by more than .05, and no finding of diagnose() blames "
    "the fit. Rule 5: a score that lies below the line through both neighbours by "
    "more than .1 and by more than two standard errors, and so does its difference "
    "from the reference's score, if there is one. A step of height h between two "
    "points shows as h / 2; a learning curve that rises ever more slowly never lies "
    "below. Rule 6: R2 over the random states differs by .01 or more.",
    "seconds are CPU seconds of a fit on one core that compiles nothing, medians over "
    "the draws; *_error is the standard error of a mean over the draws. 4,000 test "
    "rows: R2 against the law without noise, log loss of labels. share: fits with the "
    "right number of breakpoints, in last_rows within two rows of the kink.",
    "References: a sine of known period, kinks at known positions, a Gaussian process "
    "with a length scale a column (noise), the number of breakpoints with the lower "
    "BIC (last_rows), in rows the law itself, from 8,000 rows on, and with a given "
    "penalty scikit-learn's network or logistic regression of the same penalty.",
    "Penalties change by factors of ten, on 120 rows.",
)


# --- the rules: arrays of shape (draws, points), larger scores are better -------------


def mean_and_error(values):
    """Means over the draws and their standard errors, which a single draw lacks."""
    n_draws = len(values)
    error = np.std(values, axis=0, ddof=min(1, n_draws - 1)) / np.sqrt(n_draws)
    return np.mean(values, axis=0), error


def worse_with_more(scores):
    """Rule 1: pairs of points of which the second has more data and a lower score."""
    fall, error = mean_and_error(scores[:, :-1] - scores[:, 1:])
    found = np.flatnonzero(fall > np.maximum(LEAST_FALL, 2 * error))
    return [(i, i + 1) for i in found]


def slow_neighbours(seconds, steps=1.0):
    """Rule 2: pairs of points of which one takes too long for its work.

    ``steps`` is the work of a point over that of the point before.
    """
    seconds = np.median(seconds, axis=0)
    counted = np.maximum(seconds, LEAST_SECONDS)
    slower = seconds[1:] > SLOWER * steps * counted[:-1]
    quicker = seconds[:-1] > SLOWER * counted[1:]
    return [(i, i + 1) for i in np.flatnonzero(slower | quicker)]


def below_baseline(scores, baseline, reference=None):
    """Rule 3: points that are worse than a model without features, and a reference."""
    if reference is not None:
        baseline = np.fmin(baseline, reference)
    lower = np.mean(baseline - scores, axis=0) > BELOW_BASELINE
    return [(i,) for i in np.flatnonzero(lower)]


def unseen(scores, reference, admits):
    """Rule 4: points where half of the fits miss what a reference finds, silently.

    A reference that is NaN is not known there.
    """
    misses = (reference - scores > UNSEEN) & (admits == 0)
    return [(i,) for i in np.flatnonzero(np.mean(misses, axis=0) >= 0.5)]


def dips(scores, positions):
    """Rule 5: points far below the line through their neighbours."""
    before, here, after = scores[:, :-2], scores[:, 1:-1], scores[:, 2:]
    share = (positions[1:-1] - positions[:-2]) / (positions[2:] - positions[:-2])
    gap, error = mean_and_error(before + share * (after - before) - here)
    found = np.flatnonzero(gap > np.maximum(DIP, 2 * error))
    return [(i, i + 1, i + 2) for i in found]


def spread(scores):
    """Rule 6: the best and the worst random state, if they differ too much."""
    means = np.mean(scores, axis=0)
    ends = int(np.argmin(means)), int(np.argmax(means))
    return [ends] if np.ptp(means) >= SPREAD else []


# --- a scan --------------------------------------------------------------------------


def judge(scan, points, figures):
    """What breaks a rule: dicts of the rule, the points, and their figures.

    ``figures`` are arrays of shape (draws, points), by name.
    """
    found = [] if scan.is_spread else slow_points(scan, points, figures["seconds"])
    found = [(2, at, "seconds") for at in found]
    for score, sign in SCORES.items():
        if score not in figures:
            continue
        known = {key: sign * figures[key] for key in figures if key.startswith(score)}
        for rule, indices in judge_score(scan, points, score, known).items():
            found += [(rule, at, score) for at in indices]
    if "r2_reference" in figures:
        keys = ("r2", "r2_reference", "admits")
        found += [(4, at, "r2") for at in unseen(*(figures[key] for key in keys))]
    return [
        {
            "rule": rule,
            "points": [points[i] for i in at],
            **{
                key: [typical(key, figures[key])[i] for i in at]
                for key in dict.fromkeys([figure, f"{figure}_reference", "seconds"])
                if key in figures
            },
        }
        for rule, at, figure in sorted(found)
    ]


def slow_points(scan, points, seconds):
    """Rule 2 in a scan, which may begin with the choice of a penalty, "auto".

    That choice may take long, but no given penalty may take long in comparison.
    """
    if points[0] != "auto":
        steps = np.divide(points[1:], points[:-1]) if scan.grows else 1.0
        return slow_neighbours(seconds, steps)
    most = SLOWER * max(np.median(seconds[:, 0]), LEAST_SECONDS)
    slow = np.flatnonzero(np.median(seconds, axis=0) > most)
    return [(0, i) for i in slow] + [
        (i + 1, j + 1) for i, j in slow_neighbours(seconds[:, 1:])
    ]


def judge_score(scan, points, score, known):
    """Rules 1, 3, 5 and 6 for one score, whose larger values are better."""
    scores, reference = known[score], known.get(f"{score}_reference")
    found = {}
    if f"{score}_baseline" in known:
        found[3] = below_baseline(scores, known[f"{score}_baseline"], reference)
    if scan.is_spread:
        return {**found, 6: spread(scores)}
    if scan.more:
        found[1] = worse_with_more(scores)
    first = int(points[0] == "auto")  # which has no place among the numbers
    numbers = np.array(points[first:], dtype=float)
    positions = np.log(numbers) if numbers[0] > 0 else np.arange(len(numbers))
    steps = dips(scores[:, first:], positions)
    if reference is not None and np.isfinite(reference[:, first:]).all():
        beyond = dips((scores - reference)[:, first:], positions)
        steps = [at for at in steps if at in beyond]
    return {**found, 5: [tuple(first + i for i in at) for at in steps]}


def typical(key, values):
    """Median of the seconds, mean of any other figure, by point."""
    return np.median(values, axis=0) if key == "seconds" else np.mean(values, axis=0)


def answer_of(name, scan, figures):
    """The method of a scan: a run is a point."""
    figures = {key: np.array(value, dtype=float) for key, value in figures.items()}
    points = scan.points[: figures["seconds"].shape[1]]
    columns = {key: typical(key, values) for key, values in figures.items()}
    for score in SCORES.keys() & figures.keys():
        columns[f"{score}_error"] = mean_and_error(figures[score])[1]
    quantity = name.split(".")[0]
    runs = [
        {quantity: point, **{k: c[i] for k, c in columns.items() if np.isfinite(c[i])}}
        for i, point in enumerate(points)
    ]
    return {
        "settings": {},
        "data": scan.description,
        "draws": len(figures["seconds"]),
        "runs": runs,
        "summary": summary(runs),
        "breaks": judge(scan, points, figures),
    }


def as_line(name, broken):
    """A break of a rule as text."""
    figures = (
        f"{key} {', '.join(f'{value:.3g}' for value in values)}"
        for key, values in broken.items()
        if key not in ("rule", "points")
    )
    points = ", ".join(map(str, broken["points"]))
    rule = broken["rule"]
    return f"{name} at {points}: {'; '.join(figures)} (rule {rule}: {RULES[rule]})"


# --- all scans -----------------------------------------------------------------------


def run(args):
    known = scans()
    if args.only:
        names = [n for n in known if {n, n.split(".")[0]} & set(args.only)]
    else:
        names = QUICK if args.quick else known
    answer = _continued(args)
    names = [n for n in names if n not in answer["breaks"]["by_scan"]]
    end = time.monotonic() + 60 * (args.minutes or MINUTES)

    def work(name):
        if time.monotonic() + 60 * known[name].minutes > end and not args.quick:
            raise RuntimeError("no time was left")
        return worker(name, args.quick)

    cores = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[:2]:
        cores.put(core)

    def take_core():
        # Of this thread alone; the processes that it starts inherit it.
        os.sched_setaffinity(0, {cores.get()})

    with ThreadPoolExecutor(cores.qsize(), initializer=take_core) as pool:
        # The long ones first, so that both cores end at the same time.
        jobs = {
            pool.submit(work, name): name
            for name in sorted(names, key=lambda name: -known[name].minutes)
        }
        for job in as_completed(jobs):
            name = jobs[job]
            try:
                found = answer_of(name, known[name], job.result())
            except RuntimeError as error:
                answer["failed"][name] = str(error)
                progress(f"{name} failed: {error}")
                continue
            add(answer, name, found)
            args.write(answer)
            for broken in found["breaks"]:
                print(as_line(name, broken), flush=True)
            progress(f"--- {name}: {len(found['breaks'])} breaks")
    breaks = answer["breaks"]
    print(f"{breaks['total']} breaks in {len(breaks['by_scan'])} scans")
    return answer


def add(answer, name, found):
    """Add a scan to an answer."""
    quantity, method = name.split(".")
    empty = {
        "description": f"a run is a point of the scan of {quantity}",
        "methods": {},
    }
    problem = answer["problems"].setdefault(quantity, empty)
    problem["methods"][method] = found
    by_scan = {**answer["breaks"]["by_scan"], name: len(found["breaks"])}
    by_rule = {rule: 0 for rule in RULES}
    for other in answer["problems"].values():
        for one in other["methods"].values():
            for broken in one["breaks"]:
                by_rule[broken["rule"]] += 1
    total = sum(by_rule.values())
    answer["breaks"] = {"total": total, "by_scan": by_scan, "by_rule": by_rule}


def _continued(args):
    """The answer that a file has, without what failed."""
    answer = {
        "problems": {},
        "breaks": {"total": 0, "by_scan": {}},
        "failed": {},
        "notes": NOTES,
    }
    if args.out is not None and args.out.exists():
        before = json.loads(args.out.read_text())
        if before["quick"] == args.quick:
            answer |= {key: before[key] for key in ("problems", "breaks")}
    return answer


def worker(name, quick):
    """Figures of a scan, from a process of its own."""
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks._cliffs", name] + quick * ["--quick"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, **one_thread},
    )
    if process.returncode:
        raise RuntimeError(f"exit status {process.returncode}")
    return json.loads(process.stdout.splitlines()[-1])
