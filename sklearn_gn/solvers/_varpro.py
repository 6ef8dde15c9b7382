"""The solvers of VarProNetRegressor and VarProNetClassifier."""

from dataclasses import dataclass
from numbers import Integral
from typing import Literal

from sklearn.utils._param_validation import Interval, StrOptions

from sklearn_gn.solvers._base import Solver

_BATCHES = {
    "batch_size": [
        StrOptions({"auto"}),
        Interval(Integral, 1, None, closed="left"),
        None,
    ],
    "iterations_per_batch": [Interval(Integral, 1, None, closed="left")],
}


@dataclass(kw_only=True, eq=False, repr=False)
class GNvpro(Solver):
    """Gauss-Newton-Krylov variable projection (GNvpro) [1]_.

    The output layer is solved for, to rounding, and a Gauss-Newton method with a trust
    region minimises the remaining function of the hidden layers. Each step solves a
    system with the Gauss-Newton matrix of that reduced objective.

    Parameters
    ----------
    curvature : {"auto", "krylov", "dense"}, default="auto"
        How the Gauss-Newton system is solved.

        - "krylov": in a Krylov space, by ``rank`` products with the matrix; 20 if the
          estimator's ``rank`` is None.
        - "dense": the matrix is formed and diagonalised, or its dual if there are fewer
          rows than parameters. ``rank`` must be None.
        - "auto": in a Krylov space if ``rank`` is given; otherwise dense up to 2000
          parameters, or rows of the dual, and in a Krylov space of dimension 20 beyond.
    batch_size : int, "auto" or None, default="auto"
        Number of rows of a batch. If None, every iteration uses all rows. If "auto",
        batches have 2048 rows where more than 8192 different rows are fitted, and all
        rows otherwise.
    iterations_per_batch : int, default=3
        Number of iterations for which a batch is kept. The loss on all rows is
        evaluated, and the output layer solved for them, whenever 20 work units have
        been spent, more often at first, and at the end.
    loss : {"squared_error", "huber"}, default="squared_error"
        Loss of a regressor with ``alpha="auto"``. With "huber", residuals beyond 1.345
        robust standard deviations count linearly. Use it if some rows are outliers; if
        targets are skewed, the fit is nearer to their median than to their mean.
        ``noise_std_`` is then a robust estimate from the median absolute residual, and
        intervals are for rows that are not outliers.

    See Also
    --------
    FullGN : The same without variable projection.

    Notes
    -----
    The estimator's ``damping`` is the shift added to the reduced Gauss-Newton matrix;
    if None, the trust region sets it.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro: efficient training of neural networks with variable projection", SIAM
       Journal on Mathematics of Data Science 3 (2021), Algorithm 1.
    """

    name = "gnvpro"
    _parameter_constraints = {
        "curvature": [StrOptions({"auto", "krylov", "dense"})],
        **_BATCHES,
        "loss": [StrOptions({"squared_error", "huber"})],
    }

    curvature: Literal["auto", "krylov", "dense"] = "auto"
    batch_size: int | Literal["auto"] | None = "auto"
    iterations_per_batch: int = 3
    loss: Literal["squared_error", "huber"] = "squared_error"


@dataclass(kw_only=True, eq=False, repr=False)
class LBFGSvpro(Solver):
    """L-BFGS on the reduced objective of variable projection [1]_.

    The output layer is solved for, and the gradient in the hidden layers is that at
    fixed output layer. A line search finds steps that satisfy the strong Wolfe
    conditions.

    Parameters
    ----------
    batch_size : int, "auto" or None, default=None
        Number of rows of a batch. If None, every iteration uses all rows. If "auto",
        batches have 2048 rows where more than 8192 different rows are fitted.
    iterations_per_batch : int, default=3
        Number of iterations for which a batch is kept; the memory of L-BFGS is emptied
        after them.

    Notes
    -----
    The estimator's ``damping`` and ``rank`` have no effect.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro: efficient training of neural networks with variable projection", SIAM
       Journal on Mathematics of Data Science 3 (2021), section 4.
    """

    name = "lbfgs_vpro"
    _parameter_constraints = _BATCHES

    batch_size: int | Literal["auto"] | None = None
    iterations_per_batch: int = 3


@dataclass(kw_only=True, eq=False, repr=False)
class FullGN(Solver):
    """Gauss-Newton in all weights together, a baseline for :class:`GNvpro`.

    The output layer is one group of weights among others. Systems are solved in a
    Krylov space, with the trust region of GNvpro.

    Parameters
    ----------
    batch_size, iterations_per_batch : optional
        As for :class:`GNvpro`.

    Notes
    -----
    The estimator's ``rank`` is the dimension of the Krylov space; None is 20. Its
    ``damping`` is the shift added to the Gauss-Newton matrix; if None, the trust region
    sets it.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro: efficient training of neural networks with variable projection", SIAM
       Journal on Mathematics of Data Science 3 (2021), section 4.
    """

    name = "gn"
    _parameter_constraints = _BATCHES

    batch_size: int | Literal["auto"] | None = "auto"
    iterations_per_batch: int = 3
