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
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from sklearn_gn.core import backend
from sklearn_gn.core.data import canonical_rows, check_sample_weight, validation_split
from sklearn_gn.core.estimator import GaussNewtonEstimator, unchanged_on_failure
from sklearn_gn.core.fit_loop import FitRun
from sklearn_gn.core.solver import Rows
from sklearn_gn.shallow_relu.algorithms import ALGORITHMS, SEGMENTED
from sklearn_gn.shallow_relu.dense import DenseSizes
from sklearn_gn.shallow_relu.fitted import (
    fitted_attributes,
    hidden_features,
    predict_scaled,
    prediction_errors,
    validation_loss,
)
from sklearn_gn.shallow_relu.options import FitOptions, fit_options, solver_setting
from sklearn_gn.shallow_relu.scaling import Scaling, total_weight, unit_sum
from sklearn_gn.shallow_relu.segmented import SegmentedSizes
from sklearn_gn.shallow_relu.size_selection import select_size
from sklearn_gn.shallow_relu.starts import (
    first_hyperplanes,
    given_hyperplanes,
    initial_network,
    random_hyperplanes,
    stack_networks,
)
from sklearn_gn.solvers import SHALLOW_RELU_SOLVERS


class _Problem(NamedTuple):
    """What a solver is given, and what leads back to the user's units."""

    solver: object
    rows: Rows
    options: FitOptions
    starts: list
    scaling: Scaling
    validation: tuple | None
    n_effective: float  # sum of the sample weights


class ShallowReLURegressor(
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    MultiOutputMixin,
    RegressorMixin,
    GaussNewtonEstimator,
):
    r"""Continuous piecewise-linear regression with free breaking hyperplanes.

    Use it where kinks, jumps or segments are of interest: it reports the breakpoints
    with standard errors. For smooth functions of several features use
    :class:`~sklearn_gn.VarProNetRegressor`.

    The model is a shallow ReLU network,

    .. math:: u(x) = c_0 + \sum_{i=1}^n c_i \max(0, w_i \cdot x + b_i), \quad |w_i| = 1,

    fitted by weighted least squares in all its parameters: the breaking hyperplanes
    :math:`w_i \cdot x + b_i = 0` move to the kinks and jumps of the data. The output
    layer is a linear least-squares problem. In the structure-guided Gauss-Newton method
    (SgGN) of [1]_ the hidden layer takes Gauss-Newton steps in turn with it, from which
    inactive neurons are left out; the default solver moves both layers together. A
    global search carries either out of the local minima in which the bare iteration
    ends.

    Parameters
    ----------
    n_neurons : int or "auto", default=20
        Number of neurons n, each with one breaking hyperplane (one breakpoint where
        there is one feature). The model has no linear term: with one feature, a neuron
        left of the data carries the slope of the first segment, so that n neurons
        make n segments. If "auto", ``criterion`` chooses the number: the network
        doubles where the error is until the criterion gets worse, to at most 64
        neurons with one feature and 32 with several, then loses its least useful
        neurons one by one.

    alpha : float, default=0.0
        Ridge penalty ``alpha / 2 * |c|^2`` of the output layer, part of the objective
        that all solvers minimise. It is measured in scaled units: one feature in
        [-1, 1], several standardised, targets of size 1, loss divided by the sum of
        weights.

    solver : str or solver object, default="vpgn"
        Solver of the least-squares problem: a name, or an object of
        :mod:`sklearn_gn.solvers`, which has further parameters. All solvers minimise
        the same objective from the same starting network.

        - "vpgn", :class:`~sklearn_gn.solvers.JointGN`: Gauss-Newton in both layers
          together, with a global search. On 18 real tables it was more accurate than
          "sggn" on most, and faster.
        - "sggn", :class:`~sklearn_gn.solvers.SgGN`: structure-guided Gauss-Newton,
          with the same search.
        - "lm", "lm_hidden", :class:`~sklearn_gn.solvers.LM`: Levenberg-Marquardt in
          all parameters, or in the hidden ones alone.
        - "bfgs", :class:`~sklearn_gn.solvers.BFGS`: BFGS with a line search.
        - "kfra", :class:`~sklearn_gn.solvers.KFRA`: Gauss-Newton with
          Kronecker-factored diagonal blocks.
        - "adam", ``Adam(learning_rate=0.01)``: Adam on all rows. Its learning rate is
          halved ten times over ``max_iter``.

    damping : float or None, default=None
        Shift added to the Gauss-Newton matrix of every step, in scaled units. If None,
        the solver chooses it: "vpgn" and "lm" adapt it to the gain ratio, "sggn" adds
        nothing. It is no part of the objective; "bfgs" and "adam" do not use it.

    rank : int or None, default=None
        Largest number of directions that a Gauss-Newton step and the solve for the
        output layer keep, those of the largest singular values. If None, or larger
        than there are, all directions are kept.

    init : str or array, default="auto"
        Initial breaking hyperplanes.

        - "auto": "uniform" with one feature, "random" with several, whose range may
          be that of a few outliers.
        - "uniform": spread evenly over the range of the features in turn.
        - "horizontal", "vertical": spread evenly over the range of the last or of the
          first feature.
        - "random": random directions through random rows.
        - array of shape (n_neurons, 1 + n_features): rows (b, w) in the units of X.
          With ``n_neurons="auto"``, an array of any number of rows is the network from
          which the choice of the size starts; the names other than "auto" then need
          a number of neurons.

    n_init : int, default=1
        Number of initial networks: ``init`` first, then random ones. The best result
        is returned. "vpgn" and "sggn" run them side by side, and the best eight go on
        to the global search; the others run them one after the other. "adam" does not
        end before ``max_iter`` and gets to the first only.

    criterion : {"bic", "aic", "gcv"}, default="bic"
        Criterion that ``n_neurons="auto"`` minimises. The Bayesian and Akaike
        information criteria take the residuals for independent and normal, generalised
        cross-validation only for independent.

    max_iter : int, default=200
        Largest number of iterations of one fit, over all starts and rounds. An accepted
        round of the global search counts as one, whatever its number of Gauss-Newton
        steps.

    tol : float, default=1e-10
        A descent ends when an iteration lowers the loss by no more than ``tol`` times
        the loss. "adam" does not use it.

    max_time : float or None, default=None
        Seconds after which the fit stops, compilation included. If None, there is no
        limit.

    early_stopping : bool, default=False
        Whether to stop when the loss on validation data no longer falls, and to return
        the iterate with the lowest one. The data are ``X_val`` and ``y_val`` of
        ``fit``, or else a random part of the training data.

    validation_fraction : float, default=0.1
        Share of the rows set aside where ``early_stopping`` has no ``X_val``.

    n_iter_no_change : int, default=10
        Number of iterations without improvement after which ``early_stopping`` stops.

    warm_start : bool, default=False
        Whether to start from the hyperplanes of the previous fit. With
        ``n_neurons="auto"`` the choice of the size starts from them.

    dtype : {"float64", "float32"}, default="float64"
        Precision of the fit.

    device : str or None, default=None
        Where to compute: "cpu" or "gpu". If None, JAX's default device.

    verbose : int, default=0
        If 1, print a line a second; if 2, one an iteration.

    random_state : int, RandomState instance or None, default=None
        Seed of initialisation, global search and validation split. The draws depend on
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
        were compared. Only with ``n_neurons="auto"``.

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
        of ``alpha``.

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

    If a fit is poor, raise ``n_init`` or the number of rounds, for instance
    ``solver=JointGN(relocations=60)``; if it follows the noise, lower ``n_neurons`` or
    raise ``alpha``. Read more in the :doc:`user guide </user_guide/shallow_relu>`.

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
        "alpha": [Interval(Real, 0, None, closed="left")],
        "damping": [Interval(Real, 0, None, closed="left"), None],
        "init": [
            StrOptions({"auto", "uniform", "horizontal", "vertical", "random"}),
            "array-like",
        ],
        "n_init": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        n_neurons=20,
        *,
        alpha=0.0,
        solver="vpgn",
        damping=None,
        rank=None,
        init="auto",
        n_init=1,
        criterion="bic",
        max_iter=200,
        tol=1e-10,
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
        self.n_neurons = n_neurons
        self.alpha = alpha
        self.solver = solver
        self.damping = damping
        self.rank = rank
        self.init = init
        self.n_init = n_init
        self.criterion = criterion
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
        X, y, weight = self._check_data(X, y, sample_weight)
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
            val_loss=validation_loss(problem.validation, problem.scaling),
            validation=problem.validation,
        )
        self._run(
            run,
            max_steps=self.n_init * (self.max_iter + int(problem.options.relocations)),
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
            in them. A weight of two counts as two rows. Only with ``return_std``.

        Warns
        -----
        UserWarning
            If ``return_std`` is set and the weights of the rows sum to no more than the
            number of parameters: the noise cannot be estimated then.
        """
        check_is_fitted(self, "_network")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        net, scaling = self._network
        y = predict_scaled(net, scaling.x(X)) * scaling.y_scale + scaling.y_center
        if not return_std:
            return y[:, 0] if self._single_target else y
        std = self._deviation(X)
        return (y[:, 0], std[:, 0]) if self._single_target else (y, std)

    def _deviation(self, X):
        net, scaling = self._network
        freedom = self._posterior.degrees_of_freedom
        if freedom <= 0:
            n_rows, q = self._posterior.n_effective, net.coef.shape[1]
            warnings.warn(
                f"The weights of the rows sum to {n_rows:.4g}, and the network has "
                f"{n_rows * q - freedom:.0f} parameters: the noise cannot be "
                "estimated, and the standard deviations mean nothing. Lower n_neurons.",
                UserWarning,
                stacklevel=3,
            )
        std = prediction_errors(self._posterior, net, self._active_slots, scaling.x(X))
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
        features = hidden_features(net.hyperplanes[self._active_slots], scaling.x(X))
        return features / factor

    # -- before the run ---------------------------------------------------------------

    def _check_data(self, X, y, sample_weight):
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
        n_effective = total_weight(weight)
        # Weights of a quadrature rule are no counts: a size is chosen for its rows.
        n_observations = max(n_effective, np.count_nonzero(weight))
        rng = check_random_state(self.random_state)
        y = y.reshape(len(y), -1).astype(np.float64)
        if solver is SEGMENTED and not self.early_stopping:
            kept = slice(None) if weight.min() > 0 else weight > 0
            # It sorts and merges the rows itself.
            X, y, weight = X[kept], y[kept], unit_sum(weight[kept])
        else:
            kept, weight = canonical_rows(X, y, weight)
            X, y = X[kept], y[kept]
        if self.early_stopping and validation is None:
            X, y, weight, validation = self._split(X, y, weight, rng)
            n_effective *= 1 - self.validation_fraction
            n_observations *= 1 - self.validation_fraction
        scaling = Scaling.of(X, y, weight)
        z, t = scaling.x(X), scaling.y(y)
        rows = Rows(z, t, weight)
        if solver is not SEGMENTED:  # which pads them itself
            size = backend.row_bucket(len(z))
            rows = Rows(*(self._cast(backend.pad_rows(a, size)) for a in rows))
        first = None
        if hasattr(self, "selection_path_"):
            del self.selection_path_
        if self.n_neurons == "auto":
            first = self._given_hyperplanes(None, scaling)
            first = self._select_size(rows, solver, scaling, n_observations, first, rng)
        starts = self._initial_networks(z, t, weight, scaling, solver, rng, first)
        options = fit_options(self, self._solver_object(), rng)
        return _Problem(solver, rows, options, starts, scaling, validation, n_effective)

    def _find_solver(self, n_features):
        """The solver; with one feature the joint step has an engine of its own."""
        solver = self._solver_object().algorithm(ALGORITHMS)
        plain = self.alpha == 0 and self.damping is None and self.rank is None
        plain = plain and self.dtype == "float64" and n_features == 1
        return SEGMENTED if plain and solver is ALGORITHMS["vpgn"] else solver

    def _split(self, X, y, weight, rng):
        """Set a random part of the distinct rows aside for validation."""
        train, val = validation_split(len(X), self.validation_fraction, rng)
        train, val = np.sort(train), np.sort(val)
        weight_val = weight[val] / weight[val].sum()
        weight_train = weight[train] / weight[train].sum()
        return X[train], y[train], weight_train, (X[val], y[val], weight_val)

    def _select_size(self, rows, solver, scaling, n_observations, first, rng):
        """Hyperplanes of the best size by ``criterion``, and the path to it."""
        kind = SegmentedSizes if solver is SEGMENTED else DenseSizes
        mean_square = float(rows.weight @ np.sum(rows.y**2, axis=1))
        with backend.scope(self.dtype, self.device):
            options = fit_options(self, self._solver_object(), rng)
            sizes = kind(rows, options, first)
            hyperplanes, path = select_size(
                sizes, self.criterion, n_observations * rows.y.shape[1], mean_square / 2
            )
        path["loss"] = path["loss"] * scaling.loss_scale
        self.selection_path_ = path
        return hyperplanes

    def _initial_networks(self, z, t, weight, scaling, solver, rng, first):
        """Initial networks in scaled units, with room for spare neurons."""
        relocations = solver_setting(self._solver_object(), "relocations")
        n_spare = solver.n_spare if relocations else 0
        n = self.n_neurons if first is None else len(first)
        draw = partial(random_hyperplanes, z, np.cumsum(weight))
        if first is None:
            given = self._given_hyperplanes(n, scaling)
            first = first_hyperplanes(self.init, given, n, z, partial(draw, rng=rng))
        others = [draw(n, rng) for _ in range(1, self.n_init)]
        networks = [
            initial_network(hyperplanes, n_spare, t.shape[1], self.dtype)
            for hyperplanes in (first, *others)
        ]
        return [stack_networks(networks)] if solver.side_by_side else networks

    def _given_hyperplanes(self, n, scaling):
        """Those of the previous fit or of ``init``, in scaled units; None without."""
        warm = self.warm_start and hasattr(self, "_network")
        previous = self.hyperplanes_ if warm else None
        return given_hyperplanes(self.init, previous, n, scaling)

    # -- after the run ----------------------------------------------------------------

    def _set_fitted(self, net, problem, data):
        """Fitted attributes of a network; ``data`` is what the solver prepared."""
        segmented = problem.solver is SEGMENTED
        attributes = fitted_attributes(
            net,
            data.rows if segmented else problem.rows,
            problem.scaling,
            problem.options,
            n_effective=problem.n_effective,
            device=self.device,
        )
        if self._single_target:
            attributes["coef_"] = attributes["coef_"][0]
            attributes["intercept_"] = float(attributes["intercept_"][0])
        for name in ("breakpoints_", "breakpoint_std_"):  # of a fit of one feature
            if hasattr(self, name):
                delattr(self, name)
        for name, value in attributes.items():
            setattr(self, name, value)
