r"""The penalty that is chosen by rows that are left out, with a factor of the logits.

The rows are divided into eight folds. Without the rows of each fold the minimum of the
objective is followed along a path of penalties, each started from the one before, and a
penalty is judged by the cross-entropy of all rows that are left out, each predicted by
the head without its fold. The vertex of the parabola through the three highest points
is taken, or is one more point where it is far from all that were tried. It is one
criterion for all sizes: once enough rows have been left out, no further folds are.

The penalty that separates the classes best shrinks the logits too much, or too little:
along the directions that matter, coefficients are wrong by about the same factor. So a
penalty is judged at the best factor of its logits, which the chosen head keeps
(Meinshausen, "Relaxed lasso", 2007, has the same two steps).

Where few rows are left out, several penalties predict them without error. So a weak
prior is added in the comparison: the coefficients times the mean length of a row are of
size six, and the penalty within a decade.
"""

import math
from typing import NamedTuple

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.arrays.collectives import total
from sklearn_gn.arrays.libraries import in_either_library, library_of
from sklearn_gn.optim.line_search import line_minimum
from sklearn_gn.optim.multinomial import all_classes, cross_entropy, margins
from sklearn_gn.softmax_head.head import derivatives_along, over_blocks

_FOLDS = 8
JUDGES = 256  # rows that are left out, more of which say little
# The path.
_START = 10.0**-0.5  # precision of the coefficients, for rows of length one
# On either side of it: eight, beyond which a sum would lose half of its digits.
DECADES = round(-math.log10(np.finfo(np.float64).eps) / 2)
_TRUSTED = 0.25  # decades from a tried penalty, where a parabola is right


# --- the rows that are left out -------------------------------------------------------


def folds_of(label, n_folds=_FOLDS, enough=JUDGES):
    """Number of the fold of each row; -1 of one that is never left out.

    The classes are spread evenly over the folds, by the order of the rows, and so many
    folds are used that ``enough`` rows are left out. A row alone in its class is not.
    """
    _, first, number, counts = np.unique(
        label, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first[number], kind="stable")  # class by class
    order = order[counts[number[order]] > 1]
    fold = np.full(len(label), -1, np.int32)
    fold[order] = np.arange(len(order)) % n_folds
    used = max(1, round(enough * n_folds / max(len(order), 1)))
    return np.where(fold < used, fold, -1)


def shifts_of(label, weight, fold):
    """What the logits of each fold lack, as its classes have fewer rows than in all.

    Of a class of two rows that is half, and rows that are left out would seem to be of
    rare classes.
    """
    n_classes = max(int(label.max()) + 1, 2)
    count = np.bincount(label, weight, n_classes)
    shifts = []
    for k in range(fold.max() + 1):
        kept = np.bincount(label, np.where(fold == k, 0, weight), n_classes)
        ratio = np.divide(count, kept, np.ones(n_classes), where=kept > 0)
        shifts.append(np.log(ratio / (count.sum() / kept.sum())))
    shifts = np.array(shifts).reshape(-1, n_classes)
    return shifts if n_classes > 2 else shifts[:, 1:] - shifts[:, :1]


class Judges(NamedTuple):
    """Rows that are left out, which judge a penalty, and perhaps others."""

    label: Array  # (L,)
    counts: Array  # (L,) weights as repetitions; 0 of a row that is never left out
    fold: Array  # (L,)
    shift: Array  # (n_folds, m) of the logits, for the rows that a class lacks


@in_either_library
def left_out_loss(logits, judges, search):
    """Cross-entropy of the rows left out at the best factor of the logits; and that."""
    found = 0
    for k, by_head in enumerate(logits):
        own = (judges.fold == k)[:, None]
        shifted = by_head + judges.shift[k][None, :]
        found = found + library_of(judges).xp.where(own, shifted, 0)
    return best_factor(found, judges.label, judges.counts, search)


# --- the factor of the logits --------------------------------------------------------


def best_factor(logits, label, weight, search=True):
    """Cross-entropy of rows at the best factor of the logits, and that factor.

    It is one where the logits say nothing. As rows that are predicted without error
    would ask for an infinite one, half a row more counts, like all of them on average
    and of any class: of such rules, this one costs least at worst (Krichevsky and
    Trofimov, 1981).
    """
    library, n_classes = library_of((logits, label, weight)), max(logits.shape[1], 2)
    xp, zero = library.xp, 0 * total(weight.sum())
    share = 0.5 / xp.maximum(total(weight.sum()), 1)
    along = derivatives_along(0 * logits, logits, label, weight)
    # Minus the lead of the labels' logits over the mean of all, which is what a row of
    # any class adds to the loss beside that of its label.
    slope, _ = along(zero)

    def derivatives(length):
        first, second = along(length)
        return (1 + share) * first - share * slope, (1 + share) * second

    flat = float(np.sqrt(xp.finfo(logits.dtype).eps))
    digits = xp.finfo(logits.dtype).nmant
    length, *_ = line_minimum(derivatives, slope, flat=flat, max_iter=digits)
    factor = xp.where((slope < 0) & search, length, 1)

    def add(found, logits, label, weight):
        split = margins(factor * all_classes(logits), label)
        return found + weight @ cross_entropy(split.margin)

    loss = total(over_blocks(add, zero, (logits, label, weight), n_classes))
    return (1 + share) * loss - factor * share * slope, factor


# --- the path ------------------------------------------------------------------------


def first_alpha(rows, intercept, n_effective):
    """Penalty to start from, by the mean squared length of the rows."""
    x, weight = rows.x, rows.weight
    mean = intercept * (weight @ x)  # of sparse features, which are not centred
    squares = float(weight @ (x**2).sum(axis=1) - np.sum(mean**2))
    first = _START * (squares if squares > 0 else 1.0) / n_effective
    return weight.dtype.type(first)


def log_posteriors(path):
    """What the points of a path are judged by, with a prior: log-normal, of one decade.

    A point is a penalty, the log probability of the rows left out, and their factor.
    """
    likeliest = path[0][0] / 10
    return [value - math.log10(alpha / likeliest) ** 2 / 2 for alpha, value, _ in path]


def next_alpha(path):
    """Penalty to try after the points of a path, and whether it is the last one."""
    first = path[0][0]
    steps = [math.log10(alpha / first) for alpha, *_ in path]
    points = sorted(zip(steps, log_posteriors(path), strict=True))
    steps, judged = zip(*points, strict=True)
    best = int(np.argmax(judged))
    if judged[best] == -math.inf:
        return first, True
    # The likeliest one comes second, and its head has a near one to start from.
    if best == 0 and steps[0] > 0.5 - DECADES:
        return first * 10 ** (steps[0] - 1), False
    if best == len(path) - 1 and steps[-1] < DECADES - 0.5:
        return first * 10 ** (steps[-1] + 1), False
    top = slice(best - 1, best + 2)
    step = steps[best]
    if 0 < best < len(path) - 1 and np.isfinite(judged[top]).all():
        bend, slope, _ = np.polyfit(np.array(steps[top]) - step, judged[top], 2)
        step = step - slope / (2 * bend) if bend < 0 else step
    near = min(abs(step - tried) for tried in steps) < _TRUSTED
    return first * 10 ** round(step, 2), near  # rounding errors do not choose
