r"""The factor of the logits by which a head predicts rows that are left out best.

The penalty that separates the classes best shrinks the logits too much: along the
directions that matter, coefficients come out too small by about the same factor. So a
penalty is judged by the cross-entropy of the logits times the best factor s, and the
chosen head keeps its own (Meinshausen, "Relaxed lasso", 2007, has the same two steps).

The factor is one at least: one below says that the penalty is too small. As a few rows
that are predicted without error would ask for an infinite one, and some rows more or
less change it, it has a prior: its logarithm is normal with variance 0.1.
"""

from sklearn_gn.core.libraries import in_either_library, library_of
from sklearn_gn.core.multinomial import all_classes, cross_entropy, margins
from sklearn_gn.core.parts import total
from sklearn_gn.softmax_head.head import values, weights_once

ITERATIONS = 12  # at most
_ERROR = 1e-3  # of the logarithm, at most
_LONGEST = 0.7  # step of the logarithm
_PRIOR = 10.0  # precision of the logarithm a priori


@in_either_library
def of_rows(net, rows, n_rows, iterations):
    """Return the sum of the cross-entropies of rows, and the best factor.

    Parameters
    ----------
    net : AffineHead
    rows : BatchedRows
    n_rows : scalar
        Number of rows, counted by their weights.
    iterations : scalar
        As for :func:`best_factor`.
    """
    weight = weights_once(rows)
    weight = n_rows * weight / total(weight.sum())
    return best_factor(values(net, rows.x), rows.label, weight, iterations)


def best_factor(logits, label, weight, iterations=ITERATIONS):
    """Return the sum of the cross-entropies at the best factor, and that factor.

    Newton's method in the logarithm of the factor, which does not go below zero.

    Parameters
    ----------
    logits : array of shape (n, m)
    label : array of shape (n,)
    weight : array of shape (n,)
        Repetitions of the rows.
    iterations : int
        At most; with none the factor is one.
    """
    logits = all_classes(logits)
    library = library_of((logits, label, weight))
    xp, one = library.xp, total(weight.sum()) * 0 + 1
    at_true, squares = library.at_label(logits, label), logits**2

    def improve(carry):
        log, _, count = carry
        factor = xp.exp(log)
        p = library.softmax(factor * logits)
        mean = library.row_products(p, logits)
        variance = library.row_products(p, squares) - mean**2
        first, second = total((weight @ (mean - at_true), weight @ variance))
        slope = factor * first + _PRIOR * log
        bend = factor**2 * second + xp.maximum(factor * first, 0) + _PRIOR
        change = xp.clip(-slope / bend, xp.maximum(-log, -_LONGEST), _LONGEST)
        change = xp.where(xp.isnan(change), 0, change)  # where a square overflows
        return log + change, change, count + 1

    log, _, _ = library.while_loop(
        lambda carry: (xp.abs(carry[1]) > _ERROR) & (carry[2] < iterations),
        improve,
        (0 * one, one, xp.int32(0)),
    )
    factor = xp.exp(log)
    loss = cross_entropy(margins(factor * logits, label).margin)
    return total(weight @ loss) + _PRIOR / 2 * log**2, factor
