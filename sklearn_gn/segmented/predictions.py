"""What a fitted SegmentedRegressor answers: predictions, summary, diagnosis."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._caller import warn_user
from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.base import DiagnoseMixin
from sklearn_gn.bayes.laplace import PredictionIntervalMixin
from sklearn_gn.data import dates
from sklearn_gn.data.row_checks import RowChecks, with_tails
from sklearn_gn.data.rows import validate_data
from sklearn_gn.segmented import inference
from sklearn_gn.segmented.diagnosis import diagnose, is_correlated
from sklearn_gn.segmented.inputs import InputsMixin
from sklearn_gn.segmented.summary import Summary, summarise

_KINDS = {
    None: "numbers",
    "utc": "dates with a time zone",
    "local": "dates without a time zone",
}


class PredictionsMixin(PredictionIntervalMixin, DiagnoseMixin, InputsMixin):
    """Reads the fitted attributes only."""

    _fit: Any
    _covariance: Any
    _date_kind: str | None
    residual_correlation_: float

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Array: ...

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[True]
    ) -> tuple[Array, Array]: ...

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> Array | tuple[Array, Array]:
        """Predict the target; the first and the last line extend beyond the data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        return_std : bool, default=False
            Whether to return standard errors too.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Predicted values.

        y_std : ndarray of shape (n_samples,)
            Standard errors of the predicted means by the delta method, with the kinks
            uncertain too; the noise of a new observation is not included
            (:meth:`predict_interval` adds it). Only with ``return_std``.

        Warns
        -----
        UserWarning
            If ``return_std`` is set and the weights of the rows sum to no more than the
            number of parameters: the noise cannot be estimated then, and ``y_std`` is
            NaN.
        """
        check_is_fitted(self)
        X = self._check_X(X)
        y, std = inference.predict(self._fit, *self._split(X))
        if not return_std:
            return y
        if self._fit.is_noise_unknown:
            warn_user(
                f"The weights of the rows sum to {self._fit.n_rows:.4g}, and the fit "
                f"has {self._fit.n_parameters} parameters: the noise cannot be "
                "estimated, and the standard deviations are NaN.",
            )
        return y, std

    def _noise_freedom(self):
        return self._fit.degrees_of_freedom

    def _diagnosis(self):
        return diagnose(self)

    def summary(self) -> Summary:
        """Return tables of the breakpoints, the segments and the parameters.

        Returns
        -------
        Summary
            ``print`` shows it as text, a notebook as HTML.
        """
        check_is_fitted(self)
        found = summarise(
            self, self._covariance.kind, dates=self._date_kind is not None
        )
        if is_correlated(self):
            found.notes.append(
                "Neighbouring residuals are correlated "
                f"({self.residual_correlation_:.2f}); diagnose() says what to do."
            )
        return found

    def _check_residuals(self, rows, numbers):
        """Keep which rows are far from the lines, by their numbers in the data."""
        y = rows.y * self._fit.scaling.y_size + self._fit.scaling.y_center
        left = inference.residuals(self._fit, rows) * self._fit.scaling.y_size
        self._row_checks = with_tails(
            RowChecks(len(y)), y[:, None], left[:, None], rows.weight, numbers
        )

    def _names(self):
        """Name of the feature that breaks, and those of the others."""
        unnamed = [f"x{j}" for j in range(self.n_features_in_)]
        names = [str(name) for name in getattr(self, "feature_names_in_", unnamed)]
        return names[self._column], names[: self._column] + names[self._column + 1 :]

    def _curve(self, X, n_grid):
        """The function over the range of X, the linear features at their means.

        Returns
        -------
        x, values : ndarrays of shape (n_samples,)
            Positions of the samples and the function there.
        curve : dict of ndarrays
            ``grid``, ``response``, and the limits ``lower`` and ``upper``.
        """
        x, _ = self._split(self._check_X(X))
        even = np.linspace(x.min(), x.max(), n_grid)
        t = self._fit.breakpoints
        t = t[(t > even[0]) & (t < even[-1])]
        grid = np.unique(np.concatenate([even, t, np.nextafter(t, -np.inf)]))
        mean = self._fit.scaling.linear_center
        values, _ = inference.predict(self._fit, x, np.tile(mean, (len(x), 1)))
        response, std = inference.predict(
            self._fit, grid, np.tile(mean, (len(grid), 1))
        )
        width = self._fit.half_width * std
        curve = {
            "grid": self._to_user(grid),
            "response": response,
            "lower": response - width,
            "upper": response + width,
        }
        return self._to_user(x), values, curve

    def _to_user(self, x):
        return x if self._date_kind is None else dates.from_days(x)

    def _check_X(self, X):
        given, (X, kind) = X, dates.replace_dates(X, self._column)
        if kind != self._date_kind:
            asked, held = (_KINDS[each] for each in (self._date_kind, kind))
            if kind is None:
                held = dates.held(given, self._column)
            raise ValueError(f"The model was fitted on {asked}, but X holds {held}.")
        return validate_data(self, X, reset=False, dtype=np.float64)
