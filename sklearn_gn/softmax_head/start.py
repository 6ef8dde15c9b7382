r"""The start of Newton's method: passes of mini-batches over a part of the rows.

From zero, Newton steps are cut short by the line search, and each needs the whitened
features. A pass of FGN (:func:`~sklearn_gn.softmax_head.fgn.fgn_direction`) needs
neither, and comes within some percent of the minimum at the price of one evaluation of
the objective. It takes full steps, in single precision, on features that are only
centered and scaled:

-   for the curvature of a margin stands that of the parabola which bounds its loss
    (:func:`~sklearn_gn.optim.multinomial.bounding_curvature`), so that the first steps,
    at large margins, are not too long;
-   the penalty is a part of the matrix of the system, like the damping;
-   the heads of the second half of a pass are averaged (Polyak and Juditsky,
    "Acceleration of stochastic approximation by averaging", 1992);
-   from some steps on the damping rises with their number, by which they become
    shorter.

With few features a Newton step costs no more than a pass. One short pass is enough
then.
"""

from operator import add
from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays.libraries import in_either_library, library_of
from sklearn_gn.optim.multinomial import bounding_curvature
from sklearn_gn.softmax_head.fgn import Batch, fgn_direction
from sklearn_gn.softmax_head.head import AffineHead, single

_DAMPING = 0.1  # of the first steps, for features of size one
_STEPS = 32  # with that damping, which is in proportion to their number afterwards
_PASSES = 4  # at most
_BATCH = 128
_FEWEST_ROWS = 1024  # for a start
_LEAST_WORK = 2**22  # rows times coefficients for a start; less is little for Newton
_BATCHES = 320  # of a pass,
_SHARE = 4  # or one batch in four, where that is more
LEAST_FALL = 0.01  # of the loss, relative, in a pass that another one follows
_FEW_BATCHES = 32  # of the one pass where Newton steps are cheap, or two a class,
_SMALL_SHARE = 8  # or one batch in eight, whichever is most
_SAMPLE = 4096  # rows that say how large the features are


class Scaling(NamedTuple):
    """Center and size of the features in a sample of the rows."""

    center: np.ndarray  # (d,)
    scale: np.ndarray  # (d,)


def pays(net, n_rows):
    """Whether a pass is short compared with Newton steps on so many rows."""
    work = n_rows * net.weight.size
    return len(net.bias) > 1 and n_rows >= _FEWEST_ROWS and work >= _LEAST_WORK


def n_passes(net):
    """Number of passes at most."""
    return 1 if newton_is_cheap(*net.weight.shape) else _PASSES


def newton_is_cheap(n_features, n_columns):
    """Whether the class blocks of all rows cost no more than a pass over them.

    In multiply-adds for each row: the products of the blocks, and for a pass the two
    Gram matrices of a batch and their factor.
    """
    blocks = n_columns * n_features**2
    return blocks <= _BATCH * (n_features + n_columns) + _BATCH**2 // 3


def n_batches(net, total):
    """Number of batches of a pass, of so many."""
    least, share = _BATCHES, _SHARE
    if newton_is_cheap(*net.weight.shape):
        least, share = max(_FEW_BATCHES, 2 * len(net.bias)), _SMALL_SHARE
    return min(total, max(least, total // share))


def feature_scaling(rows, intercept):
    """Center and scale of the features of NumPy's rows in random order.

    Features that vary less than the median one are not blown up.
    """
    x = rows.x[: min(int(rows.n_rows), _SAMPLE)]
    with np.errstate(over="ignore", invalid="ignore"):
        center = np.mean(x, axis=0) if intercept else np.zeros(x.shape[1], x.dtype)
        square = np.mean((x - center) ** 2, axis=0)
        varying = square[square > 0]
        least = np.median(varying) if varying.size else 1.0
        return Scaling(center, np.sqrt(np.maximum(square, least)).astype(x.dtype))


def run_pass(net, rows, scaling, number, options):
    """The head after a pass, and the last damping.

    ``number`` of the pass says with which batch it begins, and how it is damped.
    """
    total = int(rows.n_rows) // _BATCH
    count = n_batches(net, total)
    batches = np.array([number * count, count, total], np.int32)
    net = fgn_pass(net, rows, scaling, options.alpha, options.intercept, batches)
    return net, float(damping_of((number + 1) * count))


def damping_of(step, xp=np):
    """The damping of a step, counted from the first pass on."""
    return xp.float32(_DAMPING) * xp.maximum(1, xp.float32(1 / _STEPS) * step)


@in_either_library
def fgn_pass(net, rows, scaling, alpha, intercept, batches):
    """Full FGN steps of some mini-batches, and the mean of the last half of the heads.

    ``batches`` holds the number of the first step, that of those to take, and that of
    all batches, from the last of which steps go on with the first.
    """
    first, count, total = batches
    library = library_of(rows)
    xp, (center, scale) = library.xp, scaling
    penalty = single(alpha / scale**2)[:, None]
    has_intercept, tiny = single(intercept), xp.finfo(rows.weight.dtype).tiny

    def batch_of(k):
        begin = (first + k) % total * _BATCH
        x, label, weight = (
            library.rows_from(a, begin, _BATCH)
            for a in (rows.x, rows.label, rows.weight)
        )
        # Before single precision: features of any size come down to size one.
        x = x - center[None, :]
        x /= scale[None, :]  # in place by NumPy, for which new memory costs more
        weight = weight / xp.maximum(xp.max(weight), tiny)
        return Batch(x.astype(xp.float32), label, weight.astype(xp.float32), None)

    def move(k, carry):
        head, mean, averaged = carry
        batch = batch_of(k)
        damping = damping_of(xp.asarray(first + k, xp.float32), xp)
        on_weight = penalty + damping
        size = library.rsqrt(on_weight)[:, 0]
        features = library.symmetric_product(batch.x * size[None, :])
        features = features + has_intercept / damping
        shifts = on_weight, damping
        given = head, batch, features, penalty, shifts, has_intercept
        step = fgn_direction(*given, curvature_of=bounding_curvature)
        head = AffineHead(*map(add, head, step))
        averaged = averaged + xp.float32(2 * k >= count)
        share = 1 / xp.maximum(averaged, 1)
        mean = AffineHead(
            *(m + share * (h - m) for m, h in zip(mean, head, strict=True))
        )
        return head, mean, averaged

    head = AffineHead(
        scale[:, None] * net.weight, net.bias + intercept * (center @ net.weight)
    )
    head = single(head)
    start = head, head, xp.float32(0)
    _, mean, _ = library.fori_loop(0, count, move, start)
    weight = mean.weight.astype(scale.dtype) / scale[:, None]
    bias = mean.bias.astype(scale.dtype) - intercept * (center @ weight)
    return AffineHead(weight, bias)
