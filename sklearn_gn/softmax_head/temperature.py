r"""The factor of the logits by which a head predicts rows that are left out best.

The penalty that separates the classes best shrinks the logits too much: along the
directions that matter, coefficients come out too small by about the same factor. So a
penalty is judged by the cross-entropy of the logits times the best factor s, and the
chosen head keeps its own (Meinshausen, "Relaxed lasso", 2007, has the same two steps).

The factor is one at least: one below says that the penalty is too small. As a few rows
that are predicted without error would ask for an infinite one, and some rows more or
less change it, it has a prior: its logarithm is normal with variance 0.1.
"""

from sklearn_gn.arrays.libraries import in_either_library, library_of
from sklearn_gn.arrays.parts import total
from sklearn_gn.optim.multinomial import all_classes, cross_entropy, margins
from sklearn_gn.softmax_head.head import over_blocks, values, weights_once

ITERATIONS = 12  # at most
_ERROR = 1e-3  # of the logarithm, at most
_LONGEST = 0.7  # step of the logarithm
PRIOR = 10.0  # precision of the logarithm a priori


@in_either_library
def of_rows(net, rows, prior, iterations):
    """Return the mean cross-entropy of rows at the best factor, and that factor.

    Parameters
    ----------
    net : AffineHead
    rows : BatchedRows
    prior : scalar
        :data:`PRIOR` over the number of rows, counted by their weights.
    iterations : scalar
        As for :func:`best_factor`.
    """
    weight = weights_once(rows)
    weight = weight / total(weight.sum())
    return best_factor(values(net, rows.x), rows.label, weight, iterations, prior)


def best_factor(logits, label, weight, iterations=ITERATIONS, prior=PRIOR):
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
    prior : scalar
        Precision of the logarithm of the factor a priori, for these weights.
    """
    library, n_classes = library_of((logits, label, weight)), max(logits.shape[1], 2)
    xp, zero = library.xp, 0 * total(weight.sum())
    arrays = logits, label, weight

    def improve(carry):
        log, _, count = carry
        factor = xp.exp(log)

        def body(found, logits, label, weight):
            logits = all_classes(logits)
            p = library.softmax(factor * logits)
            mean = library.row_products(p, logits)
            variance = library.row_products(p, logits**2) - mean**2
            at_true = library.at_label(logits, label)
            return found[0] + weight @ (mean - at_true), found[1] + weight @ variance

        first, second = total(over_blocks(body, (zero, zero), arrays, n_classes))
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

    loss = total(over_blocks(add, zero, arrays, n_classes))
    return loss + prior / 2 * log**2, factor
