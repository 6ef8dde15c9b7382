"""What a change of the library costs or gains: rows of all estimators by defaults.

    python -m benchmarks gates --against REF [--only ROOM_OR_ROW ...] [--data DIR]

Every row is fitted in a process of its own on a core of its own, by the working tree
and at the same time by a git reference. What got worse beyond the tolerances is
measured again with the cores exchanged; it is listed at the end if it got worse again,
and the exit status is 1. Without a reference, the figures of the working tree are
printed and written, two rows at a time.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue

from benchmarks._gates import ROOMS, rows_of
from benchmarks._gates.common import TOLERANCE, changes
from benchmarks._gates.processes import ask, two_cores, working_folder
from benchmarks._report import progress, summary

HERE = "here"
QUICK = ("first_answer/segmented",)  # a row that takes little

NOTES = (
    "Default settings and random_state=0; a row is a fresh process with one thread on "
    "one core. first_seconds is its first fit, compilation included, later_seconds the "
    "median of its later ones, which are left out where the first takes more than "
    "eight seconds. Both are CPU time, in first_answer time on the clock.",
    "A figure is worse beyond these tolerances: r2, log_loss, coverage (its distance "
    "from 0.95) and share by the number, the others by the factor: "
    + ", ".join(f"{name} {value}" for name, value in TOLERANCE.items())
    + ". A row that raises an error or takes more than two minutes is worse.",
    "Rows of the folder --data, or of packages that are not installed, are left out "
    "where these are missing.",
)


def chosen_rows(only, data):
    """Rows whose names, ROOM/ROW, begin with one of some words; all by default."""
    words = tuple(only or ("",))
    found = {
        f"{room}/{name}": row
        for room in ROOMS
        if any(word.startswith(room) or room.startswith(word) for word in words)
        for name, row in rows_of(room, data).items()
    }
    found = {name: row for name, row in found.items() if name.startswith(words)}
    if not found:
        raise ValueError(f"No row begins with {' or '.join(words)}.")
    return found


def measure(rows, folder, data):
    """Answers of one tree by row as they come, two rows at a time."""
    free = SimpleQueue()
    for core in two_cores():
        free.put(core)

    def answer(name):
        core = free.get()
        try:
            return name, [ask(name, folder, core, data)]
        finally:
            free.put(core)

    with ThreadPoolExecutor(2) as pool:
        for name, answers in pool.map(answer, rows):
            yield name, {HERE: answers}


def measure_pairs(rows, folders, data):
    """Answers of both trees by row: a second one of each where the first got worse."""
    with ThreadPoolExecutor(2) as pool:
        for name in rows:
            answers = {side: [] for side in folders}
            for cores in (two_cores(), two_cores()[::-1]):
                asked = {
                    side: pool.submit(ask, name, folder, core, data)
                    for (side, folder), core in zip(folders.items(), cores, strict=True)
                }
                for side, future in asked.items():
                    answers[side].append(future.result())
                if not judged(answers)[0]:
                    break
            yield name, answers


def judged(answers):
    """Names of the figures that got worse, and better, in every round of a row."""
    rounds = [
        changes(before.figures, after.figures)
        for after, before in zip(*answers.values(), strict=True)
    ]
    return [
        [name for name in first if all(name in other for other in others)]
        for first, *others in zip(*rounds, strict=True)
    ]


def problem_of(row, answers):
    """A row of the result."""
    methods, skipped = {}, {}
    for side, given in answers.items():
        runs = [
            {"seed": 0, **{k: v for k, v in a.figures.items() if k != "asked"}}
            for a in given
            if a.figures is not None
        ]
        if runs:
            methods[side] = {"settings": {}, "runs": runs, "summary": summary(runs)}
        else:
            skipped[side] = given[0].reason
    problem = {"description": row.description, "methods": methods, "skipped": skipped}
    if len(answers) == 2:
        problem["worse"], problem["better"] = judged(answers)
    return problem


def shown(problem, figures):
    """Figures as text, where there are two sides with that of the reference first."""
    sides = list(problem["methods"].values())[::-1]
    words = []
    for figure in figures:
        values = [side["summary"].get(figure, {}).get("median") for side in sides]
        text = " -> ".join("-" if value is None else f"{value:.4g}" for value in values)
        words.append(f"{figure} {text}")
    words += [f"{side}: {reason}" for side, reason in problem["skipped"].items()]
    return ", ".join(words)


def listed(problems, kind):
    """What got worse or better, a line for each row of which some figure did."""
    lines = [
        f"  {name}: {shown(problem, [f for f in problem[kind] if f != 'answer'])}"
        for name, problem in problems.items()
        if problem.get(kind)
    ]
    return [f"{kind.capitalize()}:", *lines] if lines else [f"Nothing got {kind}."]


def run(args):
    rows = chosen_rows(args.only or (QUICK if args.quick else None), args.data)
    problems = {}
    with ExitStack() as stack:
        folder = stack.enter_context(working_folder())
        if args.against is None:
            answered = measure(rows, folder, args.data)
        else:
            other = stack.enter_context(working_folder(args.against))
            folders = {HERE: folder, args.against: other}
            answered = measure_pairs(rows, folders, args.data)
        for name, answers in answered:
            problem = problems[name] = problem_of(rows[name], answers)
            figures = [
                f for side in problem["methods"].values() for f in side["summary"]
            ]
            progress(f"{name}: {shown(problem, dict.fromkeys(figures))}")
    answer = {"problems": problems, "seeds": [0], "notes": NOTES}
    if args.against is None:
        return answer
    args.write(answer)
    print("\n".join([*listed(problems, "better"), *listed(problems, "worse")]))
    sys.exit(any(problem["worse"] for problem in problems.values()))
