"""Broken lines: coverage, numbers of kinks, size of the test, R's packages, seconds.

coverage: 95 % intervals of kinks and slopes under equal, unequal and correlated noise.
number: 0 to 8 kinks, the number chosen by BIC. existence: size and power of the test
for a kink, beside R's davies.test. agreement: breakpoints and standard errors beside
R's segmented, and those of R's data sets beside strucchange. examples: those of the
help pages of R's segmented. series: 10,000 at once.
large: one series of 3,000,000 points. stream: 100,000,000 points from a file. R and the
Python packages run where they are installed.
"""

import importlib.util
import multiprocessing
import tempfile
import threading
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks._report import progress, summary, target
from benchmarks._segmented_peers import (
    MOST_KINKS,
    R_EXAMPLES,
    R_SEGMENTED,
    R_STRUCCHANGE,
    count_by_python,
    count_by_r,
    fit_piecewise,
    fit_pwlf,
    fits_of_r,
    run_r,
    share_of_r,
    write_series,
)
from benchmarks._timing import timed
from benchmarks.sggn_1d import NOISE, draw, random_kinks
from sklearn_gn import SegmentedRegressor, fit_groups
from sklearn_gn.datasets import load_nile

COVERED, COVERED_POINTS, COVERED_KINKS = 2000, 400, 2
LEAST_ROWS = 60  # of a segment, in the simulations of coverage
R_COVERED = 100  # of them, for R
R_COUNTED, PYTHON_COUNTED = 5, 1  # series of each number of kinks, for the peers
COUNTED, COUNTED_POINTS = 60, 1000
TESTED, TESTED_POINTS, POWER_TESTED = 2000, 100, 200
WEAK = (0.5, 1.0)  # changes of slope whose power is compared, noise of deviation 0.2
AGREED = 50
MANY, MANY_POINTS = 10_000, 200
SAMPLED = 50  # of them, for the peers
LARGE = 3_000_000
STREAM, STREAM_KINKS, STREAM_CHUNK = 100_000_000, 14, 1 << 20

NILE = {1: [1898], 2: [1898, 1953]}  # strucchange's last years before a break

NOTES = (
    f"coverage: {COVERED_POINTS} points, {COVERED_KINKS} kinks, at least {LEAST_ROWS} "
    "points a segment; the number of kinks is given. Standard errors are nonrobust for "
    "equal noise, HC3 for unequal noise (deviation 0.01 to 0.1 along x), "
    "HAC-prewhitened for AR(1) noise with correlation 0.5.",
    f"number: {COUNTED_POINTS} points, changes of slope of 4 to 12, noise of deviation "
    f"{NOISE}, kinks and ends apart by two fifths of equal segments, as in sggn_1d.",
    "existence: the size is the share of series without a kink with p <= 0.05. Power: "
    "a kink in the middle, noise of deviation 0.2.",
    "agreement: rss_ratio is our residual sum of squares over that of R's segmented on "
    "the same series, largest over the series; differences of breakpoints and standard "
    "errors are those of the series on which both sums agree to 1e-6.",
    "Seconds of R are those of its fits, without its start. Its coverage is that of "
    f"{R_COVERED} series, its seconds there are extrapolated. Numbers of kinks of the "
    f"peers: {R_COUNTED} series of each number for selgmented, {PYTHON_COUNTED} for "
    "piecewise-regression, which is slow; a fit that fails is not exact.",
    "examples: R rounds slopes and their errors to five digits; the seed is the name.",
    f"series: the peers are told the number of kinks; their seconds are those of "
    f"{SAMPLED} series, extrapolated, with one process. Ours has two.",
)


def table_of(estimator, samples, n_jobs=None):
    """Table of the segments of samples (x, y)."""
    import pandas as pd

    data = pd.DataFrame(
        {
            "series": np.repeat(np.arange(len(samples)), [len(x) for x, _ in samples]),
            "x": np.concatenate([x for x, _ in samples]),
            "y": np.concatenate([y for _, y in samples]),
        }
    )
    return fit_groups(estimator, data, group="series", target="y", n_jobs=n_jobs)


def answer_of(runs, **more):
    return {"settings": {}, **more, "runs": runs, "summary": summary(runs)}


# --- coverage ------------------------------------------------------------------------


def noise_of(kind, x, rng):
    if kind == "unequal":
        return (0.01 + 0.09 * x) * rng.standard_normal(len(x))
    drawn = rng.standard_normal(len(x))
    if kind == "correlated":
        for k in range(1, len(x)):
            drawn[k] = 0.5 * drawn[k - 1] + np.sqrt(0.75) * drawn[k]
    return NOISE * drawn


def covered_series(kind, rng):
    """Kinks, slopes, x and y of a series with enough points in all segments."""
    while True:
        x = np.sort(rng.uniform(size=COVERED_POINTS))
        kinks = random_kinks(rng, COVERED_KINKS)
        if np.histogram(x, [0, *kinks, 1])[0].min() >= LEAST_ROWS:
            break
    changes = rng.choice([-1, 1], COVERED_KINKS) * rng.uniform(4, 12, COVERED_KINKS)
    slopes = np.cumsum([rng.uniform(-4, 4), *changes])
    y = slopes[0] * x + np.maximum(x[:, None] - kinks, 0) @ changes
    return kinks, slopes, x, y + noise_of(kind, x, rng)


COVERAGE_SETTINGS = {
    "equal": {},
    "unequal": {"covariance": "HC3"},
    "correlated": {"covariance": "HAC-prewhitened"},
}


def coverage(args):
    n = 40 if args.quick else COVERED
    methods = {}
    for kind, settings in COVERAGE_SETTINGS.items():
        estimator = SegmentedRegressor(COVERED_KINKS, **settings)
        runs = []
        for seed in args.seeds[:1]:
            rng = np.random.default_rng(seed)
            drawn = [covered_series(kind, rng) for _ in range(n)]
            table, seconds = timed(
                partial(table_of, estimator, [each[2:] for each in drawn])
            )
            runs.append({"seed": seed, **covered(drawn, table), "seconds": seconds})
            progress(kind, runs[-1])
        methods[kind] = answer_of(runs)
        theirs = covered_by_r(drawn[: 3 if args.quick else R_COVERED], n)
        if theirs is not None:
            methods[f"r_{kind}"] = answer_of([{"seed": args.seeds[0], **theirs}])
            progress(f"r_{kind}", theirs)
    aim = partial(target, methods, statistic="median")
    figures = {}
    for kind, least, most in (
        ("equal", 0.93, 0.97),
        ("unequal", 0.93, 0.97),
        ("correlated", 0.88, 0.98),
    ):
        figures[f"target_{kind}_least"] = aim(kind, "kinks", at_least=least)
        figures[f"target_{kind}_most"] = aim(kind, "kinks", at_most=most)
    return {
        "description": f"{n:,} series, {COVERED_POINTS} points, {COVERED_KINKS} kinks",
        "methods": methods,
        **figures,
    }


def covered(drawn, table):
    """Shares of the intervals that hold the true kinks and slopes."""
    kinks = np.array([each[0] for each in drawn])
    slopes = np.array([each[1] for each in drawn])
    shape = len(drawn), COVERED_KINKS + 1
    start, std = (
        table[name].to_numpy().reshape(shape)[:, 1:]
        for name in ("start", "breakpoint_std_error")
    )
    low, high = (
        table[name].to_numpy().reshape(shape) for name in ("slope_lower", "slope_upper")
    )
    return {
        "kinks": float(np.mean(np.abs(start - kinks) <= 1.966 * std)),  # t, 394
        "slopes": float(np.mean((low <= slopes) & (slopes <= high))),
    }


def covered_by_r(drawn, n):
    """Coverage of R's segmented, and the seconds that n series would take."""
    found = fits_of_r([each[2:] for each in drawn], [COVERED_KINKS] * len(drawn))
    if found is None:
        return None
    fits, seconds = found
    inside = []
    for k, figures in fits.items():
        t, std = figures[:-1].reshape(2, -1)
        error = np.abs(t - drawn[k][0]) if len(t) == COVERED_KINKS else np.inf
        inside.append(np.mean(error <= 1.966 * std))
    share = float(np.sum(inside)) / len(drawn)
    return {"kinks": share, "seconds": seconds / len(drawn) * n, "fits": len(fits)}


# --- numbers -------------------------------------------------------------------------


def number(args):
    n = 3 if args.quick else COUNTED
    runs = []
    for seed in args.seeds[:1]:
        rng = np.random.default_rng(seed)
        run, seconds = {"seed": seed}, 0.0
        for kinks in range(MOST_KINKS + 1):
            samples = [draw(rng, COUNTED_POINTS, kinks) for _ in range(n)]
            table, more = timed(
                partial(
                    table_of,
                    SegmentedRegressor(max_breakpoints=12),
                    [(s.x, s.y) for s in samples],
                )
            )
            seconds += more
            found = table[table["segment"] == 1]["n_breakpoints"]
            run[f"exact_{kinks}"] = float(np.mean(found == kinks))
        shares = [run[f"exact_{kinks}"] for kinks in range(MOST_KINKS + 1)]
        runs.append({**run, "exact": float(np.mean(shares)), "seconds": seconds})
        progress("segmented", runs[-1])
    methods = {"segmented": answer_of(runs)}
    for name, count, few in (
        ("r_selgmented", count_by_r, 1 if args.quick else R_COUNTED),
        ("piecewise_regression", count_by_python, 1 if args.quick else PYTHON_COUNTED),
    ):
        rng = np.random.default_rng([args.seeds[0], 1])
        most = 1 if args.quick else MOST_KINKS
        right = np.repeat(np.arange(most + 1), few)
        samples = [draw(rng, COUNTED_POINTS, kinks) for kinks in right]
        found = count([(s.x, s.y) for s in samples])
        if found is not None:
            numbers, seconds = found
            figures = {"exact": float(np.mean(numbers == right)), "seconds": seconds}
            methods[name] = answer_of([{"seed": args.seeds[0], **figures}])
            progress(name, figures)
    return {
        "description": f"0 to {MOST_KINKS} kinks, {n} series each; fewer for the peers",
        "methods": methods,
        "target": target(methods, "segmented", "exact", "median", at_least=0.95),
    }


# --- the test ------------------------------------------------------------------------


def p_values(samples, covariance="nonrobust"):
    model = SegmentedRegressor(covariance=covariance)
    return np.array([model.breakpoint_test(x[:, None], y).p_value for x, y in samples])


def existence(args):
    n, n_power = (20, 5) if args.quick else (TESTED, POWER_TESTED)
    seed = args.seeds[0]
    rng = np.random.default_rng(seed)
    x = np.linspace(0, 1, TESTED_POINTS)
    none = [(x, rng.standard_normal(len(x))) for _ in range(n)]
    p, seconds = timed(partial(p_values, none))
    ours = {"seed": seed, "size": float(np.mean(p <= 0.05)), "seconds": seconds}
    theirs = {"seed": seed}
    for change in WEAK:
        drawn = [
            (x, change * np.maximum(x - 0.5, 0) + 0.2 * rng.standard_normal(len(x)))
            for _ in range(n_power)
        ]
        ours[f"power_{change:g}"] = float(np.mean(p_values(drawn) <= 0.05))
        theirs[f"power_{change:g}"] = share_of_r(drawn)
    theirs["size"] = share_of_r(none[: 4 * n_power])
    progress("segmented", ours)
    methods, skipped = {"segmented": answer_of([ours])}, {}
    if None in theirs.values():
        skipped["r_davies"] = "Rscript with segmented is not installed"
    else:
        methods["r_davies"] = answer_of([theirs])
        progress("r_davies", theirs)
    for kind in ("HC3", "HAC"):
        of_kind = [(x, noise_of_kind(kind, x, rng)) for _ in range(n)]
        p, seconds = timed(partial(p_values, of_kind, kind))
        run = {"seed": seed, "size": float(np.mean(p <= 0.05)), "seconds": seconds}
        methods[f"segmented_{kind}"] = answer_of([run])
        progress(kind, run)
    figures = {
        f"target_{kind}_{name}": target(methods, kind, "size", "median", **limit)
        for kind in ("segmented_HC3", "segmented_HAC")
        for name, limit in (("least", {"at_least": 0.04}), ("most", {"at_most": 0.06}))
    }
    aim = partial(target, methods, "segmented", "size", "median")
    return {
        "description": f"{n:,} series of {TESTED_POINTS} points without a kink",
        "methods": methods,
        "skipped": skipped,
        "target_least": aim(at_least=0.04),
        "target_most": aim(at_most=0.06),
        **figures,
    }


def noise_of_kind(kind, x, rng):
    """Noise of a deviation that rises from 0.1 to 1, or of correlation 0.5."""
    drawn = rng.standard_normal(len(x))
    if kind == "HC3":
        return (0.1 + 0.9 * x) * drawn
    drawn[1:] *= np.sqrt(0.75)
    for k in range(1, len(x)):
        drawn[k] += 0.5 * drawn[k - 1]
    return drawn


# --- agreement -----------------------------------------------------------------------


def agreement(args):
    n, seed = 5 if args.quick else AGREED, args.seeds[0]
    rng = np.random.default_rng(seed)
    samples = [draw(rng, 150, 1) for _ in range(n)]
    samples = [(s.x, s.y + 0.3 * rng.standard_normal(len(s.x))) for s in samples]
    fits, seconds = timed(
        lambda: [SegmentedRegressor(1).fit(x[:, None], y) for x, y in samples]
    )
    ours = {"seed": seed, "seconds": seconds}
    methods, skipped = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        write_series(Path(folder) / "data.csv", samples)
        lines = run_r(R_SEGMENTED, folder)
        if lines is None:
            skipped["r_segmented"] = "Rscript with segmented is not installed"
        else:
            theirs = {int(w[1]): np.array(w[2:], float) for w in lines if w[0] == "fit"}
            ours |= differences(fits, theirs)
            figures = {"seed": seed, "seconds": float(lines[-1][1])}
            methods["r_segmented"] = answer_of([{**figures, "fits": len(theirs)}])
        lines = run_r(R_STRUCCHANGE, folder)
        if lines is None:
            skipped["r_strucchange"] = "Rscript with strucchange is not installed"
        else:
            times = {w[1]: float(w[2]) for w in lines if w[0] == "seconds"}
            methods["r_strucchange"] = answer_of(
                [{"seed": seed, **{f"{k}_seconds": v for k, v in times.items()}}]
            )
            found = [words for words in lines if words[0] != "seconds"]
            same, ours_seconds = timed_rows(folder, found)
            ours |= {"strucchange_same": float(np.mean(same)), **ours_seconds}
    X, y = load_nile(return_X_y=True)
    nile = [
        np.floor(SegmentedRegressor(k, degree=0).fit(X, y).breakpoints_).tolist() == t
        for k, t in NILE.items()
    ]
    ours["nile_same"] = float(np.mean(nile))
    progress("segmented", ours)
    methods["segmented"] = answer_of([ours])
    return {
        "description": f"{n} series of 150 points with one kink, and R's data sets",
        "methods": methods,
        "skipped": skipped,
        "target": target(methods, "segmented", "nile_same", "median", at_least=1),
    }


def differences(fits, theirs):
    """Largest differences from R where both are at the same minimum."""
    ratio, place, error = [], [], []
    for k, (t, std, rss) in theirs.items():
        ratio.append(fits[k].statistics_["rss"] / rss)
        if abs(ratio[-1] - 1) < 1e-6:
            place.append(abs(fits[k].breakpoints_[0] / t - 1))
            error.append(abs(fits[k].breakpoint_std_[0] / std - 1))
    return {
        "rss_ratio": float(max(ratio)),
        "same_minimum": len(place) / len(theirs),
        "breakpoint_difference": float(max(place)),
        "std_difference": float(max(error)),
    }


def timed_rows(folder, lines):
    """Whether the data sets break after the same rows, and seconds of the fits."""
    same, seconds = [], {}
    for words in lines:
        answer, more = timed(partial(same_rows, folder, *words[:2], words[2:]))
        same.append(answer)
        name = f"{words[0]}_seconds"
        seconds[name] = seconds.get(name, 0.0) + more
    return same, seconds


def same_rows(folder, name, k, rows):
    """Whether both break one of R's data sets after the same rows."""
    t, y = np.loadtxt(Path(folder) / f"{name}.csv", delimiter=",", skiprows=1).T
    model = SegmentedRegressor(int(k), degree=0, min_rows=int(0.15 * len(t)))
    found = np.searchsorted(t, model.fit(t[:, None], y).breakpoints_)
    return found.tolist() == [int(row) for row in rows]


def examples(args):
    """The examples of R's help pages, to the digits that R prints."""
    import pandas as pd

    runs = []
    with tempfile.TemporaryDirectory() as folder:
        lines = run_r(R_EXAMPLES, folder)
        for name, *figures in lines or ():
            data = pd.read_csv(Path(folder) / f"{name}.csv")
            theirs = np.array(figures, float)
            k = (len(theirs) - 3) // 4
            model = SegmentedRegressor(k).fit(data.drop(columns="y"), data["y"])
            table = model.segments_
            ours = [model.breakpoints_, model.breakpoint_std_]
            ours = np.concatenate([*ours, table["slope"], table["slope_std_error"]])
            relative = np.abs(ours / theirs[:-1] - 1)
            ratio = float(model.statistics_["rss"] / theirs[-1])
            difference = 0.0 if ratio < 1 - 1e-6 else float(relative.max())
            runs.append({"seed": name, "rss_ratio": ratio, "difference": difference})
            progress(name, runs[-1])
    if not runs:
        return {
            "description": "examples of R's segmented",
            "methods": {},
            "skipped": {"segmented": "Rscript with segmented is not installed"},
        }
    methods = {"segmented": answer_of(runs)}
    # R prints five digits of a slope: half a unit of the last is at most 5e-5.
    return {
        "description": f"{len(runs)} examples of the help pages of R's segmented",
        "methods": methods,
        "target": target(methods, "segmented", "difference", "max", at_most=5e-5),
    }


# --- seconds -------------------------------------------------------------------------


def series(args):
    n, runs = 50 if args.quick else MANY, []
    for seed in args.seeds[:1]:
        rng = np.random.default_rng(seed)
        samples = [draw(rng, MANY_POINTS, k % 4) for k in range(n)]
        pairs = [(s.x, s.y) for s in samples]
        table, seconds = timed(partial(table_of, SegmentedRegressor(), pairs, n_jobs=2))
        found = table[table["segment"] == 1]["n_breakpoints"].to_numpy()
        exact = float(np.mean(found == np.arange(n) % 4))
        runs.append({"seed": seed, "seconds": seconds, "exact": exact})
        progress("segmented", runs[-1])
    methods = {"segmented": answer_of(runs)}
    few = samples[: 4 if args.quick else SAMPLED]
    for name, fit in (("pwlf", fit_pwlf), ("piecewise_regression", fit_piecewise)):
        if importlib.util.find_spec(name) is None:
            continue
        _, seconds = timed(lambda fit=fit: [fit(s.x, s.y, len(s.kinks)) for s in few])
        run = {"seed": args.seeds[0], "seconds": seconds / len(few) * n}
        progress(name, run)
        methods[name] = answer_of([run])
    kinked = [s for s in few if len(s.kinks)]
    found = fits_of_r([(s.x, s.y) for s in kinked], [len(s.kinks) for s in kinked])
    if found is not None:
        run = {"seed": args.seeds[0], "seconds": found[1] / len(few) * n}
        progress("r_segmented", run)
        methods["r_segmented"] = answer_of([run])
    return {
        "description": f"{n:,} series of {MANY_POINTS} points, 0 to 3 kinks, by BIC",
        "methods": methods,
        "target": target(methods, "segmented", "seconds", "median", at_most=10),
    }


def large(args):
    n, runs = 3000 if args.quick else LARGE, []
    for seed in args.seeds[:1]:
        sample = draw(np.random.default_rng(seed), n, 4)
        model, seconds = timed(
            partial(SegmentedRegressor(4).fit, sample.x[:, None], sample.y)
        )
        error = np.abs(model.breakpoints_ - sample.kinks)
        mse = model.statistics_["rss"] / np.sum((sample.truth - sample.y) ** 2)
        runs.append(
            {
                "seed": seed,
                "seconds": seconds,
                "mse_over_noise": float(mse),
                "largest_error_in_std": float(np.max(error / model.breakpoint_std_)),
            }
        )
        progress("segmented", runs[-1])
    methods = {"segmented": answer_of(runs)}
    return {
        "description": f"{n:,} points, 4 kinks",
        "methods": methods,
        "target": target(methods, "segmented", "mse_over_noise", "median", at_most=1),
    }


def write_points(path, n, rng):
    """Write x and y of a broken line to a file; return its kinks."""
    kinks = np.linspace(0, 1, STREAM_KINKS + 2)[1:-1]
    kinks = kinks + rng.uniform(-0.01, 0.01, STREAM_KINKS)
    changes = rng.uniform(4, 12, STREAM_KINKS) * rng.choice([-1, 1], STREAM_KINKS)
    points = np.memmap(path, np.float64, "w+", shape=(2, n))
    for start in range(0, n, STREAM_CHUNK):
        x = rng.uniform(size=min(STREAM_CHUNK, n - start))
        y = x + np.maximum(x[:, None] - kinks, 0) @ changes
        points[0, start : start + len(x)] = x
        points[1, start : start + len(x)] = y + NOISE * rng.standard_normal(len(x))
    points.flush()
    return kinks


def stream(args):
    """A fit of a memory-mapped file, in a process of its own for its memory."""
    n, runs = 5_000_000 if args.quick else STREAM, []
    for seed in args.seeds[:1]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "points")
            kinks = write_points(path, n, np.random.default_rng(seed))
            context = multiprocessing.get_context("spawn")
            with context.Pool(1) as pool:
                found, seconds, gigabytes = pool.apply(fit_file, (path, n))
        right = len(found) == STREAM_KINKS
        runs.append(
            {
                "seed": seed,
                "seconds": seconds,
                "anonymous_gigabytes": gigabytes,
                "n_kinks": len(found),
                "largest_error": float(np.max(abs(found - kinks))) if right else 1.0,
            }
        )
        progress("segmented", runs[-1])
    methods = {"segmented": answer_of(runs)}
    return {
        "description": f"{n:,} points in a file, {STREAM_KINKS} kinks, found by BIC",
        "methods": methods,
        "target": target(methods, "segmented", "seconds", "median", at_most=60),
    }


def fit_file(path, n):
    """Breakpoints, seconds, and the largest anonymous memory that was seen."""
    points, sizes = np.memmap(path, np.float64, "r", shape=(2, n)), [0]
    done = threading.Event()

    def watch():
        while not done.wait(0.05):
            sizes.append(anonymous_gigabytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    line = SegmentedRegressor(max_breakpoints=20)
    model, seconds = timed(partial(line.fit, points[0][:, None], points[1]))
    done.set()
    watcher.join()
    return model.breakpoints_, seconds, max(sizes)


def anonymous_gigabytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(s.split()[1]) for s in lines if s.startswith("RssAnon")) / 1e6


PROBLEMS = {
    "coverage": coverage,
    "number": number,
    "existence": existence,
    "agreement": agreement,
    "examples": examples,
    "series": series,
    "large": large,
    "stream": stream,
}


def run(args):
    answers = {}
    for name in args.only or PROBLEMS:
        progress(f"--- {name}")
        answers[name] = PROBLEMS[name](args)
        if args.only:
            args.write({"problems": answers, "notes": NOTES})
    return {"problems": answers, "notes": NOTES}
