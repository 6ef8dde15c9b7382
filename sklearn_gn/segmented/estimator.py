"""SegmentedRegressor: a broken line in one feature."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from numbers import Integral, Real
from typing import Any, Literal, Self, overload

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context, clone
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_feature_names, check_is_fitted

from sklearn_gn._caller import warn_user
from sklearn_gn._reference_link import ReferenceLinkMixin
from sklearn_gn._typing import Array, ArrayLike, RandomState
from sklearn_gn.arrays.backend import one_blas_thread
from sklearn_gn.base import DiagnoseMixin, unchanged_on_failure
from sklearn_gn.bayes.huber import BOUND
from sklearn_gn.bayes.laplace import PredictionIntervalMixin
from sklearn_gn.data import dates
from sklearn_gn.data.chunks import check_repeatable, first_of, takes_only_chunks
from sklearn_gn.data.row_checks import RowChecks, with_tails
from sklearn_gn.data.rows import check_sample_weight, validate_data
from sklearn_gn.optim.stop import counted
from sklearn_gn.runtime.memory import check_table_fits
from sklearn_gn.runtime.versions import VersionStampMixin
from sklearn_gn.segmented import existence, inference, robust, selection, streams
from sklearn_gn.segmented.diagnosis import (
    FEWEST_ROWS,
    diagnose,
    is_correlated,
    warn_of_number,
)
from sklearn_gn.segmented.least_squares import COVARIANCES, Covariance
from sklearn_gn.segmented.preparation import (
    advice_on_room,
    broken_column,
    check_inside,
    folds_of,
    needs_all_points,
    options_of,
    precisions,
    prepare,
    problem_of,
    sorted_rows,
    with_known,
)
from sklearn_gn.segmented.selection import CRITERIA
from sklearn_gn.segmented.summary import Summary, summarise

_KINDS = {
    None: "numbers",
    "utc": "dates with a time zone",
    "local": "dates without a time zone",
}


class SegmentedRegressor(
    PredictionIntervalMixin,
    DiagnoseMixin,
    RegressorMixin,
    ReferenceLinkMixin,
    VersionStampMixin,
    BaseEstimator,
):
    """Segmented regression: finds breakpoints, and fits straight lines between them.

    Use it for growth phases, dose thresholds, interrupted time series, calibration
    curves and changes of level, where the positions of the breakpoints and their
    uncertainty matter. For smooth curves use a spline; for many features that all
    break, :class:`ShallowReLURegressor`.

    The mean of y is a broken line in one feature: at the breakpoints the slope changes
    (kinks), the value jumps (jumps), or both. By default it only has kinks: for changes
    of level set ``jumps=True``. Other features enter linearly.

    Parameters
    ----------
    n_breakpoints : int or "auto", default="auto"
        Number of breakpoints to find. If "auto", ``criterion`` chooses it, up to
        ``max_breakpoints``.

    kinks : bool, default=True
        Whether the slope changes at breakpoints.

    jumps : bool, default=False
        Whether the function jumps at breakpoints. With ``kinks=False`` the lines of all
        segments are parallel.

    degree : {0, 1}, default=1
        If 1, the segments are straight lines; if 0, constants, which jump whatever
        ``kinks`` and ``jumps`` are.

    broken_feature : int or str, default=0
        Number or name of the feature in which the line breaks. The others enter
        linearly.

    breakpoints : array-like of shape (n_known,), default=None
        Known breakpoints, in the units of the feature. The fit does not move them, and
        ``n_breakpoints`` counts the others.

    bounds : tuple (low, high), default=None
        Range in which breakpoints are searched. If None, the range of the data.

    min_distance : float or timedelta, default=0.0
        Minimum distance between breakpoints, and between them and the ends of the
        data. For dates, a number of days or a ``timedelta``.

    min_rows : int, default=None
        Minimum number of rows of a segment, counted by their weights. If None, it is
        three; if the function jumps, a tenth of the rows, but at least three and at
        most ten.

    max_breakpoints : int, default=10
        Maximum number of breakpoints that "auto" tries.

    criterion : {"bic", "aic", "gcv", "evidence", "bic-ar1", "cv"}, int, \
            cross-validation generator or iterable, default="bic"
        How "auto" chooses the number of breakpoints. "bic" and "aic" are the Bayesian
        and Akaike information criteria, and "bic-ar1" is "bic" for autoregressive
        noise; where the best of all positions lowers the sum of squares by more than
        "bic" charges by chance, both charge that. "gcv" is generalised
        cross-validation, "evidence" the probability of the data. "cv" is
        cross-validation with five folds, a number or a generator is cross-validation
        with these folds; it chooses the smallest number whose error is within one
        standard error of the lowest.

    covariance : {"nonrobust", "HC0", "HC1", "HC2", "HC3", "HAC", "HAC-prewhitened"}, \
            default="nonrobust"
        Estimator of the covariance of the parameters. "nonrobust" assumes independent
        noise of one variance, HC a variance that differs from row to row, and HAC
        (Newey and West) noise that is also correlated along the feature. If it is
        strongly correlated, use "HAC-prewhitened": standard errors by "HAC" are too
        small there.

    hac_lags : int, default=None
        Number of lags of both HAC estimators. If None, ``4 (n / 100)^(2 / 9)``, rounded
        down.

    flat : {"first", "last", "both"}, default=None
        Which segments are level: the first, such as below the threshold of a dose; the
        last, such as above a saturation; or both. If None, no segment has to be level.

    shape : {"convex", "concave"}, default=None
        If "convex", slopes only rise from segment to segment; if "concave", they only
        fall. If None, they may do either.

    loss : {"squared_error", "huber"}, default="squared_error"
        Loss of the residuals. With "huber", residuals beyond 1.345 robust standard
        deviations count linearly: rows get weights according to their residuals, and
        the search is repeated with these weights until they no longer change. Use it if
        some rows are outliers.

    autocorrelation : "auto", int or None, default="auto"
        Order of the autoregression that the noise is along the feature. If "auto", it
        is estimated from the residuals, and often zero. The number of breakpoints by
        "bic" and, with the covariance "nonrobust", all standard errors and intervals
        allow for it. If None, the noise counts as independent.

    Attributes
    ----------
    breakpoints_ : ndarray of shape (n_breakpoints,)
        Breakpoints, ascending, including the known ones. Dates if the feature holds
        dates.

    breakpoint_std_ : ndarray of shape (n_breakpoints,)
        Standard errors by the delta method; 0 for known breakpoints, NaN for jumps,
        whose positions have none. In days if the feature holds dates.

    breakpoint_interval_ : ndarray of shape (n_breakpoints, 2)
        95 % confidence intervals from the profile of the sum of squares: for kinks by
        the F test of a position, for jumps by the likelihood ratio of Eo and Morley
        (2015), from row to row. They extend at most to the next breakpoint, to the end
        of the data or to ``bounds``.

    jumps_ : ndarray of shape (n_breakpoints,)
        Jump at every breakpoint; 0 where the function is continuous.

    segments_ : dict of ndarrays
        Table of the straight lines: ``start``, ``end``, ``intercept`` (where all
        features are zero), ``slope``, both with ``_std_error`` and 95 % limits
        (``_lower``, ``_upper``), ``jump`` at the start with its standard error, and
        ``n_rows``. ``pd.DataFrame(model.segments_)`` shows it.

    parameters_ : dict of ndarrays
        Table of the intercept, the slope of the first segment, the changes of slope,
        the jumps and the coefficients of the linear features: ``name``, ``estimate``,
        ``std_error``, ``t``, ``p_value``, ``lower`` and ``upper``. All errors, here and
        elsewhere, are NaN if the rows are no more than the parameters.

    noise_std_ : float
        Standard deviation of the noise; with ``loss="huber"`` a robust estimate from
        the median of the absolute residuals. NaN if the rows are no more than the
        parameters.

    robust_weights_ : ndarray of shape (n_samples,)
        Weights of the rows according to their residuals. Only with ``loss="huber"``.

    residual_correlation_ : float
        Correlation of the residuals of neighbouring rows, in the order of the feature
        that breaks. NaN after :meth:`fit_chunks` if the points were not kept.

    autocorrelation_ : ndarray of shape (order,)
        Coefficients of the autoregression of the noise; empty if it is independent.

    statistics_ : dict of float
        ``n_rows`` (sum of the weights), ``n_parameters`` (breakpoints included),
        ``degrees_of_freedom``, ``rss``, ``r2``, and ``aic`` and ``bic`` for independent
        normal noise. As in ``statsmodels``, the variance of the noise is not counted as
        a parameter; R counts it, and its BIC is ``log(n_rows)`` higher. With
        ``loss="huber"`` the residuals are clipped. ``r2`` of a constant target is 1.

    selection_path_ : dict of ndarrays
        The numbers ``n_breakpoints`` that were tried, without known ones, with
        ``n_parameters``, ``rss`` and the criterion. ``rss``, "gcv" and "evidence" are
        relative to those of a constant, "bic" and "aic" are as in ``statistics_``; with
        "cv" there is also ``cv_std_error``, and with "bic" and "bic-ar1" what is added
        to them, ``search_penalty``.

    n_features_in_ : int
        Number of features.

    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if all of them are strings.

    Notes
    -----
    Outside the data, the first and the last line are extended. The standard errors of
    the lines include the uncertainty of the positions of kinks, but treat those of
    jumps as known. A row of weight two counts as two rows.

    If the fit is poor, :meth:`diagnose` says what limited it: raise
    ``max_breakpoints``, allow ``jumps``, or compare the numbers of breakpoints in
    ``selection_path_``. The :doc:`user guide </user_guide/segmented>` has more.

    References
    ----------
    V. M. R. Muggeo, "Estimating regression models with unknown break-points",
    Statistics in Medicine 22 (2003), 3055-3071.

    Y. Eo and J. Morley, "Likelihood-ratio-based confidence sets for the timing of
    structural breaks", Quantitative Economics 6 (2015), 463-497.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import SegmentedRegressor
    >>> X = np.linspace(0, 10, 101)[:, None]
    >>> y = 1 + np.maximum(X[:, 0] - 4, 0)
    >>> model = SegmentedRegressor().fit(X, y)
    >>> model.breakpoints_.round(6)
    array([4.])
    >>> model.segments_["slope"].round(6) + 0.0
    array([0., 1.])
    """

    # Keys of a dictionary are a set that messages print in order.
    _parameter_constraints: dict[str, Any] = {
        "n_breakpoints": [
            Interval(Integral, 0, None, closed="left"),
            StrOptions({"auto"}),
        ],
        "kinks": ["boolean"],
        "jumps": ["boolean"],
        "degree": [Interval(Integral, 0, 1, closed="both")],
        "broken_feature": [Integral, str],
        "breakpoints": ["array-like", None],
        "bounds": ["array-like", None],
        "min_distance": [
            timedelta,
            np.timedelta64,  # before the numbers, among which NumPy counts it
            Interval(Real, 0, None, closed="left"),
        ],
        "min_rows": [Interval(Integral, 1, None, closed="left"), None],
        "max_breakpoints": [Interval(Integral, 0, None, closed="left")],
        "criterion": [StrOptions(dict.fromkeys([*CRITERIA, "cv"]).keys()), "cv_object"],
        "covariance": [StrOptions(dict.fromkeys(COVARIANCES).keys())],
        "hac_lags": [Interval(Integral, 0, None, closed="left"), None],
        "flat": [StrOptions({"first", "last", "both"}), None],
        "shape": [StrOptions({"convex", "concave"}), None],
        "loss": [StrOptions({"squared_error", "huber"})],
        "autocorrelation": [
            Interval(Integral, 0, None, closed="left"),
            StrOptions({"auto"}),
            None,
        ],
    }

    def __init__(
        self,
        n_breakpoints: int | Literal["auto"] = "auto",
        *,
        kinks: bool = True,
        jumps: bool = False,
        degree: Literal[0, 1] = 1,
        broken_feature: int | str = 0,
        breakpoints: ArrayLike | None = None,
        bounds: tuple[float, float] | None = None,
        min_distance: float | timedelta = 0.0,
        min_rows: int | None = None,
        max_breakpoints: int = 10,
        criterion: Any = "bic",
        covariance: Literal[
            "nonrobust", "HC0", "HC1", "HC2", "HC3", "HAC", "HAC-prewhitened"
        ] = "nonrobust",
        hac_lags: int | None = None,
        flat: Literal["first", "last", "both"] | None = None,
        shape: Literal["convex", "concave"] | None = None,
        loss: Literal["squared_error", "huber"] = "squared_error",
        autocorrelation: int | Literal["auto"] | None = "auto",
    ) -> None:
        self.n_breakpoints = n_breakpoints
        self.kinks = kinks
        self.jumps = jumps
        self.degree = degree
        self.broken_feature = broken_feature
        self.breakpoints = breakpoints
        self.bounds = bounds
        self.min_distance = min_distance
        self.min_rows = min_rows
        self.max_breakpoints = max_breakpoints
        self.criterion = criterion
        self.covariance = covariance
        self.hac_lags = hac_lags
        self.flat = flat
        self.shape = shape
        self.loss = loss
        self.autocorrelation = autocorrelation

    @_fit_context(prefer_skip_nested_validation=True)
    @unchanged_on_failure
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        y_std: ArrayLike | None = None,
    ) -> Self:
        """Find the breakpoints and fit the lines.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples, in any order. The feature that breaks may hold dates, in a
            data frame of pandas or polars, an array or a list; a period counts as its
            start.

        y : array-like of shape (n_samples,)
            Target values.

        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; a row of weight two counts as two rows. If None, all
            weights are one.

        y_std : array-like of shape (n_samples,), default=None
            Standard deviations of the targets, up to a common factor, which is
            estimated and changes nothing. Unlike weights, they do not change how many
            rows there are. ``noise_std_`` is that of a row of mean precision. If None,
            all are equal.

        Returns
        -------
        self : SegmentedRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter is out of its range, if known breakpoints or bounds do not
            match the data, if the data contain NaN or infinity or do not fit into
            memory, if all weights are zero, if ``y_std`` is not positive, or if weights
            differ and ``criterion`` is "bic-ar1".

        Warns
        -----
        UserWarning
            If the data have no room for ``n_breakpoints`` breakpoints; if "auto" took
            as many as ``max_breakpoints``, followed outliers, or left residuals that
            are too correlated to be noise; or if weights look like inverse variances.
        """
        chunks = streams.mapped_rows(X, y, sample_weight)
        if chunks is not None and y_std is None and needs_all_points(self) is None:
            return self.fit_chunks(chunks)
        check_table_fits(X, "fit_chunks reads points piece by piece.")
        prepared, kind, order = self._prepare(X, y, sample_weight, y_std)
        options = options_of(self, kind)
        own = prepared.rows.weight if prepared.repeats is None else prepared.repeats
        if own.sum() > 2 * len(own) and np.any(own != np.round(own)):
            warn_user(
                f"The weights sum to {own.sum():.4g} and count as so many rows, but "
                f"there are {len(own)}. If they are inverse variances, give y_std.",
            )
        with one_blas_thread, prepared.scaling.arithmetic():
            folds = folds_of(self, order, y)
            found = self._search(prepared, options, kind, folds)
            scale = self._set_fitted(prepared, options, *found)
            fit, rows = self._fit, prepared.rows
            y_size, y_center = fit.scaling.y_size, fit.scaling.y_center
            left = inference.residuals(fit, rows) * y_size
            self._row_checks = with_tails(
                RowChecks(len(rows.y)),
                (rows.y * y_size + y_center)[:, None],
                left[:, None],
                rows.weight,
                order,
            )
            if self.loss == "huber":
                size = np.abs(np.ravel(y).astype(np.float64) - self.predict(X))
                size = np.maximum(size, np.finfo(float).tiny)
                self.robust_weights_ = np.minimum(1, BOUND * scale / size)
        if self.n_breakpoints == "auto":
            outlying = np.empty(0, int)
            if self.loss == "squared_error":
                few = 1 + (self.min_rows or FEWEST_ROWS)
                outlying = order[robust.outlying_rows(fit, rows, few)]
            warn_of_number(self, outlying)
        return self

    @takes_only_chunks
    @_fit_context(prefer_skip_nested_validation=True)
    @unchanged_on_failure
    def fit_chunks(self, chunks: Iterable[tuple[ArrayLike, ...]]) -> Self:
        """Fit points that come in chunks and do not fit into memory.

        The fit keeps sums, not points, and reads the chunks a few times. Residuals and
        standard errors are those of all points at the breakpoints found; where other
        breakpoints are almost as good, :meth:`fit` in memory may find those.
        :meth:`fit` calls this method if X is a dask or a large memory-mapped array.

        Parameters
        ----------
        chunks : iterable of tuples (X, y) or (X, y, sample_weight)
            Arrays of any length; X has one feature. The object must be iterable several
            times, such as a list or an object with ``__iter__``, not a generator.

        Returns
        -------
        self : SegmentedRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If the chunks can be iterated only once, if one is malformed, if they
            contain NaN or infinity, or if a parameter needs all points at once: a
            ``covariance`` other than "nonrobust", Huber's loss, cross-validation, or
            the evidence.
        """
        reason = needs_all_points(self)
        if reason is not None:
            raise ValueError(f"{reason} needs all points at once; chunks give sums.")
        check_repeatable(chunks)
        options = options_of(self, None)

        def fit_points(points):
            kept = points.weight > 0
            x, y, weight = (a[kept] for a in points[:3])
            prepared = prepare(x, y, np.empty((len(x), 0)), weight, points.rest)
            with prepared.scaling.arithmetic():
                found = self._search(prepared, options, None, None)
            return (prepared, found), prepared.scaling.to_user(found[0])

        with one_blas_thread:
            prepared, found = streams.fit_points(chunks, options.known, fit_points)
        self.n_features_in_, self._column = 1, 0
        _check_feature_names(self, first_of(chunks)[0], reset=True)
        self._set_fitted(prepared, options, *found)
        return self

    def _prepare(self, X, y, sample_weight, y_std=None):
        """The series in the units of the search, kind of dates, order of the rows."""
        if dates.is_frame(X):
            dates.check_column(self.broken_feature, list(X.columns))
        X, kind = dates.replace_dates(X, self.broken_feature)
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        self._column = broken_column(self)
        weight = check_sample_weight(sample_weight, X)
        x, linear = self._split(X)
        order = sorted_rows(x, weight)
        x, y, linear, count = (
            a[order] for a in (x, y.astype(np.float64), linear, weight)
        )
        if y_std is None:
            return prepare(x, y, linear, count), kind, order
        weight = count * precisions(y_std, X)[order]
        weight *= count.sum() / weight.sum()
        prepared = prepare(x, y, linear, weight)
        return prepared._replace(repeats=count), kind, order

    def _split(self, X):
        return X[:, self._column], np.delete(X, self._column, axis=1)

    def _search(self, prepared, options, kind, folds):
        """The breakpoints, the series with residuals clipped, and the problem."""
        check_inside(prepared, options.known, kind)
        ((t, path),), (clipped,), problem = robust.find_breakpoints(
            self, [prepared], options, folds
        )
        n_breakpoints = None if self.n_breakpoints == "auto" else self.n_breakpoints
        if n_breakpoints is not None and len(t) < n_breakpoints:
            warn_user(
                f"The fit has {counted(len(t), 'breakpoint')}, not n_breakpoints="
                f"{n_breakpoints}: the data have no room for more. "
                f"{advice_on_room(prepared, options, n_breakpoints, kind)}",
            )
        self._date_kind = kind
        self.selection_path_ = path
        return t, clipped, problem

    def _set_fitted(self, prepared, options, t, clipped, problem):
        """Set the fitted attributes; return the scale of the residuals."""
        t, free = with_known(prepared, options, t)
        for name in ("robust_weights_", "_row_checks"):
            vars(self).pop(name, None)  # of an earlier fit
        self._covariance = Covariance(self.covariance, self.hac_lags)
        several, figures, (scale,), (interval,), (noise,) = robust.infer_all(
            options, t[None], free, [prepared], [clipped], problem, self._covariance
        )
        self.autocorrelation_ = noise.coef
        self._fit = fit = several.of(0)
        self._held_by_bounds, self._cut_by_bounds = inference.at_bounds(
            fit, problem, interval
        )
        self.breakpoints_ = self._to_user(fit.breakpoints)
        self.breakpoint_std_ = inference.breakpoint_errors(fit)
        self.breakpoint_interval_ = self._to_user(interval)
        self.segments_ = inference.segment_table(fit, prepared.rows)
        self.jumps_ = self.segments_["jump"][1:]
        for name in ("start", "end"):
            self.segments_[name] = self._to_user(self.segments_[name])
        self.parameters_ = inference.parameter_table(fit, *self._names())
        self.noise_std_ = float("nan" if fit.is_noise_unknown else scale)
        self.residual_correlation_, self._correlation_error = (
            inference.residual_correlation(fit, (clipped or prepared).rows)
        )
        self.statistics_ = {name: value[0].item() for name, value in figures.items()}
        return float(scale)

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

    def breakpoint_test(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        n_draws: int = 1999,
        random_state: RandomState = 0,
    ) -> existence.BreakpointTest:
        """Test whether there is a breakpoint besides those in ``breakpoints``.

        The statistic is the largest F statistic over all positions that the parameters
        allow; its distribution without a breakpoint is simulated. ``covariance`` states
        what is assumed of the noise: that it is normal with one variance ("nonrobust"),
        independent with any variance (HC, by a wild bootstrap of score statistics), or
        also correlated along the feature (both HAC, by a bootstrap of its
        autoregression). The estimator need not be fitted.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        y : array-like of shape (n_samples,)
            Target values.

        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; a row of weight two counts as two rows. If None, all
            weights are one.

        n_draws : int, default=1999
            Number of draws; the smallest p-value is ``1 / (1 + n_draws)``.

        random_state : int, RandomState instance or None, default=0
            Seed of the draws.

        Returns
        -------
        BreakpointTest
            Named tuple of ``statistic``, ``p_value``, and the ``breakpoint`` that
            lowers the sum of squares most.
        """
        self._validate_params()
        with one_blas_thread:
            prepared, kind, _ = clone(self)._prepare(X, y, sample_weight)
            options = options_of(self, kind)
            check_inside(prepared, options.known, kind)
            problem, rows = problem_of([prepared], options), prepared.rows
            draws = n_draws, check_random_state(random_state)
            if self.covariance == "nonrobust":
                n_parameters = selection.n_parameters(problem, 0)
                n_rows = float(rows.weight.sum())
                found = existence.plain_test(problem, n_rows, n_parameters, *draws)
            else:
                noise = Covariance(self.covariance, self.hac_lags)
                found = existence.bootstrap_test(problem, rows, noise, *draws)
        t = prepared.scaling.to_user(found.breakpoint)[0]
        return found._replace(breakpoint=t if kind is None else dates.from_days(t))

    def _names(self):
        """Name of the feature that breaks, and those of the others."""
        unnamed = [f"x{j}" for j in range(self.n_features_in_)]
        names = [str(name) for name in getattr(self, "feature_names_in_", unnamed)]
        return names[self._column], names[: self._column] + names[self._column + 1 :]

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
