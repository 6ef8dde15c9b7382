"""Gauss-Newton steps by orthogonal factors of the Jacobian, for data without noise.

The Gauss-Newton matrix has the square of the condition number of the Jacobian. Steep
neighbouring neurons, as at a jump, make it so large that its Cholesky factor knows the
last directions to no digit: a fit of exact data then stops above rounding errors. An
orthogonal factor of the Jacobian knows them, for some times the work.
"""

import numpy as np
from scipy.linalg import lstsq

from sklearn_gn import _switches as switches
from sklearn_gn.bayes import evidence, evidence_gn
from sklearn_gn.bayes.evidence_gn import EXACT, NEARLY_EXACT
from sklearn_gn.data.rows_source import RowSource

_LITTLE_NOISE = 1e-8  # variance below which it may be none of the data
_INTERVAL = 50  # iterations after which a fit that goes on is refined
_MOST_STEPS = 30
_MOST_WORK = 3e10  # of their factors, lest max_time is exceeded by many seconds
_LOWER = 0.5  # share of the square error by which a step has helped
_FIRST_DAMPING, _LARGEST_DAMPING = 1e-8, 1.0  # of columns of unit length
_CHANGE = 10.0  # of the damping
_RANK_TOL = 1e-15  # relative size of directions that are left out


def refined_if_due(shape, rows, state, report, options):
    """Return state and report of a fit, refined if there is little noise.

    That is at its end, and now and then before it: a fit may crawl for long.

    Parameters
    ----------
    shape : Shape
    rows : Rows or RowSource
    state : EvidenceState
    report : Report
        Of the last step.
    options : EvidenceOptions
    """
    little = NEARLY_EXACT < 1 / state.beta < _LITTLE_NOISE
    formed = shape.q == 1 and not isinstance(rows, RowSource)
    free = options.damping is None and options.rank is None
    due = report.stop == "tol" or state.iteration % _INTERVAL == 0
    possible = due and little and formed and free
    if not (possible and switches.on("shallow_relu.refinement")):
        return state, report
    most = int(min(_MOST_STEPS, 1 + _MOST_WORK / (len(rows.x) * shape.size**2)))
    theta = refined(state.theta, rows, state.alpha, options.n_effective, shape, most)
    if theta is state.theta:
        return state, report
    sums = evidence_gn.sums_of(shape, theta, rows)
    after = state._replace(theta=theta, sums=sums)
    after, last = evidence_gn.updated(shape, after, options)
    if last.stop == "non_finite":
        return state, report
    goes_on = most < _MOST_STEPS and sums.error < _LOWER * state.sums.error
    return after, report._replace(
        loss=last.loss,
        grad_norm=last.grad_norm,
        stop=last.stop or (None if goes_on else report.stop),
        extra=last.extra,
    )


def refined(theta, rows, alpha, n_effective, model, most_steps=_MOST_STEPS):
    """Return parameters with residuals as small as rounding errors allow.

    Each step is a damped one in all parameters, and the least-squares solution in those
    that enter linearly.

    Parameters
    ----------
    theta : ndarray of shape (P,)
    rows : Rows
        With one target.
    alpha : ndarray of shape (G,)
        Precisions of the groups. They decide between parameters that fit equally well.
    n_effective : float
        Number of rows, counted by their weights.
    model : Shape
    most_steps : int, default=30
    """
    precision = evidence.prior_precision(model.groups(), alpha)
    error, damping = model.trial(theta, rows).error, _FIRST_DAMPING
    lower, n_steps = True, 0
    while lower and error > EXACT and n_steps < most_steps:
        # With the noise of the present residuals, which fall from step to step.
        penalty = np.sqrt(precision * error / n_effective)
        factor = _factor(model.jacobian_blocks(theta, rows), penalty, theta)
        while damping <= _LARGEST_DAMPING:
            moved = theta + _damped_step(factor, damping)
            moved = _with_output_layer(moved, rows, penalty, model)
            after = model.trial(moved, rows).error
            if after < error:
                break
            damping *= _CHANGE
        else:
            break
        lower, n_steps = after < _LOWER * error, n_steps + 1
        theta, error, damping = moved, after, damping / _CHANGE
    return theta


def _with_output_layer(theta, rows, penalty, model):
    """Return the parameters with the best ones of those that enter linearly."""
    n = model.n_linear
    blocks = model.jacobian_blocks(theta, rows)
    blocks = ((columns[:n], residual) for columns, residual in blocks)
    theta = theta.copy()
    theta[:n] += _damped_step(_factor(blocks, penalty[:n], theta[:n]), 0.0)
    return theta


def _factor(blocks, penalty, theta):
    """Return the orthogonal factor of (J, r), with the rows of the penalties.

    Its last column is what is left of r. Together they give the step d of least
    ``|r - J d|^2 + |penalty (theta + d)|^2``.
    """
    factor = np.diag(np.append(penalty, 0.0))
    factor[:-1, -1] = -penalty * theta
    for columns, residual in blocks:
        rows = np.concatenate([columns, residual[None]]).T
        factor = np.linalg.qr(np.concatenate([factor, rows]), mode="r")
    return factor


def _damped_step(factor, damping):
    """Return the step, with a damping of columns that have unit length."""
    columns, right = factor[:, :-1], factor[:, -1]
    size = np.linalg.norm(columns, axis=0)
    size[size == 0] = 1
    columns = np.concatenate([columns / size, damping * np.eye(len(size))])
    right = np.concatenate([right, np.zeros(len(size))])
    found = lstsq(
        columns, right, cond=_RANK_TOL, lapack_driver="gelsy", check_finite=False
    )
    return found[0] / size
