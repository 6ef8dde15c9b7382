"""VarProNetRegressor: least squares with networks, by variable projection."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, Self, overload

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin, _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._typing import Array, ArrayLike, RandomState
from sklearn_gn.arrays import backend, extremes
from sklearn_gn.base import unchanged_on_failure
from sklearn_gn.bayes.laplace import PredictionIntervalMixin
from sklearn_gn.data.chunks import first_of, takes_only_chunks
from sklearn_gn.data.rows import check_sample_weight, validate_data, weights_of
from sklearn_gn.data.rows_source import CheckedRows
from sklearn_gn.optim.solver import Rows
from sklearn_gn.solvers import NETWORK_SOLVERS, Solver
from sklearn_gn.varpro import members
from sklearn_gn.varpro.estimator import _VarProNet

_AUTO = StrOptions({"auto"})


class VarProNetRegressor(
    PredictionIntervalMixin, MultiOutputMixin, RegressorMixin, _VarProNet
):
    r"""Networks for regression, with penalties chosen from the data.

    Use it for noisy tables without any settings: it then predicts, with error bars, by
    a mean of small networks, a linear model and a Gaussian process, whose penalties and
    noise level maximise the evidence [2]_ and whose shares are those that suit left-out
    rows best [3]_. Use it also for surrogate models: smooth functions of up to hundreds
    of inputs without noise, and oscillations. With thousands of
    runs and many outputs, set ``alpha=1e-8`` and ``hidden_layer_sizes``. For functions
    with jumps use boosted trees; for breakpoints that can be read,
    :class:`ShallowReLURegressor`.

    With given penalties and ``hidden_layer_sizes``, there is one network. Its last
    layer W is the solution of a linear least-squares problem for every value of the
    other weights :math:`\theta`, and the reduced objective,

    .. math::
        \Phi(\theta) = \min_W \frac{1}{2 \sum_i v_i} \sum_i v_i
        |W z(x_i; \theta) - y_i|^2 + \frac{\alpha_{out}}{2} |W|^2
        + \frac{\alpha}{2} |B \theta|^2,

    is minimised by a Gauss-Newton trust-region method (GNvpro) [1]_.

    Parameters
    ----------
    network : {"mlp", "neural_ode", "cnn"} or object, default="mlp"
        The hidden layers.

        - "mlp": fully connected layers of ``hidden_layer_sizes``.
        - "neural_ode": an antisymmetric neural ODE as wide as the first of these.
        - "cnn": a convolutional network; the rows of X are square images.
        - an object with ``init(key, x)`` and ``apply(parameters, x)``, of
          :mod:`sklearn_gn.networks` or Flax; ``apply`` returns the last features.

    hidden_layer_sizes : "auto" or tuple of int, default="auto"
        Widths of the hidden layers. If "auto", those of a committee are (10,), more for
        more than two targets that are not correlated with each other, and for many rows
        two, four or more times as many, as long as the evidence rises. A single network
        has (64, 64). If empty, the model is linear.

    activation : "auto", str or tuple of str, default="auto"
        Activation of all hidden layers, or one for each: "tanh", "relu", "sigmoid",
        "softplus", "silu", "gelu", "sin" or "identity". If "auto", the members of a
        committee alternate between "relu" and "tanh", and a single network uses "tanh".

    n_init : "auto" or int, default="auto"
        Number of random starts. Those of a committee are its members, whose predictions
        are averaged. Otherwise the network of lowest loss is returned. If "auto", a
        committee has 2 to 4 networks, more if they differ by more than the noise, and a
        Gaussian process beside them; a single network has one start.

    solver : str or solver object, default="gnvpro"
        Solver of the least-squares problem: a name, or an object of
        :mod:`sklearn_gn.solvers`, which has further parameters. All solvers minimise
        the same objective from the same initial weights.

        - "gnvpro" (:class:`~sklearn_gn.solvers.GNvpro`): Gauss-Newton variable
          projection.
        - "lbfgs_vpro" (:class:`~sklearn_gn.solvers.LBFGSvpro`): L-BFGS on the reduced
          objective.
        - "gn" (:class:`~sklearn_gn.solvers.FullGN`): Gauss-Newton in all weights, in a
          Krylov space.
        - "adam", "sgd" (:class:`~sklearn_gn.solvers.Adam`,
          :class:`~sklearn_gn.solvers.SGD`): first-order methods on mini-batches.

    alpha : "auto", float, tuple (hidden, output) or dict, default="auto"
        Penalties. If "auto", the evidence chooses them [2]_ for "mlp" with the default
        solver, unless the table is very large; other networks take (0.01, 0.0001). A
        number, in scaled units, is every penalty of the committee. Two are those of the
        hidden layers and of the output layer of one network. A dict, such as
        ``alpha_``, fixes all penalties.

    damping : float or None, default=None
        Shift added to the Gauss-Newton matrix of every step; it changes the steps, not
        the objective. If None, the trust region sets it. If a number, steps are halved
        until the loss falls.

    rank : int or None, default=None
        Dimension of the Krylov space in which the Gauss-Newton system is solved, at
        most 2,000. If None, "gnvpro" solves the whole system while it is small, and
        like "gn" takes 20 dimensions otherwise. For the members of a committee the
        space is that of the matrix divided by its diagonal, and None solves the whole
        system; with a number, the penalties differ a little.

    scale : bool, default=True
        Whether to bring features to mean 0 and variance 1, and targets to mean 0 and
        mean variance 1, during the fit. Cells that are far outside the quartiles of
        their feature count as a limit, in predictions too, if the other rows are then
        predicted clearly better. In a committee, each target has its own factor.
        Otherwise one factor serves all targets, unless they are in different units: see
        :ref:`the user guide <several_targets>`.

    max_iter : "auto" or int, default="auto"
        Maximum number of iterations over all starts, or epochs of mini-batch solvers.
        An iteration of a committee is a step of every member that has begun. If "auto",
        3000 for a committee, which fits to noisy data do not reach, and 100 otherwise.

    tol : float, default=0.001
        The fit stops when the loss has fallen by less than ``tol`` times its size in
        three successive iterations, a pass over all batches or, with mini-batch
        solvers, ten epochs. A committee stops when the mean log evidence per row has
        risen by less than ``tol`` in five iterations, or with given penalties when the
        loss has fallen so little. If 0, this test is disabled.

    max_time : float or None, default=None
        Seconds after which the fit stops, compilation included; None sets no limit.

    early_stopping : bool, default=False
        Whether to stop when the loss on validation data no longer falls, and to
        return the iterate for which it is lowest. The data are ``X_val`` and ``y_val``
        of ``fit``, or else a random part of the training data.

    validation_fraction : float, default=0.1
        Fraction of the rows that ``early_stopping`` sets aside without ``X_val``.

    n_iter_no_change : int, default=10
        Number of iterations without improvement after which ``early_stopping`` stops
        the fit. With batches, only iterations that evaluate all rows count.

    warm_start : bool, default=False
        Whether to start from the network of the previous fit.

    dtype : {"float64", "float32"}, default="float64"
        Precision of the fit. A committee is always fitted in "float64".

    device : str, list of int, jax.sharding.Mesh or None, default=None
        Where to compute: "cpu" or "gpu". If None, a committee is fitted on the CPU, and
        all else on JAX's default device. A list of numbers in ``jax.devices()``, or a
        mesh, divides the rows among several devices, for committees and for "gnvpro",
        "gn" and "lbfgs_vpro"; see :doc:`/user_guide/devices`. Committees of very large
        networks are fitted on the CPU. A fitted model predicts on the device of its
        fit, if there is one.

    verbose : int, default=0
        If 1, print a line per second; if 2, one per iteration.

    random_state : int, RandomState instance or None, default=None
        Seed of weights, batches and validation split. The draws depend on the weighted
        data set, not on the order or the multiplicity of its rows.

    Attributes
    ----------
    coefs_ : list of ndarray
        Weights of the hidden layers, for scaled features. Only of a single network; a
        committee has them in ``estimators_``.

    intercepts_ : list of ndarray
        Biases of the hidden layers. Only of a single network.

    estimators_ : list
        Members of a committee, with ``predict``, ``coefs_``, ``intercepts_``,
        ``alpha_``, ``log_evidence_``, ``n_effective_parameters_`` and ``share_`` (in
        the predictions). The networks come first; a linear model, whose hidden weights
        are zero, and a Gaussian process, with ``length_scales_`` in place of layers,
        follow if they have a share. Only of a committee.

    linear_coef_ : ndarray of shape (n_values, n_features)
        Slopes of the linear term, in units of X and y. Only of a committee.

    output_coef_ : ndarray of shape (n_targets, n_features_out)
        Weights of the output layer, in units of y; without the part of a Gaussian
        process, which has none.

    output_intercept_ : ndarray of shape (n_targets,)
        Constants of the output layer, in units of y.

    alpha_ : tuple of float or dict
        Penalties of the hidden layers and of the output layer. Of a committee, a dict
        of geometric means over its networks: "slope", "coef", "bias", "weights" (one
        for each feature, inverse to its relevance) and "layers" (those after the
        first).

    alpha_method_ : str
        How the evidence is computed: "dense", or "lanczos" for an estimate with more
        than 2,000 weights and rows; "fixed" if penalties are given.

    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise, in units of y, one for each target. Only of
        committees.

    gram_spectrum_ : ndarray
        Eigenvalues of the last reduced Gauss-Newton matrix, in descending order, or
        Ritz values if it was not formed. Of a committee, its member of highest
        evidence. Empty for "lbfgs_vpro" and mini-batch solvers.

    log_evidence_ : float
        Logarithm of the mean evidence of the members: the higher of two fits to the
        same data is more probable, also if the other is a
        :class:`ShallowReLURegressor`. Only of a committee.

    n_effective_parameters_ : float
        Number of parameters that the data determine, averaged over the members with
        their shares. Only of a committee.

    n_work_units_ : float
        Number of passes over all rows, forward or backward, or by a product with the
        Jacobian or its transpose. Only of a single network.

    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        One row per iteration: ``iteration``, ``time`` (seconds), ``loss``,
        ``val_loss``, ``grad_norm``, ``step_size``, ``damping``, ``gain_ratio``,
        ``inner_iterations``, ``work_units`` so far, ``level``, and
        ``evaluated_on_all_rows``: False where the losses are those of an earlier row.
        What does not apply to the solver is NaN. For a committee, rows hold means over
        the members, and the last three columns are replaced by ``log_evidence``,
        ``n_effective_parameters``, ``noise_std`` (in scaled units) and ``n_running``,
        the number of members that took a step.

    loss_ : float
        Objective of the returned network, in units of y; for a committee, the mean over
        its members, weighted as in predictions. Where targets have different scales,
        the objective in scaled units times the mean square of the scales. The log, that
        of the networks, may end at a lower loss if linear models replace some of them.

    n_iter_ : int
        Number of iterations of this fit.

    converged_ : bool
        Whether the fit ended by ``tol``, or with the loss at rounding level.

    stop_reason_ : str
        "tol", "rounding", "max_iter", "max_time", "early_stopping", "callback",
        "interrupted", "line_search" or "non_finite".

    n_features_in_ : int
        Number of features.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all of them are strings.

    See Also
    --------
    ShallowReLURegressor : One layer, with breakpoints that can be read.

    Notes
    -----
    If the fit is poor, :meth:`diagnose` says what limited it. For runs without noise,
    compare with one network, ``alpha=1e-8`` and ``hidden_layer_sizes``, and set
    ``max_time`` if the fit takes too long. For noisy data, look for outliers, as the
    evidence assumes normal noise: ``solver=GNvpro(loss="huber")`` is robust. Raise
    ``hidden_layer_sizes`` if both training and test error are high. The :doc:`user
    guide </user_guide/varpro>` has more.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro: efficient training of neural networks with variable projection", SIAM
       Journal on Mathematics of Data Science 3 (2021).
    .. [2] D. MacKay, "A practical Bayesian framework for backpropagation networks",
       Neural Computation 4 (1992).
    .. [3] Y. Yao, A. Vehtari, D. Simpson and A. Gelman, "Using stacking to average
       Bayesian predictive distributions", Bayesian Analysis 13 (2018).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import VarProNetRegressor
    >>> X = np.random.RandomState(0).uniform(-1, 1, (200, 2))
    >>> y = np.sin(3 * X[:, 0]) * X[:, 1]
    >>> model = VarProNetRegressor(hidden_layer_sizes=(10,), alpha=1e-6, random_state=0)
    >>> model.fit(X[:150], y[:150]).score(X[150:], y[150:]) > 0.999
    True

    A noisy table needs no settings:

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = VarProNetRegressor(random_state=0).fit(X[:300], y[:300])
    >>> lower, upper = model.predict_interval(X[300:])
    >>> bool(0.9 < ((lower < y[300:]) & (y[300:] < upper)).mean() < 0.99)
    True
    """

    _short_forms = NETWORK_SOLVERS
    _parameter_constraints: dict[str, Any] = {
        **_VarProNet._parameter_constraints,
        "max_iter": [*_VarProNet._parameter_constraints["max_iter"], _AUTO],
    }
    _loss = "squared"
    _default_penalties = (1e-2, 1e-4)

    def __init__(
        self,
        network: Any = "mlp",
        hidden_layer_sizes: tuple[int, ...] | int | Literal["auto"] = "auto",
        *,
        activation: str | tuple[str, ...] = "auto",
        n_init: int | Literal["auto"] = "auto",
        solver: str | Solver = "gnvpro",
        alpha: float | tuple[float, float] | dict[str, Any] | str = "auto",
        damping: float | None = None,
        rank: int | None = None,
        scale: bool = True,
        max_iter: int | Literal["auto"] = "auto",
        tol: float = 1e-3,
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
        self.network = network
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_init = n_init
        self.solver = solver
        self.alpha = alpha
        self.damping = damping
        self.rank = rank
        self.scale = scale
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
    @_fit_context(prefer_skip_nested_validation=False)
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
            Training samples. A dask array, or a memory-mapped one of 1 GiB or more, is
            read in chunks (:meth:`fit_chunks`) if possible.

        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Target values.

        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; if None, all are 1. Cross-validation and standard
            deviations count rows by them: a row of weight 2 is a row given twice.

        y_std : array-like of shape (n_samples,), default=None
            Standard deviations of the targets, up to a common factor, which is
            estimated and changes nothing. Unlike weights, they do not change how many
            rows there are. ``noise_std_`` is that of a row of mean precision. If None,
            all are equal.

        X_val : array-like of shape (n_val_samples, n_features), default=None
            Validation samples. Their loss goes to ``convergence_log_["val_loss"]``, and
            is used by ``early_stopping``.

        y_val : array-like of shape (n_val_samples,) or (n_val_samples, n_targets), \
                default=None
            Validation targets.

        Returns
        -------
        self : VarProNetRegressor
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
        chunks = self._chunks_of(X, y, sample_weight, X_val, y_std)
        if chunks is not None:
            return self.fit_chunks(chunks, X_val=X_val, y_val=y_val)
        X, y = self._validated(X, y)
        weight, *_ = weights_of(sample_weight, y_std, X)
        n_targets = 1 if y.ndim == 1 else y.shape[1]
        validation = self._check_validation(X_val, y_val, n_targets)
        unweighted = sample_weight is None and y_std is None
        metadata = None if unweighted else {"sample_weight": weight}
        data = {"X": X, "y": y, "metadata": metadata}
        self._fit_rows(X, y.reshape(len(y), -1), weight, data, validation)
        return self

    @unchanged_on_failure
    @takes_only_chunks
    @_fit_context(prefer_skip_nested_validation=False)
    def fit_chunks(
        self,
        chunks: Iterable[tuple[ArrayLike, ...]],
        *,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit the network to rows that come in chunks and need not fit into memory.

        Distinct rows of up to 2**24 numbers in all are collected and fitted as
        by :meth:`fit`. For more rows one network is fitted, with default penalties if
        ``alpha="auto"``: the solver takes batches of a random sample, and draws another
        sample, in one pass over the chunks, when all of it is used. Loss and output
        layer are those of all rows, however these are divided into chunks.

        Parameters
        ----------
        chunks : iterable of tuples (X, y) or (X, y, sample_weight)
            Arrays of any length, in a list or another object that can be iterated
            several times, not a generator.

        X_val : array-like of shape (n_val_samples, n_features), default=None
            Validation samples, which ``early_stopping`` needs here.

        y_val : array-like of shape (n_val_samples,) or (n_val_samples, n_targets), \
                default=None
            Validation targets.

        Returns
        -------
        self : VarProNetRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If the chunks can be iterated only once, if one is malformed or holds NaN or
            infinity, if the solver needs all rows at once and they are too many, or if
            ``device`` names several devices.
        """
        self._check_chunks_are_possible(chunks, X_val)
        _, y = self._validated(*(array[:1] for array in first_of(chunks)[:2]))
        n_targets = 1 if y.ndim == 1 else y.shape[1]
        validation = self._check_validation(X_val, y_val, n_targets)

        def fit_in_memory(X, y, weight):
            weight = check_sample_weight(weight, X)
            data = {"X": X, "y": y, "metadata": {"sample_weight": weight}}
            data["y"] = y[:, 0] if self._single_target else y
            self._fit_rows(X, y, weight, data, validation)

        self._fit_surveyed(
            CheckedRows.of_targets(chunks, self.n_features_in_, n_targets),
            self.n_features_in_ + n_targets,
            fit_in_memory,
            validation,
            n_samples=lambda found: found.total,
        )
        return self

    def _validated(self, X, y):
        """Validate training rows, and set what they say of the data."""
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64
        )
        self._single_target = y.ndim == 1
        return X, y

    def _check_validation(self, X_val, y_val, n_targets):
        """X, targets and weights; None where they are not given."""
        validation = self._check_validation_data(X_val, y_val, n_targets)
        if validation is None:
            return None
        X_val, y_val = validation
        return X_val, y_val, np.full(len(X_val), 1 / len(X_val))

    def _set_fitted(self, run, rows, settings, scaling):
        from sklearn_gn.varpro.posterior import ErrorBars
        from sklearn_gn.varpro.problem import Penalties

        super()._set_fitted(run, rows, settings, scaling)
        penalties = Penalties(*(self._cast(a) for a in self.alpha_))
        model, net, z = settings.model, run.best_net, None
        if not isinstance(rows, Rows):  # they come in chunks
            with backend.scope(self.dtype, self.device):
                few = rows.least_squares(model, net.theta)
                z, rows = backend.to_numpy(few)
        n_samples = float(settings.n_samples)
        self._error_bars = ErrorBars(model, net, rows, penalties, n_samples, z)

    # -- predictions -------------------------------------------------------------------

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Array: ...

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[True]
    ) -> tuple[Array, Array]: ...

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> Array | tuple[Array, Array]:
        """Predict targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        return_std : bool, default=False
            Whether to return standard deviations of the predicted means too. They come
            from the Gauss-Newton matrix; those of a committee also from the spread of
            its members. For a single network of more than 2,000 weights they include
            only those of the output layer. They are computed at the first request;
            until then the model keeps the training data.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Predicted values.

        std : ndarray of the same shape
            Their standard deviations, without the noise of single targets. Only if
            ``return_std`` is True.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        y = self._predicted(X)
        y = y[:, 0] if self._single_target else y
        if not return_std:
            return y
        std = self._deviation(X)
        return y, std[:, 0] if self._single_target else std

    def _predicted(self, X):
        """Predictions of validated rows, of shape (n_samples, n_targets)."""
        *_, scaling = self._fitted
        return extremes.scaled_back(self._values(X), scaling.y_scale, scaling.y_center)

    def _deviation(self, X):
        """Standard deviations of the means of validated rows."""
        model, net, scaling = self._fitted
        x = scaling.x(X)
        if model is None:
            known = partial(
                members.variances, net, self._covariances, self._noise_ratios
            )
            size = len(scaling.y_center) * max(len(m.net.theta) for m in net)
            with backend.one_blas_thread:
                std = np.sqrt(members.blockwise(known, x, max(1000, size)))
            with np.errstate(over="ignore"):  # what is no float is infinite
                return std * scaling.y_scale
        bars = self._error_bars
        variance = self._in_batches(bars.variances, x, bars.batch_rows)
        return np.sqrt(variance) * bars.noise * scaling.y_scale

    def _noise_std(self):
        if hasattr(self, "noise_std_"):
            return super()._noise_std()
        noise = self._error_bars.noise * self._fitted[2].y_scale
        return float(noise[0]) if self._single_target else noise

    def _noise_freedom(self):
        if hasattr(self, "noise_std_"):
            return super()._noise_freedom()
        return self._error_bars.degrees_of_freedom
