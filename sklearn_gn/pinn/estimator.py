"""PINNSolver: differential equations by dual natural gradient descent."""

import math
import warnings
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from sklearn_gn.core import backend
from sklearn_gn.core.data import canonical_rows, check_sample_weight, validation_split
from sklearn_gn.core.estimator import GaussNewtonEstimator, unchanged_on_failure
from sklearn_gn.core.fit_loop import FitRun
from sklearn_gn.core.scaling import Scaling
from sklearn_gn.networks._base import (
    activation_function,
    checked_network,
    initial_parameters,
    n_features,
)
from sklearn_gn.pde import Box, Problem, ResidualClass
from sklearn_gn.pinn.algorithms import ALGORITHMS
from sklearn_gn.pinn.dngd import gramian_eigenvalues
from sklearn_gn.pinn.fit import Observed, Options, total_loss
from sklearn_gn.pinn.points import (
    REFERENCE_FLOATS,
    NoPoints,
    Sampler,
    batch_of,
)
from sklearn_gn.pinn.posterior import (
    coefficient_deviations,
    linear_model,
    row_deviations,
    variance,
)
from sklearn_gn.pinn.residuals import (
    ClassModel,
    Features,
    Model,
    coefficient_values,
    derivative_values,
    needed_rows,
    relative_errors,
    residual_values,
    solution,
    start_parameters,
)
from sklearn_gn.pinn.taylor import Rows
from sklearn_gn.solvers import PINN_SOLVERS

_OVERFITTED = 100.0  # fresh over training loss, beyond which a fit warns
_SOLVED = 1e-6  # of an untrained network's fresh loss, below which it does not
_LEARNING_RATES = {"adam": 1e-3, "sgd": 1e-2}
_LARGEST_INT = np.iinfo(np.int32).max
_JACOBIAN_FLOATS = 2**27
_SPECTRAL = 3000  # unknowns up to which eigenvalues are computed after a fit


@dataclass(frozen=True)
class _Observations:
    """Residual of observed outputs."""

    outputs: tuple  # their numbers

    def __call__(self, fields, points, data, coefficients):
        del coefficients
        value = fields[0](points[0])
        value = value[np.array(self.outputs)] if value.ndim else value[None]
        return value - data


def _no_residual(u, x):
    """Of plain regression."""
    return u(x) - u(x)


class _Fitted(NamedTuple):
    """What predictions need."""

    model: Model
    net: object
    scaling: Scaling | None  # of plain regression


class PINNSolver(MultiOutputMixin, RegressorMixin, GaussNewtonEstimator):
    r"""Differential equations solved by a network, trained by Gauss-Newton methods.

    A network u is brought to fulfil an equation, its conditions and, where there are
    any, observations, in the least-squares sense at points of the domain,

    .. math::
        L(\theta) = \frac12 \sum_g \frac{w_g}{N_g} \sum_{i=1}^{N_g}
        |r_g(u_\theta, x_i)|^2,

    where g runs over the residual classes: "interior", each condition, "data".
    Coefficients of the equation that are :class:`~sklearn_gn.pde.Unknown` are found
    along with u. By default the minimiser is dual natural gradient descent [1]_ with a
    trust region: Levenberg-Marquardt steps in the space of the residuals, each with a
    geodesic acceleration [2]_, accurate to many digits more than first-order training.

    Parameters
    ----------
    problem : Problem or None, default=None
        What to solve. None is plain least-squares regression of y on X.

    hidden_layer_sizes : tuple of int, default=(50, 50, 50, 50)
        Widths of the hidden layers.

    activation : str or tuple of str, default="tanh"
        Of the hidden layers, one for all or one each: "tanh", "sin", "sigmoid",
        "softplus", "silu", "gelu", "relu" or "identity". An equation with second
        derivatives needs one that has them.

    network : object or None, default=None
        In place of the hidden layers, any object with ``init(key, x)`` and
        ``apply(parameters, x)``, such as those of :mod:`sklearn_gn.networks` or a Flax
        module: what ``apply`` makes of points, mapped to [-1, 1], are the features of a
        linear output layer. Its derivatives are found by automatic differentiation,
        and its Jacobian is held in memory, so that it is slower than hidden layers of
        the same size. None: the hidden layers.

    solver : {"dngd", "adam", "sgd", "lbfgs", "ssbroyden"}, default="dngd"
        All minimise the same loss from the same start.

        - "dngd": dual natural gradient descent.
        - "adam", "sgd": first-order; "sgd" has a one-cycle schedule over ``max_iter``.
        - "lbfgs": limited-memory BFGS.
        - "ssbroyden": self-scaled Broyden, with a matrix as large as the network's
          number of weights squared.

    damping : {"trust_region", "gain_ratio", "loss"} or float, default="trust_region"
        Of "dngd", the shift added to the Gauss-Newton matrix.

        - "trust_region": of many radii the largest that keeps its promise.
        - "gain_ratio": one trial a step, as Nielsen.
        - "loss": the loss, at most 1e-5, and a line search, as in [1]_.
        - a number: that, and a line search.

    rank : int or None, default=None
        Columns of the Nystrom preconditioner with which "dngd" solves for its step by
        conjugate gradients. None: the Gramian is formed and factored up to 10,000
        unknowns, and 1000 beyond.

    geodesic_acceleration : bool, default=True
        Whether the steps of "dngd" are bent by the second derivative of the residuals.

    momentum : float, default=0.0
        Share of the last step that the next one of "dngd" starts from [3]_.

    jacobi_scaling : bool, default=False
        Whether "dngd" scales the Gramian to a diagonal of ones.

    loss_weights : {"fixed", "balanced"}, default="fixed"
        Whether the weights of the residual classes are those of the conditions, or
        slowly even out their shares of the loss.

    n_interior : int, default=500
        Points inside the domain.

    n_boundary : int, default=200
        Points of all conditions together, in equal parts.

    sampling : {"sobol", "halton", "uniform", "residual"}, default="sobol"
        How points are drawn; "residual" prefers those where the residual is large.

    resample : int, "drift" or None, default=5
        Iterations for which points are kept; "drift": until the loss on fresh points is
        twice that on those of training; None: for good.

    n_directions : int or None, default=None
        Axes, other ones whenever points are drawn, from whose second derivatives the
        Laplacians of an equation are estimated [4]_: for hundreds of dimensions and
        more. None: Laplacians are exact.

    observed_outputs : sequence of str, default=None
        Outputs that the columns of y hold; None: all of them, in their order.

    observation_weight : float, default=1.0
        Weight of the mean square of the misfit to y.

    curriculum : sequence of (Problem, int), default=()
        Problems to begin with, and the iterations for each.

    single_precision_iter : int, default=0
        First iterations, computed in single precision.

    learning_rate : float or None, default=None
        Of "adam" and "sgd"; None is 1e-3 and 1e-2.

    max_iter : int, default=300
        Most iterations.

    tol : float, default=0.001
        A fit ends when in twenty iterations in a row the training loss has not fallen
        below its lowest by more than ``tol`` times that. 0: not for this reason.

    max_time : float or None, default=None
        Seconds after which the fit stops, compilation included.

    early_stopping : bool, default=False
        Stop when the loss on fresh points, or on validation data, no longer falls.

    validation_fraction : float, default=0.1
        Share of the rows of plain regression that ``early_stopping`` sets aside where
        it has no ``X_val``.

    n_iter_no_change : int, default=10
        Iterations without improvement that ``early_stopping`` waits for.

    warm_start : bool, default=False
        Start from the network and the coefficients of the previous fit.

    dtype : {"float64", "float32"}, default="float64"
        Precision of the fit.

    device : str or None, default=None
        Where to compute: "cpu", "gpu", or None for JAX's default.

    verbose : int, default=0
        1 prints a line a second, 2 one an iteration.

    random_state : int, RandomState instance or None, default=None
        Seed of weights and points.

    Attributes
    ----------
    coefs_ : list of ndarray
        Weights of the layers, or the parameters of ``network`` and the weights of its
        output layer. Inputs are the axes, mapped to [-1, 1]; periodic ones
        come last, as cosines and sines.

    intercepts_ : list of ndarray
        Biases of the layers.

    coefficients_ : dict
        The coefficients that were to be found, by name.

    coefficients_std_ : dict
        Their standard deviations, from the Gauss-Newton matrix and the misfits; NaN
        where the matrix is too large.

    gram_spectrum_ : ndarray
        Eigenvalues of the Gauss-Newton Gramian of the last iteration, descending; those
        of its Nystrom approximation where it was not formed. Empty where there is none.

    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        ``iteration``, ``time`` (seconds), ``loss``, ``val_loss`` (on fresh points),
        ``grad_norm``, ``step_size`` (length of the step), ``damping``, ``gain_ratio``,
        ``inner_iterations``, ``loss_NAME`` for each residual class and, where there is
        an exact solution, ``relative_error``.

    loss_ : float
        Loss of the returned network on the last training points.

    fresh_loss_ : float
        Loss on points that it was not trained on; NaN for plain regression without
        validation data.

    n_iter_ : int
        Iterations of this fit.

    converged_ : bool
        Whether the fit ended by ``tol``, or with the loss at rounding level.

    stop_reason_ : str
        "tol", "rounding", "max_iter", "max_time", "early_stopping", "callback",
        "interrupted", "line_search" or "non_finite".

    n_features_in_ : int
        Number of axes.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns of X in plain regression, where all are strings.

    See Also
    --------
    sklearn_gn.pde.Problem : How an equation is stated.

    References
    ----------
    .. [1] A. Jnini and F. Vella, "Dual natural gradient descent for scalable training
       of physics-informed neural networks".
    .. [2] M. Transtrum and J. Sethna, "Improvements to the Levenberg-Marquardt
       algorithm for nonlinear least-squares minimization".
    .. [3] G. Goldshlager, N. Abrahamsen and L. Lin, "A Kaczmarz-inspired approach to
       accelerate the optimization of neural network wavefunctions", Journal of
       Computational Physics.
    .. [4] Z. Shi, Z. Hu, M. Lin and K. Kawaguchi, "Stochastic Taylor derivative
       estimator: efficient amortization for arbitrary differential operators".

    Examples
    --------
    >>> from sklearn_gn import PINNSolver
    >>> from sklearn_gn.pde import Box, Dirichlet, Problem, laplacian
    >>> def membrane(u, x):
    ...     return laplacian(u)(x) + 1
    >>> disc = Problem(membrane, Box(x=(0, 1), y=(0, 1)), [Dirichlet(0.0)])
    >>> solver = PINNSolver(
    ...     disc,
    ...     hidden_layer_sizes=(16, 16),
    ...     n_interior=100,
    ...     n_boundary=60,
    ...     max_iter=30,
    ...     random_state=0,
    ... )
    >>> round(float(solver.fit().predict([[0.5, 0.5]])[0]), 3)  # doctest: +SKIP
    0.074
    """

    _short_forms = PINN_SOLVERS
    _parameter_constraints = {
        **GaussNewtonEstimator._parameter_constraints,
        "problem": [Problem, None],
        "hidden_layer_sizes": [
            "array-like",
            Interval(Integral, 1, None, closed="left"),
        ],
        "activation": [str, "array-like"],
        "network": [HasMethods(["init", "apply"]), None],
        "damping": [
            Interval(Real, 0, None, closed="left"),
            StrOptions({"trust_region", "gain_ratio", "loss"}),
        ],
        "geodesic_acceleration": ["boolean"],
        "momentum": [Interval(Real, 0, 1, closed="left")],
        "jacobi_scaling": ["boolean"],
        "loss_weights": [StrOptions({"fixed", "balanced"})],
        "n_interior": [Interval(Integral, 1, None, closed="left")],
        "n_boundary": [Interval(Integral, 0, None, closed="left")],
        "sampling": [StrOptions({"sobol", "halton", "uniform", "residual"})],
        "resample": [
            Interval(Integral, 1, None, closed="left"),
            StrOptions({"drift"}),
            None,
        ],
        "n_directions": [Interval(Integral, 1, None, closed="left"), None],
        "observed_outputs": ["array-like", None],
        "observation_weight": [Interval(Real, 0, None, closed="neither")],
        "curriculum": ["array-like"],
        "single_precision_iter": [Interval(Integral, 0, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither"), None],
    }

    def __init__(
        self,
        problem=None,
        *,
        hidden_layer_sizes=(50, 50, 50, 50),
        activation="tanh",
        network=None,
        solver="dngd",
        damping="trust_region",
        rank=None,
        geodesic_acceleration=True,
        momentum=0.0,
        jacobi_scaling=False,
        loss_weights="fixed",
        n_interior=500,
        n_boundary=200,
        sampling="sobol",
        resample=5,
        n_directions=None,
        observed_outputs=None,
        observation_weight=1.0,
        curriculum=(),
        single_precision_iter=0,
        learning_rate=None,
        max_iter=300,
        tol=1e-3,
        max_time=None,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        warm_start=False,
        dtype="float64",
        device=None,
        verbose=0,
        random_state=None,
    ):
        self.problem = problem
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.network = network
        self.solver = solver
        self.damping = damping
        self.rank = rank
        self.geodesic_acceleration = geodesic_acceleration
        self.momentum = momentum
        self.jacobi_scaling = jacobi_scaling
        self.loss_weights = loss_weights
        self.n_interior = n_interior
        self.n_boundary = n_boundary
        self.sampling = sampling
        self.resample = resample
        self.n_directions = n_directions
        self.observed_outputs = observed_outputs
        self.observation_weight = observation_weight
        self.curriculum = curriculum
        self.single_precision_iter = single_precision_iter
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.tol = tol
        self.max_time = max_time
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.dtype = dtype
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    # -- the fit ----------------------------------------------------------------------

    @unchanged_on_failure
    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X=None, y=None, sample_weight=None, *, X_val=None, y_val=None):
        """Solve the problem, with observations where there are any.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes), default=None
            Points of observations. Columns named like the axes may come in any order.

        y : array-like of shape (n_samples,) or (n_samples, n_observed), default=None
            What was observed there.

        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights of the observations; all equal where not given.

        X_val : array-like of shape (n_val_samples, n_axes), default=None
            Points of observations that are not trained on. Their misfit is part of
            ``convergence_log_["val_loss"]``.

        y_val : array-like of shape (n_val_samples,) or (n_val_samples, n_observed), \
                default=None
            What was observed there.

        Returns
        -------
        self : PINNSolver
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter is out of its range, if the problem is not well stated, if
            the data hold NaN or infinity or do not fit together, or if there is neither
            a problem nor data.
        """
        solver = self._solver_object().algorithm(ALGORITHMS)
        rng = check_random_state(self.random_state)
        observed = self._observations(X, y, sample_weight, X_val, y_val, rng)
        problem, scaling, training, validation, data = observed
        seed = rng.randint(_LARGEST_INT)
        untrained, features = self._untrained(problem, rng)
        start = self._start(untrained)
        sampler = NoPoints()
        if self.problem is not None:
            sampler = Sampler(
                self.n_interior,
                self.n_boundary,
                self.sampling,
                self.dtype,
                self.n_directions,
            )
        frame = Model(problem, () if features else self._activations(), (), features)
        models = self._models(frame, sampler, training, untrained.extra)
        options = self._options(models, sampler, seed)

        def fresh_loss(net):
            # A resumed fit has the points of the seed that it began with.
            with backend.scope(self.dtype, self.device):
                return float(total_loss(models[-1], net, run.data.fresh))

        has_fresh = self.problem is not None or validation is not None
        run = FitRun(
            self,
            solver,
            (Observed(training, validation), options),
            [start],
            loss_scale=1.0 if scaling is None else scaling.loss_scale,
            val_loss=fresh_loss if has_fresh else None,
            validation=validation,
        )
        if self.problem is not None:
            run.monitor = "val_loss"
        self._run(
            run,
            max_steps=self.max_iter,
            data=data,
            attributes=lambda net: {"_fitted": _Fitted(models[-1], net, scaling)},
            set_fitted=lambda: self._set_fitted(run, models[-1], scaling),
        )
        if self.problem is not None:
            self._warn_if_overfitted(run.val_loss(untrained))
        return self

    def _observations(self, X, y, sample_weight, X_val, y_val, rng):
        """Problem, units, batches of observations, and the data for callbacks."""
        data = {"X": X, "y": y, "metadata": None}
        if self.problem is not None and X is None and y is None:
            _check_absent(sample_weight=sample_weight, X_val=X_val, y_val=y_val)
            self.problem.check()
            self.n_features_in_ = self.problem.domain.dim
            return self.problem, None, None, None, data
        if self.problem is not None:
            self.problem.check()
            X = self._check_columns(X)
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64
        )
        weight = check_sample_weight(sample_weight, X)
        if sample_weight is not None:
            data["metadata"] = {"sample_weight": weight}
        data |= {"X": X, "y": y}
        n_targets = 1 if y.ndim == 1 else y.shape[1]
        if X_val is not None and self.problem is not None:
            X_val = self._check_columns(X_val)
        validation = self._check_validation_data(X_val, y_val, n_targets)
        self._single_target = y.ndim == 1
        y = y.reshape(len(y), -1).astype(np.float64)
        kept, weight = canonical_rows(X, y, weight)
        X, y = X[kept], y[kept]
        problem, scaling = self.problem, None
        if problem is None:
            if self.early_stopping and validation is None:
                train, val = validation_split(len(X), self.validation_fraction, rng)
                train, val = np.sort(train), np.sort(val)
                validation = X[val], y[val]
                X, y, weight = X[train], y[train], weight[train]
                weight = weight / weight.sum()
            scaling = Scaling.of(X, y, weight)
            problem = _plain_problem(X.shape[1], n_targets)
        self._check_observed(problem, n_targets)
        training = self._data_batch(X, y, weight, scaling)
        if validation is not None:
            X_val, y_val = validation
            share = np.full(len(X_val), 1 / len(X_val))
            validation = self._data_batch(X_val, y_val, share, scaling)
        return problem, scaling, training, validation, data

    def _check_columns(self, X):
        """Columns in the order of the axes; a ValueError where they do not fit."""
        axes, columns = self.problem.domain.axes, getattr(X, "columns", None)
        if columns is None or not all(isinstance(name, str) for name in columns):
            return X
        if set(columns) != set(axes):
            raise ValueError(
                f"X has the columns {list(columns)}; the axes are {list(axes)}."
            )
        return X[list(axes)].to_numpy()

    def _check_observed(self, problem, n_targets):
        self._observed = self._observed_numbers(problem)
        if len(self._observed) != n_targets:
            names = [problem.outputs[k] for k in self._observed]
            raise ValueError(
                f"y has {n_targets} columns; observed are the outputs {names}. Name "
                "those that y holds by observed_outputs."
            )
        dim = problem.domain.dim
        if self.n_features_in_ != dim:
            raise ValueError(
                f"X has {self.n_features_in_} columns; the problem has the {dim} axes "
                f"{problem.domain.axes}."
            )

    def _observed_numbers(self, problem):
        if self.observed_outputs is None:
            return tuple(range(len(problem.outputs)))
        names = np.atleast_1d(self.observed_outputs).tolist()
        for name in names:
            if name not in problem.outputs:
                raise ValueError(
                    f"observed_outputs={name!r} is unknown; the outputs are "
                    f"{problem.outputs}."
                )
        return tuple(problem.outputs.index(name) for name in names)

    def _data_batch(self, X, y, weight, scaling):
        """Observations, padded by their last row with weight zero."""
        if scaling is not None:
            X, y = scaling.x(X), (y - scaling.y_center) / scaling.y_scale
        n = backend.row_bucket(len(X))
        # Zeros may lie outside of a domain.
        rows = np.minimum(np.arange(n), len(X) - 1)
        weight = n * self.observation_weight * backend.pad_rows(weight, n)
        return batch_of(X[rows, None], y[rows], weight, self.dtype)

    def _activations(self):
        sizes, names = self._widths(), self.activation
        names = (names,) * len(sizes) if isinstance(names, str) else tuple(names)
        if len(names) != len(sizes):
            raise ValueError(
                f"activation names {len(names)} activations for {len(sizes)} hidden "
                "layers."
            )
        for name in names:
            activation_function(name)
        return names

    def _models(self, frame, sampler, training, extra):
        """What is compiled, for each stage of the curriculum."""
        last = frame.problem
        problems = [self._stage(last, stage) for stage, _ in self._curriculum()]
        return tuple(
            self._model(frame._replace(problem=problem), sampler, training, extra)
            for problem in (*problems, last)
        )

    def _curriculum(self):
        stages = []
        for entry in self.curriculum:
            if (
                len(entry) != 2
                or not isinstance(entry[0], Problem)
                or not isinstance(entry[1], Integral)
                or entry[1] < 1
            ):
                raise ValueError(
                    f"curriculum must hold pairs (Problem, iterations), got {entry!r}."
                )
            stages.append(tuple(entry))
        return stages

    @staticmethod
    def _stage(problem, stage):
        stage.check()
        same = (
            stage.outputs == problem.outputs
            and stage.n_inputs == problem.n_inputs
            and list(stage.unknown) == list(problem.unknown)
            and [k.name for k in stage.residual_classes()]
            == [k.name for k in problem.residual_classes()]
        )
        if not same:
            raise ValueError(
                "curriculum must hold problems with the outputs, axes, conditions and "
                f"unknown coefficients of the last one; {stage!r} differs."
            )
        return stage

    def _model(self, frame, sampler, training, extra):
        """The frame with its residual classes."""
        problem, classes = frame.problem, ()
        if self.problem is not None:
            axes = sampler.directions(problem.domain, np.random.RandomState(0))
            with backend.scope("float64", self.device):
                rows = needed_rows(problem, extra, axes)
            classes = tuple(map(ClassModel, problem.residual_classes(), rows))
        if training is not None:
            n = len(self._observed)
            kind = ResidualClass("data", _Observations(self._observed), 1, 1.0, n)
            classes = (*classes, ClassModel(kind, Rows()))  # of values alone
        if frame.features is not None:
            classes = tuple(known._replace(rows=None) for known in classes)
        return frame._replace(classes=classes)

    def _options(self, models, sampler, seed):
        rule = isinstance(self.damping, str)
        return Options(
            models=models,
            stages=tuple(np.cumsum([n for _, n in self._curriculum()], dtype=int)),
            sampler=sampler,
            damping=self.damping if rule else "fixed",
            shift=self._cast(0 if rule else self.damping),
            geodesic=bool(self.geodesic_acceleration),
            momentum=float(self.momentum),
            jacobi=bool(self.jacobi_scaling),
            rank=self.rank,
            balanced=self.loss_weights == "balanced",
            resample=0 if self.problem is None else self.resample or 0,
            n_single=self.single_precision_iter,
            learning_rate=self._cast(
                self.learning_rate or _LEARNING_RATES.get(self.solver, 1.0)
            ),
            max_iter=min(self.max_iter, _LARGEST_INT),
            tol=self._cast(self.tol),
            seed=np.int32(seed),
        )

    def _untrained(self, problem, rng):
        """The network at its start, and how features are made by one of the user's."""
        unknown, n_outputs = problem.unknown.values(), len(problem.outputs)
        if self.network is None:
            sizes = problem.n_inputs, *self._widths(), n_outputs
            net = start_parameters(rng, sizes, unknown)
            return backend.map_leaves(self._cast, net), None
        network = checked_network(self.network)
        with backend.scope(self.dtype, self.device):
            x = self._cast(np.zeros((1, problem.n_inputs)))
            params = backend.to_numpy(initial_parameters(network, rng, x))
            params = backend.map_leaves(self._cast, params)
            width = n_features(network, params, x)
        output = start_parameters(rng, (width, n_outputs), unknown)
        output = backend.map_leaves(self._cast, output)
        layers = (*backend.leaves(params), *output.layers)
        features = Features(network, backend.structure(params))
        return output._replace(layers=layers), features

    def _widths(self):
        widths = np.atleast_1d(self.hidden_layer_sizes).tolist()
        if not all(isinstance(w, Integral) and w > 0 for w in widths):
            raise ValueError(
                "hidden_layer_sizes must hold positive whole numbers, got "
                f"{self.hidden_layer_sizes!r}."
            )
        return widths

    def _start(self, new):
        """The network to begin with: a new one, or the previous one."""
        if not (self.warm_start and hasattr(self, "_fitted")):
            return new
        before = self._fitted.net
        shapes = [np.shape(leaf) for leaf in backend.leaves(before)]
        wanted = [np.shape(leaf) for leaf in backend.leaves(new)]
        if shapes != wanted:
            raise ValueError(
                "warm_start=True continues with a network of the previous layers, "
                f"{shapes[:-1]}, not with one of {wanted[:-1]}."
            )
        return backend.map_leaves(self._cast, before)

    # -- after the fit ----------------------------------------------------------------

    def _set_fitted(self, run, model, scaling):
        net, state = run.best_net, run.final_state
        self._fitted = _Fitted(model, net, scaling)
        layers, inner = [matrix.astype(np.float64) for matrix in net.layers], []
        if model.features is not None:
            inner, layers = layers[:-1], layers[-1:]
        self.coefs_ = inner + [matrix[:-1] for matrix in layers]
        self.intercepts_ = [matrix[-1] for matrix in layers]
        scale = run.loss_scale
        with backend.scope(self.dtype, self.device):
            self.loss_ = float(total_loss(model, net, state.batches)) * scale
            self.coefficients_ = _plain(coefficient_values(model.problem, net.extra))
        fresh = run.val_loss(net) if run.val_loss is not None else math.nan
        self.fresh_loss_ = fresh * scale
        n_residuals = sum(
            len(batch.x) * kind.residual.n_outputs
            for kind, batch in zip(model.classes, state.batches, strict=True)
        )
        n_weights = self._n_weights()
        self.gram_spectrum_ = np.zeros(0)
        if state.spectrum is not None:
            self.gram_spectrum_ = np.array(state.spectrum)
        elif self.solver == "dngd" and min(n_residuals, n_weights) <= _SPECTRAL:
            with backend.scope(self.dtype, self.device):
                values = gramian_eigenvalues(model, net, state.batches)
                self.gram_spectrum_ = backend.to_numpy(values)
        self._posterior = None
        if n_residuals * n_weights <= _JACOBIAN_FLOATS:
            batches, fresh = backend.to_numpy((state.batches, run.data.fresh))
            self._posterior = batches, fresh or batches
        unknown = self.coefficients_
        self.coefficients_std_ = {
            name: np.nan * value for name, value in unknown.items()
        }
        if unknown and self._posterior is not None:
            linear, deviations = self._linear_model()
            with backend.scope(self.dtype, self.device):
                std = coefficient_deviations(model, net, linear, deviations)
                self.coefficients_std_ = _plain(std)

    def _linear_model(self):
        """Residuals with their Jacobian, and their standard deviations."""
        model, net, _ = self._fitted
        batches, fresh = self._posterior
        with backend.scope(self.dtype, self.device):
            linear = linear_model(model, net, batches)
            return linear, row_deviations(model, net, batches, linear, fresh)

    def _warn_if_overfitted(self, untrained_loss):
        log = self.convergence_log_
        if not len(log["loss"]):
            return
        loss, fresh = log["loss"][-1], log["val_loss"][-1]
        solved = math.isfinite(untrained_loss) and fresh < _SOLVED * untrained_loss
        if solved or not fresh > _OVERFITTED * loss:
            return
        warnings.warn(
            f"At the end the loss is {fresh:.3g} on fresh points and {loss:.3g} on "
            "those of training: between these the equation does not hold, and the "
            "solution is not to be trusted. Raise n_interior and n_boundary, or lower "
            "resample.",
            ConvergenceWarning,
            stacklevel=2,
        )

    # -- predictions ------------------------------------------------------------------

    def predict(self, X, return_std=False):
        """Values of the solution.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes)
            Points. Columns named like the axes may come in any order.

        return_std : bool, default=False
            Whether to return standard deviations too, from the Gauss-Newton matrix:
            observations vary by their noise, the equation by its residuals on fresh
            points.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Values of the outputs; one dimension where there is one output.

        std : ndarray of the same shape
            Their standard deviations. Only with ``return_std``.

        Raises
        ------
        ValueError
            If standard deviations are wanted of a fit that is too large for them.
        """
        check_is_fitted(self)
        X = self._points(X)
        model, net, scaling = self._fitted
        y = self._in_batches(lambda x: solution(model, net, x), X)
        if scaling is not None:
            y = y * scaling.y_scale + scaling.y_center
        if not return_std:
            return self._shaped(y)
        if self._posterior is None:
            raise ValueError(
                "return_std=True: the fit has too many residuals and weights for "
                "standard deviations."
            )
        linear, deviations = self._linear_model()
        n = max(32, _JACOBIAN_FLOATS // (16 * self._n_weights() * y.shape[1]))
        square = self._in_batches(
            lambda x: variance(model, net, linear, deviations, x), X, n
        )
        std = np.sqrt(square) * (1.0 if scaling is None else scaling.y_scale)
        return self._shaped(y), self._shaped(std)

    def _n_weights(self):
        return sum(leaf.size for leaf in backend.leaves(self._fitted.net))

    def _shaped(self, y):
        single = self._single_target if self.problem is None else y.shape[1] == 1
        return y[:, 0] if single else y

    def _points(self, X):
        """Points in the units of the network."""
        if self.problem is not None:
            X = self._check_columns(X)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        scaling = self._fitted.scaling
        return X if scaling is None else scaling.x(X)

    def residual(self, X):
        """What is left of the equation.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes)
            Points.

        Returns
        -------
        r : ndarray of shape (n_samples, n_residuals)
            Its residuals, in the order in which ``problem.residual`` returns them.

        Raises
        ------
        ValueError
            If ``problem`` is None.
        """
        model, net, X = self._with_problem("residual", X)
        return self._in_batches(lambda x: residual_values(model, net, x), X)

    def derivative(self, X, *axes):
        """Partial derivatives of the solution.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes)
            Points.

        *axes : str
            Axes to differentiate along, one after the other.

        Returns
        -------
        dy : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            As from ``predict``.

        Raises
        ------
        ValueError
            If ``problem`` is None, or has no axis of such a name.
        """
        model, net, X = self._with_problem("derivative", X)
        for axis in axes or (None,):
            if axis not in model.problem.domain.axes:
                raise ValueError(
                    f"derivative: axis {axis!r} is unknown; the axes are "
                    f"{model.problem.domain.axes}."
                )
        return self._shaped(
            self._in_batches(lambda x: derivative_values(model, net, x, axes), X)
        )

    def _with_problem(self, name, X):
        check_is_fitted(self)
        if self.problem is None:
            raise ValueError(f"problem=None: {name} is of an equation.")
        model, net, _ = self._fitted
        return model, net, self._points(X)

    def score(self, X=None, y=None, sample_weight=None):
        """Coefficient of determination; without data, digits of the loss.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes), default=None
            Points.

        y : array-like of shape (n_samples,) or (n_samples, n_observed), default=None
            True values of the observed outputs there.

        sample_weight : array-like of shape (n_samples,), default=None
            Weights.

        Returns
        -------
        float
            R2 of the observed outputs; without data, minus the decimal logarithm of the
            loss on fresh points.
        """
        check_is_fitted(self)
        if X is None and y is None:
            return -math.log10(max(self.fresh_loss_, np.finfo(float).tiny))
        found = np.reshape(self.predict(X), (len(X), -1))
        found = found[:, list(self._observed_numbers(self._fitted.model.problem))]
        return r2_score(np.reshape(y, (len(X), -1)), found, sample_weight=sample_weight)

    def relative_error(self, X=None, *, multioutput="joint"):
        """Relative L2 error beside the exact solution of the problem.

        Outputs that are determined up to a constant are compared without their means.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes), default=None
            Points. None: 10,000 of the domain, or all those at which a computed
            solution is known.

        multioutput : {"joint", "raw_values"}, default="joint"
            Whether to return one number, for all known outputs together, or one each.

        Returns
        -------
        float or ndarray of shape (n_outputs,)
            NaN for outputs that are not known.

        Raises
        ------
        ValueError
            If the problem has no exact solution.
        """
        check_is_fitted(self)
        if self.problem is None or self.problem.exact is None:
            raise ValueError("relative_error: the problem has no exact solution.")
        if multioutput not in ("joint", "raw_values"):
            raise ValueError(
                f"multioutput must be 'joint' or 'raw_values', got {multioutput!r}."
            )
        if X is None:
            n = max(64, min(10_000, REFERENCE_FLOATS // self.problem.domain.dim))
            X, values = self.problem.reference(n, np.random.RandomState(0))
        else:
            X = self._points(X)
            values = self.problem.exact_values(X)
        model, net, _ = self._fitted
        found = self._in_batches(lambda x: solution(model, net, x), X)
        with backend.scope("float64"):
            joint, each = backend.to_numpy(relative_errors(self.problem, found, values))
        return float(joint) if multioutput == "joint" else each


def _plain_problem(n_features, n_targets):
    """The frame of plain regression: no equation, axes in standard units."""
    return Problem(
        _no_residual,
        Box(**{f"x{k}": (-1.0, 1.0) for k in range(n_features)}),
        outputs=tuple(f"y{k}" for k in range(n_targets)),
    )


def _check_absent(**arguments):
    """Refuse arguments that are about observations where there are none."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"{name} needs observations: X and y are missing.")


def _plain(values):
    """Numbers and arrays of numpy by name."""
    return {name: np.asarray(value, np.float64)[()] for name, value in values.items()}
