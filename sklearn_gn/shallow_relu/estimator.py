"""ShallowReLURegressor: piecewise-linear fits with free breaking hyperplanes."""

import warnings
from functools import partial
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    RegressorMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.utils import check_random_state, gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from sklearn_gn.core import backend
from sklearn_gn.core.data import canonical_rows, check_sample_weight, validation_split
from sklearn_gn.core.estimator import GaussNewtonEstimator, unchanged_on_failure
from sklearn_gn.core.fit_loop import FitRun
from sklearn_gn.core.scaling import moments
from sklearn_gn.shallow_relu import search as relocation
from sklearn_gn.shallow_relu import segmented
from sklearn_gn.shallow_relu.algorithms import ALGORITHMS
from sklearn_gn.shallow_relu.network import ShallowReLU
from sklearn_gn.shallow_relu.segmented import SEGMENTED, condensed
from sklearn_gn.shallow_relu.sggn import Options, Rows, finish, spectra
from sklearn_gn.shallow_relu.size_selection import select_size
from sklearn_gn.shallow_relu.uncertainty import (
    breakpoint_deviation,
    deviation,
    posterior,
)
from sklearn_gn.solvers import SHALLOW_RELU_SOLVERS

_BATCH_ROWS = 65536  # of predictions, so that the hidden features stay small
_DEVIATION_ROWS = 2048  # of standard deviations, which take the tangent space
_FAR = 1e100  # in units of the training data
_LARGEST_INT = np.iinfo(np.int32).max


class _Scaling(NamedTuple):
    """Units of a fit; targets have mean 0 and size 1.

    One feature is mapped to [-1, 1]; several are standardised, which is the metric in
    which |w| = 1 and steps are damped: a range would be that of the outliers. One
    factor serves all targets, so that the loss is the user's up to that factor.
    """

    x_center: np.ndarray
    x_scale: np.ndarray
    y_center: np.ndarray
    y_scale: float

    @classmethod
    def of(cls, X, y, weight):
        center, scale = _ends(X) if X.shape[1] == 1 else moments(X, weight)
        y_center = weight @ y
        y_scale = np.max(np.abs(y - y_center))
        return cls(
            x_center=center,
            x_scale=scale,
            y_center=y_center,
            y_scale=y_scale if y_scale > 0 else 1.0,
        )

    def x(self, X):
        # Bounded, so that rows far outside the training data give no infinities, whose
        # differences are not numbers.
        with np.errstate(over="ignore"):
            return np.clip((X - self.x_center) / self.x_scale, -_FAR, _FAR)

    def y(self, y):
        return (y - self.y_center) / self.y_scale

    @property
    def loss_scale(self):
        """Factor from losses in scaled units to the user's; it may be 0 or infinite."""
        with np.errstate(over="ignore"):
            return float(np.square(np.float64(self.y_scale)))

    def hyperplanes_to_scaled(self, hyperplanes):
        """Hyperplanes of the user's units in those of the solver, |w| = 1."""
        normal = hyperplanes[:, 1:] * self.x_scale
        bias = hyperplanes[:, :1] + hyperplanes[:, 1:] @ self.x_center[:, None]
        return np.concatenate([bias, normal], axis=1) / _norms(normal)

    def hyperplanes_to_user(self, hyperplanes):
        """The way back; also the factors that the rescaling to |w| = 1 takes out."""
        # Relative to the smallest scale, so that no ratio of scales can overflow.
        unit = self.x_scale.min()
        normal = hyperplanes[:, 1:] * (unit / self.x_scale)
        bias = hyperplanes[:, 0] * unit - normal @ self.x_center
        norm = _norms(normal)
        rows = np.concatenate([bias[:, None], normal], axis=1) / norm
        return rows, norm[:, 0] / unit


class _Problem(NamedTuple):
    """What a solver is given, and what leads back to the user's units."""

    solver: object
    rows: Rows
    options: Options
    starts: list
    scaling: _Scaling
    validation: tuple | None
    n_effective: float  # sum of the sample weights


def _ends(X):
    """Centre and half length of the range; 1 for what is constant."""
    low, high = X.min(axis=0), X.max(axis=0)
    center = low / 2 + high / 2
    # Rounded as the features are, so that none leaves [-1, 1].
    half = np.maximum(high - center, center - low)
    return center, np.where(half > 0, half, 1.0)


def _norms(normal):
    """Euclidean norms of rows, of shape (n, 1), without under- or overflow."""
    largest = np.max(np.abs(normal), axis=1, keepdims=True)
    largest = np.where(largest > 0, largest, 1.0)
    return largest * np.linalg.norm(normal / largest, axis=1, keepdims=True)


class ShallowReLURegressor(
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    MultiOutputMixin,
    RegressorMixin,
    GaussNewtonEstimator,
):
    r"""Continuous piecewise-linear regression with free breaking hyperplanes.

    The model is a shallow ReLU network,

    .. math:: u(x) = c_0 + \sum_{i=1}^n c_i \max(0, w_i \cdot x + b_i), \quad |w_i| = 1,

    fitted by weighted least squares in all its parameters: the breaking hyperplanes
    :math:`w_i \cdot x + b_i = 0` move to the kinks and jumps of the data. The output
    layer is a linear least-squares problem. In the structure-guided Gauss-Newton method
    (SgGN) of [1]_ the hidden layer takes Gauss-Newton steps in turn with it, from which
    inactive neurons are left out; the default solver takes both layers together. Rounds
    of relocation carry either out of the local minima in which the bare iteration ends.

    Parameters
    ----------
    n_neurons : int or "auto", default=20
        Number of neurons n, each with one breaking hyperplane (one breakpoint where
        there is one feature). The model has no linear term: with one feature a neuron
        left of the data carries the slope of the first segment, so that n neurons
        make n segments. "auto" chooses by ``criterion``: the network doubles where the
        error is until the criterion gets worse, to at most 64 neurons with one
        feature and 32 with several, then loses its least useful neurons one by one.

    solver : str, default="vpgn"
        All minimise the same objective from the same starting network.

        - "vpgn": Gauss-Newton in all parameters together, the output layer projected
          out, with relocation. With one feature an iteration costs
          O(n_neurons log n_samples), unless ``damping``, ``rank`` or float32 is asked
          for. On 18 real tables it was ahead of "sggn" on most, and quicker.
        - "sggn": structure-guided Gauss-Newton with relocation.
        - "lm": Levenberg-Marquardt in all parameters.
        - "lm_hidden": Levenberg-Marquardt in the hidden parameters, the output layer
          solved after each step.
        - "bfgs": BFGS with a line search for the strong Wolfe conditions.
        - "kfra": Gauss-Newton with Kronecker-factored diagonal blocks.
        - "adam": Adam on all rows, its rate halved ten times over ``max_iter``.

    init : str or array, default="auto"
        Initial breaking hyperplanes.

        - "auto": "uniform" with one feature, "random" with several, whose range may
          be that of a few outliers.
        - "uniform": spread evenly over the range of the features in turn.
        - "horizontal", "vertical": spread evenly over the range of the last or of the
          first feature.
        - "random": random directions through random rows.
        - array of shape (n_neurons, 1 + n_features): rows (b, w) in the units of X.

    relocations : int, default=20
        Rounds of the global search of "sggn": neurons are added where the error is,
        all move, those that matter least are deleted, and the result is kept if it is
        better. 0 gives the iteration of [1]_ alone, in which the intercept does not
        move in the hidden-layer step.

    n_starts : int, default=1
        Number of initial networks: ``init`` first, then random ones. The best result
        is kept. "vpgn" and "sggn" run them side by side, and the best eight go on to
        relocation; the others take them one after the other. "adam" does not end
        before ``max_iter`` and gets to the first only.

    criterion : {"bic", "aic", "gcv"}, default="bic"
        What ``n_neurons="auto"`` makes small. The Bayesian and Akaike information
        criteria take the residuals for independent and normal, generalised
        cross-validation only for independent.

    damping : float, default=0.0
        Shift added to the layer Gauss-Newton matrix and to the mass matrix, in scaled
        units (one feature in [-1, 1], several standardised, targets of size 1, loss
        divided by the sum of weights). For the output layer this is a ridge penalty
        ``damping / 2 * |c|^2``, which the loss of every solver includes.

    rank : int or None, default=None
        Most directions kept in each linear solve of "sggn", "lm" and "lm_hidden", and
        in the solve for the output layer from which all start. None, or a number
        larger than there are, keeps all.

    rank_tol : float, default=1e-12
        Singular values below ``rank_tol`` times the largest are dropped in each solve.

    active_tol : float, default=1e-10
        Neurons whose coefficient is below ``active_tol`` times the largest are
        inactive: they do not move, and are left out of the fitted attributes.

    max_iter : int, default=200
        Most iterations of one fit, over all starts and rounds. An accepted round of
        relocation counts as one, whatever its number of Gauss-Newton steps.

    tol : float, default=1e-10
        A descent ends when an iteration lowers the loss by no more than ``tol`` times
        the loss. "adam" takes no notice.

    max_time : float or None, default=None
        Seconds after which the fit stops, compilation included.

    learning_rate : float, default=0.01
        Initial rate of "adam".

    early_stopping : bool, default=False
        Stop when the loss on validation data no longer falls, and return the iterate
        with the lowest. The data are ``X_val`` and ``y_val`` of ``fit``, or else a
        random part of the training data.

    validation_fraction : float, default=0.1
        Share of the rows set aside where ``early_stopping`` has no ``X_val``.

    n_iter_no_change : int, default=10
        Iterations without improvement that ``early_stopping`` waits for.

    warm_start : bool, default=False
        Start from the hyperplanes of the previous fit.

    dtype : {"float64", "float32"}, default="float64"
        Precision of the fit.

    device : str or None, default=None
        Where to compute: "cpu", "gpu", or None for JAX's default.

    verbose : int, default=0
        1 prints a line a second, 2 one an iteration.

    random_state : int, RandomState instance or None, default=None
        Seed of initialisation, relocation and validation split. The draws depend on
        the weighted data set, not on the order or the multiplicity of its rows.

    Attributes
    ----------
    hyperplanes_ : ndarray of shape (n_active, 1 + n_features)
        Breaking hyperplanes of the active neurons in the units of X: rows (b, w) with
        ``|w| = 1``.

    breakpoints_ : ndarray of shape (n_active,)
        Positions of the breakpoints, ascending. Only with one feature.

    breakpoint_std_ : ndarray of shape (n_active,)
        Standard errors of the breakpoints by the delta method, from the Gauss-Newton
        matrix: breakpoint plus and minus 1.96 of them is a 95 % interval where the
        segments beside it hold many rows. NaN for a breakpoint outside the data,
        infinite where a neighbouring segment holds fewer than two distinct rows. Only
        with one feature.

    selection_path_ : dict of ndarrays
        ``n_neurons``, ``loss``, ``n_parameters`` and the criterion of all sizes that
        ``n_neurons="auto"`` looked at. Only then.

    coef_ : ndarray of shape (n_active,) or (n_targets, n_active)
        Output coefficients, in the order of ``hyperplanes_``.

    intercept_ : float or ndarray of shape (n_targets,)
        The constant :math:`c_0`.

    active_ : ndarray of shape (n_neurons,), dtype bool
        Which neurons are active.

    gram_spectrum_ : ndarray of shape (n_active * (1 + n_features),)
        Eigenvalues of the layer Gauss-Newton matrix in scaled units, descending.

    mass_spectrum_ : ndarray of shape (1 + n_active,)
        Eigenvalues of the mass matrix in scaled units, descending.

    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        ``iteration``, ``time`` (seconds), ``loss``, ``val_loss``, ``grad_norm``,
        ``step_size``, ``damping``, ``gain_ratio`` and ``inner_iterations``
        (Gauss-Newton steps), one row an iteration. A column that means nothing to the
        solver is NaN.

    loss_ : float
        Half the weighted mean squared error of the returned network, plus the penalty
        of ``damping``.

    n_iter_ : int
        Iterations of this fit.

    converged_ : bool
        Whether the fit ended by ``tol``, or with residuals at rounding level.

    stop_reason_ : str
        "tol", "rounding", "max_iter", "max_time", "early_stopping", "callback",
        "interrupted", "line_search", "singular" or "non_finite"; with several starts,
        that of the one whose network is returned.

    n_features_in_ : int
        Number of features.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, where all are strings.

    See Also
    --------
    sklearn.neural_network.MLPRegressor : Deep networks by first-order methods.

    Notes
    -----
    Unlike in the papers, the loss is divided by the sum of weights. Outside the range
    of the training data the model goes on linearly.

    References
    ----------
    .. [1] Z. Cai, T. Ding, M. Liu, X. Liu and J. Xia, "A structure-guided Gauss-Newton
       method for shallow ReLU neural network", Algorithm 1.

    Examples
    --------
    A function with kinks at 0.3 and 0.7 is recovered exactly:

    >>> import numpy as np
    >>> from sklearn_gn import ShallowReLURegressor
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> y = np.abs(X[:, 0] - 0.3) + np.abs(X[:, 0] - 0.7)
    >>> model = ShallowReLURegressor(n_neurons=3, random_state=0).fit(X, y)
    >>> inside = (model.breakpoints_ > 0.01) & (model.breakpoints_ < 0.99)
    >>> model.breakpoints_[inside].round(6)
    array([0.3, 0.7])
    >>> bool(model.loss_ < 1e-20)
    True
    """

    _short_forms = SHALLOW_RELU_SOLVERS
    _parameter_constraints = {
        **GaussNewtonEstimator._parameter_constraints,
        "n_neurons": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "criterion": [StrOptions({"bic", "aic", "gcv"})],
        "init": [
            StrOptions({"auto", "uniform", "horizontal", "vertical", "random"}),
            "array-like",
        ],
        "relocations": [Interval(Integral, 0, None, closed="left")],
        "n_starts": [Interval(Integral, 1, None, closed="left")],
        "rank_tol": [Interval(Real, 0, 1, closed="left")],
        "active_tol": [Interval(Real, 0, 1, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        n_neurons=20,
        *,
        solver="vpgn",
        init="auto",
        relocations=20,
        n_starts=1,
        criterion="bic",
        damping=0.0,
        rank=None,
        rank_tol=1e-12,
        active_tol=1e-10,
        max_iter=200,
        tol=1e-10,
        max_time=None,
        learning_rate=0.01,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        warm_start=False,
        dtype="float64",
        device=None,
        verbose=0,
        random_state=None,
    ):
        self.n_neurons = n_neurons
        self.solver = solver
        self.init = init
        self.relocations = relocations
        self.n_starts = n_starts
        self.criterion = criterion
        self.damping = damping
        self.rank = rank
        self.rank_tol = rank_tol
        self.active_tol = active_tol
        self.max_iter = max_iter
        self.tol = tol
        self.max_time = max_time
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.dtype = dtype
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    @unchanged_on_failure
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X, y, sample_weight=None, *, X_val=None, y_val=None):
        """Fit the network to the data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples.

        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Target values.

        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; all equal where not given.

        X_val : array-like of shape (n_val_samples, n_features), default=None
            Validation samples. Their loss goes to ``convergence_log_["val_loss"]``,
            and decides where ``early_stopping`` is set.

        y_val : array-like of shape (n_val_samples,) or (n_val_samples, n_targets), \
                default=None
            Validation targets.

        Returns
        -------
        self : ShallowReLURegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter is out of its range, if the data hold NaN or infinity or do
            not fit together, or if all weights are zero.
        """
        X, y, weight = self._validated(X, y, sample_weight)
        n_targets = 1 if self._single_target else y.shape[1]
        validation = self._check_validation_data(X_val, y_val, n_targets)
        metadata = None if sample_weight is None else {"sample_weight": weight}
        data = {"X": X, "y": y, "metadata": metadata}
        problem = self._problem(X, y, weight, validation)
        run = FitRun(
            self,
            problem.solver,
            (problem.rows, problem.options),
            problem.starts,
            loss_scale=problem.scaling.loss_scale,
            val_loss=self._validation_loss(problem.validation, problem.scaling),
            validation=problem.validation,
        )
        self._run(
            run,
            max_steps=self.n_starts * (self.max_iter + self.relocations),
            data=data,
            attributes=lambda net: {
                "_network": (net, problem.scaling),
                "_single_target": self._single_target,
            },
            set_fitted=lambda: self._set_fitted(run.best_net, problem, run.data),
        )
        return self

    def predict(self, X, return_std=False):
        """Predict the targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        return_std : bool, default=False
            Whether to return standard deviations too.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Predicted values.

        y_std : ndarray of the same shape
            Standard errors of the predicted means by the delta method, with the
            breaking hyperplanes uncertain too; the noise of a new observation is not
            in them. Only with ``return_std``.

        Warns
        -----
        UserWarning
            If ``return_std`` is set and the data have no more rows than the network
            has parameters: the noise cannot be estimated then.
        """
        check_is_fitted(self, "_network")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        net, scaling = self._network
        y = _predict(net, scaling, X)
        if not return_std:
            return y[:, 0] if self._single_target else y
        std = self._deviation(X)
        return (y[:, 0], std[:, 0]) if self._single_target else (y, std)

    def _deviation(self, X):
        net, scaling = self._network
        if self._posterior.degrees_of_freedom <= 0:
            warnings.warn(
                f"The data have {-self._posterior.degrees_of_freedom:.0f} rows fewer "
                "than the network has parameters, or as many: the noise cannot be "
                "estimated, and the standard deviations mean nothing. Lower n_neurons.",
                UserWarning,
                stacklevel=3,
            )
        active = self._active_network(net)
        std = np.empty((len(X), net.coef.shape[1]))
        for batch in gen_batches(len(X), _DEVIATION_ROWS):
            std[batch] = deviation(self._posterior, active, scaling.x(X[batch]))
        return std * scaling.y_scale

    def transform(self, X):
        """Return the hidden features ``max(0, w_i . x + b_i)`` of the active neurons.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        features : ndarray of shape (n_samples, n_active)
            In the order of ``hyperplanes_``; ``features @ coef_ + intercept_`` is the
            prediction.
        """
        check_is_fitted(self, "_network")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        net, scaling = self._network
        _, factor = scaling.hyperplanes_to_user(net.hyperplanes[self._active_slots])
        features = _hidden(net.hyperplanes[self._active_slots], scaling.x(X))
        return features / factor

    # -- before the run ---------------------------------------------------------------

    def _validated(self, X, y, sample_weight):
        """Data of the right kinds, and weights."""
        self._solver_object().algorithm(ALGORITHMS)
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64
        )
        self._single_target = y.ndim == 1
        return X, y, check_sample_weight(sample_weight, X)

    def _problem(self, X, y, weight, validation):
        """What a solver is given, in its units."""
        solver = self._find_solver(X.shape[1])
        # Weights of a quadrature rule are not counts: every row counts as one at least.
        n_effective = max(_total(weight), np.count_nonzero(weight))
        rng = check_random_state(self.random_state)
        y = y.reshape(len(y), -1).astype(np.float64)
        if solver is SEGMENTED and not self.early_stopping:
            kept = slice(None) if weight.min() > 0 else weight > 0
            # It sorts and merges the rows itself.
            X, y, weight = X[kept], y[kept], _normalised(weight[kept])
        else:
            kept, weight = canonical_rows(X, y, weight)
            X, y = X[kept], y[kept]
        if self.early_stopping and validation is None:
            X, y, weight, validation = self._split(X, y, weight, rng)
            n_effective *= 1 - self.validation_fraction
        scaling = _Scaling.of(X, y, weight)
        z, t = scaling.x(X), scaling.y(y)
        rows = self._rows(z, t, weight, solver)
        first = None
        if hasattr(self, "selection_path_"):
            del self.selection_path_
        if self.n_neurons == "auto":
            first = self._select_size(rows, solver, scaling, n_effective, rng)
        starts = self._initial_networks(z, t, weight, scaling, solver, rng, first)
        options = self._options(rng)
        return _Problem(solver, rows, options, starts, scaling, validation, n_effective)

    def _find_solver(self, n_features):
        """The solver; with one feature the joint step has an engine of its own."""
        solver = self._solver_object().algorithm(ALGORITHMS)
        whole = self.damping == 0 and self.rank is None and self.dtype == "float64"
        one_feature = solver.name == SEGMENTED.name and n_features == 1
        return SEGMENTED if one_feature and whole else solver

    def _options(self, rng):
        return Options(
            damping=self._cast(self.damping),
            rank=np.int32(
                _LARGEST_INT if self.rank is None else min(self.rank, _LARGEST_INT)
            ),
            rank_tol=self._cast(max(self.rank_tol, np.finfo(self.dtype).eps)),
            active_tol=self._cast(self.active_tol),
            tol=self._cast(self.tol),
            relocations=np.int32(min(self.relocations, _LARGEST_INT)),
            max_iter=np.int32(min(self.max_iter, _LARGEST_INT)),
            learning_rate=self._cast(self.learning_rate),
            seed=np.int32(rng.randint(np.iinfo(np.int32).max)),
        )

    def _split(self, X, y, weight, rng):
        """Set a random part of the distinct rows aside for validation."""
        train, val = map(
            np.sort, validation_split(len(X), self.validation_fraction, rng)
        )
        weight_val = weight[val] / weight[val].sum()
        weight_train = weight[train] / weight[train].sum()
        return X[train], y[train], weight_train, (X[val], y[val], weight_val)

    def _validation_loss(self, validation, scaling):
        if validation is None:
            return None
        X, y, *weight = validation
        weight = weight[0] if weight else np.full(len(X), 1 / len(X))

        z, t = scaling.x(X), scaling.y(y)

        def loss(net):
            error = _predict(net, scaling, z, scaled=True) - t
            return 0.5 * float(weight @ np.sum(error**2, axis=1))

        return loss

    def _rows(self, z, t, weight, solver):
        """Rows as the solver wants them; that for one feature pads them itself."""
        rows = Rows(z, t, weight)
        if solver is SEGMENTED:
            return rows
        n_padded = backend.row_bucket(len(z))
        return Rows(*(self._cast(backend.pad_rows(a, n_padded)) for a in rows))

    def _select_size(self, rows, solver, scaling, n_effective, rng):
        """Hyperplanes of the best size by ``criterion``, and the path to it."""
        module = segmented if solver is SEGMENTED else relocation
        mean_square = float(rows.weight @ np.sum(rows.y**2, axis=1))
        with backend.scope(self.dtype, self.device):
            sizes = module.Sizes(rows, self._options(rng))
            hyperplanes, path = select_size(
                sizes, self.criterion, n_effective * rows.y.shape[1], mean_square / 2
            )
        path["loss"] = path["loss"] * scaling.loss_scale
        self.selection_path_ = path
        return hyperplanes

    def _initial_networks(self, z, t, weight, scaling, solver, rng, first):
        """Initial networks in scaled units, with room for spare neurons."""
        d, n_spare = z.shape[1], solver.n_spare if self.relocations else 0
        n = self.n_neurons if first is None else len(first)
        draw = partial(_random_hyperplanes, z, np.cumsum(weight))
        if first is None:
            first = self._initial_hyperplanes(z, draw, scaling, rng)
        others = (draw(n, rng) for _ in range(1, self.n_starts))
        alive = np.arange(n + n_spare) < n
        spare = np.zeros((n_spare, 1 + d))
        spare[:, 1] = 1.0
        networks = [
            ShallowReLU(
                hyperplanes=self._cast(np.concatenate([hyperplanes, spare])),
                coef=self._cast(np.zeros((n + n_spare, t.shape[1]))),
                intercept=self._cast(np.zeros(t.shape[1])),
                alive=alive,
            )
            for hyperplanes in (first, *others)
        ]
        return [_stack(networks)] if solver.side_by_side else networks

    def _initial_hyperplanes(self, z, draw, scaling, rng):
        n, d = self.n_neurons, z.shape[1]
        if self.warm_start and hasattr(self, "_network"):
            if self.hyperplanes_.shape[1] != 1 + d:
                raise ValueError(
                    f"warm_start=True continues from {self.hyperplanes_.shape[1] - 1} "
                    f"features, X has {d}."
                )
            old = scaling.hyperplanes_to_scaled(self.hyperplanes_)[:n]
            fill = draw(n - len(old), rng)
            return np.concatenate([old, fill])
        if isinstance(self.init, str):
            if self.init == "random" or (self.init == "auto" and d > 1):
                return draw(n, rng)
            axes = {"horizontal": [d - 1], "vertical": [0]}
            return _axis_hyperplanes(z, n, list(axes.get(self.init, range(d))))
        hyperplanes = np.asarray(self.init, dtype=np.float64)
        if hyperplanes.shape != (n, 1 + d):
            raise ValueError(
                f"init has shape {hyperplanes.shape}, expected (n_neurons, 1 + "
                f"n_features) = {(n, 1 + d)}."
            )
        normal_is_zero = ~np.any(hyperplanes[:, 1:] != 0, axis=1)
        if not np.isfinite(hyperplanes).all() or normal_is_zero.any():
            raise ValueError(
                "init must hold finite rows (b, w) with w different from zero; row "
                f"{int(np.argmax(normal_is_zero | ~np.isfinite(hyperplanes).all(1)))} "
                "is not."
            )
        return scaling.hyperplanes_to_scaled(hyperplanes)

    # -- after the run ----------------------------------------------------------------

    def _set_fitted(self, net, problem, data):
        """Fitted attributes of a network; ``data`` is what the solver prepared."""
        rows, scaling = problem.rows, problem.scaling
        with backend.scope(self.dtype, self.device):
            if problem.solver is SEGMENTED:
                rows, mean_square = condensed(net, data.host)
                rows = Rows(
                    *(backend.pad_rows(a, backend.row_bucket(len(a))) for a in rows)
                )
            else:
                mean_square = _mean_square(net, rows, scaling)
            net = backend.to_numpy(finish(net))
            gram, mass = backend.to_numpy(
                spectra(net, rows, self._cast(self.active_tol))
            )
        size = np.linalg.norm(net.coef, axis=1)
        active = net.alive & (size > 0) & (size >= self.active_tol * size.max())
        self._network = (net, scaling)
        self._active_slots = np.flatnonzero(active)
        self.active_ = active[net.alive]
        n_active = len(self._active_slots)
        self._n_features_out = n_active

        slots = self._active_slots
        scaled = net.hyperplanes[slots].astype(np.float64)
        self.hyperplanes_, factor = scaling.hyperplanes_to_user(scaled)
        coef = (net.coef[slots].T * scaling.y_scale) * factor
        intercept = net.intercept * scaling.y_scale + scaling.y_center
        self.coef_ = coef[0] if self._single_target else coef
        self.intercept_ = float(intercept[0]) if self._single_target else intercept
        self.gram_spectrum_ = gram[: n_active * (1 + self.n_features_in_)]
        self.mass_spectrum_ = mass[: 1 + n_active]
        penalty = self.damping * np.sum(net.coef.astype(np.float64) ** 2)
        loss = 0.5 * float(np.sum(mean_square) + penalty)
        self.loss_ = loss * scaling.loss_scale
        self._set_uncertainty(net, rows, scaling, mean_square, problem.n_effective)

    def _set_uncertainty(self, net, rows, scaling, mean_square, n_effective):
        # All slots, so that the shapes do not depend on how many are active.
        net = self._active_network(net)
        rows = Rows(*(np.asarray(a, np.float64) for a in rows))
        with backend.scope("float64", self.device):
            self._posterior = posterior(net, rows, mean_square, n_effective)
            if self.n_features_in_ == 1:
                self._set_breakpoints(net, rows, scaling)
        if self.n_features_in_ > 1 and hasattr(self, "breakpoints_"):
            del self.breakpoints_, self.breakpoint_std_

    def _active_network(self, net):
        """The network in float64, only its active neurons alive."""
        active = np.zeros(len(net.alive), dtype=bool)
        active[self._active_slots] = True
        coef = np.where(active[:, None], net.coef, 0).astype(np.float64)
        hyperplanes, intercept = (
            a.astype(np.float64) for a in (net.hyperplanes, net.intercept)
        )
        return ShallowReLU(hyperplanes, coef, intercept, active)

    def _set_breakpoints(self, net, rows, scaling):
        position = -net.hyperplanes[:, 0] / net.hyperplanes[:, 1]
        position[~net.alive] = max(2.0, position[net.alive].max(initial=0) + 1)
        order = np.argsort(position, kind="stable")
        left = (net.hyperplanes[:, 1] < 0) & net.alive
        std = breakpoint_deviation(
            position[order],
            net.coef[order],
            rows,
            self._posterior.pooled,
            left[order],
        )
        order = order[: len(self._active_slots)]
        knots, std = position[order], std[: len(order)]
        std[(knots <= -1) | (knots >= 1)] = np.nan
        self.breakpoints_ = knots * scaling.x_scale[0] + scaling.x_center[0]
        self.breakpoint_std_ = std * scaling.x_scale[0]


def _mean_square(net, rows, scaling):
    """Weighted mean squares of the residuals of all targets, in scaled units."""
    error = _predict(net, scaling, rows.x, scaled=True) - rows.y
    return rows.weight.astype(np.float64) @ error**2


def _normalised(weight):
    """Weights that sum to one, without overflow in the sum."""
    weight = weight / weight.max()
    return weight / weight.sum()


def _total(weight):
    """Sum of the weights, at most the largest float."""
    with np.errstate(over="ignore"):
        return min(float(weight.sum()), np.finfo(float).max)


def _stack(starts):
    """One network of stacked arrays for starts that run side by side."""
    return ShallowReLU(*(np.stack(leaves) for leaves in zip(*starts, strict=True)))


def _hidden(hyperplanes, z):
    return np.maximum(hyperplanes[:, 0] + z @ hyperplanes[:, 1:].T, 0)


def _predict(net, scaling, X, *, scaled=False):
    """Predictions in float64; ``scaled`` means scaled units on both sides."""
    y = np.empty((len(X), net.coef.shape[1]))
    for batch in gen_batches(len(X), _BATCH_ROWS):
        z = X[batch] if scaled else scaling.x(X[batch])
        y[batch] = _hidden(net.hyperplanes, z) @ net.coef + net.intercept
    return y if scaled else y * scaling.y_scale + scaling.y_center


def _axis_hyperplanes(z, n, axes):
    """Hyperplanes evenly spaced over the range of given features in turn.

    The first on every axis lies at the lower end and carries the linear term.
    """
    low, high = z.min(axis=0), z.max(axis=0)
    hyperplanes = np.zeros((n, 1 + z.shape[1]))
    for k, axis in enumerate(axes):
        mine = np.arange(k, n, len(axes))
        share = np.arange(len(mine)) / max(len(mine), 1)
        hyperplanes[mine, 1 + axis] = 1.0
        hyperplanes[mine, 0] = -(low[axis] + (high[axis] - low[axis]) * share)
    return hyperplanes


def _random_hyperplanes(z, cumulated, n, rng):
    """Hyperplanes through random rows, of any orientation."""
    normal = rng.standard_normal((n, z.shape[1]))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    row = np.searchsorted(cumulated, rng.random_sample(n), side="right")
    point = z[np.minimum(row, len(z) - 1)]
    return np.concatenate([-np.sum(normal * point, axis=1)[:, None], normal], axis=1)
