"""PINNSolver: differential equations by dual natural gradient descent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, Self

from sklearn.base import MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from sklearn_gn._typing import ArrayLike, RandomState
from sklearn_gn.base import GaussNewtonEstimator, unchanged_on_failure
from sklearn_gn.optim.stop import StopReason
from sklearn_gn.pinn.predictions import SolutionMixin
from sklearn_gn.solvers import PINN_SOLVERS, Solver

if TYPE_CHECKING:  # it loads JAX
    from sklearn_gn.pde import Problem

_COUNT = Interval(Integral, 1, None, closed="left")


class PINNSolver(SolutionMixin, MultiOutputMixin, RegressorMixin, GaussNewtonEstimator):
    r"""Solve differential equations by a network, trained by Gauss-Newton methods.

    Use it for forward and inverse problems with smooth solutions, if you need high
    accuracy, unknown coefficients, many dimensions or no mesh. For linear problems in
    two or three dimensions on simple domains use finite elements; for noisy data
    without an equation, use :class:`VarProNetRegressor`.

    A network u is fitted to an equation, its conditions and observations in the
    least-squares sense, summed over residual classes g ("interior", each condition, and
    "data") and points of the domain,

    .. math::
        L(\theta) = \sum_g \frac{w_g}{2 N_g} \sum_{i=1}^{N_g} |r_g(u_\theta, x_i)|^2,

    by dual natural gradient descent [1]_: Levenberg-Marquardt steps in the space of the
    residuals. :class:`~sklearn_gn.pde.Unknown` coefficients are found along with u.

    Parameters
    ----------
    problem : Problem, sequence or None, default=None
        The problem to solve; before it in a sequence, pairs (Problem, n_iter) of easier
        ones. If None, y is regressed on X without an equation.
    hidden_layer_sizes : tuple of int or "auto", default="auto"
        Widths of the hidden layers. "auto": two layers of 20, which grow while this
        pays, in a network prepared for the problem (:ref:`pinn_network`); else 4 of 50.
    activation : str or tuple of str, default="tanh"
        "tanh", "sin", "sigmoid", "softplus", "silu", "gelu", "relu" or "identity", one
        for all hidden layers or one each.
    network : object or None, default=None
        Replaces the hidden layers: any object with ``init(key, x)`` and
        ``apply(parameters, x)``, such as a network of Flax.
    solver : str or Solver, default="dngd"
        Name, or object of :mod:`sklearn_gn.solvers`: "dngd" is dual natural gradient
        descent; "adam", "sgd", "lbfgs" and "ssbroyden" are baselines for the same loss.
    damping : float or None, default=None
        Shift added to the Gauss-Newton matrix of a step. If None, it follows a trust
        region; if a number, it is fixed, and a line search follows.
    rank : int or None, default=None
        Number of columns of the Nystrom preconditioner of conjugate gradients. If None,
        up to 10,000 unknowns are solved directly, and more with 1,000 columns.
    loss_weights : {"auto", "fixed", "scaled"}, default="auto"
        "fixed": residuals count as stated; "scaled": each class is divided by its size;
        "auto": each residual is, so that units do not matter. With given layers or
        observation weight, "auto" scales only sizes that are far apart.
    n_interior : int or "auto", default="auto"
        Number of collocation points inside the domain. "auto": two and a half times as
        many residuals as weights, and more if needed; 500 with another solver.
    n_boundary : int or "auto", default="auto"
        Number of collocation points of all conditions together, in equal parts. "auto":
        grows with ``n_interior``, or 200.
    sampling : {"auto", "sobol", "halton", "uniform", "residual"}, default="auto"
        How points are drawn. "residual" redraws only half of the interior points, where
        it is large. "auto" does so if the fit chooses layers or points.
    resample : int or None, default=5
        Redraw the points every ``resample`` iterations; None: never.
    observed_outputs : sequence of str or callable, default=None
        What the columns of y contain: names of outputs, or functions of the field and a
        point, such as ``lambda u, x: d(u, "x")(x)``. If None, all outputs.
    observation_weight : float or "auto", default="auto"
        Weight of the mean squared misfit to y. "auto": falls from 1 until the noise of
        y no longer bends the solution. Set 1 if the equation holds only roughly.
    max_iter : int or None, default=None
        Maximum number of iterations. If None, 1000, or unlimited with ``max_time``.
    tol : float or None, default=None
        Estimated relative error at which the fit stops. If None, 1e-7 (1e-5 with
        observations, 1e-4 if layers are given), once the loss falls slowly. It also
        stops if the loss no longer falls and growing does not pay; 0: by neither.
    max_time : float or None, default=None
        Seconds after which the fit stops, compilation included. None: no limit.
    early_stopping : bool, default=False
        Whether to stop when the loss on fresh points or validation data (10 %) rises.
    n_iter_no_change : int, default=10
        Number of iterations without improvement after which ``early_stopping`` stops.
    warm_start : bool, default=False
        Whether to start from the network and the coefficients of the previous fit.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the fit.
    device : str, list of int, jax.sharding.Mesh or None, default=None
        "cpu", "gpu" or several devices for the points (:doc:`/user_guide/devices`).
    verbose : int, default=0
        If 1, print a line per second; if 2, one per iteration.
    random_state : int, RandomState instance or None, default=None
        Seed of weights and points.

    Attributes
    ----------
    coefs_, intercepts_ : list of ndarray
        Weights and biases of the layers, or the parameters of ``network``.
    coefficients_, coefficients_std_ : dict
        Values of the :class:`~sklearn_gn.pde.Unknown` coefficients by name, and their
        standard deviations: infinite if other values fit as well, NaN if not computed.
    noise_std_ : float or ndarray of shape (n_observed,)
        Standard deviation of the noise of each column of y. NaN without observations.
    alpha_ : dict
        Penalties in plain regression: "output", "bias", "weights" and "layers".
    n_effective_parameters_, log_evidence_ : float
        Number of weights that the data determine and logarithm of the evidence, in
        plain regression; otherwise NaN.
    gram_spectrum_ : ndarray
        Eigenvalues of the last Gauss-Newton Gramian or its Nystrom approximation,
        descending. Empty if the solver has neither.
    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        The iterations, a column each of ``iteration``, ``time`` (seconds), ``loss``,
        ``val_loss`` (fresh points), ``grad_norm``, ``step_size``, ``damping``,
        ``gain_ratio``, ``inner_iterations`` and ``loss_NAME`` of each residual class;
        with an exact solution ``relative_error``. The guide has further ones.
    loss_, fresh_loss_ : float
        Loss of the returned network on the last training points, and on fresh ones.
    error_estimate_ : float
        Estimated relative L2 error without the effect of noise. NaN in plain
        regression, for more than 3,000 weights, and for kinks that are left open.
    enrichment_ : dict
        Number of known functions that the network has as inputs, by their names.
    window_ends_ : ndarray
        Ends of the windows of time, each with its own network; empty if there are none.
    n_iter_, converged_ : int and bool
        Number of iterations, and whether the fit ended by ``tol`` or at rounding level,
        nothing is left open, and ``error_estimate_`` is at most 1e-2 without data.
    stop_reason_ : str
        "tol", "rounding", "max_iter", "max_time", "early_stopping", "callback",
        "interrupted", "line_search", "stalled" or "non_finite".
    problem_ : Problem or None
        The problem that was solved, the last one of a sequence.
    n_features_in_, feature_names_in_ : int and ndarray of shape (`n_features_in_`,)
        Number of axes, and names of the columns of X in plain regression.

    Notes
    -----
    If the fit is poor, :meth:`diagnose` says what limited it. If ``val_loss`` stays far
    above ``loss``, raise ``n_interior`` and ``n_boundary``. If both stay high, use a
    larger network or ``activation="sin"``, or start from easier problems by a sequence.
    The :doc:`user guide </user_guide/pinn>` has more.

    References
    ----------
    .. [1] A. Jnini and F. Vella, "Dual natural gradient descent for scalable training
       of physics-informed neural networks".

    Examples
    --------
    >>> from sklearn_gn import PINNSolver
    >>> from sklearn_gn.pde import Box, Dirichlet, Problem, d
    >>> def string(u, x):  # under a load, and held at both ends
    ...     return d(u, "x", "x")(x) + 1
    >>> problem = Problem(string, Box(x=(0, 1)), [Dirichlet(0.0)])
    >>> solver = PINNSolver(problem, hidden_layer_sizes=8, random_state=0)
    >>> solver.fit().predict([[0.5]]).round(6)
    array([0.125])
    """

    _short_forms = PINN_SOLVERS
    _cure_of_overfitting = (
        "points",
        "n_interior",
        "Take more points (n_interior, n_boundary), or a smaller network.",
    )
    _parameter_constraints: dict[str, Any] = {
        **GaussNewtonEstimator._parameter_constraints,
        "problem": "no_validation",  # by problem_sequence
        "hidden_layer_sizes": ["array-like", _COUNT, StrOptions({"auto"})],
        "activation": [str, "array-like"],
        "network": [HasMethods(["init", "apply"]), None],
        "damping": [Interval(Real, 0, None, closed="left"), None],
        "loss_weights": [StrOptions({"auto", "fixed", "scaled"})],
        "n_interior": [_COUNT, StrOptions({"auto"})],
        "n_boundary": [
            Interval(Integral, 0, None, closed="left"),
            StrOptions({"auto"}),
        ],
        "sampling": [StrOptions({"auto", "sobol", "halton", "uniform", "residual"})],
        "resample": [_COUNT, None],
        "observed_outputs": ["array-like", None],
        "max_iter": [_COUNT, None],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "observation_weight": [
            Interval(Real, 0, None, closed="neither"),
            StrOptions({"auto"}),
        ],
    }
    _parameter_constraints.pop("validation_fraction")

    def __init__(
        self,
        problem: Problem | Sequence[Problem] | None = None,
        *,
        hidden_layer_sizes: tuple[int, ...] | int | Literal["auto"] = "auto",
        activation: str | tuple[str, ...] = "tanh",
        network: Any = None,
        solver: str | Solver = "dngd",
        damping: float | None = None,
        rank: int | None = None,
        loss_weights: Literal["auto", "fixed", "scaled"] = "auto",
        n_interior: int | Literal["auto"] = "auto",
        n_boundary: int | Literal["auto"] = "auto",
        sampling: Literal["auto", "sobol", "halton", "uniform", "residual"] = "auto",
        resample: int | None = 5,
        observed_outputs: Sequence[str] | None = None,
        observation_weight: float | Literal["auto"] = "auto",
        max_iter: int | None = None,
        tol: float | None = None,
        max_time: float | None = None,
        early_stopping: bool = False,
        n_iter_no_change: int = 10,
        warm_start: bool = False,
        dtype: Literal["float64", "float32"] = "float64",
        device: Any = None,
        verbose: int = 0,
        random_state: RandomState = None,
    ) -> None:
        self.problem = problem
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.network = network
        self.solver = solver
        self.damping = damping
        self.rank = rank
        self.loss_weights = loss_weights
        self.n_interior = n_interior
        self.n_boundary = n_boundary
        self.sampling = sampling
        self.resample = resample
        self.observed_outputs = observed_outputs
        self.observation_weight = observation_weight
        self.max_iter = max_iter
        self.tol = tol
        self.max_time = max_time
        self.early_stopping = early_stopping
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.dtype = dtype
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    @unchanged_on_failure
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Solve the problem, with observations where there are any.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes), default=None
            Points of observations. Columns named like the axes may come in any order.
            Those outside of the domain are left out, with a warning.
        y : array-like of shape (n_samples,) or (n_samples, n_observed), default=None
            Observations at these points. With a problem, NaN marks what was not
            observed, so that each output can have points of its own.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the observations. If None, all are one.
        X_val : array-like of shape (n_val_samples, n_axes), default=None
            Points of observations that are not trained on. Their misfit is part of
            ``convergence_log_["val_loss"]``.
        y_val : array-like of shape (n_val_samples,) or (n_val_samples, n_observed), \
                default=None
            Observations at these points.

        Returns
        -------
        self : PINNSolver
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter is out of its range, if the problem is not well stated, if
            the data contain NaN or infinity or are inconsistent, if there is neither a
            problem nor data, or if the fit would not fit into memory.
        """
        from sklearn_gn.pinn import fitting

        return fitting.fit(self, X, y, sample_weight, X_val, y_val)

    def _most_iterations(self):
        if self.max_iter is not None:
            return self.max_iter
        scheduled = self._solver_object().name == "sgd"
        return 1000 if self.max_time is None or scheduled else math.inf

    def _advice(self, reason):
        from sklearn_gn.pinn.findings import advice

        return advice(self, reason)

    def _limits_of_steps(self):
        return ("damping",)  # the rank is that of a preconditioner

    def _limits(self):
        if self.problem_ is None:
            return None
        from sklearn_gn.pinn.findings import limit

        found = limit(self, StopReason(self.stop_reason_))
        return [] if found is None else [found]
