"""What the parameters and the data of SegmentedRegressor ask for."""

from numbers import Integral

import numpy as np
from sklearn.model_selection import check_cv

from sklearn_gn.data import dates
from sklearn_gn.data.rows import check_sample_weight, validate_data
from sklearn_gn.segmented.least_squares import Covariance
from sklearn_gn.segmented.preparation import Options, prepare, sorted_rows
from sklearn_gn.segmented.problem import Form


class InputsMixin:
    """Reads the constructor parameters, and the data that ``fit`` gets."""

    def _prepare(self, X, y, sample_weight):
        """The series in the units of the search, kind of dates, order of the rows."""
        if dates.is_frame(X):
            dates.check_column(self.broken_feature, list(X.columns))
        X, kind = dates.replace_dates(X, self.broken_feature)
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        self._column = self._broken_column()
        weight = check_sample_weight(sample_weight, X)
        x, linear = self._split(X)
        order = sorted_rows(x, weight)
        parts = (a[order] for a in (x, y.astype(np.float64), linear, weight))
        return prepare(*parts), kind, order

    def _broken_column(self):
        """Number of the feature that breaks."""
        given, n = self.broken_feature, self.n_features_in_
        if isinstance(given, str):
            names = list(getattr(self, "feature_names_in_", ()))
            dates.check_column(given, names)
            return names.index(given)
        if not -n <= given < n:
            raise ValueError(
                f"broken_feature={given} is out of range: X has {n} features."
            )
        return given % n

    def _split(self, X):
        return X[:, self._column], np.delete(X, self._column, axis=1)

    def _options(self, kind):
        """What the parameters ask for, in numbers."""
        known = _positions("breakpoints", self.breakpoints, kind)
        known = np.unique(np.empty(0) if known is None else known)
        bounds = _positions("bounds", self.bounds, kind)
        if bounds is None:
            bounds = -np.inf, np.inf
        if len(bounds) != 2 or not bounds[0] <= bounds[1]:
            raise ValueError(f"bounds must be (low, high), got {self.bounds!r}.")
        distance = dates.given_length("min_distance", self.min_distance, kind)
        return Options(self._form(), known, tuple(bounds), distance, self.min_rows)

    def _form(self):
        """What happens between and at the breakpoints."""
        form = Form(
            slope=self.degree == 1 and self.flat not in ("first", "both"),
            ramp=self.degree == 1 and bool(self.kinks),
            step=self.degree == 0 or bool(self.jumps),
            flat_end=self.flat in ("last", "both"),
            sign={None: 0, "convex": 1, "concave": -1}[self.shape],
        )
        if not (form.ramp or form.step):
            raise ValueError(
                "kinks=False and jumps=False: nothing happens at breakpoints."
            )
        if self.flat is not None and not form.ramp:
            raise ValueError(
                f"flat={self.flat!r} needs lines whose slopes change: set degree=1 "
                "and kinks=True."
            )
        if form.sign and (form.step or not form.ramp or self.breakpoints is not None):
            raise ValueError(
                f"shape={self.shape!r} needs kinks that are all to be found: set "
                "degree=1, jumps=False and breakpoints=None."
            )
        return form

    def _covariance_kind(self):
        return Covariance(self.covariance, self.hac_lags)

    def _criterion(self):
        """Name of the criterion; cross-validation may be given by its folds."""
        if self.criterion is None:
            raise ValueError(
                'criterion=None is not possible: give "bic" or one of the others.'
            )
        return self.criterion if isinstance(self.criterion, str) else "cv"

    def _takes_chunks(self):
        """What needs all points at once, or None."""
        if self.covariance != "nonrobust":
            return f"covariance={self.covariance!r}"
        if self.loss != "squared_error":
            return f"loss={self.loss!r}"
        if self.criterion not in ("bic", "aic", "gcv") and self.n_breakpoints == "auto":
            return f"criterion={self.criterion!r}"
        return None

    def _folds(self, order, y):
        """Masks of the sorted rows that are held out by turns, for cross-validation."""
        if self._criterion() != "cv" or self.n_breakpoints != "auto":
            return None
        cv = 5 if isinstance(self.criterion, str) else self.criterion
        if isinstance(cv, Integral):
            if not 2 <= cv <= len(order):
                raise ValueError(
                    f"criterion={self.criterion!r}: the {cv} folds of cross-validation "
                    f"must lie between 2 and the number of rows, {len(order)}."
                )
            return [np.arange(len(order)) % cv == f for f in range(cv)]
        splits = check_cv(cv).split(np.zeros((len(y), 1)), y)
        masks = [np.isin(order, test) for _, test in splits]
        return [mask for mask in masks if 0 < mask.sum() < len(mask)]


def _positions(name, given, kind):
    """Positions that a parameter gives, as numbers."""
    if given is None:
        return None
    if kind is not None:
        return dates.given_days(name, given)
    values = np.asarray(given)
    if (
        values.ndim != 1
        or values.dtype.kind not in "iuf"
        or not np.isfinite(values).all()
    ):
        raise ValueError(f"{name} must be a list of finite numbers, got {given!r}.")
    return values.astype(np.float64)
