"""Broken lines: simulated series, annotated series, and a long one.

``share`` is that of the series whose number of breakpoints was found; ``error``, that
of the breakpoints in units of the range, and ``coverage``, of their intervals, are
those of fits with the right number, which is given where it was not found. Annotated
series have ``share_covering`` and ``share_f1`` (Van den Burg and Williams, 2020), with
a margin of five points.
"""

import json
import time
from functools import partial

from benchmarks._gates.common import Row, left_out, timed_fits

POINTS = 200  # of a simulated series
MOST = 4  # breakpoints
SERIES = 16  # of each number of breakpoints; half of them where fits take long
NOISE = 0.1
CORRELATION = 0.5  # of neighbours, where the noise is AR(1)
MARGIN = 5  # points between a change and where it is found
LONG = 1_000_000


# --- simulated series ----------------------------------------------------------------


def series(rng, n, n_breaks, jumps, correlation):
    """x, y, the breakpoints and the truth of one series on the unit interval."""
    import numpy as np
    from scipy.signal import lfilter

    x = np.sort(rng.uniform(size=n))
    # Apart from each other and from the ends by half of equal segments.
    room = 0.5 / (n_breaks + 1)
    free = np.sort(rng.uniform(size=n_breaks)) * (1 - room * (n_breaks + 1))
    breaks = free + room * np.arange(1, n_breaks + 1)
    changes = rng.choice([-1, 1], n_breaks) * rng.uniform(3, 8, n_breaks)
    steps = rng.choice([-1, 1], n_breaks) * rng.uniform(0.2, 0.8, n_breaks)
    beyond = x[:, None] - breaks
    truth = rng.uniform(-3, 3) * x + np.maximum(beyond, 0) @ changes
    truth += jumps * ((beyond > 0) @ steps)
    white = rng.standard_normal(n + 50)
    noise = lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], white)[50:]
    return x[:, None], truth + NOISE * noise, breaks, truth


def simulated(parameters, correlation, n_series):
    """Fit short series, again where the number of breakpoints was not found."""
    import numpy as np

    from sklearn_gn import SegmentedRegressor

    rng = np.random.default_rng(0)
    found, errors, inside = [], [], []
    jumps = parameters.get("jumps", False)
    drawn = [
        series(rng, POINTS, n_breaks, jumps, correlation)
        for n_breaks in range(MOST + 1)
        for _ in range(n_series)
    ]
    start = time.process_time()
    SegmentedRegressor(**parameters).fit(*drawn[0][:2])
    first = time.process_time() - start
    for X, y, breaks, _ in drawn:
        model = SegmentedRegressor(**parameters).fit(X, y)
        found.append(len(model.breakpoints_) == len(breaks))
        if not found[-1]:
            model = SegmentedRegressor(len(breaks), **parameters).fit(X, y)
        if len(breaks):
            lower, upper = model.breakpoint_interval_.T
            errors.extend(abs(model.breakpoints_ - breaks))
            inside.extend((lower <= breaks) & (breaks <= upper))
    return {
        "share": float(np.mean(found)),
        "error": float(np.mean(errors)),
        "coverage": float(np.mean(inside)),
        "first_seconds": first,
        "later_seconds": time.process_time() - start - first,
    }


def long_series(estimator, n):
    """Fit one series of six kinks; error of the curve in units of the noise."""
    import numpy as np

    import sklearn_gn

    X, y, _, truth = series(np.random.default_rng(0), n, 6, False, 0.0)
    model, figures = timed_fits(lambda seed: getattr(sklearn_gn, estimator)(), X, y)
    error = np.sqrt(np.mean((model.predict(X) - truth) ** 2)) / NOISE
    return {"error": float(error), **figures}


def networks():
    """Fit short series by ShallowReLURegressor, which has one feature here."""
    import numpy as np

    from sklearn_gn import ShallowReLURegressor

    rng = np.random.default_rng(0)
    errors, inside, seconds = [], [], []
    for n_breaks in range(MOST + 1):
        X, y, _, truth = series(rng, 2 * POINTS, n_breaks, False, 0.0)
        model, figures = timed_fits(
            lambda seed: ShallowReLURegressor(random_state=seed), X[::2], y[::2]
        )
        seconds.append(figures)
        lower, upper = model.predict_interval(X[1::2], level=0.95)
        inside.append((lower <= y[1::2]) & (y[1::2] <= upper))
        errors.append((model.predict(X[1::2]) - truth[1::2]) ** 2)
    return {
        "error": float(np.sqrt(np.mean(errors))) / NOISE,
        "coverage": float(np.mean(inside)),
        "first_seconds": seconds[0]["first_seconds"],
        "later_seconds": sum(each["later_seconds"] for each in seconds),
    }


# --- annotated series ----------------------------------------------------------------


def covering(truth, found, n):
    """How well segments are covered by those found: mean Jaccard index by length."""
    import numpy as np

    edges = [np.unique([0, *changes, n]) for changes in (truth, found)]
    (a, b), (c, d) = ((e[:-1, None], e[1:, None]) for e in edges)
    shared = np.maximum(np.minimum(b, d.T) - np.maximum(a, c.T), 0)
    index = shared / ((b - a) + (d - c).T - shared)
    return float((b - a)[:, 0] @ index.max(axis=1)) / n


def hits(truth, found):
    """Number of true changes that are found, each by another one."""
    left = set(found)
    for change in sorted(truth):
        near = [each for each in left if abs(each - change) <= MARGIN]
        if near:
            left.remove(min(near, key=lambda each: (abs(each - change), each)))
    return len(set(found)) - len(left)


def f1(annotations, found):
    """Of precision by all annotators and mean recall; the start counts as a change."""
    found = {0, *found}
    marked = [{0, *changes} for changes in annotations]
    precision = hits(set().union(*marked), found) / len(found)
    recall = sum(hits(each, found) / len(each) for each in marked) / len(marked)
    return 2 * precision * recall / (precision + recall)


def annotated(path, parameters):
    """Fit series whose changes people have marked; means over the series."""
    import numpy as np

    from sklearn_gn import SegmentedRegressor

    covered, scores, seconds = [], [], []
    for given in json.loads(path.read_text()).values():
        y = np.array(given["y"], dtype=float)  # None becomes NaN
        known = np.flatnonzero(np.isfinite(y))
        start = time.process_time()
        model = SegmentedRegressor(**parameters).fit(known[:, None] * 1.0, y[known])
        seconds.append(time.process_time() - start)
        found = np.ceil(model.breakpoints_).astype(int)  # first point of a segment
        found = [int(k) for k in found if 0 < k < given["n"] - 1]
        marked = list(given["annotations"].values())
        covered.append(np.mean([covering(m, found, given["n"]) for m in marked]))
        scores.append(f1(marked, found))
    return {
        "share_covering": float(np.mean(covered)),
        "share_f1": float(np.mean(scores)),
        "later_seconds": sum(seconds),
    }


# --- rows ----------------------------------------------------------------------------


def rows(data):
    """All series."""
    jumps = {"jumps": True}
    told = {"autocorrelation": 1}
    short = {
        "kinks": ({}, 0.0, SERIES),
        "kinks_ar1": ({}, CORRELATION, SERIES),
        "kinks_ar1_told": (told, CORRELATION, SERIES // 2),
        "jumps": (jumps, 0.0, SERIES),
        "jumps_ar1": (jumps, CORRELATION, SERIES),
    }
    found = {
        name: Row(
            f"{(MOST + 1) * n} series of {POINTS} points, AR(1) {correlation}, {words}",
            partial(simulated, words, correlation, n),
        )
        for name, (words, correlation, n) in short.items()
    }
    found["networks"] = Row("ShallowReLURegressor, 0 to 4 kinks", networks)
    for name in ("SegmentedRegressor", "ShallowReLURegressor"):
        found[f"million_{name}"] = Row(
            f"{LONG:,} points", partial(long_series, name, LONG)
        )
    path = data and data / "tcpd" / "series.json"
    if not path or not path.exists():
        left_out("lines: annotated series")
        return found
    for name, parameters in {"jumps": jumps, "level": {"degree": 0}}.items():
        found[f"annotated_{name}"] = Row(
            f"15 annotated series, {parameters}", partial(annotated, path, parameters)
        )
    return found
