"""FGNSoftmaxHead: softmax regression on frozen features by Gauss-Newton methods."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import update_wrapper
from numbers import Real
from types import MethodType
from typing import Any, Literal, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._typing import ArrayLike, MatrixLike, RandomState
from sklearn_gn.arrays import backend
from sklearn_gn.base import (
    GaussNewtonEstimator,
    SoftmaxClassifier,
    cross_entropy,
    unchanged_on_failure,
)
from sklearn_gn.data.chunks import (
    check_on_one_device,
    class_numbers,
    first_chunk,
    labels_of,
    takes_only_chunks,
)
from sklearn_gn.data.rows import (
    check_sample_weight,
    chunks_of,
    feature_spread,
    shares,
    validation_split,
)
from sklearn_gn.data.rows_source import CheckedRows
from sklearn_gn.runtime.fit_loop import FitRun
from sklearn_gn.softmax_head import newton, problem
from sklearn_gn.softmax_head.head import LARGEST_LOGIT, logits_of
from sklearn_gn.solvers import SOFTMAX_HEAD_SOLVERS, FGNNewton, Solver


class _OfMiniBatches:
    """A method that an estimator has with mini-batch solvers only."""

    def __init__(self, method):
        update_wrapper(self, method)

    def __get__(self, estimator, owner=None):
        if estimator is None:
            return self.__wrapped__
        solver = estimator.solver
        if isinstance(solver, str):
            solver = SOFTMAX_HEAD_SOLVERS.get(solver)  # fit names an unknown one
        if isinstance(solver, Solver) and not hasattr(solver, "batch_size"):
            name = self.__wrapped__.__name__
            raise AttributeError(
                f"{name} needs a mini-batch solver. Set solver to 'fgn', 'sgn' or "
                f"'adam', or call fit: solver={estimator.solver!r} takes all rows at "
                "once."
            )
        return MethodType(self.__wrapped__, estimator)


class AffineClassifier(SoftmaxClassifier):
    """A classifier whose logits are affine functions of the features."""

    def _values(self, X):
        return logits_of(X, self.coef_, self.intercept_)

    def to_sklearn(self) -> BaseEstimator:
        """Return a ``LogisticRegression`` that predicts the same, without JAX.

        Returns
        -------
        model : LogisticRegression
            Its logits are divided by ``temperature_``, if there is one. It shares no
            memory with this estimator.
        """
        from sklearn_gn.runtime.export import logistic_regression

        check_is_fitted(self)
        temperature = getattr(self, "temperature_", 1.0)
        return logistic_regression(
            self.coef_ / temperature,
            self.intercept_ / temperature,
            self.classes_,
            self.fit_intercept,
            getattr(self, "feature_names_in_", None),
        )


@dataclass(eq=False, repr=False)
class FGNSoftmaxHead(AffineClassifier, GaussNewtonEstimator):
    r"""Softmax regression on frozen features, trained by Gauss-Newton methods.

    Use it as the last layer of a classifier with twenty to thousands of classes, on
    features that another model or a transformer computes. For fewer classes use
    :class:`~sklearn.linear_model.LogisticRegression`; for tables whose classes no plane
    separates, use :class:`VarProNetClassifier` or gradient boosting.

    The objective is the same as for :class:`~sklearn.linear_model.LogisticRegression`,

    .. math::
        \frac{1}{\sum_i v_i} \sum_i v_i \, \big({-\log} p_{t_i}(x_i)\big)
        + \frac{\alpha}{2} |W|^2, \qquad p(x) = \mathrm{softmax}(W x + b),

    with sample weights :math:`v_i` and an intercept that is not penalised. Fast
    Gauss-Newton (FGN) [1]_ keeps the rank-one part of each example's curvature, the
    true class versus the rest, and solves for the step in the space of the examples.

    Parameters
    ----------
    solver : str or solver object, default="fgn_newton"
        Name, or object of :mod:`sklearn_gn.solvers`: "fgn_newton" is Newton's method on
        all rows and converges to the optimum, "fgn" is Algorithm 1 of [1]_, for
        streams; "sgn" (full softmax curvature) and "adam" are baselines, on
        mini-batches, too.
    alpha : float or "auto", default="auto"
        Factor of the penalty. "auto": "fgn_newton" chooses it by rows that are left
        out, for features that it scales; mini-batch solvers use 0.001. A number is for
        features as given: ``C = 1 / (alpha * sum of weights)`` of
        ``LogisticRegression``. With 0, separable classes have no optimum.
    damping : float or None, default=None
        Shift added to the matrix of a step; it is no part of the objective. If None, 0
        for "fgn_newton", and 1 for "fgn" and "sgn", which suits features of size one.
    rank : int or None, default=None
        Maximum number of conjugate-gradient iterations of a step ("fgn_newton": None is
        100, "sgn": 5), or for "fgn" of the curvature directions kept for each example
        (None is 1, as in [1]_; the number of classes minus 1 keeps all).
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    class_weight : dict, "balanced" or None, default=None
        Factors of the sample weights by class; "balanced" gives all the same total
        weight.
    max_iter : int, default=100
        Maximum number of iterations: Newton steps, or epochs of mini-batch solvers.
    tol : float, default=1e-06
        "fgn_newton" stops when no component of the gradient is larger, a mini-batch
        solver when the loss has fallen by less than this share in five epochs.
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
        Whether to start from the previous fit, which had the same classes and features.
        Fits of the same rows with one ``alpha`` after another share their preparation,
        for which the estimator keeps the rows.
    dtype : {"float64", "float32"}, default="float64"
        Precision of the fit.
    device : str, list of int, jax.sharding.Mesh or None, default=None
        Where to compute: "cpu", "gpu", or several devices, which share the rows. See
        :doc:`/user_guide/devices`.
    verbose : int, default=0
        If 1, print a line per second; if 2, one per iteration.
    random_state : int, RandomState instance or None, default=None
        Seed of batches and validation split.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the classes of positive weight.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients; one row for two classes.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    alpha_ : float
        The penalty of the returned head. If chosen, it is for scaled features.
    alpha_method_ : str
        "left-out" if rows that are left out chose ``alpha_``, and "fixed" otherwise.
    temperature_ : float
        Divides the logits of :meth:`decision_function` in :meth:`predict_proba`. With
        ``alpha="auto"`` it is chosen with the penalty, mostly below one; otherwise 1.
    alpha_path_ : dict of ndarrays
        Penalties that were tried: ``alpha``, ascending, ``left_out``, the mean
        cross-entropy of the rows left out, and the ``temperature`` at which it is
        least. Only if ``alpha`` is "auto".
    competitor_dispersion_ : float
        Training mean of :math:`1 - |\rho|^2`, where :math:`\rho` are the probabilities
        of the wrong classes relative to each other: 0 if each example has one
        competitor, near 1 if it has many equally likely ones.
    gram_spectrum_ : ndarray
        Largest eigenvalues of the FGN matrix of one batch, descending; at most 1024.
    convergence_log_ : dict of ndarrays of shape (`n_iter_`,)
        The iterations, a column each of ``iteration``, ``time`` (seconds), ``loss``,
        ``val_loss``, ``grad_norm``, ``step_size``, ``damping``, ``gain_ratio``,
        ``inner_iterations``, ``alpha``, ``competitor_dispersion``, ``retained_trace``
        and ``dropped_trace``; NaN where it does not apply. Compare losses at one
        ``alpha``.
    loss_ : float
        Objective of the returned head on the training data.
    n_iter_, converged_ : int and bool
        Number of iterations, and whether the fit ended by ``tol`` or at rounding level.
    stop_reason_ : str
        "tol", "rounding", "separable", "max_iter", "max_time", "early_stopping",
        "callback", "interrupted", "line_search", "diverged" or "non_finite".
    n_features_in_, feature_names_in_ : int and ndarray of shape (`n_features_in_`,)
        Number of features, and their names if all are strings.

    See Also
    --------
    sklearn.linear_model.LogisticRegression : The same model by other solvers.

    Notes
    -----
    "fgn_newton" keeps large sparse input (more than 4 million entries, at most a tenth
    of them stored) sparse. The other solvers make it dense, up to 4 GiB.

    If the fit is poor, :meth:`diagnose` says what limited it. With a number as
    ``alpha``, or sparse input, scale the features first; lower ``alpha`` if training
    and test accuracy are both low, and raise it if they differ. The
    :doc:`user guide </user_guide/softmax_head>` has more.

    References
    ----------
    .. [1] M. Korbit and M. Zanon, "Fast Gauss-Newton for multiclass cross-entropy".

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from sklearn_gn import FGNSoftmaxHead
    >>> X, y = load_digits(return_X_y=True)
    >>> head = make_pipeline(StandardScaler(), FGNSoftmaxHead(random_state=0))
    >>> head.fit(X[:1000], y[:1000]).score(X[1000:], y[1000:]) > 0.92
    True
    >>> head[-1].converged_
    True
    """

    _short_forms = SOFTMAX_HEAD_SOLVERS
    _has_spectrum_of_rows = True  # as gram_spectrum_, not of the parameters
    _parameter_constraints = {
        **GaussNewtonEstimator._parameter_constraints,
        "alpha": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "damping": [Interval(Real, 0, None, closed="left"), None],
        "fit_intercept": ["boolean"],
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }
    _accept_sparse = "csr"
    _not_of_every_fit = ("alpha_path_",)

    solver: str | Solver = "fgn_newton"
    _: KW_ONLY
    alpha: float | Literal["auto"] = "auto"
    damping: float | None = None
    rank: int | None = None
    fit_intercept: bool = True
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    max_iter: int = 100
    tol: float = 1e-6
    max_time: float | None = None
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    warm_start: bool = False
    dtype: Literal["float64", "float32"] = "float64"
    device: Any = None
    verbose: int = 0
    random_state: RandomState = None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @unchanged_on_failure
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit the head to the data.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training features. The mini-batch solvers read a dask array, or a
            memory-mapped one of 1 GiB or more, in chunks (:meth:`fit_chunks`).
        y : array-like of shape (n_samples,)
            Labels of any kind.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights. If None, all are equal.
        X_val : {array-like, sparse matrix} of shape (n_val_samples, n_features), \
                default=None
            Validation features. Their cross-entropy goes to
            ``convergence_log_["val_loss"]``, and is used by ``early_stopping``.
        y_val : array-like of shape (n_val_samples,), default=None
            Validation labels; all occur in y.

        Returns
        -------
        self : FGNSoftmaxHead
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter is out of its range, if the data contain NaN or infinity or
            are inconsistent, if fewer than two classes have weight, or if the fit needs
            more memory than there is.
        """
        solver = self._solver_object()
        batches = hasattr(solver, "batch_size")
        chunks = chunks_of(X, y, sample_weight) if batches else None
        if chunks is not None:
            # Some labels may have no weight.
            classes = np.asarray(y) if sample_weight is None else None
            return self.fit_chunks(chunks, classes=classes, X_val=X_val, y_val=y_val)
        # 1. The data.
        problem.check_memory(self, X, y, solver)
        X, y = self._check_data(X, y, reset=True)
        weight = check_sample_weight(sample_weight, X)
        metadata = None if sample_weight is None else {"sample_weight": weight}
        net = problem.previous_head(self) if self.warm_start else None
        self._find_classes(y, weight, previous=net is not None)
        validation = self._check_validation(X_val, y_val)
        # 2. The problem: distinct rows in random order, and the options.
        task: Any
        known, task = getattr(self, "_previous", (None, None))
        key = problem.rows_key(self, X, y, weight) if self.warm_start else None
        began = time.perf_counter()
        if key is not None and key == known:  # of another penalty
            options = task.options._replace(alpha=np.dtype(self.dtype).type(self.alpha))
            rows = task.rows._replace(options=options)
            task = task._replace(rows=rows, options=options)
        else:
            rng = check_random_state(self.random_state)
            Z, code, weight = self._encode_weighted(X, y, weight)
            Z, kept, weight, total = problem.distinct_rows(Z, code, weight, solver)
            # Rare words vary little: scaled, they would be noise of size one.
            scaled = isinstance(solver, FGNNewton) and self.alpha == "auto"
            self._feature_spread = 1.0 if scaled or issparse(X) else feature_spread(Z)
            if self.early_stopping and validation is None:
                train, val = validation_split(
                    len(kept), self.validation_fraction, rng, code[kept]
                )
                validation = Z[kept[val]], code[kept[val]], shares(weight[val])
                kept, weight = kept[train], weight[train]
            given = self, solver, Z, code, kept, weight
            if batches:
                task = problem.batch_task(*given, rng)
            else:
                task = problem.newton_task(*given, total)
        # 3. The loop, and then the fitted attributes.
        data = {"X": X, "y": y, "metadata": metadata}
        state = self._run_solver(task, net, validation, data, began)
        if key is not None:
            rows = newton.with_minimum(task.rows, state)
            self._previous = key, task._replace(rows=rows)
        return self

    def _run_solver(self, task, net, validation, data, began=None):
        net = task.start(net, self.n_features_in_, len(self.classes_))

        def validation_loss(net):
            X, label, weight = validation
            found = task.coefficients(net)
            logits = logits_of(X, found["coef_"], found["intercept_"])
            return cross_entropy(logits, label, weight)

        run = FitRun(
            self,
            task.algorithm,
            task.rows,
            task.options,
            [net],
            loss_scale=1.0,
            val_loss=None if validation is None else validation_loss,
            validation=validation,
            began=began,
        )
        self._run(
            run,
            max_steps=self.max_iter,
            data=data,
            attributes=lambda net: task.coefficients(net) | {"classes_": self.classes_},
            set_fitted=lambda: vars(self).update(problem.results_of(self, run, task)),
        )
        self._carried = self._previous = None, None
        return run.final_state

    @unchanged_on_failure
    @takes_only_chunks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit_chunks(
        self,
        chunks: Iterable[tuple[ArrayLike, ...]],
        *,
        classes: ArrayLike | None = None,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit rows that come in chunks and do not fit into memory.

        Takes a mini-batch solver, such as ``solver="fgn"``. Each epoch reads the chunks
        once, in their order, and takes the rows of a chunk in random order, so chunks
        should be samples of the data and not sorted by class. ``loss`` in
        ``convergence_log_`` is estimated during an epoch; ``loss_`` is computed from
        all rows. :meth:`fit` calls this method if X is a dask array, or a memory-mapped
        array of 1 GiB or more.

        Parameters
        ----------
        chunks : iterable of tuples (X, y) or (X, y, sample_weight)
            Arrays of any length. The object must be iterable several times, such as a
            list or an object with ``__iter__``, not a generator.
        classes : array-like, default=None
            All labels, in any order and number. If None, one more pass over the chunks
            finds them.
        X_val : {array-like, sparse matrix} of shape (n_val_samples, n_features), \
                default=None
            Validation features, which ``early_stopping`` needs here.
        y_val : array-like of shape (n_val_samples,), default=None
            Validation labels.

        Returns
        -------
        self : FGNSoftmaxHead
            The fitted estimator.

        Raises
        ------
        ValueError
            If the solver needs all rows at once, if the chunks can be iterated only
            once, if one is malformed or holds NaN or infinity, or if ``class_weight``
            is "balanced".
        """
        from sklearn_gn.softmax_head.minibatch import ALGORITHMS, ChunkedRows

        solver = self._solver_object()
        if not hasattr(solver, "batch_size"):
            raise ValueError(
                f"solver={self.solver!r} needs all rows at once; chunks need a "
                "mini-batch solver: 'fgn', 'sgn' or 'adam'."
            )
        check_on_one_device(self)
        first = first_chunk(self, chunks, X_val)
        net = problem.previous_head(self) if self.warm_start else None
        labels = labels_of(chunks) if classes is None else np.asarray(classes)
        self._find_classes(labels, np.ones(len(labels)), previous=net is not None)
        self._check_data(*(array[:1] for array in first[:2]), reset=True)
        validation = self._check_validation(X_val, y_val)
        rows = ChunkedRows(CheckedRows.of_classes(chunks, self), np.dtype(self.dtype))
        size = solver.batch_size or problem.BATCH_SIZE
        rng = check_random_state(self.random_state)
        options = problem.options_of(self, solver, size, rng)
        self._feature_spread = 1.0
        task = problem.Task(solver.algorithm(ALGORITHMS), rows, options, None)
        data = dict.fromkeys(("X", "y", "metadata"))
        self._run_solver(task, net, validation, data)
        return self

    @_OfMiniBatches
    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Train for one more epoch, on the given data.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Features.
        y : array-like of shape (n_samples,)
            Labels.
        classes : array-like of shape (n_classes,), default=None
            All labels that will ever occur. The first call needs them.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights. If None, all are equal.

        Returns
        -------
        self : FGNSoftmaxHead
            The estimator.

        Raises
        ------
        ValueError
            If the first call has no ``classes``, if a later one has others, if y holds
            a label that is not among them, or if ``class_weight`` is "balanced".
        """
        from sklearn_gn.softmax_head.minibatch import one_epoch

        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs the labels of all pieces, which "
                "partial_fit does not have. Compute the weights from all labels with "
                "sklearn.utils.class_weight.compute_class_weight and give them as a "
                "dict, or as sample_weight."
            )
        first = not hasattr(self, "coef_")
        X, y = self._check_data(X, y, reset=first)
        weight = check_sample_weight(sample_weight, X)
        new = None if classes is None else np.unique(classes)
        if first:
            if new is None:
                raise ValueError("classes must be given to the first partial_fit.")
            self.classes_ = new
            if len(new) < 2:
                raise ValueError(f"classes must hold at least two, got {new.tolist()}.")
        elif new is not None and not np.array_equal(new, self.classes_):
            raise ValueError(
                f"classes={new.tolist()} differ from the classes "
                f"of the first call, {self.classes_.tolist()}."
            )
        solver = self._solver_object()
        rng = check_random_state(self.random_state)
        class_numbers(self.classes_, y[weight > 0], "y")  # all labels are known
        X, code, weight = self._encode_weighted(X, y, weight)
        X, kept, weight, _ = problem.distinct_rows(X, code, weight, solver)
        task = problem.batch_task(self, solver, X, code, kept, weight, rng)
        net = None if first else problem.previous_head(self)
        net = task.start(net, self.n_features_in_, len(self.classes_))
        carried = getattr(self, "_carried", (None, None))
        with backend.scope(self.dtype, self.device):
            net, self._carried = one_epoch(task, net, carried)
        for name in ("alpha_path_", "convergence_log_", "converged_", "stop_reason_"):
            vars(self).pop(name, None)  # not of this head
        found = problem.fitted_attributes(self, net, task, task.options.alpha)
        vars(self).update(found)
        self.n_iter_ = 1 if first else self.n_iter_ + 1
        return self

    # -- what the shared code asks ----------------------------------------------------

    def _limits_of_steps(self):
        # The other solvers replace None by a number, which may limit steps more.
        limited = isinstance(self._solver_object(), FGNNewton)
        return super()._limits_of_steps() if limited else ()

    @property
    def _input_dtypes(self):
        return [np.float64, np.float32] if self.dtype == "float32" else np.float64

    def _class_logits(self, X):
        logits = super()._class_logits(X)
        size = np.max(np.abs(logits), axis=1, keepdims=True)
        return logits / np.maximum(self.temperature_, size / LARGEST_LOGIT)

    # -- fitted attributes ------------------------------------------------------------

    def __getstate__(self):
        if hasattr(self, "_spectrum"):
            self.gram_spectrum_  # noqa: B018  # so that no rows are stored
        state = super().__getstate__()
        return {name: state[name] for name in state if name != "_previous"}

    @property
    def gram_spectrum_(self) -> np.ndarray:
        """Eigenvalues of the Gauss-Newton matrix of some rows, descending.

        They are computed at the first access.
        """
        return self._spectrum.get()
