"""VarProNetClassifier: cross-entropy with networks, by variable projection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils._param_validation import StrOptions

from sklearn_gn._typing import ArrayLike, RandomState
from sklearn_gn.base import SoftmaxClassifier, unchanged_on_failure
from sklearn_gn.data.chunks import (
    check_class_weight,
    first_of,
    labels_of,
    takes_only_chunks,
)
from sklearn_gn.data.rows import check_sample_weight
from sklearn_gn.data.rows_source import CheckedRows
from sklearn_gn.solvers import NETWORK_SOLVERS, Solver
from sklearn_gn.varpro.estimator import _VarProNet


class VarProNetClassifier(SoftmaxClassifier, _VarProNet):
    r"""Networks for classification, with penalties that the data choose.

    Use it for tables of up to a few hundred thousand rows without any settings: it then
    averages a few networks with a linear term. On small tables the evidence chooses
    their penalties [2]_; on larger ones the networks are wider, and are fitted by fast
    Gauss-Newton steps on mini-batches [3]_. For deeper networks set ``alpha`` and
    ``hidden_layer_sizes``. For many classes on features of another model use
    :class:`FGNSoftmaxHead`.

    With given penalties and ``hidden_layer_sizes``, there is one network. Its last
    layer W is a multinomial logistic regression on the features z, which is solved for
    every value of the other weights :math:`\theta`, and the reduced objective,

    .. math::
        \Phi(\theta) = \min_W \frac{1}{\sum_i v_i} \sum_i v_i
        \big({-\log} \, \mathrm{softmax}(W z(x_i; \theta))_{t_i}\big)
        + \frac{\alpha_{out}}{2} |W|^2 + \frac{\alpha}{2} |B \theta|^2,

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
        Widths of the hidden layers. If "auto", a committee has members of one layer, of
        100 neurons if they are fitted by mini-batches and of 4 otherwise; a single
        network has (64, 64). If empty, the model is linear.

    activation : "auto", str or tuple of str, default="auto"
        Activation of all hidden layers, or one for each: "tanh", "relu", "sigmoid",
        "softplus", "silu", "gelu", "sin" or "identity". If "auto", the members of a
        committee alternate between "relu" and "tanh", those fitted by mini-batches use
        "relu", and a single network uses "tanh".

    n_init : "auto" or int, default="auto"
        Number of random starts. Those of a committee are its members, whose predictions
        are averaged. Otherwise the network of lowest loss is returned. If "auto", a
        committee has 2 to 4 small networks, more if they differ, and 4 wide ones, and a
        single network has one start. If a number, no members are fitted by mini-batches
        unless the table is too large for the evidence.

    solver : str or solver object, default="gnvpro"
        Solver of the minimisation problem: a name, or an object of
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
        solver on small tables; the members that are fitted by mini-batches have fixed
        ones, and other networks take 0.001. A number, in scaled units, is every penalty
        of the committee. Two are those of the hidden layers and of the output layer of
        one network. A dict, such as ``alpha_``, fixes all penalties.

    damping : float or None, default=None
        Shift added to the Gauss-Newton matrix of every step; it changes the steps, not
        the objective. If None, the trust region sets it; it rises
        from 0.1 to 1 in members fitted by mini-batches. If a number, steps on all rows
        are halved until the loss falls.

    rank : int or None, default=None
        Dimension of the Krylov space in which the Gauss-Newton system is solved, at
        most 2,000. If None, "gnvpro" solves the whole system while it is small, and
        like "gn" takes 20 dimensions otherwise. For the members of a committee the
        space is that of the matrix divided by its diagonal, and None solves the whole
        system.

    class_weight : dict, "balanced" or None, default=None
        Factors of the classes. If "balanced", all classes have the same total weight;
        if None, all factors are 1. They multiply the sample weights of a single
        network. The odds of a committee are multiplied by them after the fit, in which
        each row counts once: the evidence would take weights for copies of rows.

    scale : bool, default=True
        Whether to bring features to mean 0 and variance 1 during the fit. Cells that
        are far outside the quartiles of their feature count as a limit, in predictions
        too, if the other rows are then predicted clearly better.

    max_iter : int, default=100
        Maximum number of iterations over all starts, or epochs of mini-batch solvers.
        An iteration of a committee is a step, or an epoch, of every member.

    tol : float, default=0.001
        The fit stops when the loss has fallen by less than ``tol`` times its size in
        three successive iterations, a pass over all batches or, with mini-batch
        solvers, ten epochs. A committee stops when the mean log evidence per row has
        risen by less than ``tol`` in five iterations. Members fitted by mini-batches
        stop after 30 epochs. If 0, these tests are disabled.

    max_time : float or None, default=None
        Seconds after which the fit stops, compilation included; None sets no limit.

    early_stopping : bool, default=False
        Whether to stop when the cross-entropy on validation data no longer falls, and
        to return the iterate for which it is lowest. The data are ``X_val`` and
        ``y_val`` of ``fit``, or else a random part of the training data, stratified if
        possible.

    validation_fraction : float, default=0.1
        Fraction of the rows that ``early_stopping`` sets aside without ``X_val``.

    n_iter_no_change : int, default=10
        Number of iterations without improvement after which ``early_stopping`` stops
        the fit. With batches, only iterations that evaluate all rows count.

    warm_start : bool, default=False
        Whether to start from the network of the previous fit, which must have had the
        same classes.

    dtype : {"float64", "float32"}, default="float64"
        Precision of the fit. A committee is always fitted in "float64".

    device : str, list of int, jax.sharding.Mesh or None, default=None
        Where to compute: "cpu" or "gpu". If None, a committee is fitted on the CPU, and
        all else on JAX's default device. A list of numbers in ``jax.devices()``, or a
        mesh, divides the rows among several devices, for committees and for "gnvpro",
        "gn" and "lbfgs_vpro"; see :doc:`/user_guide/devices`. Committees of very large
        networks and mini-batches of wide members are fitted on the CPU. A fitted
        model predicts on the device of its fit, if there is one.

    verbose : int, default=0
        If 1, print a line per second; if 2, one per iteration.

    random_state : int, RandomState instance or None, default=None
        Seed of weights, batches and validation split. The draws depend on the weighted
        data set, not on the order or the multiplicity of its rows.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the classes that have weight.

    coefs_ : list of ndarray
        Weights of the hidden layers, for scaled features. Only of a single network; a
        committee has them in ``estimators_``.

    intercepts_ : list of ndarray
        Biases of the hidden layers. Only of a single network.

    estimators_ : list
        Members of a committee, with ``predict``, ``coefs_``, ``intercepts_``,
        ``alpha_``, ``log_evidence_``, ``n_effective_parameters_`` and ``share_`` (in
        the predictions). Only of a committee.

    linear_coef_ : ndarray of shape (n_values, n_features)
        Slopes of the linear term, in units of X. Only of a committee.

    output_coef_ : ndarray of shape (1, n_features_out) or (n_classes, n_features_out)
        Weights of the output layer; one row for two classes.

    output_intercept_ : ndarray of shape (1,) or (n_classes,)
        Constants of the output layer.

    alpha_ : tuple of float or dict
        Penalties of the hidden layers and of the output layer. Of a committee, a dict
        of geometric means over the members: "slope", "coef", "bias", "weights" (of the
        first layer) and "layers" (of those after it).

    alpha_method_ : str
        "dense" if the evidence has chosen the penalties, "prior" if all members were
        fitted by mini-batches, and "fixed" if penalties are given.

    gram_spectrum_ : ndarray
        Eigenvalues of the last reduced Gauss-Newton matrix, in descending order, or
        Ritz values if it was not formed. Of a committee, its member of highest
        evidence. Empty for "lbfgs_vpro" and with mini-batches.

    log_evidence_ : float
        Logarithm of the mean evidence of the members: the higher of two fits to the
        same data is more probable. Only of a committee, of its members that are not
        fitted by mini-batches.

    n_effective_parameters_ : float
        Number of parameters that the data determine, averaged over the same members.

    n_work_units_ : float
        Number of passes over all rows, forward or backward, or by a product with the
        Jacobian or its transpose. Only of a single network.

    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        One row per iteration: ``iteration``, ``time`` (seconds), ``loss``,
        ``val_loss``, ``grad_norm``, ``step_size``, ``damping``, ``gain_ratio``,
        ``inner_iterations``, ``work_units`` so far, ``level``, and
        ``evaluated_on_all_rows``: False where the losses are those of an earlier row.
        What does not apply to the solver is NaN. For a committee, rows hold means over
        the members that are not fitted by mini-batches, and the last three columns are
        replaced by ``log_evidence``, ``n_effective_parameters`` and ``n_running``, the
        number of members that took a step. If all are fitted by mini-batches, these are
        absent, and ``loss`` is the mean over the batches of an epoch.

    loss_ : float
        Objective of the returned network; for a committee, the mean over its members.

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
    FGNSoftmaxHead : The last layer alone, for many classes.

    Notes
    -----
    If the fit is poor, :meth:`diagnose` says what limited it. Use a wider network if
    training and test accuracy are both low; if they differ, set ``alpha`` and raise it.
    The :doc:`user guide </user_guide/varpro>` has more.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro: efficient training of neural networks with variable projection", SIAM
       Journal on Mathematics of Data Science 3 (2021).
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
        max_iter: int = 100,
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
            Validation labels, all of them among those of y.

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
        validation = self._check_validation(X_val, y_val)
        X, code, by_class = self._encode_weighted(X, y, weight)
        weight = weight[weight > 0]
        factors = np.ones(len(self.classes_))
        factors[code] = by_class / weight
        self._fit_labels(X, code, weight, factors, data, validation)
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
        layer are those of all rows, however these are divided into chunks.

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
        self._check_chunks_are_possible(chunks, X_val)
        check_class_weight(self)
        self._check_class_weight()
        first = first_of(chunks)
        labels = labels_of(chunks) if classes is None else np.asarray(classes)
        previous = self.warm_start and hasattr(self, "_fitted")
        self._find_classes(labels, np.ones(len(labels)), previous=previous)
        self._check_data(*(array[:1] for array in first[:2]), reset=True)
        validation = self._check_validation(X_val, y_val)

        def fit_in_memory(X, y, weight):
            code = y[:, 0].astype(int)
            metadata = {"sample_weight": weight}
            data = {"X": X, "y": self.classes_[code], "metadata": metadata}
            factors = self.class_weight or {}
            factors = np.array([factors.get(c, 1.0) for c in self.classes_])
            # The weights of chunks hold the factors.
            weight = weight / np.where(factors > 0, factors, 1)[code]
            self._fit_labels(X, code, weight, factors, data, validation)

        self._fit_surveyed(
            CheckedRows.of_classes(chunks, self, as_column=True),
            self.n_features_in_ + 1,
            fit_in_memory,
            validation,
            n_samples=lambda found: found.n_rows,
        )
        return self

    def _fit_labels(self, X, code, weight, factors, data, validation):
        """Fit to rows in memory, under factors of the classes."""
        weight = np.where(factors[code] > 0, weight, 0)
        factors = np.where(factors > 0, factors, 1)
        self._fit_rows(X, code[:, None], weight, data, validation, factors)
