"""What the classifiers share: labels on the way in, logits on the way out."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.core.data import check_validation_pair, validate_data

_MISSING = ("None", "nan", "<NA>", "NaT")  # what stands for a missing label, as text


def _check_no_label_is_missing(y):
    """Raise a ValueError if some of the labels are missing."""
    y = np.asarray(y, dtype=object).ravel()
    n_missing = sum(
        not isinstance(label, str) and str(label) in _MISSING for label in y
    )
    if n_missing:
        rows = "row" if n_missing == 1 else "rows"
        raise ValueError(
            f"y has no label in {n_missing} {rows}: leave them out, or give them a "
            "label of their own."
        )


def _check_one_kind(y):
    """Raise a ValueError if labels are of kinds that have no common order."""
    if y.dtype != object:
        return
    try:
        np.unique(y)
    except TypeError as error:
        _check_no_label_is_missing(y)
        kinds = sorted({type(label).__name__ for label in y.ravel()})
        raise ValueError(
            f"y holds labels of the types {kinds}, which have no common order. Give "
            "labels of one type, for example as strings."
        ) from error


def _check_type_of_objects(y):
    """Raise a ValueError if labels are objects other than text, such as integers."""
    kinds = {type(label) for label in y.ravel()} if y.dtype == object else {str}
    if all(issubclass(kind, str) for kind in kinds):
        return
    families = {bool: (bool, np.bool_), int: Integral, float: Real, str: object}
    plain = next(
        name
        for name, family in families.items()
        if all(issubclass(kind, family) for kind in kinds)
    )
    names = " and ".join(sorted(kind.__name__ for kind in kinds))
    raise ValueError(
        "Unknown label type: y is an array of dtype object, with labels of type "
        f"{names}. Convert them, for example by y.astype({plain.__name__})."
    )


class SoftmaxClassifier(ClassifierMixin):
    """A classifier with ``classes_``, ``class_weight`` and ``decision_function``."""

    _accept_sparse: bool | str = False
    _input_dtypes: Any = np.float64  # to which X is converted unless it has one of them

    # -- labels -----------------------------------------------------------------------

    def _check_data(self, X, y, *, reset):
        try:
            X, y = validate_data(
                self,
                X,
                y,
                reset=reset,
                accept_sparse=self._accept_sparse,
                dtype=self._input_dtypes,
            )
        except (TypeError, ValueError) as error:
            if isinstance(error, TypeError) or "NaN" in str(error):
                _check_no_label_is_missing(y)
            raise
        _check_one_kind(y)
        _check_type_of_objects(y)
        check_classification_targets(y)
        return X, y

    def _find_classes(self, y, weight, *, previous):
        """Set ``classes_``, which must be the same as before if ``previous``."""
        classes = np.unique(y[weight > 0])
        if len(classes) < 2:
            raise ValueError(
                "y must hold at least two classes of positive weight, got one class: "
                f"{classes.tolist()}."
            )
        if previous and not np.array_equal(classes, self.classes_):
            raise ValueError(
                "warm_start=True continues with the classes of the previous fit, "
                f"{self.classes_.tolist()}; y has {classes.tolist()}."
            )
        self.classes_ = classes

    def _encode(self, y, name):
        """Numbers of the labels."""
        code = np.searchsorted(self.classes_, y)
        code = np.minimum(code, len(self.classes_) - 1)
        unknown = self.classes_[code] != y
        if unknown.any():
            raise ValueError(
                f"{name} holds labels that are not among classes_: "
                f"{np.unique(y[unknown]).tolist()}."
            )
        return code

    def _encode_weighted(self, X, y, weight):
        """Rows that have weight: X, class numbers, and weights times class weights."""
        if (weight == 0).any():
            counted = weight > 0
            X, y, weight = X[counted], y[counted], weight[counted]
        code = self._encode(y, "y")
        if self.class_weight is not None:
            self._check_class_weight()
            by_class = compute_class_weight(
                self.class_weight,
                classes=self.classes_,
                y=y,
                sample_weight=weight,
            )
            with np.errstate(over="ignore"):
                weight = weight * by_class[code]
            if not (np.isfinite(weight).all() and (weight > 0).any()):
                raise ValueError(
                    "class_weight times sample_weight must be finite, and positive for "
                    f"at least one row; class_weight={self.class_weight!r} gives "
                    f"weights from {weight.min()} to {weight.max()}."
                )
        return X, code, weight

    def _check_class_weight(self):
        """Raise a ValueError that names the first weight that is no weight."""
        if not isinstance(self.class_weight, dict):
            return
        for label, factor in self.class_weight.items():
            if not (isinstance(factor, Real) and 0 <= factor < np.inf):
                raise ValueError(
                    "The values of class_weight must be finite numbers, zero or "
                    f"larger; class {label!r} has {factor!r}."
                )

    def _check_validation(self, X_val, y_val):
        """X, class numbers and weights; None where they are not given."""
        if not check_validation_pair(X_val, y_val):
            return None
        X_val, y_val = self._check_data(X_val, y_val, reset=False)
        return X_val, self._encode(y_val, "y_val"), np.full(len(y_val), 1 / len(y_val))

    # -- predictions ------------------------------------------------------------------

    def predict(self, X: ArrayLike) -> Array:
        """Predict the labels.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples, of any kind that ``fit`` takes.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            The most probable classes.
        """
        logits = self.decision_function(X)
        code = (logits > 0).astype(int) if logits.ndim == 1 else logits.argmax(axis=1)
        return self.classes_[code]

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities of the classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples, of any kind that ``fit`` takes.

        Returns
        -------
        p : ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``.
        """
        return softmax(self._class_logits(X), axis=1)

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Logarithms of the probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples, of any kind that ``fit`` takes.

        Returns
        -------
        log_p : ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``; finite where the probability underflows.
        """
        return log_softmax(self._class_logits(X), axis=1)

    def _class_logits(self, X):
        logits = self.decision_function(X)
        return all_logits(logits[:, None] if logits.ndim == 1 else logits)


def all_logits(values):
    """Logits of all classes; for two classes from the column of the second."""
    if values.shape[1] > 1:
        return values
    return np.concatenate([np.zeros_like(values), values], axis=1)


def cross_entropy(values, code, weight):
    """Weighted mean over the rows, for values of one column or one a class."""
    log_p = log_softmax(all_logits(values), axis=1)
    return -float(weight @ log_p[np.arange(len(code)), code])
