"""Steps by orthogonal factors of the Jacobian, for data without noise.

The Gauss-Newton matrix has the square of the condition number of the Jacobian. Steep
neighbouring neurons, as at a jump, make it so large that its Cholesky factor knows the
last directions to no digit: a fit of exact data then stops above rounding errors. The
orthogonal factors of MINPACK's Levenberg-Marquardt method know them.
"""

import numpy as np
from scipy.optimize import least_squares

from sklearn_gn.bayes import evidence, evidence_gn
from sklearn_gn.bayes.evidence_gn import NEARLY_EXACT
from sklearn_gn.data.rows_source import RowSource

_LITTLE_NOISE = 1e-10  # variance below which it may be none of the data
_INTERVAL = 50  # iterations after which a fit that goes on is refined
_MOST_WORK = 3e9  # numbers of rows times squared number of parameters


def refined_if_due(shape, rows, state, report, options):
    """Return state and report of a fit, refined if there is little noise.

    That is at its end, and now and then before it: a fit may crawl for long.
    """
    due = report.stop == "tol" or state.iteration % _INTERVAL == 0
    little = NEARLY_EXACT < 1 / state.beta < _LITTLE_NOISE
    possible = shape.q == 1 and not isinstance(rows, RowSource)
    possible &= options.damping is None and options.rank is None
    if not (due and little and possible):
        return state, report
    if len(rows.x) * shape.size**2 > _MOST_WORK:
        return state, report
    precision = evidence.prior_precision(shape.groups(), state.alpha)
    penalty = np.sqrt(precision * state.sums.error / options.n_effective)
    theta = refined(state.theta, rows, penalty, shape)
    sums = evidence_gn.sums_of(shape, theta, rows)
    if not sums.error < state.sums.error:
        return state, report
    after = state._replace(theta=theta, sums=sums)
    after, last = evidence_gn.updated(shape, after, options)
    if last.stop == "non_finite":
        return state, report
    return after, report._replace(
        loss=last.loss,
        grad_norm=last.grad_norm,
        stop=last.stop or report.stop,
        extra=last.extra,
    )


def refined(theta, rows, penalty, model):
    """Return parameters that minimise |residuals|^2 + |penalty theta|^2."""

    def residuals(theta):
        parts = [r for _, r in model.jacobian_blocks(theta, rows)]
        return np.concatenate([*parts, -penalty * theta])

    def jacobian(theta):
        parts = [-columns.T for columns, _ in model.jacobian_blocks(theta, rows)]
        return np.concatenate([*parts, -np.diag(penalty)])

    tolerances = dict.fromkeys(("ftol", "xtol", "gtol"), 1e-15)
    return least_squares(
        residuals,
        theta,
        jacobian,
        method="lm",
        x_scale="jac",
        max_nfev=40,
        **tolerances,
    ).x
