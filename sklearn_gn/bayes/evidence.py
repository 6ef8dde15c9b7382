r"""Evidence: penalties and noise level that the Gauss-Newton matrix chooses by itself.

MacKay, "A practical Bayesian framework for backpropagation networks" (1992), with the
Gauss-Newton matrix in place of the Hessian as in Foresee and Hagan (1997). The
parameters stand in groups g of N_g numbers; with residuals r_i of rows of weight w_i
and sum n_eff,

.. math::
    E = \frac\beta2 \sum_i w_i r_i^2 + \frac12 \sum_g \alpha_g |\theta_g|^2, \qquad
    H = \beta J^T W J + \mathrm{diag}(\alpha).

The number of well-determined parameters of a group is
:math:`\gamma_g = N_g - \alpha_g \mathrm{tr}(H^{-1})_g`; at a maximum of the evidence
:math:`\alpha_g = \gamma_g / |\theta_g|^2` and
:math:`\beta = (n_{eff} - \sum_g \gamma_g) / \sum_i w_i r_i^2`, and an update sets both
so. For the cross-entropy J^T W J becomes J^T W Lambda J with the covariance Lambda of
the probabilities, and beta is one.

Parameters of group -1 are free: they have no penalty, and all of them count as
well determined. Weights count as repetitions of rows.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from sklearn_gn.linalg.factors import determined, factor, orthogonal_factors

SMALLEST, LARGEST = 1e-8, 1e8  # precisions, for parameters and targets of unit size
SWITCHED_OFF = 0.01  # share of a group, or of a model, below which it is nothing
_TINY = np.finfo(np.float64).tiny


class Curvature(NamedTuple):
    """What the evidence takes from the Gauss-Newton matrix H."""

    gamma: Any  # (G,) well-determined parameters of every group
    n_free: Any  # parameters without a penalty
    log_det: Any  # log det H less the sum of N_g log alpha_g


def group_sums(values, groups, n_groups):
    """Sums of ``values`` (N,) over the groups (n_groups,), without group -1."""
    return np.bincount(groups + 1, values, n_groups + 1)[1:]


def prior_precision(groups, alpha):
    """The precision of every parameter; zero where it is free."""
    return np.append(alpha, 0.0)[groups]  # group -1 is the last


def given_penalties(alpha, lengths):
    """Return the penalties of the groups: one number, or a dict such as ``alpha_``."""
    if not isinstance(alpha, dict):  # less than a rounding is lost
        n_groups = sum(1 if n is None else n for n in lengths.values())
        return np.full(n_groups, max(float(alpha), np.finfo(np.float64).eps))
    if set(alpha) != set(lengths):
        raise ValueError(
            f"alpha must have the entries {', '.join(lengths)}, got "
            f"{', '.join(map(str, alpha)) or 'none'}. Pass alpha_ of a fitted model."
        )
    parts = []
    for name, length in lengths.items():
        same = "as many hidden layers" if name == "layers" else "as many features"
        part = np.asarray(alpha[name], dtype=np.float64)
        expected = () if length is None else (length,)
        if part.shape != expected:
            raise ValueError(
                f"alpha[{name!r}] must have shape {expected}, got shape {part.shape}. "
                f"Pass alpha_ of a model with {same}."
            )
        parts.append(np.atleast_1d(part))
    values = np.concatenate(parts)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError(f"The penalties in alpha must be positive, got {alpha!r}.")
    return values


def primal_curvature(gram, groups, alpha, beta, floor=0.0):
    """Curvature from the Gram matrix J^T W J, for fewer parameters than rows.

    It is not singular in free parameters; ``floor`` is a shift at rounding level with
    which H is factored, and determines no parameter. NaN where H is singular.
    """
    precision = prior_precision(groups, alpha)
    # The form N_g - alpha_g tr(H^-1)_g would cancel where a group is switched off.
    diagonal = precision + beta * floor
    if isinstance(gram, np.ndarray):
        share, log_det = determined(gram, beta, diagonal)
    else:  # on a device
        share, log_det = gram.computed(determined, beta, diagonal=diagonal)
    log_det = log_det - np.log(np.where(precision > 0, precision, 1)).sum()
    free = np.count_nonzero(groups < 0)
    return Curvature(group_sums(share, groups, len(alpha)), free, log_det)


def dual_curvature(rows, groups, alpha, beta, n_free=0):
    """The same from the rows ``sqrt(W) J`` (m, N), for fewer rows than parameters."""
    free, penalised, groups = rows[:, :n_free], rows[:, n_free:], groups[n_free:]
    log_det = 0.0
    if n_free:  # integrated out: what is left is orthogonal to their columns
        q, r = orthogonal_factors(free)
        penalised = penalised - q @ (q.T @ penalised)
        log_det = 2 * np.sum(np.log(np.sqrt(beta) * np.abs(np.diagonal(r))))
    scaled = penalised * np.sqrt(beta / alpha[groups])[None, :]
    inner = scaled @ scaled.T
    # With hardly any noise rounding errors of the products are as large as the one.
    one = 1 + np.finfo(np.float64).eps * np.trace(inner)
    inner = factor(inner, one, overwrite=True)
    gamma = group_sums(inner.variances(scaled), groups, len(alpha))
    return Curvature(gamma, n_free, log_det + inner.log_det)


def log_evidence(curvature, energy, n_effective, beta):
    """Logarithm of the evidence of a least-squares problem, or of a cross-entropy."""
    of_noise = n_effective / 2 * np.log(beta / (2 * np.pi))
    return of_noise - energy - curvature.log_det / 2


def updated(curvature, squares, square_error, n_effective, floor):
    """Precisions of groups and noise, from sums of squares of each and of residuals."""
    alpha = (curvature.gamma / np.maximum(squares, _TINY)).clip(SMALLEST, LARGEST)
    freedom = n_effective - float(curvature.gamma.sum()) - curvature.n_free
    # With as many parameters as rows the noise is not determined; one row remains.
    return alpha, 1 / max(square_error / max(freedom, 1.0), floor)


def parameters_of_penalties(gamma, groups):
    """Return how many parameters the choice of the penalties by the data amounts to.

    The penalty of highest evidence shrinks a group of N parameters to the share
    ``s = gamma / N`` of their least squares, which depends on the data. By Stein's
    lemma, where all directions of the group are equally determined, the values at the
    rows have ``gamma + 2 (1 - s)`` degrees of freedom in place of gamma (James and
    Stein, 1961). Together the penalties count as no more than the parameters do.
    """
    sizes = np.bincount(groups + 1, minlength=len(gamma) + 1)[1:]
    share = np.clip(gamma / np.maximum(sizes, 1), 0, 1)
    more = np.where(share > SWITCHED_OFF, 2 * (1 - share), 0)
    return float(min(np.sum(more), np.sum(gamma)))


def prior_of_counts(counts):
    """Return the prior count of every class, from counts (k,), of highest evidence.

    It is that of Dirichlet's distribution of the frequencies, of one row in all classes
    together at least: few rows do not tell nearly equal frequencies apart.
    """
    n, k = np.sum(counts), len(counts)
    sizes = np.geomspace(1, (1 + n) ** 2, 100)  # above, the rows say nothing
    prior = sizes[:, None] / k
    value = np.sum(gammaln(counts + prior) - gammaln(prior), axis=1)
    return prior[np.argmax(value + gammaln(sizes) - gammaln(n + sizes)), 0]
