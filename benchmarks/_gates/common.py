"""What a row is, how its fits are timed, and the rules that compare its figures."""

import math
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

LONG = 8.0  # seconds of a first fit after which there are no later ones
ROUNDING = 1e-9  # errors below are equal
INSTANT = 0.02  # seconds: differences below are those of the clock

TOLERANCE = {  # of the figures whose names begin so
    "r2": 0.003,
    "log_loss": 0.003,
    "error": 1.3,
    "coverage": 0.02,
    "share": 0.02,
    "first_seconds": 1.2,
    "later_seconds": 1.2,
    "peak_mib": 1.2,
}
NOMINAL = 0.95  # of the intervals whose coverage is measured
SLACK = 1e-9  # of comparisons: what equals the tolerance is within it


class Row(NamedTuple):
    """A fit or some fits, and the figures by which they are compared."""

    description: str
    run: Callable[[], dict[str, float]]


def left_out(rows):
    """Say which rows of a room there are not."""
    print(f"Left out: {rows}.", file=sys.stderr)


def timed_fits(make, *data, later=1):
    """Fit a new estimator, then others in the same process.

    Parameters
    ----------
    make : callable
        Makes an unfitted estimator from a seed.
    data : arrays
        What ``fit`` takes.
    later : int, default=1
        Number of later fits. There are none where the first takes long.

    Returns
    -------
    model : estimator
        The first one, of seed 0.
    figures : dict
        ``first_seconds`` and ``later_seconds``, the median, in CPU time: on one core
        that is what an idle machine takes, whatever else runs.
    """

    def fitted(seed):
        start = time.process_time()
        model = make(seed).fit(*data)
        return model, time.process_time() - start

    model, first = fitted(0)
    figures = {"first_seconds": first}
    if later and first <= LONG:
        seconds = [fitted(seed)[1] for seed in range(1, 1 + later)]
        figures["later_seconds"] = median(seconds)
    return model, figures


def held_out_labels(make, X, y, share, split=0):
    """Fit a classifier; log loss and accuracy of a share of the rows, and seconds.

    ``split`` is the seed by which these rows are drawn.
    """
    import numpy as np
    from sklearn.metrics import log_loss
    from sklearn.model_selection import train_test_split

    X, X_held_out, y, y_held_out = train_test_split(
        X, y, test_size=share, random_state=split, stratify=y
    )
    model, figures = timed_fits(make, X, y)
    probabilities = model.predict_proba(X_held_out)
    labels = model.classes_
    found = labels[np.argmax(probabilities, axis=1)]
    return {
        "log_loss": float(log_loss(y_held_out, probabilities, labels=labels)),
        "share": float(np.mean(found == y_held_out)),
        **figures,
    }


def gain(figure, before, after):
    """By how many tolerances a figure got better; below -1 it got worse."""
    kind = next(name for name in TOLERANCE if figure.startswith(name))
    if not math.isfinite(before) or not math.isfinite(after):
        return (
            0.0
            if math.isfinite(before) == math.isfinite(after)
            else (math.inf if math.isfinite(after) else -math.inf)
        )
    if kind in ("r2", "share"):
        return (after - before) / TOLERANCE[kind]
    if kind == "log_loss":
        return (before - after) / TOLERANCE[kind]
    if kind == "coverage":
        return (abs(before - NOMINAL) - abs(after - NOMINAL)) / TOLERANCE[kind]
    if kind == "error":
        before, after = max(before, ROUNDING), max(after, ROUNDING)
    elif kind != "peak_mib" and abs(before - after) <= INSTANT:
        return 0.0
    return math.log(before / after) / math.log(TOLERANCE[kind])


def changes(before, after):
    """Figures of a row beyond their tolerances: those worse and those better.

    Parameters
    ----------
    before, after : dict or None
        The figures; None for a row that raised an error or did not end. A figure that
        only one of them has is not compared.

    Returns
    -------
    worse, better : list of str
        Names of figures; ``answer`` where only one of the two has answered.
    """
    if before is None or after is None:
        gains = {"answer": 2.0 * ((after is not None) - (before is not None))}
    else:
        common = [
            name
            for name in before
            if name in after and name.startswith(tuple(TOLERANCE))
        ]
        gains = {name: gain(name, before[name], after[name]) for name in common}
    worse = [name for name, value in gains.items() if value < -1 - SLACK]
    return worse, [name for name, value in gains.items() if value > 1 + SLACK]
