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

_MOST_ITERATIONS = 1000  # where neither iterations nor seconds are given


class PINNSolver(SolutionMixin, MultiOutputMixin, RegressorMixin, GaussNewtonEstimator):
    r"""Solve differential equations by a network, trained by Gauss-Newton methods.

    Use it for forward and inverse problems with smooth solutions, if you need high
    accuracy, unknown coefficients, many dimensions or no mesh. For linear problems in
    two or three dimensions on simple domains use finite elements; for noisy data
    without an equation, use :class:`VarProNetRegressor`.

    A network u is fitted to an equation, its conditions and, if there are any,
    observations, in the least-squares sense at points of the domain,

    .. math::
        L(\theta) = \frac12 \sum_g \frac{w_g}{N_g} \sum_{i=1}^{N_g}
        |r_g(u_\theta, x_i)|^2,

    where g runs over the residual classes: "interior", each condition, "data", and
    w_g is the weight of the class, see ``loss_weights``. Coefficients of the equation
    that are :class:`~sklearn_gn.pde.Unknown` are found along with u. By default the
    loss is minimised by dual natural gradient descent [1]_ with a trust region:
    Levenberg-Marquardt steps in the space of the residuals, with geodesic acceleration
    [2]_. This gains many digits over first-order training.

    Parameters
    ----------
    problem : Problem, sequence or None, default=None
        The problem to solve. If a sequence, its last element is that problem, and the
        elements before it are pairs (Problem, n_iter): easier problems with the same
        outputs, axes and conditions, each solved first for n_iter iterations. If None,
        y is regressed on X without an equation, with the penalties of the evidence.

    hidden_layer_sizes : tuple of int or "auto", default="auto"
        Widths of the hidden layers. If "auto", the fit begins with two layers of 20,
        adds neurons while this pays, and prepares the problem for the network: see
        :ref:`the user guide <pinn_network>`. In plain regression "auto" is (20, 20),
        and with another solver than "dngd" it is (50, 50, 50, 50).

    activation : str or tuple of str, default="tanh"
        Activation of the hidden layers, one for all or one each: "tanh", "sin",
        "sigmoid", "softplus", "silu", "gelu", "relu" or "identity". An equation with
        second derivatives needs one that has them.

    network : object or None, default=None
        Replaces the hidden layers: any object with ``init(key, x)`` and
        ``apply(parameters, x)``, such as those of :mod:`sklearn_gn.networks` or a Flax
        module. It maps points, scaled to [-1, 1], to the features of a linear output
        layer. Its derivatives take longer than those of hidden layers. If None, the
        hidden layers of ``hidden_layer_sizes`` are used.

    solver : str or Solver, default="dngd"
        Solver of the minimisation problem: a name, or an object of
        :mod:`sklearn_gn.solvers`, which has further parameters. All solvers minimise
        the same loss from the same initial network.

        - "dngd": dual natural gradient descent, :class:`~sklearn_gn.solvers.DNGD`.
        - "adam": :class:`~sklearn_gn.solvers.Adam`.
        - "sgd": :class:`~sklearn_gn.solvers.SGD`, with a one-cycle schedule of the
          learning rate over ``max_iter``.
        - "lbfgs": :class:`~sklearn_gn.solvers.LBFGS`.
        - "ssbroyden": :class:`~sklearn_gn.solvers.SSBroyden`.

    damping : float or None, default=None
        Shift added to the Gauss-Newton matrix of every step. If None, the
        ``damping_rule`` of the solver adapts it, by default a trust region. If a
        number, it is fixed, and each step is followed by a line search.

    rank : int or None, default=None
        Number of columns of the Nystrom preconditioner of conjugate gradients. If None,
        the Gramian is formed and factored for up to 10,000 unknowns, and 1,000 columns
        are used for more.

    loss_weights : {"auto", "fixed", "scaled"}, default="auto"
        How residual classes are weighted, apart from the weights of the conditions. If
        "fixed", residuals count as they are stated. If "scaled", each class is divided
        by its size for a solution that varies once over the domain. If "auto", each
        residual is, so that units do not matter; where ``hidden_layer_sizes`` or the
        weight of observations is given, only if sizes are far apart.

    n_interior : int or "auto", default="auto"
        Number of collocation points inside the domain. If "auto", there are two and a
        half times as many residuals as weights, and more if the loss on fresh points is
        far above the training loss. With more than 3,000 weights, it starts with 500
        and ends with at most 2,000. With another solver than "dngd", or if both
        ``hidden_layer_sizes`` and ``n_boundary`` are given, it is 500.

    n_boundary : int or "auto", default="auto"
        Number of collocation points of all conditions together, in equal parts. If
        "auto", it grows with ``n_interior``, or is 200 if that does not grow.

    sampling : {"auto", "sobol", "halton", "uniform", "residual"}, default="auto"
        How collocation points are drawn. "residual" draws half of the interior points
        where the residual is large, for thin layers and fronts. "auto" is "residual" if
        ``hidden_layer_sizes`` or ``n_interior`` is "auto", on up to 20 axes, and
        "sobol" otherwise.

    resample : int, "drift" or None, default=5
        Redraw the collocation points every ``resample`` iterations. If "drift", redraw
        them when the loss on fresh points is twice that of training. If None, they are
        drawn once.

    observed_outputs : sequence of str or callable, default=None
        What the columns of y contain: names of outputs, or functions of the field and a
        point for other observed quantities, such as ``lambda u, x: d(u, "x")(x)``. If
        None, y has all outputs in their order.

    observation_weight : float or "auto", default="auto"
        Weight of the mean squared misfit to y in the loss. If "auto", it starts with 1
        and falls until the noise of y no longer bends the solution; exact observations
        keep the weight 1. Set 1 if the equation holds only roughly. In plain regression
        "auto" means maximum evidence, and a number least squares without penalties.

    max_iter : int or None, default=None
        Maximum number of iterations. If None, it is 1000 without ``max_time`` and
        unlimited with it, except for "sgd", whose schedule needs a number and takes
        1000.

    tol : float, default=0.001
        The fit stops when twenty iterations have lowered the loss on fresh points by
        less than ``tol`` times its value and growing does not pay, or earlier if the
        loss falls slowly and the estimated error is below 1e-7 (1e-5 with observations,
        otherwise 1e-4 if ``hidden_layer_sizes`` is given). In plain regression it stops
        when the log evidence per row has risen by less than ``tol`` in three
        iterations. If 0, these tests are disabled. See ``converged_``.

    max_time : float or None, default=None
        Seconds after which the fit stops, compilation included. An iteration that is
        not expected to end in time is not begun. If None, there is no limit.

    early_stopping : bool, default=False
        Whether to stop when the loss on fresh points, or on validation data, no longer
        falls. In plain regression without ``X_val``, a tenth of the rows is set aside.

    n_iter_no_change : int, default=10
        Number of iterations without improvement after which ``early_stopping`` stops
        the fit.

    warm_start : bool, default=False
        Whether to start from the network and the coefficients of the previous fit.

    dtype : {"float64", "float32"}, default="float64"
        Precision of the fit.

    device : str, list of int, jax.sharding.Mesh or None, default=None
        Where to compute: "cpu" or "gpu". If None, JAX's default is used. A list of
        numbers in ``jax.devices()``, or a mesh, divides the points of training among
        several devices; see :doc:`/user_guide/devices`.

    verbose : int, default=0
        If 1, print a line per second; if 2, one per iteration.

    random_state : int, RandomState instance or None, default=None
        Seed of weights and points.

    Attributes
    ----------
    coefs_ : list of ndarray
        Weights of the layers, or the parameters of ``network`` and the weights of its
        output layer. The inputs are the axes, mapped to [-1, 1], then the cosines and
        sines of periodic axes, then those of the frequencies that were found, which are
        inputs of the output layer, too.

    intercepts_ : list of ndarray
        Biases of the layers.

    coefficients_ : dict
        Values of the :class:`~sklearn_gn.pde.Unknown` coefficients, by name.

    coefficients_std_ : dict
        Their standard deviations, from the Gauss-Newton matrix and the misfits. NaN if
        the matrix is too large; infinite if other values fit as well, or if there are
        neither observations nor a Condition for the coefficient.

    noise_std_ : float or ndarray of shape (n_outputs,)
        Estimated standard deviation of the observations' noise, the same for all
        outputs; in plain regression of targets in different units one for each. NaN
        without observations, in plain least squares, and where the Gauss-Newton matrix
        is too large.

    alpha_ : dict
        Penalties that the evidence has chosen in plain regression, factors of half the
        squared weights in scaled units: "output", "bias", "weights" (one for each
        feature) and "layers" (of the hidden layers after the first). Otherwise empty.

    n_effective_parameters_ : float
        Number of weights that the data determine in plain regression, else NaN.

    log_evidence_ : float
        Logarithm of the evidence in plain regression, else NaN.

    gram_spectrum_ : ndarray
        Eigenvalues of the Gauss-Newton Gramian of the last iteration, in descending
        order, or of its Nystrom approximation if it was not formed. Empty if the solver
        has neither.

    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        ``iteration``, ``time`` (seconds), ``loss``, ``val_loss`` (on fresh points),
        ``grad_norm``, ``step_size`` (length of the step), ``damping``, ``gain_ratio``,
        ``inner_iterations``, ``loss_NAME`` for each residual class and, where there is
        an exact solution, ``relative_error``. With ``observation_weight="auto"`` also
        ``observation_weight``; with windows of time ``window_end``, where the window of
        that iteration ends; in plain regression ``log_evidence``,
        ``n_effective_parameters`` and ``noise_std``.

    loss_ : float
        Loss of the returned network on the last training points.

    fresh_loss_ : float
        Loss of the returned network on points that it was not trained on. NaN in plain
        regression without validation data.

    error_estimate_ : float
        Estimated relative L2 error of all outputs together, from a Gauss-Newton
        correction on fresh points in a richer network. It is computed at the first
        access, in a few seconds, and does not include the effect of noisy observations.
        NaN in plain regression, if the windows of time end early, and for more than
        about 3,000 weights.

    enrichment_ : dict
        Number of known functions that the network has as inputs, by their names: see
        ``enrichment`` of :class:`~sklearn_gn.solvers.DNGD`.

    window_ends_ : ndarray
        Ends of the windows of time, empty if the problem was solved at once. Each
        window has its own network; ``coefs_`` and ``loss_`` are those of the last one.
        A fit that ran out of time may end before the interval does: predictions for
        later times are extrapolated, with a warning.

    n_iter_ : int
        Number of iterations of this fit.

    converged_ : bool
        Whether the fit ended by ``tol``, or with the loss at rounding level, and, in
        forward problems, with an ``error_estimate_`` of at most 1e-2. If ``max_time``
        leaves no time for the estimate, the loss must have fallen to almost nothing.
        Unknown coefficients must be determined, and positive ones must not have gone to
        zero.

    stop_reason_ : str
        "tol", "rounding", "max_iter", "max_time", "early_stopping", "callback",
        "interrupted", "line_search", "stalled" or "non_finite".

    problem_ : Problem or None
        The problem that was solved, the last one of a sequence.

    n_features_in_ : int
        Number of axes.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns of X in plain regression, if all of them are strings.

    See Also
    --------
    sklearn_gn.pde.Problem : Statement of an equation.
    VarProNetRegressor : Regression by a network, for data without an equation.

    Notes
    -----
    If the fit is poor, :meth:`diagnose` says what limited it. If the loss on fresh
    points (``val_loss``) stays far above the training loss, raise ``n_interior`` and
    ``n_boundary`` or lower ``resample``. If both stay high, use a larger network or
    ``activation="sin"``, or start from easier problems by a sequence. The
    :doc:`user guide </user_guide/pinn>` has more.

    References
    ----------
    .. [1] A. Jnini and F. Vella, "Dual natural gradient descent for scalable training
       of physics-informed neural networks".
    .. [2] M. Transtrum and J. Sethna, "Improvements to the Levenberg-Marquardt
       algorithm for nonlinear least-squares minimization".

    Examples
    --------
    A string under a load, u'' + 1 = 0, held at both ends:

    >>> from sklearn_gn import PINNSolver
    >>> from sklearn_gn.pde import Box, Dirichlet, Problem, d
    >>> def string(u, x):
    ...     return d(u, "x", "x")(x) + 1
    >>> problem = Problem(string, Box(x=(0, 1)), [Dirichlet(0.0)])
    >>> solver = PINNSolver(
    ...     problem,
    ...     hidden_layer_sizes=(8,),
    ...     n_interior=30,
    ...     n_boundary=2,
    ...     random_state=0,
    ... )
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
        "hidden_layer_sizes": [
            "array-like",
            Interval(Integral, 1, None, closed="left"),
            StrOptions({"auto"}),
        ],
        "activation": [str, "array-like"],
        "network": [HasMethods(["init", "apply"]), None],
        "damping": [Interval(Real, 0, None, closed="left"), None],
        "loss_weights": [StrOptions({"auto", "fixed", "scaled"})],
        "n_interior": [
            Interval(Integral, 1, None, closed="left"),
            StrOptions({"auto"}),
        ],
        "n_boundary": [
            Interval(Integral, 0, None, closed="left"),
            StrOptions({"auto"}),
        ],
        "sampling": [StrOptions({"auto", "sobol", "halton", "uniform", "residual"})],
        "resample": [
            Interval(Integral, 1, None, closed="left"),
            StrOptions({"drift"}),
            None,
        ],
        "observed_outputs": ["array-like", None],
        "max_iter": [Interval(Integral, 1, None, closed="left"), None],
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
        resample: int | Literal["drift"] | None = 5,
        observed_outputs: Sequence[str] | None = None,
        observation_weight: float | Literal["auto"] = "auto",
        max_iter: int | None = None,
        tol: float = 1e-3,
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

    # -- the fit ----------------------------------------------------------------------

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
        return _MOST_ITERATIONS if self.max_time is None or scheduled else math.inf

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
