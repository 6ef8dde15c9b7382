"""VarProNetClassifier: cross-entropy with networks, by variable projection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils._param_validation import StrOptions

from sklearn_gn._typing import ArrayLike, RandomState
from sklearn_gn.base import SoftmaxClassifier, unchanged_on_failure
from sklearn_gn.data.chunks import takes_only_chunks
from sklearn_gn.data.rows import check_sample_weight
from sklearn_gn.solvers import NETWORK_SOLVERS, Solver
from sklearn_gn.varpro.estimator import _VarProNet


class VarProNetClassifier(SoftmaxClassifier, _VarProNet):
    r"""Networks for classification, with penalties that the data choose.

    Use it for tables of up to a few hundred thousand rows without any settings: it then
    averages a few networks with a linear term, beside a Gaussian process of up to 2,000
    rows. On small tables the evidence chooses their penalties [2]_; on larger ones the
    networks are wider, and are fitted by fast Gauss-Newton steps on mini-batches [3]_.
    For deeper networks set ``alpha`` and ``hidden_layer_sizes``. For many classes on
    features of another model use :class:`FGNSoftmaxHead`.

    With given penalties and ``hidden_layer_sizes`` there is one network, whose last
    layer W is a multinomial logistic regression, solved for every value of the other
    weights :math:`\theta`, and

    .. math::
        \Phi(\theta) = \min_W \frac{1}{\sum_i v_i} \sum_i v_i
        \big({-\log} \, \mathrm{softmax}(W z(x_i; \theta))_{t_i}\big)
        + \frac{\alpha_{out}}{2} |W|^2 + \frac{\alpha}{2} |B \theta|^2

    is minimised by a Gauss-Newton trust-region method (GNvpro) [1]_.

    Parameters
    ----------
    network : {"mlp", "neural_ode", "cnn"} or object, default="mlp"
        Hidden layers: fully connected, an antisymmetric neural ODE, or convolutions of
        square images (the rows of X). An object has ``init(key, x)`` and
        ``apply(parameters, x)``, like a network of :mod:`sklearn_gn.networks` or Flax.
    hidden_layer_sizes : "auto" or tuple of int, default="auto"
        Widths of the hidden layers. "auto": small members of a committee have (4,),
        wide ones (100,), and one network has (64, 64). ``()`` is a linear model.
    activation : "auto", str or tuple of str, default="auto"
        "tanh", "relu", "sigmoid", "softplus", "silu", "gelu", "sin" or "identity", one
        for all layers or one each. "auto": "tanh", in a committee also "relu".
    n_init : "auto" or int, default="auto"
        Number of networks of a committee ("auto": 2 to 4 small ones and 4 wide ones; a
        number: no wide ones unless the table is too large for the evidence), or of
        starts of one network, whose best is returned ("auto": 1).
    solver : str or solver object, default="gnvpro"
        Name, or object of :mod:`sklearn_gn.solvers`: "gnvpro" is Gauss-Newton variable
        projection, "lbfgs_vpro" L-BFGS on the same objective; "gn" (in all weights),
        and "adam" and "sgd" (on mini-batches) are baselines.
    alpha : "auto", float, tuple (hidden, output) or dict, default="auto"
        Penalties, in scaled units. "auto": the evidence chooses them; fixed for wide
        members, and 0.001 for other networks. A number: every penalty of the committee;
        a pair: of one network; a dict, such as ``alpha_``: each.
    damping : float or None, default=None
        Shift added to the Gauss-Newton matrix of a step; it is no part of the
        objective. If None, the trust region sets it; in wide members it rises from 0.1
        to 1.
    rank : int or None, default=None
        Dimension of the Krylov space of a step, at most 2,000. If None, the whole
        system is solved while it is small, and 20 dimensions otherwise.
    class_weight : dict, "balanced" or None, default=None
        Factors of the classes; "balanced" gives all the same total weight. In one
        network they multiply the sample weights, in a committee the odds after the fit.
    scale : bool, default=True
        Whether to standardise features during the fit. Cells far outside the quartiles
        then count as a limit if the other rows are predicted better.
    max_iter : "auto" or int, default="auto"
        Maximum number of iterations (epochs of mini-batch solvers) over all starts.
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
        Whether to start from the network of the previous fit, which had the same
        classes.
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
    classes_ : ndarray of shape (n_classes,)
        Labels of the classes that have weight.
    estimators_ : list
        Members of a committee, with ``predict``, ``share_`` (in the mean), ``alpha_``,
        ``log_evidence_``, ``n_effective_parameters_`` and weights. Networks come first;
        the frequencies of the classes and a Gaussian process (with ``length_scales_``)
        follow if they have a share.
    coefs_, intercepts_ : list of ndarray
        Hidden layers, for scaled features. Only of one network.
    linear_coef_ : ndarray of shape (n_values, n_features)
        Slopes of the linear term, in units of X. Only of a committee.
    output_coef_, output_intercept_ : ndarray with a row for each class
        Weights and constants of the output layer; one row for two classes.
    alpha_ : tuple of float or dict
        Penalties of hidden and output layers. Of a committee, means over its members:
        "slope", "coef", "bias", "weights" (of the first layer) and "layers" (the
        others).
    alpha_method_ : str
        "dense" if the evidence has chosen the penalties, "prior" if all members are
        wide, and "fixed" if penalties are given.
    gram_spectrum_ : ndarray
        Eigenvalues of the last Gauss-Newton matrix, descending, or Ritz values if it
        was not formed. Empty for "lbfgs_vpro" and with mini-batches.
    log_evidence_, n_effective_parameters_ : float
        Logarithm of the mean evidence (the higher, the more probable), and number of
        parameters that the data determine. Only of a committee, of its small members.
    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        The iterations, a column each of ``iteration``, ``time`` (seconds), ``loss``,
        ``val_loss``, ``grad_norm``, ``step_size``, ``damping``, ``gain_ratio`` and
        ``inner_iterations``; NaN where it does not apply. The guide has further ones.
    loss_ : float
        Objective of the returned network; the mean over the members of a committee.
    n_iter_, converged_ : int and bool
        Number of iterations, and whether the fit ended by ``tol`` or at rounding level.
    stop_reason_ : str
        "tol", "rounding", "max_iter", "max_time", "early_stopping", "callback",
        "interrupted", "line_search" or "non_finite".
    n_features_in_, feature_names_in_ : int and ndarray of shape (`n_features_in_`,)
        Number of features, and their names if all are strings.

    Notes
    -----
    If the fit is poor, :meth:`diagnose` says what limited it. Use a wider network if
    training and test accuracy are both low; if they differ, set ``alpha`` and raise it.
    The :doc:`user guide </user_guide/varpro>` has more.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro", SIAM Journal on Mathematics of Data Science 3 (2021).
    .. [2] D. MacKay, "A practical Bayesian framework for backpropagation networks",
       Neural Computation 4 (1992).
    .. [3] M. Korbit and M. Zanon, "Fast Gauss-Newton for multiclass cross-entropy".

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn_gn import VarProNetClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = VarProNetClassifier(random_state=0)
    >>> model.fit(X[:400], y[:400]).score(X[400:], y[400:]) > 0.95
    True
    """

    _short_forms = NETWORK_SOLVERS
    _parameter_constraints: dict[str, Any] = {
        **_VarProNet._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }
    _loss = "cross_entropy"
    _default_penalties = 1e-3

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
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
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
        self.class_weight = class_weight
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
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit the network to the data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples. A dask array, or a memory-mapped one of 1 GiB or more, is
            read in chunks (:meth:`fit_chunks`) if possible.
        y : array-like of shape (n_samples,)
            Labels of any kind.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; if None, all are 1.
        X_val : array-like of shape (n_val_samples, n_features), default=None
            Validation samples. Their cross-entropy goes to
            ``convergence_log_["val_loss"]``, and is used by ``early_stopping``.
        y_val : array-like of shape (n_val_samples,), default=None
            Validation labels; all occur in y.

        Returns
        -------
        self : VarProNetClassifier
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter is out of its range, if the data contain NaN or infinity or
            are inconsistent, if they would not fit into memory, or if fewer than two
            classes have weight.
        """
        chunks = self._chunks_of(X, y, sample_weight, X_val)
        if chunks is not None:
            return self.fit_chunks(chunks, X_val=X_val, y_val=y_val)
        X, y = self._check_data(X, y, reset=True)
        weight = check_sample_weight(sample_weight, X)
        metadata = None if sample_weight is None else {"sample_weight": weight}
        data = {"X": X, "y": y, "metadata": metadata}
        previous = self.warm_start and hasattr(self, "_fitted")
        self._find_classes(y, weight, previous=previous)
        validation = None
        if X_val is not None or y_val is not None:
            validation = self._check_validation(X_val, y_val)
        counted = weight > 0
        X, y, weight = X[counted], y[counted], weight[counted]
        factors = np.ones(len(self.classes_))
        if self.class_weight is not None:
            factors = self._factors_of_classes(y, weight)
        code = np.searchsorted(self.classes_, y)[:, None]
        self._fit_rows(X, code, weight, data, validation, factors)
        return self

    @unchanged_on_failure
    @takes_only_chunks
    @_fit_context(prefer_skip_nested_validation=False)
    def fit_chunks(
        self,
        chunks: Iterable[tuple[ArrayLike, ...]],
        *,
        classes: ArrayLike | None = None,
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
        classes : array-like, default=None
            All labels, in any order and number. If None, one more pass over the chunks
            finds them.
        X_val : array-like of shape (n_val_samples, n_features), default=None
            Validation samples, which ``early_stopping`` needs here.
        y_val : array-like of shape (n_val_samples,), default=None
            Validation labels.

        Returns
        -------
        self : VarProNetClassifier
            The fitted estimator.

        Raises
        ------
        ValueError
            If the chunks can be iterated only once, if one is malformed or holds NaN or
            infinity, if the solver needs all rows at once and they are too many, if
            ``class_weight`` is "balanced", or if ``device`` names several devices.
        """
        self._fit_chunks(chunks, classes, X_val, y_val)
        return self
