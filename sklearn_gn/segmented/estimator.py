"""SegmentedRegressor: a broken line in one feature."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Literal, Self, overload

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, _fit_context, clone
from sklearn.metrics import r2_score
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._caller import warn_user
from sklearn_gn._typing import Array, ArrayLike, RandomState
from sklearn_gn.base import DiagnoseMixin, VersionStampMixin, unchanged_on_failure
from sklearn_gn.bayes.laplace import PredictionIntervalMixin
from sklearn_gn.data.chunks import takes_only_chunks
from sklearn_gn.data.rows import check_fits
from sklearn_gn.runtime.summary import Summary
from sklearn_gn.segmented import fitted, inference, preparation, streams
from sklearn_gn.segmented.diagnosis import diagnose, summarise
from sklearn_gn.segmented.existence import BreakpointTest, existence_test
from sklearn_gn.segmented.joint import FAMILIES, check_offset
from sklearn_gn.segmented.least_squares import COVARIANCES
from sklearn_gn.segmented.noise import noise_scale_of
from sklearn_gn.segmented.selection import CRITERIA, find_of_one
from sklearn_gn.solvers._base import ReferenceLinkMixin

_COUNT = Interval(Integral, 0, None, closed="left")
_LENGTH = Interval(Real, 0, None, closed="left")
_Given = ArrayLike | None


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
    of level set ``jumps=True`` or "auto". Other features enter linearly.

    Parameters
    ----------
    n_breakpoints : int, "auto" or list of these, default="auto"
        Number of breakpoints to find; "auto": ``criterion`` chooses it. A list has one
        for each of several broken features.
    kinks : bool, default=True
        Whether the slope changes at breakpoints.
    jumps : bool or "auto", default=False
        Whether the function jumps at breakpoints. With ``kinks=False`` the lines of all
        segments are parallel. If "auto", the criterion makes
        each breakpoint a kink, a jump, or both.
    degree : {0, 1, 2}, default=1
        If 1, the segments are straight lines; if 0, constants, which jump whatever
        ``kinks`` and ``jumps`` are. If 2, they are parabolas, joined in value only: at
        a breakpoint slope and curvature change.
    broken_features : int, str or list of these, default=0
        Number or name of the feature in which the line breaks; the others enter
        linearly. Of several, attributes of breakpoints and segments are lists.
    breakpoints : array-like of shape (n_known,), default=None
        Known breakpoints, which stay; ``n_breakpoints`` counts the others.
    bounds : tuple (low, high), default=None
        Range in which breakpoints are searched. If None, the range of the data.
    min_distance : float or timedelta, default=0.0
        Minimum distance between breakpoints, and between them and the ends of the data.
        For dates, a number of days or a ``timedelta``.
    min_rows : int, default=None
        Minimum number of rows of a segment, counted by their weights. If None, three;
        if the function jumps, a tenth of the rows, but at least three and at most ten.
    max_breakpoints : int, default=10
        Maximum number of breakpoints that "auto" tries.
    criterion : {"bic", "aic", "gcv"}, default="bic"
        How "auto" chooses the number of breakpoints: information criteria, or
        generalised cross-validation.
    covariance : {"nonrobust", "HC0", "HC1", "HC2", "HC3", "HAC", "HAC-prewhitened"}, \
            default="nonrobust"
        Covariance of the parameters. "nonrobust": independent noise of one variance;
        HC: the variance differs from row to row; HAC: the noise is correlated, too,
        along the feature (strongly: "HAC-prewhitened").
    hac_lags : int, default=None
        Lags of both HAC estimators. If None, ``4 (n / 100)^(2 / 9)``, rounded down.
    flat : {"first", "last", "both"}, default=None
        Which segments are level: the first (a threshold), the last (a saturation) or
        both. If None, none has to be.
    loss : {"squared_error", "huber"}, default="squared_error"
        With "huber", residuals beyond 1.345 robust standard deviations count linearly:
        for rows with outliers.
    autocorrelation : "auto", int or None, default="auto"
        Order of the noise's autoregression along the feature, for which "bic" and, with
        the covariance "nonrobust", standard errors and intervals allow. "auto"
        estimates it, None is independent noise.
    family : {"gaussian", "poisson", "binomial"}, default="gaussian"
        Distribution of y. The broken line is the mean, its logarithm for counts
        ("poisson"), or its logit for shares ("binomial": y between 0 and 1, numbers of
        trials as ``sample_weight``).
    slopes : tuple (low, high) or list, default=None
        Conditions on the slopes. A tuple bounds all: ``(0, None)`` for a line that
        never falls. A list has an entry for each segment: None, a slope, a tuple, or a
        text that segments with the same slope share.
    through : (x, y) or list of these, default=None
        Points that the line goes through.

    Attributes
    ----------
    breakpoints_ : ndarray of shape (n_breakpoints,)
        Breakpoints, ascending, including the known ones. Dates if the feature holds
        dates.
    breakpoint_std_ : ndarray of shape (n_breakpoints,)
        Standard errors by the delta method; 0 for known breakpoints, NaN for jumps,
        whose positions have none. In days if the feature holds dates.
    breakpoint_interval_ : ndarray of shape (n_breakpoints, 2)
        95 % confidence intervals from the profile of the sum of squares. They extend at
        most to the next breakpoint, the end of the data or ``bounds``.
    jumps_ : ndarray of shape (n_breakpoints,)
        Jump at every breakpoint; 0 where the function is continuous.
    segments_ : dict of ndarrays
        Table of the straight lines, for ``pd.DataFrame``: ``start``, ``end``,
        ``intercept`` and ``slope`` (both with ``_std_error``, ``_lower`` and
        ``_upper``), ``jump`` at the start with its error, and ``n_rows``. Of parabolas,
        ``slope`` is that at x = 0, and ``quadratic`` is the coefficient of x^2.
    parameters_ : dict of ndarrays
        Table of intercept, first slope, changes of slope, jumps and linear
        coefficients: ``name``, ``estimate``, ``std_error``, ``t``, ``p_value``,
        ``lower``, ``upper``.
    noise_std_ : float
        Standard deviation of the noise. It and all errors are NaN if there are no more
        rows than parameters.
    robust_weights_ : ndarray of shape (n_samples,)
        Weights of the rows by their residuals. Only with ``loss="huber"``.
    residual_correlation_ : float
        Correlation of the residuals of rows that are neighbours in the broken feature.
    autocorrelation_ : ndarray of shape (order,)
        Coefficients of the autoregression of the noise; empty if it is independent.
    statistics_ : dict of float
        ``n_rows`` (sum of weights), ``n_parameters`` (breakpoints included, variance of
        the noise not), ``degrees_of_freedom``, ``rss``, ``r2``, ``aic`` and ``bic``.
    selection_path_ : dict of ndarrays
        The numbers ``n_breakpoints`` that were tried, with ``n_parameters``, ``rss``
        and the criterion; ``rss`` and "gcv" relative to a constant, and
        ``search_penalty``, what is added to it.
    estimators_ : list of SegmentedRegressor
        Only with several columns of y, which break at the same places: the fit of each
        column. ``segments_``, ``jumps_`` and ``parameters_`` are then lists, too, and
        ``noise_std_`` and ``residual_correlation_`` have an entry for each column.
    n_features_in_, feature_names_in_ : int and ndarray of shape (`n_features_in_`,)
        Number of features, and their names if all are strings.

    Notes
    -----
    Outside the data, the first and the last line are extended. Standard errors of the
    lines include the uncertainty of kinks, but treat the positions of jumps as known. A
    row of weight two counts as two rows.

    If the fit is poor, :meth:`diagnose` says what limited it, and ``selection_path_``
    compares numbers. The :doc:`user guide </user_guide/segmented>` has more.

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
        "n_breakpoints": [_COUNT, StrOptions({"auto"}), list],
        "kinks": ["boolean"],
        "jumps": ["boolean", StrOptions({"auto"})],
        "degree": [Interval(Integral, 0, 2, closed="both")],
        "broken_features": [Integral, str, list],
        "breakpoints": ["array-like", None],
        "bounds": ["array-like", None],
        # NumPy counts differences of dates among the numbers, which come after them.
        "min_distance": [timedelta, np.timedelta64, _LENGTH],
        "min_rows": [Interval(Integral, 1, None, closed="left"), None],
        "max_breakpoints": [_COUNT],
        "criterion": [StrOptions(dict.fromkeys(CRITERIA).keys())],
        "covariance": [StrOptions(dict.fromkeys(COVARIANCES).keys())],
        "hac_lags": [_COUNT, None],
        "flat": [StrOptions({"first", "last", "both"}), None],
        "loss": [StrOptions({"squared_error", "huber"})],
        "autocorrelation": [_COUNT, StrOptions({"auto"}), None],
        "family": [StrOptions(dict.fromkeys(FAMILIES).keys())],
        "slopes": [tuple, list, None],
        "through": ["array-like", None],
    }

    def __init__(
        self,
        n_breakpoints: int | Literal["auto"] | Sequence[int | str] = "auto",
        *,
        kinks: bool = True,
        jumps: bool | Literal["auto"] = False,
        degree: Literal[0, 1, 2] = 1,
        broken_features: int | str | Sequence[int | str] = 0,
        breakpoints: ArrayLike | None = None,
        bounds: tuple[float, float] | None = None,
        min_distance: float | timedelta = 0.0,
        min_rows: int | None = None,
        max_breakpoints: int = 10,
        criterion: Literal["bic", "aic", "gcv"] = "bic",
        covariance: Literal[
            "nonrobust", "HC0", "HC1", "HC2", "HC3", "HAC", "HAC-prewhitened"
        ] = "nonrobust",
        hac_lags: int | None = None,
        flat: Literal["first", "last", "both"] | None = None,
        loss: Literal["squared_error", "huber"] = "squared_error",
        autocorrelation: int | Literal["auto"] | None = "auto",
        family: Literal["gaussian", "poisson", "binomial"] = "gaussian",
        slopes: tuple[float | None, float | None] | Sequence[Any] | None = None,
        through: ArrayLike | None = None,
    ) -> None:
        self.n_breakpoints = n_breakpoints
        self.kinks = kinks
        self.jumps = jumps
        self.degree = degree
        self.broken_features = broken_features
        self.breakpoints = breakpoints
        self.bounds = bounds
        self.min_distance = min_distance
        self.min_rows = min_rows
        self.max_breakpoints = max_breakpoints
        self.criterion = criterion
        self.covariance = covariance
        self.hac_lags = hac_lags
        self.flat = flat
        self.loss = loss
        self.autocorrelation = autocorrelation
        self.family = family
        self.slopes = slopes
        self.through = through

    @_fit_context(prefer_skip_nested_validation=True)
    @unchanged_on_failure
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        y_std: ArrayLike | None = None,
        absolute_sigma: bool = False,
        offset: ArrayLike | None = None,
    ) -> Self:
        """Find the breakpoints and fit the lines.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training samples, in any order. The feature that breaks may hold dates, in a
            data frame of pandas or polars, an array or a list; a period counts as its
            start.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Target values. Several columns share the breakpoints, and each has lines
            and independent normal noise of its own.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; a row of weight two counts as two rows. If None, all
            weights are one.
        y_std : array-like of shape (n_samples,), default=None
            Standard deviations of the targets, up to a common factor, which is
            estimated and changes nothing. Unlike weights, they do not change how many
            rows there are. ``noise_std_`` is for a row of mean precision. If None,
            all are equal.
        absolute_sigma : bool, default=False
            If True, ``y_std`` are the standard deviations themselves, as for
            :func:`scipy.optimize.curve_fit`: standard errors follow from them, whatever
            the residuals are.
        offset : array-like of shape (n_samples,), default=None
            What is added to the line, such as the logarithm of the exposure of counts.

        Returns
        -------
        self : SegmentedRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter does not match the data, if those are not finite or do not
            fit into memory, if all weights are zero or a ``y_std`` is, if y is not of
            the ``family``, or if conditions contradict each other.

        Warns
        -----
        UserWarning
            If the data have no room for ``n_breakpoints`` breakpoints; if "auto" took
            as many as ``max_breakpoints``, followed outliers, or left residuals that
            are too correlated to be noise; or if weights look like inverse variances.
        """
        if absolute_sigma and y_std is None:
            raise ValueError("absolute_sigma=True needs y_std, the deviations.")
        is_joint = isinstance(self.broken_features, list) or self.family != "gaussian"
        is_joint |= not (self.slopes is self.through is offset is None)  # any is given
        if not is_joint:
            if type(X) is not np.ndarray and y_std is None:  # a file, or dask's
                chunks = streams.mapped_rows(self, X, y, sample_weight)
                if chunks is not None:
                    return self.fit_chunks(chunks)
            check_fits(X, "fit_chunks reads points piece by piece.")
        given = sample_weight, y_std, absolute_sigma
        data = preparation.read(self, X, y, *given, multi_output=not is_joint)
        if is_joint:
            fitted.fit_joint(self, data, check_offset(offset, X), y_std is not None)
            return self
        x, columns_of_y = data.x[:, 0], np.atleast_2d(data.y.T)
        rows = data.linear, data.weight, data.repeats, data.variance
        prepared = [preparation.prepare(x, own, *rows) for own in columns_of_y]
        options = preparation.options_of(self, data.kinds[0])
        if len(options.known):
            preparation.check_inside(prepared[0], options)
        if len(prepared) > 1:
            fitted.fit_columns(self, prepared, options, y_std)
            return self
        (prepared,) = prepared
        found = find_of_one(self, prepared, options)
        scale = fitted.set_fit(self, prepared, *found)
        fitted.judge_rows(self, X, y, prepared, options, scale)
        return self

    @takes_only_chunks
    @_fit_context(prefer_skip_nested_validation=True)
    @unchanged_on_failure
    def fit_chunks(self, chunks: Iterable[tuple[ArrayLike, ...]]) -> Self:
        """Fit points that come in chunks and do not fit into memory.

        The fit keeps sums and reads the chunks a few times. Where other breakpoints are
        almost as good, :meth:`fit` in memory may find those. :meth:`fit` calls this
        method if X is a dask or a large memory-mapped array.

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
            If the chunks can be iterated only once or are malformed, or if a parameter
            needs all points at once: a ``covariance`` other than "nonrobust", Huber's
            loss, or parabolas.
        """
        streams.fit(self, chunks)
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def __getattr__(self, name):
        stream = vars(self).get("_stream")
        if stream is None or not stream.waiting or not fitted.is_of_fit(name):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}.")
        streams.catch_up(self)  # rows of updates that nobody has asked for yet
        return getattr(self, name)

    def __getstate__(self):
        getattr(self, "_noise_scale", None)  # which is found from the rows
        state = super().__getstate__()
        return {n: state[n] for n in state if n not in fitted.OF_ROWS}

    def update(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Add rows to the fit, and move the breakpoints to where they belong.

        The rows wait until something of the fit is read, so that many calls take little
        more time than one, which hardly grows with the number of rows. Where the
        criterion would take one breakpoint more or less, or a breakpoint would be
        better elsewhere, all rows are searched again. Else kinks move until they are
        within a hundredth of a standard error, their intervals follow the delta method,
        and the correlation of the noise keeps its value from the last search. A model
        that is saved leaves its rows behind: fit it before the next update.

        Parameters
        ----------
        X : array-like of shape (n_samples, 1)
            Samples to add.
        y : array-like of shape (n_samples,)
            Their targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Their weights. If None, all are one.

        Returns
        -------
        self : SegmentedRegressor
            The estimator, fitted to all rows.

        Raises
        ------
        ValueError
            If the fit was loaded, or not one of kinks of one feature by least squares
            with ``covariance="nonrobust"`` and without ``y_std``.
        """
        check_is_fitted(self)
        streams.update(self, X, y, sample_weight)
        return self

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[False] = False, *, offset: _Given = None
    ) -> Array: ...

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[True], *, offset: _Given = None
    ) -> tuple[Array, Array]: ...

    def predict(
        self, X: ArrayLike, return_std: bool = False, *, offset: _Given = None
    ) -> Array | tuple[Array, Array]:
        """Predict the target; the first and the last line extend beyond the data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        return_std : bool, default=False
            Whether to return standard errors too.
        offset : array-like of shape (n_samples,), default=None
            What is added to the line, as in :meth:`fit`. If None, nothing is.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Predicted means.
        y_std : ndarray of the same shape
            Standard errors of the predicted means by the delta method, with the kinks
            uncertain too; the noise of a new observation is not included
            (:meth:`predict_interval` adds it). Only with ``return_std``.

        Warns
        -----
        UserWarning
            If there are standard errors to return, but no more rows than parameters:
            ``y_std`` is NaN then.
        """
        check_is_fitted(self)
        if hasattr(self, "estimators_"):
            each = [m.predict(X, return_std, offset=offset) for m in self.estimators_]
            of_columns = np.stack(each, axis=-1)
            return tuple(of_columns) if return_std else of_columns
        y, std = inference.predict(self._fit, *fitted.split(self, X))
        y = self._family.mean(y + check_offset(offset, y))
        if not return_std:
            return y
        if self._fit.is_noise_unknown:
            warn_user(
                f"The weights of the rows sum to {self._fit.n_rows:.4g}, and the fit "
                f"has {self._fit.n_parameters} parameters: the noise cannot be "
                "estimated, and the standard deviations are NaN."
            )
        return y, std * self._family.variance(y)

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        offset: ArrayLike | None = None,
    ) -> float:
        """Return R2, of counts D2: the share of the deviance that is explained.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            True values.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples. If None, all are one.
        offset : array-like of shape (n_samples,), default=None
            What is added to the line, as in :meth:`fit`. If None, nothing is.

        Returns
        -------
        score : float
            One minus the deviance over the deviance of the mean; of "gaussian" these
            are sums of squares. Of several columns the mean.
        """
        predicted = self.predict(X, offset=offset)
        if not self._family.has_known_variance:
            return float(r2_score(y, predicted, sample_weight=sample_weight))
        return self._family.explained(y, predicted, sample_weight)

    def _noise(self):
        if self._family.has_known_variance:
            raise ValueError(
                f"predict_interval does not take family={self._family.name!r}: use "
                "predict(X, return_std=True)."
            )
        return self.noise_std_, self._fit.degrees_of_freedom

    @cached_property
    def _noise_scale(self):
        return noise_scale_of(self._fit, getattr(self, "_noise_rows", None))

    def _noise_features(self, X):
        return np.column_stack(fitted.split(self, X))

    _diagnosis = diagnose

    def summary(self) -> Summary:
        """Return tables of the breakpoints, the segments and the parameters.

        Returns
        -------
        Summary
            ``print`` shows it as text, a notebook as HTML.
        """
        check_is_fitted(self)
        return summarise(self)

    def breakpoint_test(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        method: Literal["simulated", "davies", "score"] = "simulated",
        n_draws: int = 1999,
        random_state: RandomState = 0,
    ) -> BreakpointTest:
        """Test whether there is a breakpoint besides those in ``breakpoints``.

        The statistic is the largest F statistic over all positions that the parameters
        allow; its distribution without a breakpoint is simulated for the noise that
        ``covariance`` assumes: normal with one variance ("nonrobust"), independent with
        any variance (HC, by a wild bootstrap of score statistics), or also correlated
        along the feature (both HAC, by a bootstrap of its autoregression). The
        estimator need not be fitted.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Target values.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; a row of weight two counts as two rows. If None, all
            weights are one.
        method : {"simulated", "davies", "score"}, default="simulated"
            Where the p-value comes from. "davies" is an upper bound for the largest F
            statistic, for p-values too small to simulate. "score" is the exact test of
            one column, the mean of the columns of all positions, as R's
            ``pscore.test``. Both are for the covariance "nonrobust" and breakpoints
            that change one thing, the slope or the level.
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
        given = X, y, sample_weight, method, n_draws, random_state
        return existence_test(clone(self), *given)

    def _views(self):
        """Return what the model says of each broken feature, or column of y."""
        return self._parts or [self]
