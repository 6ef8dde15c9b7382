"""FGNSoftmaxHeadCV: the penalty of a softmax head by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring, get_scorer_names
from sklearn.model_selection import check_cv
from sklearn.utils._param_validation import Interval, StrOptions

from sklearn_gn._caller import warn_user
from sklearn_gn._typing import ArrayLike
from sklearn_gn.base import (
    DiagnoseMixin,
    VersionStampMixin,
    cross_entropy,
    unchanged_on_failure,
)
from sklearn_gn.data.rows import check_sample_weight
from sklearn_gn.findings import Diagnosis, Finding
from sklearn_gn.runtime.export import logistic_regression
from sklearn_gn.runtime.onnx import ConvertedToONNX
from sklearn_gn.softmax_head import newton, penalty, problem
from sklearn_gn.softmax_head.estimator import AffineClassifier, FGNSoftmaxHead
from sklearn_gn.softmax_head.head import AffineHead, logits_of
from sklearn_gn.solvers import FGNNewton
from sklearn_gn.solvers._base import ReferenceLinkMixin


@dataclass(eq=False, repr=False)
class FGNSoftmaxHeadCV(
    AffineClassifier,
    DiagnoseMixin,
    ReferenceLinkMixin,
    VersionStampMixin,
    ConvertedToONNX,
    BaseEstimator,
):
    r"""Softmax regression with the penalty chosen by cross-validation.

    Use it to probe features of a frozen network along a whole path of penalties, with
    folds and a score of your own. :class:`FGNSoftmaxHead` chooses the penalty and a
    temperature in less time, by one criterion; use it if only the best head matters.
    For a penalised choice among the features use
    :class:`~sklearn.linear_model.LogisticRegressionCV`.

    Model, objective and ``C`` are the same as for multinomial
    :class:`~sklearn.linear_model.LogisticRegression`. Each minimum starts from the
    minima at larger penalties before it, and all folds share the principal axes of the
    features.

    Parameters
    ----------
    Cs : int or array-like of shape (n_cs,), default=10
        Inverse strengths of the penalty, all positive. An integer is that many values
        between 1e-4 and 1e4, evenly spaced in their logarithms.
    cv : int, "loo", cross-validation generator or iterable, default=5
        How the rows are divided. An integer is the number of stratified folds, from two
        to one per row; their rows depend neither on the order nor on the names of the
        classes, and copies of a row stay together. "loo" leaves out every distinct row
        by itself. A generator such as ``GroupKFold``, or an iterable of train and test
        indices, is used as in scikit-learn.
    scoring : str or callable, default="neg_log_loss"
        Score of the rows of a fold, larger is better: a name of
        :func:`sklearn.metrics.get_scorer_names`, or a function of an estimator, X and
        y.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    class_weight : dict, "balanced" or None, default=None
        Factors of the sample weights by class. If "balanced", all classes have the same
        total weight. If None, all factors are 1.
    max_iter : int, default=100
        Maximum number of Newton steps for one penalty of one fold.
    tol : float, default=1e-06
        A minimum is accepted when no component of the gradient of the mean loss is
        larger.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels of the classes of positive weight.
    C_ : float
        The value of the highest mean score over the folds.
    Cs_ : ndarray of shape (n_cs,)
        The values that were tried, ascending.
    scores_ : ndarray of shape (n_folds, n_cs)
        Scores of the rows of each fold.
    coefs_paths_ : ndarray of shape (n_folds, n_cs, n_columns, n_features + 1)
        Coefficients without the rows of each fold, the intercepts last. ``n_columns``
        is 1 for two classes, and the number of classes otherwise. Without an intercept,
        the last axis has n_features entries.
    n_iter_ : ndarray of shape (n_folds, n_cs)
        Numbers of Newton steps.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients for all rows with ``C_``; one row for two classes.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all of them are strings.

    See Also
    --------
    FGNSoftmaxHead : Chooses the penalty within one fit.
    sklearn.linear_model.LogisticRegressionCV : The same search by other solvers.

    Notes
    -----
    If the fit is poor, :meth:`diagnose` says what limited it, such as a best value at
    an end of the path. The :doc:`user guide </user_guide/softmax_head>` has more.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from sklearn_gn import FGNSoftmaxHeadCV
    >>> X, y = load_digits(return_X_y=True)
    >>> head = FGNSoftmaxHeadCV(Cs=np.logspace(-3, 3, 7), cv=3).fit(X / 16, y)
    >>> head.scores_.shape, 1 <= head.C_ <= 100
    ((3, 7), True)
    """

    _parameter_constraints = {
        "Cs": [Interval(Integral, 1, None, closed="left"), "array-like"],
        "cv": ["cv_object", StrOptions({"loo"})],
        "scoring": [StrOptions(set(get_scorer_names())), callable],
        "fit_intercept": ["boolean"],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
    }

    Cs: int | ArrayLike = 10
    _: KW_ONLY
    cv: int | Literal["loo"] | Iterable[Any] | Any = 5
    scoring: str | Callable[..., float] = "neg_log_loss"
    fit_intercept: bool = True
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    max_iter: int = 100
    tol: float = 1e-6

    @unchanged_on_failure
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit the path without the rows of each fold, and all rows with the best value.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training features.
        y : array-like of shape (n_samples,)
            Labels of any kind.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights, of the fits and of the scores. If None, all are equal.

        Returns
        -------
        self : FGNSoftmaxHeadCV
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter is out of its range, if the data contain NaN or infinity or
            are inconsistent, if fewer than two classes have weight, or if the rows left
            by a fold lack a class.
        """
        # 1. The data, and the folds.
        Cs = self._values_of_C()
        X, y = self._check_data(X, y, reset=True)
        weight = check_sample_weight(sample_weight, X)
        self._find_classes(y, weight, previous=False)
        tests, trains = self._given_folds(X, y)
        if tests is not None:
            tests, trains = tests[:, weight > 0], trains[:, weight > 0]
        X, code, weight = self._encode_weighted(X, y, weight)
        if tests is None:
            X, kept, share, total = problem.distinct_rows(X, code, weight, FGNNewton())
            X, code = X[kept], code[kept]
            count = len(code) if self.cv == "loo" else self.cv
            fold = penalty.folds_of(code, count, len(code))
            tests = fold[None, :] == np.arange(fold.max() + 1)[:, None]
            trains = ~tests
        else:
            total = weight.sum()
            share = weight / total
        self._check_folds(code, trains * share, tests)
        # 2. The paths.
        intercept, shape = bool(self.fit_intercept), (len(tests), len(Cs))
        head = FGNSoftmaxHead(alpha=1 / (Cs[-1] * total), fit_intercept=intercept)
        head.set_params(tol=self.tol).classes_ = self.classes_
        zero = X.shape[1], len(self.classes_)
        scores, n_iter = np.empty(shape), np.empty(shape, int)
        paths, converged, scorer = [], True, self._scorer()
        given = X, code, np.arange(len(X)), share, total
        task = problem.newton_task(head, FGNNewton(), *given)

        def minima(own, alphas, net=None):
            given = own[task.order] / own.sum(), alphas, task.start(net, *zero)
            for found, *others in newton.minima(task.rows, *given, self.max_iter):
                attributes = task.coefficients(found)
                yield attributes["coef_"], attributes["intercept_"], *others

        for k, (train, test) in enumerate(zip(trains, tests, strict=True)):
            own, left_out = np.where(train, share, 0), np.where(test, share, 0)
            alphas = 1 / (Cs * total * own.sum())
            for c, (coef, bias, steps, ended) in enumerate(minima(own, alphas)):
                paths.append(np.column_stack([coef, bias]) if intercept else coef)
                scores[k, c] = scorer(coef, bias, X, code, left_out)
                n_iter[k, c] = steps
                converged &= ended
        # 3. All rows, and the fitted attributes.
        best = int(np.argmax(scores.mean(axis=0)))
        paths = np.reshape(paths, (*shape, *np.shape(paths[0])))
        mean = paths[:, best].mean(axis=0)  # which is near
        bias = mean[:, -1] if intercept else np.zeros(len(mean))
        near = AffineHead(mean[:, : X.shape[1]].T, bias)
        ((self.coef_, self.intercept_, _, ended),) = minima(
            share, 1 / (Cs[[best]] * total), near
        )
        self.C_, self.Cs_, self.scores_ = float(Cs[best]), Cs, scores
        self.coefs_paths_, self.n_iter_ = paths, n_iter
        self._converged = converged and ended
        if not self._converged:
            warn_user(
                f"A minimum was not reached in max_iter={self.max_iter} Newton steps. "
                "Raise max_iter, or tol.",
                ConvergenceWarning,
            )
        return self

    # -- parameters -------------------------------------------------------------------

    def _values_of_C(self):
        if isinstance(self.Cs, Integral):
            return np.logspace(-4, 4, self.Cs)
        Cs = np.unique(np.asarray(self.Cs, dtype=np.float64))
        if Cs.size == 0 or not (np.isfinite(Cs).all() and Cs[0] > 0):
            raise ValueError(
                "Cs must be an integer or hold positive finite numbers, got "
                f"{np.asarray(self.Cs).tolist()}."
            )
        return Cs

    def _given_folds(self, X, y):
        """Masks of the test and training rows; None for the folds of this class."""
        if isinstance(self.cv, Integral) or self.cv == "loo":
            return None, None
        try:
            folds = list(check_cv(self.cv, y, classifier=True).split(X, y))
        except ValueError as error:  # which does not say where n_splits comes from
            message = f"cv={self.cv!r} cannot divide the rows: {error}"
            raise ValueError(message) from error
        masks = np.zeros((2, len(folds), len(y)), bool)
        for k, (train, test) in enumerate(folds):
            masks[0, k, test], masks[1, k, train] = True, True
        return masks

    def _check_folds(self, code, weight, tests):
        if len(tests) == 0 or not tests.any():
            raise ValueError(
                f"cv={self.cv!r} leaves out no row. A class needs at least two "
                "distinct rows, so that one can be left out."
            )
        for k, own in enumerate(weight):
            lacking = np.bincount(code, own, len(self.classes_)) == 0
            if lacking.any():
                label = self.classes_.tolist()[np.argmax(lacking)]
                raise ValueError(
                    f"cv={self.cv!r}: without fold {k} no row of class {label!r} is "
                    "left. Each class needs at least two distinct rows, in different "
                    "folds."
                )

    def _scorer(self):
        """Return a function of coefficients and rows, weight zero for the others."""
        scorer = check_scoring(self, self.scoring)

        def score(coef, bias, X, code, weight):
            own = weight > 0
            X, code, weight = X[own], code[own], weight[own]
            if self.scoring == "neg_log_loss":
                logits = logits_of(X, coef, bias)
                return -cross_entropy(logits, code, weight / weight.sum())
            model = logistic_regression(coef, bias, self.classes_, True, None)
            words = {} if np.ptp(weight) == 0 else {"sample_weight": weight}
            return scorer(model, X, self.classes_[code], **words)

        return score

    # -- results ----------------------------------------------------------------------

    def _diagnosis(self):
        found, place = [], int(np.argmax(self.scores_.mean(axis=0)))
        if len(self.Cs_) > 1 and place in (0, len(self.Cs_) - 1):
            end = "smallest" if place == 0 else "largest"
            text = f"C_={self.C_:.3g} is the {end} value tried. Extend Cs beyond it."
            found.append(Finding("path", text, "Cs"))
        if not self._converged:
            text = "A minimum was not reached. Raise max_iter, or tol."
            found.append(Finding("max_iter", text, "max_iter"))
        if not found:
            found.append(Finding("none", "The best value is inside the path."))
        return Diagnosis(f"{type(self).__name__} chose C={self.C_:.3g}", found)
