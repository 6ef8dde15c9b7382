"""ShallowReLURegressor: piecewise-linear fits with free breaking hyperplanes.

``fit`` checks the data, makes the problem of a solver (:mod:`.problem`), runs the loop,
and sets the attributes that :mod:`.fitted` makes of the best network. ``fit_chunks``
does the same for rows that do not fit into memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._caller import warn_user
from sklearn_gn._typing import Array, ArrayLike, RandomState
from sklearn_gn.arrays import backend, extremes
from sklearn_gn.base import GaussNewtonEstimator, NetworkRegressor, unchanged_on_failure
from sklearn_gn.bayes.evidence_gn import EvidenceOptions
from sklearn_gn.bayes.laplace import value_variances
from sklearn_gn.data.chunks import first_chunk, takes_only_chunks
from sklearn_gn.data.rows import (
    check_fits,
    check_sample_weight,
    chunks_of,
    validate_data,
)
from sklearn_gn.data.rows_source import CheckedRows
from sklearn_gn.runtime.fit_loop import FitRun
from sklearn_gn.runtime.summary import Summary
from sklearn_gn.shallow_relu import fitted
from sklearn_gn.shallow_relu.lines import SEGMENTED
from sklearn_gn.shallow_relu.network import hidden_features, hyperplanes_to_user
from sklearn_gn.shallow_relu.problem import (
    ROBUST_GN,
    exact_problem_of,
    on_all_rows,
    problem_of,
    reason_against_chunks,
)
from sklearn_gn.solvers import SHALLOW_RELU_SOLVERS, Solver

_BY_TARGET = "output_coef_", "output_intercept_", "linear_coef_", "noise_std_"


class ShallowReLURegressor(
    NetworkRegressor,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    GaussNewtonEstimator,
):
    r"""Continuous piecewise-linear regression with free breaking hyperplanes.

    Use it for noisy tables, and where kinks or segments are of interest: it can be
    read, and reports breakpoints with standard errors. For smooth functions of several
    features use :class:`~sklearn_gn.VarProNetRegressor`; for one series with few
    breakpoints, :class:`~sklearn_gn.SegmentedRegressor`; for very many rows or many
    thresholds, gradient boosting.

    The model is a shallow ReLU network with a linear term,

    .. math::
        u(x) = c_0 + s \cdot x + \sum_{i=1}^n c_i \max(0, w_i \cdot x + b_i), \quad
        |w_i| = 1,

    whose breaking hyperplanes :math:`w_i \cdot x + b_i = 0` move to the kinks of the
    data. By default nothing needs tuning: with several features, penalties and noise
    level maximise the evidence [2]_; with one feature, an information criterion chooses
    the number of breakpoints. If penalties and ``n_neurons`` are given, ``s`` is zero,
    and the fit is the least-squares problem of [1]_ with a global search.

    Parameters
    ----------
    n_neurons : int or "auto", default="auto"
        Number of neurons, each with one breaking hyperplane. "auto": 20 or fewer, and
        more as long as these raise the evidence; with one feature, ``alpha=0`` or
        another solver, ``criterion`` chooses among up to 64 (one feature) or 32.
    alpha : float, dict or "auto", default="auto"
        Penalties, in scaled units. "auto": the evidence chooses them; 0 for one feature
        or another solver. A number: all of them, but if ``n_neurons`` is given, or with
        one feature, the output layer alone. A dict, such as ``alpha_``: each.
    solver : str or solver object, default="vpgn"
        Name, or object of :mod:`sklearn_gn.solvers`: "vpgn" moves both layers together,
        "sggn" in turn as in [1]_; "lm", "lm_hidden", "bfgs", "kfra" and "adam" are
        baselines for the same objective.
    damping : float or None, default=None
        Shift added to the Gauss-Newton matrix of a step, in scaled units; it is no part
        of the objective. If None, the solver chooses it.
    rank : int or None, default=None
        Largest number of directions in which a step moves; if the evidence chooses the
        penalties, the dimension of its Krylov space. If None, there is no limit.
    init : str or array, default="auto"
        Initial hyperplanes: "uniform" ("auto" with one feature), "random" ("auto" with
        several), "horizontal", "vertical", or an array of rows (b, w) in units of X.
    n_init : int or "auto", default="auto"
        Number of initial networks; the best is returned. "auto": 3 if the evidence
        chooses the penalties, and then among these after some iterations; otherwise 1.
    criterion : {"bic", "aic", "gcv"}, default="bic"
        What ``n_neurons="auto"`` minimises with one feature, ``alpha=0`` or another
        solver.
    loss : {"squared_error", "huber"}, default="squared_error"
        With "huber", residuals beyond 1.345 robust standard deviations count linearly:
        for rows with outliers, not for skewed targets.
    max_iter : int, default=200
        Maximum number of iterations of a fit, over all starts and rounds of the search.
    tol : float, default=1e-10
        The fit stops when an iteration lowers the loss by less than this share; if the
        evidence chooses the penalties, when three have not raised it by 0.1 in all and
        by 0.001 per row.
    max_time : float or None, default=None
        Seconds after which the fit stops, compilation included. None: no limit.
    early_stopping : bool, default=False
        Whether to stop when the loss on validation data no longer falls, and to return
        the best iterate. The data are ``X_val`` and ``y_val``, or a part of the rows.
    validation_fraction : float, default=0.1
        Share of the rows set aside for ``early_stopping`` if no ``X_val`` is given.
    n_iter_no_change : int, default=10
        Number of iterations without improvement after which ``early_stopping`` stops.
    warm_start : bool, default=False
        Whether to start from the hyperplanes of the previous fit.
    dtype : {"float64", "float32"}, default="float64"
        Precision of fits with given penalties; all others use "float64".
    device : str, list of int, jax.sharding.Mesh or None, default=None
        Where to compute: "cpu", "gpu", or several devices, which share the rows. See
        :doc:`/user_guide/devices`.
    verbose : int, default=0
        If 1, print a line per second; if 2, one per iteration.
    random_state : int, RandomState instance or None, default=None
        Seed of starts, global search and validation split.

    Attributes
    ----------
    hyperplanes_ : ndarray of shape (n_active, 1 + n_features)
        Rows (b, w) with ``|w| = 1``, in the units of X. Empty: the model is linear.
    breakpoints_ : ndarray of shape (n_active,)
        Their positions, ascending. Only with one feature.
    breakpoint_std_ : ndarray of shape (n_active,)
        Standard errors of the breakpoints; NaN outside the data, infinite where an
        adjacent segment holds fewer than two distinct rows. Only with one feature.
    selection_path_ : dict of ndarrays
        ``n_neurons``, ``loss``, ``n_parameters`` and criterion of the sizes compared;
        ``search_penalty`` is added to "bic" with one feature. If ``criterion`` chose.
    output_coef_, linear_coef_ : ndarray of shape (n_active,) and (n_features,)
        Coefficients c, in the order of ``hyperplanes_``, and slopes s of the linear
        term; a row for each target if there are several.
    output_intercept_ : float or ndarray of shape (n_targets,)
        The constant :math:`c_0`.
    active_ : ndarray of shape (n_neurons,), dtype bool
        Which neurons are active.
    gram_spectrum_ : ndarray
        Eigenvalues of the layer Gauss-Newton matrix, in scaled units, descending.
    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        The iterations, a column each of ``iteration``, ``time`` (seconds), ``loss``,
        ``val_loss``, ``grad_norm``, ``step_size``, ``damping``, ``gain_ratio`` and
        ``inner_iterations``, and figures of the evidence; NaN where it does not apply.
    loss_ : float
        Half the weighted mean squared error, plus the penalties.
    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise, in units of y.
    alpha_ : dict
        Penalties found by the evidence: "slope", "coef", "bias", and "weights" of shape
        (n_features,). A feature with a large one has no kinks.
    alpha_method_ : str
        How the evidence was computed: "dense", "lanczos" (large fits), or "fixed".
    n_effective_parameters_, log_evidence_ : float
        Number of parameters that the data determine, and logarithm of the evidence (the
        higher, the more probable). Both only if the evidence has chosen the penalties.
    n_iter_, converged_ : int and bool
        Number of iterations, and whether the fit ended by ``tol`` or at rounding level.
    stop_reason_ : str
        "tol", "rounding", "max_iter", "max_time", "early_stopping", "callback",
        "interrupted", "line_search", "singular" or "non_finite".
    n_features_in_, feature_names_in_ : int and ndarray of shape (`n_features_in_`,)
        Number of features, and their names if all are strings.

    Notes
    -----
    Outside the training data the model continues linearly, and standard errors grow.

    If the fit is poor, :meth:`diagnose` says what limited it. Raise ``n_init`` or
    ``n_neurons``. For data without noise set ``alpha=0`` and ``n_neurons``, which turns
    on the global search. The :doc:`user guide </user_guide/shallow_relu>` has more.

    References
    ----------
    .. [1] Z. Cai, T. Ding, M. Liu, X. Liu and J. Xia, "A structure-guided Gauss-Newton
       method for shallow ReLU neural network", Algorithm 1.
    .. [2] D. MacKay, "A practical Bayesian framework for backpropagation networks",
       Neural Computation 4, 1992.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import ShallowReLURegressor
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> y = np.abs(X[:, 0] - 0.3) + np.abs(X[:, 0] - 0.7)
    >>> model = ShallowReLURegressor(n_neurons=3, random_state=0).fit(X, y)
    >>> model.predict([[0.3], [0.7]]).round(6)
    array([0.4, 0.4])
    """

    _short_forms = SHALLOW_RELU_SOLVERS
    _not_of_every_fit = (
        "_noise_of_rows",
        "_want_of_penalties",
        "alpha_",
        "breakpoint_std_",
        "breakpoints_",
        "log_evidence_",
        "n_effective_parameters_",
        "selection_path_",
    )
    _network: tuple[Any, Any]  # in scaled units, and these
    _noise_of_rows: Any = None  # how it varies, once intervals ask for it
    _parameter_constraints: dict[str, Any] = {
        **GaussNewtonEstimator._parameter_constraints,
        "n_neurons": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "criterion": [StrOptions({"bic", "aic", "gcv"})],
        "loss": [StrOptions({"squared_error", "huber"})],
        "alpha": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"}), dict],
        "damping": [Interval(Real, 0, None, closed="left"), None],
        "init": [
            StrOptions({"auto", "uniform", "horizontal", "vertical", "random"}),
            "array-like",
        ],
        "n_init": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    }

    def __init__(
        self,
        n_neurons: int | Literal["auto"] = "auto",
        *,
        alpha: float | Mapping[str, float] | Literal["auto"] = "auto",
        solver: str | Solver = "vpgn",
        damping: float | None = None,
        rank: int | None = None,
        init: str | ArrayLike = "auto",
        n_init: int | Literal["auto"] = "auto",
        criterion: Literal["bic", "aic", "gcv"] = "bic",
        loss: Literal["squared_error", "huber"] = "squared_error",
        max_iter: int = 200,
        tol: float = 1e-10,
        max_time: float | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        warm_start: bool = False,
        dtype: Literal["float64", "float32"] = "float64",
        device: Any = None,
        verbose: int = 0,
        random_state: RandomState = None,
    ) -> None:
        self.n_neurons = n_neurons
        self.alpha = alpha
        self.solver = solver
        self.damping = damping
        self.rank = rank
        self.init = init
        self.n_init = n_init
        self.criterion = criterion
        self.loss = loss
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

    # -- fit --------------------------------------------------------------------------

    @unchanged_on_failure
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        y_std: ArrayLike | None = None,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit the network to the data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Target values.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights. If None, all are equal.
        y_std : array-like of shape (n_samples,), default=None
            Standard deviations of the targets, up to a common factor, which is
            estimated and changes nothing. Unlike weights, they do not change how many
            rows there are. ``noise_std_`` is for a row of mean precision. If None,
            all are equal.
        X_val : array-like of shape (n_val_samples, n_features), default=None
            Validation samples. Their loss goes to ``convergence_log_["val_loss"]``, and
            is used by ``early_stopping``.
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
            If a parameter is out of its range, if the data contain NaN or infinity or
            are inconsistent, if they would not fit into memory, if all weights are
            zero, or if ``y_std`` is not positive.

        Warns
        -----
        UserWarning
            If weights look like inverse variances.
        """
        began = time.perf_counter()
        needs_all = y_std is not None or (self.early_stopping and X_val is None)
        chunks = None if needs_all else chunks_of(X, y, sample_weight)
        if chunks is not None and reason_against_chunks(self, np.shape(X)[1]) is None:
            return self.fit_chunks(chunks, X_val=X_val, y_val=y_val)
        check_fits(X, "fit_chunks reads rows piece by piece, or fit a random sample.")
        given = X, y, sample_weight, y_std, X_val, y_val
        data, y, weight, validation = self._checked_rows(*given)

        def is_late():
            seconds = np.inf if self.max_time is None else self.max_time
            return time.perf_counter() - began > seconds

        problem = problem_of(self, data["X"], y, weight, validation, is_late)
        self._solve(problem, data, began)
        exact = exact_problem_of(self, problem, is_late)
        if exact is not None:
            self._solve(exact, data, began)
        return self

    @unchanged_on_failure
    @takes_only_chunks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit_chunks(
        self,
        chunks: Iterable[tuple[ArrayLike, ...]],
        *,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit rows that come in chunks and do not fit into memory.

        Each of ``n_init`` networks is first fitted to a sample of the rows, which is
        one iteration of the log if the evidence chooses the penalties. The best one is
        then fitted to all rows; every iteration reads the chunks a few times. The
        result does not depend on how the rows are divided into chunks; up to 65,536
        distinct rows, which all fit into the sample, are fitted as by :meth:`fit`.
        Takes the solver "vpgn" with the squared loss and penalties of all parameters,
        as by default; with one feature, ``alpha`` must be a dict. Then :meth:`fit`
        calls this method if X is a dask array, or a memory-mapped array of 1 GiB or
        more.

        Parameters
        ----------
        chunks : iterable of tuples (X, y) or (X, y, sample_weight)
            Arrays of any length. The object must be iterable several times, such as a
            list or an object with ``__iter__``, not a generator.
        X_val : array-like of shape (n_val_samples, n_features), default=None
            Validation samples, which ``early_stopping`` needs here.
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
            If a parameter needs all rows at once, if the chunks can be iterated only
            once, or if one is malformed or holds NaN or infinity.
        """
        first = first_chunk(self, chunks, X_val)
        X, y = (array[:1] for array in first[:2])
        _, y, _, validation = self._checked_rows(X, y, X_val=X_val, y_val=y_val)
        reason = reason_against_chunks(self, self.n_features_in_)
        if reason is not None:
            raise ValueError(f"fit_chunks never has all rows in memory. {reason}")
        rows = CheckedRows(chunks, self.n_features_in_, y.shape[1])
        found = rows.survey()
        number, weight, X, y, is_complete = found.sample
        check_fits(X, "Give chunks of fewer features.")
        y = y[:, 0] if self._single_target else y
        metadata = {"sample_weight": weight}
        problem = problem_of(self, X, y, check_sample_weight(weight, X), validation)
        if not is_complete:
            metadata["all_rows"] = (found.n_rows, found.total)
            problem = on_all_rows(problem, rows, found)
        self._solve(problem, {"X": X, "y": y, "metadata": metadata})
        self._n_rows = found.n_rows
        if self._row_checks is not None:  # it numbers the rows of the sample
            self._row_checks = self._row_checks.renumbered(number)
        return self

    def _solve(self, problem, data, began=None):
        """Run the loop around the steps of a solver, and set the fitted attributes."""
        n_rounds = int(getattr(problem.options, "relocations", 0))
        run = FitRun(
            self,
            problem.solver,
            problem.rows,
            problem.options,
            problem.starts,
            loss_scale=problem.scaling.loss_scale,
            val_loss=problem.validation
            and fitted.validation_loss(problem.validation, problem.scaling),
            validation=problem.validation,
            began=began,
        )
        self._run(
            run,
            max_steps=len(problem.starts) * (self.max_iter + n_rounds),
            data=data,
            attributes=lambda net: {
                "_network": (net, problem.scaling),
                "_single_target": self._single_target,
            },
            set_fitted=lambda: self._set_fitted(run.best_net, problem, run.data),
        )

    def _set_fitted(self, net, problem, data):
        """Set the fitted attributes; ``data`` is what the solver prepared."""
        solver, given = problem.solver, (problem.scaling, problem.options)
        if isinstance(problem.options, EvidenceOptions):
            attributes = fitted.evidence_attributes(
                net, problem.rows, *given, robust=solver is ROBUST_GN
            )
        else:
            rows = data.rows if solver is SEGMENTED else problem.rows
            attributes = fitted.fitted_attributes(
                net, rows, *given, n_effective=problem.n_effective
            )
        if self._single_target:
            for name in _BY_TARGET:
                value = np.atleast_1d(attributes[name])[0]
                attributes[name] = value if np.ndim(value) else float(value)
        if problem.selection_path is not None:
            attributes["selection_path_"] = problem.selection_path
        for name, value in attributes.items():
            setattr(self, name, value)

    def _share_of_linear(self):
        return float(self.alpha_method_ != "fixed" and len(self.hyperplanes_) == 0)

    # -- predictions, from fitted state only ------------------------------------------

    def _predicted(self, X):
        """Predictions of validated rows, of shape (n_samples, n_targets)."""
        net, scaling = self._network
        # Under one thread of BLAS no bit depends on the number of cores.
        with np.errstate(over="ignore", invalid="ignore"), backend.one_blas_thread():
            y = fitted.predict_scaled(net, scaling.x(X))
        return extremes.scaled_back(y, scaling.y_scale, scaling.y_center)

    def _deviation(self, X):
        """Standard errors of predictions of validated rows, of the same shape."""
        _, scaling = self._network
        found, freedom = self._posterior, self._degrees_of_freedom
        if freedom <= 0:
            n_parameters = self._n_parameters
            n_rows = (freedom + n_parameters) / len(found.noise_ratio)
            warn_user(
                f"The weights of the rows sum to {n_rows:.4g}, and the network has "
                f"{n_parameters} parameters: the noise cannot be estimated, and the "
                "standard deviations mean nothing. Lower n_neurons."
            )
        with backend.one_blas_thread():
            variances = value_variances(*found[:3], scaling.x(X))
        with np.errstate(over="ignore"):  # what is no float is infinite
            return np.sqrt(found.noise_ratio * variances) * scaling.y_scale

    @property
    def _noise_scale(self):
        with np.errstate(all="ignore"), backend.one_blas_thread():
            return self._noise_of_rows and self._noise_of_rows.get()

    def __getstate__(self):
        if hasattr(self, "_spectrum"):  # a saved model leaves the rows behind
            self._noise_scale, self.gram_spectrum_  # noqa: B018
        return super().__getstate__()

    @property
    def gram_spectrum_(self) -> Array:
        """Eigenvalues of the layer Gauss-Newton matrix, from the first access on."""
        with backend.one_blas_thread():
            return self._spectrum.get()

    def summary(self) -> Summary:
        """Return tables of the breakpoints and the lines of a fit of one feature.

        Returns
        -------
        Summary
            ``print`` shows it as text, a notebook as HTML.

        Raises
        ------
        ValueError
            If the fit has several features or targets.
        """
        check_is_fitted(self)
        if self.n_features_in_ > 1 or np.ndim(self.output_coef_) > 1:
            raise ValueError(
                "summary() is for one feature and one target. diagnose() and "
                "RelevanceDisplay describe a fit of several."
            )
        return fitted.summarise(self)

    def to_sklearn(self) -> BaseEstimator:
        """Return a fitted pipeline of scikit-learn, which predicts without JAX.

        Predictions are the same to rounding errors.

        Returns
        -------
        model : Pipeline
            A ``StandardScaler`` and an ``MLPRegressor``. It shares no memory with this
            estimator.
        """
        from sklearn_gn.runtime import export

        check_is_fitted(self, "_network")
        net, scaling = self._network
        weights = [net.hyperplanes[:, 1:].T, np.asarray(net.coef, np.float64)]
        biases = [net.hyperplanes[:, 0], np.asarray(net.intercept)]
        network = export.DenseNetwork(weights, biases, "relu")
        if hasattr(net, "slope"):
            network = export.with_linear_term(network, net.slope)
        names = getattr(self, "feature_names_in_", None)
        return export.regressor(network, scaling, names)

    def transform(self, X: ArrayLike) -> Array:
        """Return the hidden features ``max(0, w_i . x + b_i)`` of the active neurons.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        Returns
        -------
        features : ndarray of shape (n_samples, n_active)
            In the order of ``hyperplanes_``; ``features @ output_coef_ + X @
            linear_coef_ + output_intercept_`` is the prediction. A linear model has
            no hidden features: there is no column then.
        """
        check_is_fitted(self, "_network")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        net, scaling = self._network
        hyperplanes = net.hyperplanes[self._active_slots]
        _, factor = hyperplanes_to_user(scaling, hyperplanes)
        return hidden_features(hyperplanes, scaling.x(X)) / factor
