"""The solvers of FGNSoftmaxHead."""

from dataclasses import dataclass
from numbers import Integral, Real

from sklearn.utils._param_validation import Interval

from sklearn_gn.solvers._base import Solver


class FGNNewton(Solver):
    """Newton's method with conjugate gradients, on all rows, to the optimum.

    The full softmax Gauss-Newton matrix of an affine head is the exact Hessian. Each
    Newton system is solved inexactly [1]_ in whitened coordinates, with one block of
    the Hessian for each class as the preconditioner where iterations are many, and a
    line search sets the step length. There are no settings.

    See Also
    --------
    FGN : For data that come in pieces, and for fits that need not be finished.

    Notes
    -----
    The estimator's ``damping`` is the shift added to the Hessian in the coefficients,
    and in the intercept at the mean of the features; None adds nothing. Steps become
    shorter and more of them are needed, though each is combined with the one before, as
    in the conjugate-gradient method. The steps that search for ``alpha="auto"`` are not
    damped: the penalty does not depend on ``damping``. Its ``rank`` is the maximum
    number of conjugate-gradient iterations of a step, the dimension of the Krylov space
    in which the system is solved; if None, it is 100.

    References
    ----------
    .. [1] R. S. Dembo, S. C. Eisenstat and T. Steihaug, "Inexact Newton methods", SIAM
       Journal on Numerical Analysis 19 (1982).
    """

    name = "fgn_newton"


@dataclass(kw_only=True, eq=False, repr=False)
class _MiniBatchSolver(Solver):
    """What the solvers on mini-batches share."""

    _parameter_constraints = {
        "learning_rate": [Interval(Real, 0, None, closed="neither"), None],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "shuffle": ["boolean"],
    }

    learning_rate: float | None = None
    batch_size: int | None = 256
    shuffle: bool = False


class FGN(_MiniBatchSolver):
    """Fast Gauss-Newton on mini-batches, Algorithm 1 of [1]_.

    It keeps the rank-one part of each example's softmax curvature, the true class
    versus the rest, and solves for the step in the space of the examples. Use it for
    data that arrive in pieces and for fits that need not be finished. Features should
    have size one.

    Parameters
    ----------
    learning_rate : float, default=None
        Learning rate. If None, it is 1, a full step, and the heads after the first 256
        steps are averaged, with weights that grow like the number of the step. In [1]_
        it is 0.1, without averaging.
    batch_size : int, default=256
        Rows of a mini-batch.
    shuffle : bool, default=False
        If True, draw new mini-batches in every epoch. If False, they are drawn once,
        and the Gram matrices of their features are kept.

    See Also
    --------
    FGNNewton : Converges to the optimum.

    Notes
    -----
    The estimator's ``damping`` is the shift added to the Gauss-Newton matrix of a
    mini-batch; if None, it is 1. Its ``rank`` is the number of curvature directions
    kept for each example: 1 is the method of [1]_, each further one recovers the next
    competitor of the true class, and the number of classes minus 1 is the full
    curvature. If None, it is 1.

    References
    ----------
    .. [1] M. Korbit and M. Zanon, "Fast Gauss-Newton for multiclass cross-entropy".
    """

    name = "fgn"


class SGN(_MiniBatchSolver):
    """Gauss-Newton with the full softmax curvature on mini-batches [1]_.

    A baseline for :class:`FGN`. It uses conjugate gradients in the space of the
    parameters, started from the previous step.

    Parameters
    ----------
    learning_rate : float, default=None
        Learning rate. If None, it is 1, a full step.
    batch_size : int, default=256
        Rows of a mini-batch.
    shuffle : bool, default=False
        If True, draw new mini-batches in every epoch. If False, they are drawn once.

    Notes
    -----
    The estimator's ``damping`` is the shift added to the Gauss-Newton matrix of a
    mini-batch; if None, it is 1. Its ``rank`` is the maximum number of
    conjugate-gradient iterations of a step; if None, it is 5.

    References
    ----------
    .. [1] M. Gargiani, A. Zanelli, M. Diehl and F. Hutter, "On the promise of the
       stochastic generalized Gauss-Newton method for training DNNs" (2020).
    """

    name = "sgn"
