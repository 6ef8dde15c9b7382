"""What the gates lose and gain when one automatic mechanism is switched off.

The rows of ``gates`` are run once as they are, which says which mechanisms were about
to act in each, and once without a mechanism where it was. Two workers run at a time, on
a core each. ``--only`` takes names of switches, with all figures of the others left in
the file; a row is written when it is complete, and a file is continued where it ends.
It is of one state of the library: begin another file after a change.

The last table has a line for each switch. The rules are those of ``gates``: what counts
is beyond the tolerance of a figure, and gains are in units of it, below zero where a
row is worse without the mechanism. Seconds are those of one run on each side.
"""

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from queue import SimpleQueue
from statistics import median

from benchmarks._ablation import ROOMS, SWITCHES
from benchmarks._gates import rows_of
from benchmarks._gates.common import TOLERANCE, changes, gain
from benchmarks._gates.processes import ask, two_cores, working_folder
from benchmarks._report import progress, summary

QUICK = ("tables.linear_member", "heads.temperature")
SECONDS = 300  # after which a row is given up
SECONDS_OF_FITS = ("first_seconds", "later_seconds")
BASE, OVERVIEW = "everything on", "without"
NOTES = [
    "asked: the mechanisms that were about to act in a row. acting: rows in which the "
    "mechanism was. worse, better: how many of these have a figure of accuracy beyond "
    "its tolerance without it.",
    "worst, median_worse, best: the gain of a row by the absence of the mechanism, "
    "that of its figure of accuracy that changes most, in tolerances; below -1 it is "
    "worse. Infinite gains, of rows with an answer on one side only, are null.",
    "seconds_on, seconds_off: of the first and the later fit, summed over the rows "
    "that have answers on both sides.",
]


def run(args):
    chosen = args.only or (QUICK if args.quick else list(SWITCHES))
    if unknown := set(chosen) - set(SWITCHES):
        raise SystemExit(f"No switch has the name {sorted(unknown)}.")
    problems = known(args.out)
    args.only = None  # the other switches of the file are in the answer
    base = problems.setdefault(
        BASE, {"description": "the rows as they are", "methods": {}}
    )["methods"]

    minutes = math.inf if args.minutes is None else args.minutes
    end = time.monotonic() + 60 * minutes

    def collect(jobs):
        for row, switch, answer in answers(jobs, args.data, end):
            record(problems, row, switch, answer)
            args.write(finished(problems))
            progress(switch or BASE, row, answer.figures or answer.reason)

    collect([(row, None) for row in rows_in_rooms(chosen, args) if row not in base])
    collect(
        [
            (row, switch)
            for switch in chosen
            for row, entry in base.items()
            if switch in asked(entry) and row not in methods_of(problems, switch)
        ]
    )
    return finished(problems)


def known(path):
    """Problems that a file has, without those that are made of them."""
    if path is None or not path.exists():
        return {}
    problems = json.loads(path.read_text())["problems"]
    return {name: p for name, p in problems.items() if name != OVERVIEW}


def rows_in_rooms(switches, args):
    """Names of the rows in the rooms of some switches."""
    rooms = dict.fromkeys(room for s in switches for room in ROOMS[s.split(".")[0]])
    most = 1 if args.quick else None
    return [
        f"{room}/{name}"
        for room in rooms
        for name in islice(rows_of(room, args.data), most)
    ]


def answers(jobs, data, end):
    """Yield rows, switches and answers as they come; none begins after the end."""
    cores = SimpleQueue()
    for core in two_cores():
        cores.put(core)

    def answer(row, switch):
        core = cores.get()
        try:
            if time.monotonic() < end:
                return row, switch, ask(row, folder, core, data, switch, SECONDS)
        finally:
            cores.put(core)

    with working_folder() as folder, ThreadPoolExecutor(2) as pool:
        try:
            for done in as_completed([pool.submit(answer, *job) for job in jobs]):
                if done.result() is not None:
                    yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


# --- the result ----------------------------------------------------------------------


def methods_of(problems, switch):
    return problems.get(switch, {}).get("methods", {})


def asked(entry):
    return entry["runs"][0].get("asked", ())


def record(problems, row, switch, answer):
    """Put an answer into the problems: of a switch next to the row as it is."""
    figures = answer.figures or {"reason": answer.reason}
    if switch is not None:
        on = problems[BASE]["methods"][row]["runs"][0]
        both = {"on": on, "off": figures}
        figures = {
            f"{name}_{side}": both[side][name]
            for name in dict.fromkeys([*on, *figures])
            for side in both
            if name in both[side] and name != "asked"
        }
    problem = problems.setdefault(
        switch or BASE, {"description": SWITCHES.get(switch, ""), "methods": {}}
    )
    problem["methods"][row] = {
        "settings": {},
        "runs": [figures],
        "summary": summary([figures]),
    }


def finished(problems):
    """The answer, whose last problem has a line for each switch."""
    lines = {}
    for switch in SWITCHES:
        if switch in problems:
            line = line_of(problems[switch]["methods"])
            lines[switch] = {"settings": {}, "runs": [line], "summary": summary([line])}
    overview = {"description": "the gates without a mechanism", "methods": lines}
    return {"problems": {**problems, OVERVIEW: overview}, "notes": NOTES}


def line_of(methods):
    """What the rows of a switch lose and gain."""
    gains, worse, better, seconds = {}, [], [], [0.0, 0.0]
    for row, entry in methods.items():
        on, off = sides(entry["runs"][0])
        lost, won = changes(accuracy(on), accuracy(off))
        worse += [row] if lost else []
        better += [row] if won else []
        gains[row] = largest_gain(accuracy(on), accuracy(off))
        for cost in SECONDS_OF_FITS:
            if on and off and cost in on and cost in off:
                seconds = [seconds[0] + on[cost], seconds[1] + off[cost]]
    return {
        "acting": len(gains),
        "worse": len(worse),
        "better": len(better),
        "worst": min(gains.values()),
        "median_worse": median([gains[row] for row in worse] or [0.0]),
        "best": max(gains.values()),
        "seconds_on": seconds[0],
        "seconds_off": seconds[1],
        "worst_row": min(gains, key=gains.get),
        "best_row": max(gains, key=gains.get),
    }


def sides(run):
    """Figures with the mechanism and without; None where there was no answer."""
    found = []
    for end in ("_on", "_off"):
        side = {k.removesuffix(end): v for k, v in run.items() if k.endswith(end)}
        found.append(None if "reason" in side else side)
    return found


def accuracy(figures):
    """The judged figures that are no seconds and no memory; NaN for infinite ones."""
    judged = set(TOLERANCE) - {*SECONDS_OF_FITS, "peak_mib"}
    return figures and {
        name: math.nan if value is None else value
        for name, value in figures.items()
        if name.startswith(tuple(judged))
    }


def largest_gain(on, off):
    """The gain of the figure that changes most; infinite where one side has none."""
    if on is None or off is None:
        return math.inf * ((off is not None) - (on is not None))
    gains = [gain(name, on[name], off[name]) for name in on if name in off]
    return max(gains, key=abs, default=0.0)
