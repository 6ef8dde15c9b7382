r"""The penalty that is chosen along a path, by rows that are left out or the evidence.

The minimum of the objective is followed along a path of penalties, each started from
the one before, and each is judged there. The vertex of the parabola through the three
highest points is taken. In the order of what is affordable, the judge is

1.  the cross-entropy of rows left out one by one. One Newton step leads from the
    minimum for all rows to that for all but one (Rad and Maleki, "A scalable estimate
    of the out-of-sample prediction error via approximate leave-one-out
    cross-validation", 2020). With the Hessian H of the sum over the rows, and the
    logits z, the probabilities p and the gradient in the logits g of a row h, the
    logits without that row are

    .. math::
        z + A (I - W A)^{-1} g, \qquad A = (I \otimes h)^T H^{-1} (I \otimes h), \qquad
        W = \mathrm{diag}(p) - p p^T.

    H is the whole Hessian. From its diagonal blocks alone, rows that waver between two
    classes would get twice the A. With fewer rows than features, it is that of as many
    coordinates as there are rows, in which their inner products are the same;
2.  the cross-entropy of a fifth of the rows that is left out of the path; or, where
    that is too few rows, or a part of many rows is enough to choose,
3.  the evidence. With n rows, counted by their weights, and W normal a priori with
    precision ``a = n alpha``, Laplace's approximation (MacKay, "The evidence framework
    applied to classification networks", 1992) is

    .. math::
        \log p(y) \approx -n J(W) - \frac12 \log\det H + \frac12 N \log a

    at the minimum of the objective J, with the Hessian H of n J. For the determinant
    stands that of its diagonal blocks, one a class
    (:mod:`sklearn_gn.softmax_head.blocks`). Of three and more classes it is counted
    (C - 1) / C times: logits that move together change no probability, so of C
    directions only C - 1 have curvature, and the blocks count all of them. The
    curvature moves with W and alpha, which MacKay's fixed point leaves out; where
    classes are nearly separated, it ends far from the maximum. So the evidence, too, is
    evaluated along the path.

The penalty that separates the classes best shrinks the logits too much: along the
directions that matter, coefficients come out too small by about the same factor. So by
rows left out a penalty is judged at the best factor of its logits, which the chosen
head keeps (Meinshausen, "Relaxed lasso", 2007, has the same two steps).

Where few rows are separated, Laplace's approximation grows without end as alpha falls.
So a weak prior is added in the comparison: the coefficients of features of size one are
of size one, and alpha within a decade. With more rows the evidence outweighs it.
"""

import math

import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.arrays.libraries import (
    NumPy,
    in_either_library,
    library_of,
    namespace,
)
from sklearn_gn.arrays.parts import total
from sklearn_gn.data.hashing import row_codes
from sklearn_gn.linalg import factors
from sklearn_gn.optim.multinomial import (
    all_classes,
    cross_entropy,
    margins,
    probabilities,
    to_columns,
)
from sklearn_gn.softmax_head.blocks import (
    affordable_rows,
    class_blocks,
    exact_blocks,
    kronecker_blocks,
)
from sklearn_gn.softmax_head.head import (
    derivatives_along,
    divided,
    over_blocks,
    values,
    weights_once,
)
from sklearn_gn.softmax_head.sparse_newton import evaluated, step
from sklearn_gn.softmax_head.sparse_rows import RowSpace, RowVector, sparse_rows
from sklearn_gn.softmax_head.whitening import (
    counted_weights,
    in_whitened,
    to_whitened,
)

# The rows that choose. A part with fewer chooses another penalty where classes nearly
# coincide.
_FEWEST = 2048
_A_CLASS = 64
_A_FEATURE = 16
_SHARE = 4  # it pays where it is one row in four, or less
_RAREST = 8  # rows of the rarest class
_IN_FIVE = 5  # rows of a class, one is left out
_LEAST = 100  # rows that are left out, fewer of which say little
# One by one.
_COEFFICIENTS = 1024  # at most: the order of the Hessian
_WORK = 2**30  # multiply-adds of the Hessian
_PRECISE = 2**26  # in the precision of the fit; more are single
_ROWS = 512  # that are left out, those which are predicted worst; others change little
# The factor of the logits.
ITERATIONS = 12  # at most
_ERROR = 1e-3  # of the logarithm, at most
_LONGEST = 0.7  # step of the logarithm
PRIOR = 10.0  # precision of the logarithm a priori
# The evidence.
_ROWS_OF_BLOCK = 4  # at most, in features
_BLOCK_COST = 64  # products with the Hessian that the blocks may cost
_EXACT = 2**31  # multiply-adds of blocks of all rows in the precision of the fit
# The path.
_FIRST = 10.0  # precision of the coefficients, for features of size one
_DECADES = 8  # on either side of its start
# Sparse features.
_SPARSE_ROWS = 2000  # of the part
_SPARSE_CLASSES = 128  # of the part
_IN_FOUR = 4  # rows of a class, one is left out
_SPARSE_LEAST = 20  # rows that are left out, fewer of which say nothing
_SPARSE_PATH = 10.0 ** np.arange(2, -3.1, -0.5)  # for rows of mean squared length one
_GAIN = 0.01  # of the cross-entropy, for which a smaller penalty is worth its steps
_RISES = 2  # in a row, after which no smaller penalty is tried
_STEPS = 20  # at most, for a penalty
_SOLVED = 1e-3  # relative fall of the loss in a step that is not worth another


# --- the rows that choose, and those that judge --------------------------------------


def part_of(rows, options):
    """A part of many of NumPy's rows in random order, and a penalty's factor on it.

    The precision of the coefficients is a property of the classes, not of the number of
    rows: from a thousand rows on, a part of them that has enough of each class chooses
    nearly the same. None for the two, where all rows are to be used.
    """
    n, d = int(rows.n_rows), rows.x.shape[1]
    n_classes = int(rows.label[:n].max()) + 1
    size = max(_FEWEST, _A_CLASS * n_classes, _A_FEATURE * d)
    if options.mesh is not None or _SHARE * size > n:
        return None, None
    part = rows_at(rows, slice(size))
    counts = np.bincount(part.label[part.weight > 0], minlength=n_classes)
    if counts.min() < _RAREST:
        return None, None
    return part, float(rows.weight[:n].sum() / part.weight.sum())


def left_out(rows):
    """Which rows are left out, one in five of each class, as booleans; None if too few.

    The rows are NumPy's, in random order.
    """
    n = int(rows.n_rows)
    label, weight = rows.label[:n], rows.weight[:n]
    first = group = np.arange(n)
    if np.ptp(weight) > 0:  # a row of large weight came as several equal ones
        codes = row_codes(rows.x[:n], label[:, None].astype(np.float64))
        _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    fifth = places_in_class(label[first]) % _IN_FIVE == _IN_FIVE - 1
    out = np.zeros(len(rows.weight), bool)
    out[:n] = fifth[group]
    return out if np.count_nonzero(fifth) >= _LEAST else None


def places_in_class(label):
    """Number of each row among those of its class."""
    order = np.argsort(label, kind="stable")
    place = np.empty(len(label), int)
    place[order] = np.arange(len(label)) - np.searchsorted(label[order], label[order])
    return place


def divided_in_two(rows, out, placed, options):
    """The rows to fit, and those that are left out, of NumPy's and ``placed`` rows.

    NumPy gets them apart. What is compiled gets the same arrays twice, with weights
    of zero for the others, so that it is compiled, and stored, once.
    """
    if options.compiled:
        weights = [np.where(chosen, rows.weight, 0) for chosen in (~out, out)]
        return tuple(placed._replace(weight=w) for w in divided(weights, options))
    return rows_at(rows, ~out), rows_at(rows, out)


def rows_at(rows, chosen):
    """Some of NumPy's rows."""
    x, label, weight = (a[chosen] for a in (rows.x, rows.label, rows.weight))
    return rows._replace(
        x=x,
        label=label,
        weight=weight,
        n_rows=np.int32(len(weight)),
        n_batches=np.int32(1),
    )


# --- rows left out one by one --------------------------------------------------------


def hessian_is_affordable(n_rows, n_features, n_columns):
    """Whether the whole Hessian may be computed for each penalty."""
    order = n_columns * (min(n_rows, n_features) + 1)
    return order <= _COEFFICIENTS and n_rows * order**2 <= _WORK


def log_predictive(net, data, settings, n_effective, iterations=ITERATIONS):
    """Sum of the log probabilities of the labels, each by a head without its row.

    ``data`` are whitened rows, and ``net`` is at the minimum. Weights are repetitions,
    and sum to ``n_effective``. The sum is ``-inf`` where the Hessian is not positive
    definite to rounding; the second result is the factor of the logits with which it is
    largest.
    """
    n_effective = data.basis.dtype.type(n_effective)
    loss, factor = left_out_loss(net, data, settings, n_effective, np.int32(iterations))
    if not math.isfinite(loss):
        return -math.inf, 1.0
    return -float(loss), float(factor)


@in_either_library
def left_out_loss(net, data, settings, n_effective, iterations):
    """Cross-entropy of all rows left out, at the best factor of the logits; and that.

    Of many rows only those that are predicted worst are left out; the others change
    little.
    """
    library, rows, intercept = library_of(data.x), data.rows, settings.intercept
    xp, label = library.xp, rows.label
    widest = xp.zeros(1).dtype  # double precision, but for JAX in a fit in single
    count = n_effective * counted_weights(rows).astype(widest)
    head, x = to_whitened(net, data.center, data.dual), features(data, len(net.bias))
    logits = values(library.tree_map(lambda a: a.astype(x.dtype), head), x)
    penalty = n_effective * in_whitened(settings.alpha, data.squares)[:, 0]
    if len(x) < x.shape[1]:  # as many coordinates as rows, with a penalty of one
        scaled = x / xp.sqrt(xp.where(penalty > 0, penalty, xp.inf))[None, :]
        squares, axes = factors.eigenpairs(scaled @ scaled.T)
        x = (axes * xp.sqrt(xp.maximum(squares, 0))[None, :]).astype(x.dtype)
        penalty = xp.ones(len(x), penalty.dtype)
    h = xp.append(x, xp.full((len(x), 1), intercept, x.dtype), axis=1)
    inverse = inverse_hessian(h, count, logits, penalty, intercept)
    wrong = margins(all_classes(logits), label).p_rest
    order = xp.argsort(xp.where(count > 0, -wrong, 1), stable=True)
    h, count, logits, label = h[order], count[order], logits[order], label[order]
    logits, few = logits.astype(widest), slice(_ROWS)
    worst = logits_left_out(inverse, h[few], count[few], logits[few], label[few])
    logits = xp.concatenate([worst, logits[_ROWS:]])
    return best_factor(logits, label, count, iterations)


def features(data, n_columns):
    """The features in whitened coordinates, by NumPy in single precision if many."""
    rows, order = data.rows, n_columns * (min(data.x.shape) + 1)
    if library_of(data.x) is NumPy and len(rows.x) * order**2 > _PRECISE:
        return data.x
    xp, counted = namespace(data.x), weights_once(rows)[:, None] > 0
    x = xp.where(counted, rows.x - data.center[None, :], 0)
    return x @ data.basis if data.basis.ndim == 2 else x * data.basis[None, :]


def class_pairs(m, xp):
    """Pairs of classes (c, c + s mod m), with s up to half of m: each pair is there.

    Returns the numbers s, and for all pairs (c, e), in arrays of shape (m, m), the
    first class and the number s of the pair that stands for it.
    """
    half = m // 2 + 1
    first, second = xp.arange(m)[:, None], xp.arange(m)[None, :]
    ahead = (second - first) % m
    near = ahead < half
    return (
        xp.arange(half),
        xp.where(near, first, second),
        xp.where(near, ahead, m - ahead),
    )


def inverse_hessian(h, count, logits, penalty, intercept):
    """Inverse of the Hessian, of shape (m, d + 1, m, d + 1); NaN where there is none.

    ``h`` of shape (n, d + 1) are features, and a one for the intercept; without one
    (``intercept`` is 0) they end with zeros.
    """
    library, k, m = library_of(h), h.shape[1], logits.shape[1]
    xp = library.xp
    p, count = to_columns(probabilities(logits)), count.astype(h.dtype)
    numbers, first, ahead = class_pairs(m, xp)

    def add(found, h, p, count):
        def products(c):  # of a class with each of half of the others
            # Before the sum, so that nothing cancels where a probability is near one.
            own, others = p[:, c][:, None], p[:, (c + numbers) % m]
            curvature = xp.where(numbers[None, :] == 0, own, 0) - own * others
            weighted = (count[:, None] * curvature)[:, :, None] * h[:, None, :]
            product = h.T @ weighted.reshape(len(h), -1)
            return product.reshape(k, len(numbers), k)

        return found + library.map(products, xp.arange(m))

    start = xp.zeros((m, k, len(numbers), k), h.dtype)
    blocks = over_blocks(add, start, (h, p, count), max(m * k // 8, 1))
    hessian = blocks[first, :, ahead].transpose(0, 2, 1, 3)  # blocks are symmetric
    own = xp.einsum("cjcj->cj", hessian)
    largest = xp.maximum(xp.max(own), xp.finfo(h.dtype).tiny)
    added = xp.append(
        penalty.astype(h.dtype), (1 - intercept).astype(h.dtype) * largest
    )
    same_class, same_feature = xp.eye(m, dtype=h.dtype), xp.eye(k, dtype=h.dtype)
    own = (same_feature * added[None, :])[None, :, None, :]
    hessian = hessian + same_class[:, None, :, None] * own
    if m > 1:  # what moves all classes alike changes no probability, and may be free
        hessian = hessian + (largest / m * same_feature)[None, :, None, :]
    found = factors.factor(hessian.reshape(m * k, m * k), overwrite=True)
    return found.inverse().reshape(m, k, m, k)


def logits_left_out(inverse, h, count, logits, label):
    """Logits of some rows, each by the head without it.

    Of a row that counts less than once, all is left out.
    """
    library, (m, k) = library_of(h), inverse.shape[:2]
    xp = library.xp
    numbers, first, ahead = class_pairs(m, xp)

    def of_class(c):
        image = h @ inverse[c][:, (c + numbers) % m].reshape(k, -1)
        return xp.matmul(image.reshape(len(h), -1, k), h[:, :, None])[:, :, 0]

    leverage = library.map(of_class, xp.arange(m))[first, :, ahead]
    leverage = leverage.transpose(2, 0, 1).astype(logits.dtype)
    split = margins(all_classes(logits), label)
    once = xp.minimum(count, 1)[:, None]
    p = to_columns(probabilities(logits))
    gradient = once * to_columns(split.p_rest[:, None] * split.gradient)
    curved = leverage - xp.matmul(p[:, None, :], leverage)
    system = xp.eye(m, dtype=p.dtype)[None] - (once * p)[:, :, None] * curved
    change = xp.matmul(leverage, factors.solve_general(system, gradient[:, :, None]))
    return logits + change[:, :, 0]


# --- the factor of the logits --------------------------------------------------------


@in_either_library
def held_out_loss(net, rows, prior, iterations):
    """Mean cross-entropy of rows at the best factor of their logits, and that factor.

    ``prior`` is :data:`PRIOR` over the number of rows, counted by their weights.
    """
    weight = weights_once(rows)
    weight = weight / total(weight.sum())
    return best_factor(values(net, rows.x), rows.label, weight, iterations, prior)


def best_factor(logits, label, weight, iterations=ITERATIONS, prior=PRIOR):
    """Sum of the cross-entropies at the best factor of the logits, and that factor.

    Newton's method in the logarithm of the factor, which does not go below zero: a
    factor below one says that the penalty is too small. As a few rows that are
    predicted without error would ask for an infinite one, and some rows more or less
    change it, the logarithm has a normal prior of precision ``prior``. Without
    ``iterations`` the factor is one.
    """
    library, n_classes = library_of((logits, label, weight)), max(logits.shape[1], 2)
    xp, zero = library.xp, 0 * total(weight.sum())
    along = derivatives_along(0 * logits, logits, label, weight)

    def improve(carry):
        log, _, count = carry
        factor = xp.exp(log)
        first, second = along(factor)
        slope = factor * first + prior * log
        bend = factor**2 * second + xp.maximum(factor * first, 0) + prior
        change = xp.clip(-slope / bend, xp.maximum(-log, -_LONGEST), _LONGEST)
        change = xp.where(xp.isnan(change), 0, change)  # where a square overflows
        return log + change, change, count + 1

    log, _, _ = library.while_loop(
        lambda carry: (xp.abs(carry[1]) > _ERROR) & (carry[2] < iterations),
        improve,
        (zero, zero + 1, xp.int32(0)),
    )
    factor = xp.exp(log)

    def add(found, logits, label, weight):
        split = margins(factor * all_classes(logits), label)
        return found + weight @ cross_entropy(split.margin)

    loss = total(over_blocks(add, zero, (logits, label, weight), n_classes))
    return loss + prior / 2 * log**2, factor


# --- the evidence --------------------------------------------------------------------


def evidence_is_affordable(n_rows, n_features, n_columns):
    """Whether a block for each class may be computed for each penalty."""
    slots = affordable_rows(n_rows, n_features, _BLOCK_COST)
    return slots > 0 or _is_exact(n_rows, n_features, n_columns)


def _is_exact(n_rows, n_features, n_columns):
    return n_rows * (n_features + 1) ** 2 * n_columns <= _EXACT


def log_evidence(net, data, loss, settings, n_effective):
    """Logarithm of the evidence, and the number of well-determined parameters.

    ``data`` are whitened rows, and ``net`` is at the minimum, where the objective is
    ``loss``. The first result is ``-inf`` where a block is not positive definite to
    rounding; the second counts the intercepts.
    """
    (n, d), m = data.rows.x.shape, len(net.bias)
    settings = settings._replace(damping=0 * settings.damping)
    if _is_exact(n, d, m):
        alpha, intercept = settings.alpha, settings.intercept
        blocks = exact_blocks(net, data.rows, data.center, alpha, intercept)
    elif slots := min(affordable_rows(n, d, _BLOCK_COST), _ROWS_OF_BLOCK * d):
        blocks = class_blocks(net, data, settings, slots)
    else:
        blocks = kronecker_blocks(net, data, settings)
    share = 1.0 if m == 1 else (m - 1) / m
    n_free = (m if m == 1 else m - 1) * float(settings.intercept)
    # From the mean to the sum over the rows: every intercept has its factor n.
    log_det = share * float(blocks.log_det) + n_free * math.log(n_effective)
    value = -n_effective * loss - log_det / 2
    value = value if math.isfinite(value) else -math.inf
    return value, share * float(blocks.gamma) + n_free


# --- the path ------------------------------------------------------------------------


def first_alpha(X, weight, n_effective, intercept):
    """Penalty to start from: large for coefficients and features of size one.

    With an ``intercept``, the size of a feature is that of its deviation from the mean.
    """
    share = weight / weight.sum()
    with np.errstate(over="ignore"):
        center = share @ X if intercept else 0.0
        size = np.mean(share @ (X - center) ** 2)
    return _FIRST * np.clip(size, 1e-200, 1e200) / n_effective if size > 0 else 1.0


def log_posterior(point, first):
    """What a point of the path is judged by, with its prior: log-normal, of one decade.

    A point is a penalty, the log evidence there, the log probability of rows that are
    left out, which counts instead, or None, and more. ``first`` is the penalty of
    :func:`first_alpha`.
    """
    alpha, value, held_out, *_ = point
    value = value if held_out is None else held_out
    return value - math.log10(_FIRST * alpha / first) ** 2 / 2


def best_penalty(path):
    """The penalty of the highest :func:`log_posterior` on a path."""
    first = path[0][0]
    return max(path, key=lambda point: log_posterior(point, first))[0]


def next_alpha(path, strides=(1.0,)):
    """Penalty to try after the points of a path, and whether it is the last one.

    ``strides`` are the decades from a penalty to the next beyond all others; the last
    one is repeated.
    """
    first = path[0][0]
    points = [(math.log10(p[0] / first), log_posterior(p, first)) for p in path]
    steps, judged = zip(*sorted(points), strict=True)
    best = int(np.argmax(judged))
    stride = strides[min(len(path), len(strides)) - 1]
    if judged[best] == -math.inf:
        return first, True
    if best == 0 and steps[0] > 0.5 - _DECADES:
        return first * 10 ** (steps[0] - stride), False
    if best == len(path) - 1 and steps[-1] < _DECADES - 0.5:
        return first * 10 ** (steps[-1] + stride), False
    top = slice(best - 1, best + 2)
    step = steps[best]
    if 0 < best < len(path) - 1 and np.isfinite(judged[top]).all():
        bend, slope, _ = np.polyfit(np.array(steps[top]) - step, judged[top], 2)
        step = step - slope / (2 * bend) if bend < 0 else step
    return first * 10**step, True


# --- sparse features -----------------------------------------------------------------


def sparse_penalty(X, label, weight, n_effective, options, dtype):
    """The penalty of all rows of a CSR matrix, and the factor of the logits.

    The evidence asks for the Hessian of a class, which has the order of the rows here,
    and on words, most of which say nothing, it prefers penalties that predict new rows
    badly. So of a part of the rows some are left out, and the minimum is followed along
    falling penalties while the cross-entropy of what was left out falls. The Gram
    matrix of the part is small and dense. What is carried over to all rows is
    ``n alpha``, which does not depend on the number of rows, and the factor.

    Where too few rows can be left out, the penalty is the mean squared length of the
    rows over ``n_effective``, for lengths of one the default of ``LogisticRegression``,
    and the factor one. The weights sum to one.
    """
    train, test, number = sparse_parts(label)
    few = len(test) < _SPARSE_LEAST or number.max() == 0
    few = few or not switches.on("heads.held_out")
    if few:
        train, number = np.arange(len(label)), np.zeros_like(label)
    n_classes = number.max() + 1
    m = 1 if n_classes == 2 else n_classes
    share, intercept = weight[train] / weight[train].sum(), bool(options.intercept)
    rows = sparse_rows(X[train], number[train], share, m, intercept, dtype)
    size = spread(rows)
    if few:
        return size / n_effective, 1.0
    test_share = weight[test] / weight[test].sum()
    prior = PRIOR / (n_effective * weight[test].sum())
    n_part = n_effective * weight[train].sum()
    iterations = ITERATIONS if switches.on("heads.temperature") else 0
    space = DensePart(rows, X[test])
    net = RowVector(np.zeros((len(train), m), dtype), 0.0, np.zeros(m, dtype))
    own, losses, factors = net.rows, [], []
    for precision in size * _SPARSE_PATH:
        alpha = options.alpha.dtype.type(precision / n_part)
        here = options._replace(alpha=alpha, damping=None, rank=None, tol=0)
        state = evaluated(space, net, here, own)
        for _ in range(_STEPS):
            before = state.loss
            state, report = step(space, state, here)
            if report.stop or not before - state.loss > _SOLVED * abs(before):
                break
        net, own = state.net, state.own
        loss, factor = best_factor(
            space.test_logits(net), number[test], test_share, iterations, prior
        )
        losses.append(float(loss))
        factors.append(float(factor))
        if len(losses) - np.argmin(losses) > _RISES:
            break
    chosen = np.argmax(np.array(losses) <= (1 + _GAIN) * min(losses))
    return size * _SPARSE_PATH[chosen] / n_effective, factors[chosen]


def sparse_parts(label):
    """Numbers of the rows to fit, of those to leave out, and of all rows' classes.

    The choice is fixed. Classes that take no part have the number -1.
    """
    counts = np.bincount(label)
    classes = np.flatnonzero(counts >= _IN_FOUR)
    if len(classes) > _SPARSE_CLASSES:
        ends = np.linspace(0, len(classes) - 1, _SPARSE_CLASSES)
        classes = classes[ends.astype(int)]
    number = np.full(len(counts), -1)
    number[classes] = np.arange(len(classes))
    number = number[label]
    rng = np.random.RandomState(0)
    chosen = rng.permutation(np.flatnonzero(number >= 0))[:_SPARSE_ROWS]
    out = places_in_class(number[chosen]) % _IN_FOUR == _IN_FOUR - 1
    return chosen[~out], chosen[out], number


class DensePart(RowSpace):
    """Few rows, whose Gram matrix is held, and others to predict."""

    def __init__(self, rows, test):
        self.rows, self.start = rows, None
        gram = (rows.x @ rows.x.T).toarray()
        self._grams = {a.dtype: a for a in (gram.astype(np.float32), gram)}
        self._cross = (
            test[:, rows.columns] @ rows.x[:, : len(rows.columns)].T
        ).toarray()
        if rows.intercept:
            self._cross = self._cross - rows.weight @ gram

    def image(self, vector):
        """Return the logits of a vector, and a bound of its coefficients."""
        image = self._grams[vector.rows.dtype] @ self._balanced(vector.rows)
        return self._centred(image), math.inf

    def test_logits(self, head):
        """Return the logits of the other rows."""
        return self._cross @ self._balanced(head.rows) + head.bias


def spread(rows):
    """Mean squared length of rows, from their mean where there is an intercept."""
    squares = rows.weight @ np.asarray(rows.x.power(2).sum(axis=1))
    if rows.intercept:
        mean = rows.x.T @ rows.weight
        squares = squares - mean @ mean
    return float(squares) if squares > 0 else 1.0
