"""VarProNetRegressor: least squares with networks, by variable projection."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import _fit_context

from sklearn_gn._typing import ArrayLike, RandomState
from sklearn_gn.arrays import backend, extremes
from sklearn_gn.base import NetworkRegressor, unchanged_on_failure
from sklearn_gn.data.chunks import takes_only_chunks
from sklearn_gn.data.rows_source import blockwise, part_length
from sklearn_gn.solvers import NETWORK_SOLVERS, Solver
from sklearn_gn.varpro import members
from sklearn_gn.varpro.estimator import _VarProNet


class VarProNetRegressor(NetworkRegressor, _VarProNet):
    r"""Networks for regression, with penalties chosen from the data.

    Use it for noisy tables without any settings: it then predicts, with error bars, by
    a mean of small networks, a linear model and a Gaussian process. Use it also for
    surrogate models: smooth functions of up to hundreds of inputs without noise, and
    oscillations; with thousands of runs and many outputs, set ``alpha=1e-8`` and
    ``hidden_layer_sizes``. For functions with jumps use boosted trees; for breakpoints
    that can be read, :class:`ShallowReLURegressor`.

    The members of this committee have penalties and a noise level of maximum evidence
    [2]_, and shares in the mean that suit left-out rows best [3]_. With given penalties
    and ``hidden_layer_sizes`` there is one network, whose last layer W solves a linear
    least-squares problem for every value of the other weights :math:`\theta`, and

    .. math::
        \Phi(\theta) = \min_W \frac{1}{2 \sum_i v_i} \sum_i v_i
        |W z(x_i; \theta) - y_i|^2 + \frac{\alpha_{out}}{2} |W|^2
        + \frac{\alpha}{2} |B \theta|^2

    is minimised by a Gauss-Newton trust-region method (GNvpro) [1]_.

    Parameters
    ----------
    network : {"mlp", "neural_ode", "cnn"} or object, default="mlp"
        Hidden layers: fully connected, an antisymmetric neural ODE, or convolutions of
        square images (the rows of X). An object has ``init(key, x)`` and
        ``apply(parameters, x)``, like a network of :mod:`sklearn_gn.networks` or Flax.
    hidden_layer_sizes : "auto" or tuple of int, default="auto"
        Widths of the hidden layers. "auto": a committee has (10,), or (10, 10) if the
        evidence is higher; one network has (64, 64). ``()`` is a linear model.
    activation : "auto", str or tuple of str, default="auto"
        "tanh", "relu", "sigmoid", "softplus", "silu", "gelu", "sin" or "identity", one
        for all layers or one each. "auto": "tanh", in a committee also "relu".
    n_init : "auto" or int, default="auto"
        Number of networks of a committee ("auto": 2 to 4, and a Gaussian process), or
        of starts of one network, whose best is returned ("auto": 1).
    solver : str or solver object, default="gnvpro"
        Name, or object of :mod:`sklearn_gn.solvers`: "gnvpro" is Gauss-Newton variable
        projection, "lbfgs_vpro" L-BFGS on the same objective; "gn" (in all weights),
        and "adam" and "sgd" (on mini-batches) are baselines.
    alpha : "auto", float, tuple (hidden, output) or dict, default="auto"
        Penalties, in scaled units. "auto": the evidence chooses them; (0.01, 0.0001)
        for other networks and very large tables. A number: every penalty of the
        committee; a pair: of one network; a dict, such as ``alpha_``: each.
    damping : float or None, default=None
        Shift added to the Gauss-Newton matrix of a step; it is no part of the
        objective. If None, the trust region sets it.
    rank : int or None, default=None
        Dimension of the Krylov space of a step, at most 2,000. If None, the whole
        system is solved while it is small, and 20 dimensions otherwise.
    scale : bool, default=True
        Whether to standardise features and targets during the fit. Cells far outside
        the quartiles then count as a limit if the other rows are predicted better. How
        several targets are scaled: :ref:`several_targets`.
    max_iter : "auto" or int, default="auto"
        Maximum number of iterations, or of epochs of "adam" and "sgd", over all starts.
        "auto": 3000 for a committee, 100 otherwise.
    tol : float, default=0.001
        The fit stops when three iterations lower the loss by less than this share, or,
        in a committee, raise the log evidence per row of no network by more.
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
        Whether to start from the network of the previous fit.
    dtype : {"float64", "float32"}, default="float64"
        Precision of a single network; a committee always uses "float64".
    device : str, list of int, jax.sharding.Mesh or None, default=None
        Where to compute: "cpu", "gpu", or several devices, which share the rows. If
        None, a committee uses the CPU. See :doc:`/user_guide/devices`.
    verbose : int, default=0
        If 1, print a line per second; if 2, one per iteration.
    random_state : int, RandomState instance or None, default=None
        Seed of weights, batches and validation split.

    Attributes
    ----------
    estimators_ : list
        Members of a committee, with ``predict``, ``share_`` (in the mean), ``alpha_``,
        ``log_evidence_`` and weights. Networks come first; a linear model and a
        Gaussian process (with ``length_scales_``) follow if they have a share.
    coefs_, intercepts_ : list of ndarray
        Hidden layers, for scaled features. Only of one network.
    linear_coef_ : ndarray of shape (n_values, n_features)
        Slopes of the linear term, in units of X and y. Only of a committee.
    output_coef_, output_intercept_ : ndarray with a row for each target
        Weights and constants of the output layer, in units of y.
    alpha_ : tuple of float or dict
        Penalties of hidden and output layers. Of a committee, means over its networks:
        "slope", "coef", "bias", "layers", and "weights": large for irrelevant features.
    alpha_method_ : str
        How the evidence was computed: "dense", "lanczos" (large fits), or "fixed".
    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise, in units of y. Only of a committee.
    gram_spectrum_ : ndarray
        Eigenvalues of the last Gauss-Newton matrix, descending, or Ritz values if it
        was not formed. Empty for "lbfgs_vpro" and mini-batch solvers.
    log_evidence_, n_effective_parameters_ : float
        Logarithm of the mean evidence (the higher, the more probable), and number of
        parameters that the data determine. Only of a committee.
    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        The iterations, a column each of ``iteration``, ``time`` (seconds), ``loss``,
        ``val_loss``, ``grad_norm``, ``step_size``, ``damping``, ``gain_ratio`` and
        ``inner_iterations``; NaN where it does not apply. The guide has further ones.
    loss_ : float
        Objective of the returned network, in units of y; the mean over a committee.
    n_iter_, converged_ : int and bool
        Number of iterations, and whether the fit ended by ``tol`` or at rounding level.
    stop_reason_ : str
        "tol", "rounding", "max_iter", "max_time", "early_stopping", "callback",
        "interrupted", "line_search" or "non_finite".
    n_features_in_, feature_names_in_ : int and ndarray of shape (`n_features_in_`,)
        Number of features, and their names if all are strings.

    Notes
    -----
    If the fit is poor, :meth:`diagnose` says what limited it. For runs without noise,
    compare with one network, ``alpha=1e-8`` and ``hidden_layer_sizes``. For noisy data,
    look for outliers: ``solver=GNvpro(loss="huber")`` is robust. If training and test
    error are both high, raise ``hidden_layer_sizes``. The
    :doc:`user guide </user_guide/varpro>` has more.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro", SIAM Journal on Mathematics of Data Science 3 (2021).
    .. [2] D. MacKay, "A practical Bayesian framework for backpropagation networks",
       Neural Computation 4 (1992).
    .. [3] Y. Yao, A. Vehtari, D. Simpson and A. Gelman, "Using stacking to average
       Bayesian predictive distributions", Bayesian Analysis 13 (2018).

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn_gn import VarProNetRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = VarProNetRegressor(random_state=0).fit(X[:300], y[:300])
    >>> lower, upper = model.predict_interval(X[300:])  # 95 % of new observations
    >>> bool(0.9 < ((lower < y[300:]) & (y[300:] < upper)).mean() < 0.99)
    True
    """

    _short_forms = NETWORK_SOLVERS
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
        given = X, y, sample_weight, y_std, X_val, y_val
        data, y, weight, validation = self._checked_rows(*given)
        self._fit_rows(data["X"], y, weight, data, validation)
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
        layer are for all rows, however these are divided into chunks.

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
        self._fit_chunks(chunks, None, X_val, y_val)
        return self

    # -- predictions -------------------------------------------------------------------

    def _predicted(self, X):
        """Predictions of validated rows, of shape (n_samples, n_targets)."""
        *_, scaling = self._fitted
        return extremes.scaled_back(self._values(X), scaling.y_scale, scaling.y_center)

    def _deviation(self, X):
        """Standard deviations of the means of validated rows."""
        model, net, scaling = self._fitted
        x = scaling.x(X)
        if model is None:
            known = partial(members.variances, net)
            size = len(scaling.y_center) * max(len(m.net.theta) for m in net)
            with backend.one_blas_thread():
                std = np.sqrt(blockwise(known, x, max(1000, size)))
            with np.errstate(over="ignore"):  # what is no float is infinite
                return std * scaling.y_scale
        bars = self._bars()
        batch_rows = part_length(len(scaling.y_center) * len(bars.root.root))
        variance = self._in_batches(bars.variances, x, batch_rows)
        return np.sqrt(variance) * bars.noise * scaling.y_scale

    def _bars(self):
        """The error bars of one network, computed at the first request."""
        with backend.scope(*self._dtype_and_device()):
            return self._error_bars.get()

    def _noise(self):
        if hasattr(self, "noise_std_"):
            return super()._noise()
        bars = self._bars()
        noise = bars.noise * self._fitted[2].y_scale
        noise = float(noise[0]) if self._single_target else noise
        return noise, bars.degrees_of_freedom
