"""Broken lines of many series of a data frame, as one table."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.utils.validation import check_array

from sklearn_gn.arrays.backend import one_blas_thread
from sklearn_gn.data import dates
from sklearn_gn.data.rows import by_deviations, check_sample_weight, naming_text
from sklearn_gn.optim.stop import counted
from sklearn_gn.segmented.estimator import SegmentedRegressor
from sklearn_gn.segmented.fitted import infer_all
from sklearn_gn.segmented.inference import breakpoint_errors, segment_table
from sklearn_gn.segmented.least_squares import Covariance
from sklearn_gn.segmented.preparation import (
    check_inside,
    check_is_plain,
    options_of,
    prepare,
    stack,
    with_known,
)
from sklearn_gn.segmented.selection import find_breakpoints

_TOGETHER = 500  # series that are searched side by side


def fit_groups(
    estimator: Any,
    data: Any,
    *,
    group: str,
    target: str,
    features: Sequence[str] | None = None,
    sample_weight: str | None = None,
    y_std: str | None = None,
    absolute_sigma: bool = False,
    n_jobs: int | None = None,
    verbose: int = 0,
) -> Any:
    """Fit a broken line to every group of a data frame; return one table.

    Series are searched side by side, many of them in the time of a few. Each gets the
    breakpoints that ``fit`` finds for it alone.
    :class:`~sklearn_gn.plotting.SeriesDisplay` draws the table.

    Parameters
    ----------
    estimator : SegmentedRegressor
        Estimator to fit; it is not changed.
    data : pandas.DataFrame or polars.DataFrame
        The rows of all series, in any order.
    group : str
        Column that names the series of a row.
    target : str
        Column with the target.
    features : list of str, default=None
        Columns of the features, which must be numbers, or dates where the lines break.
        If None, all other columns.
    sample_weight : str, default=None
        Column with the weights.
    y_std : str, default=None
        Column with the standard deviations of the target, up to a factor of each
        series.
    absolute_sigma : bool, default=False
        If True, ``y_std`` holds the standard deviations themselves.
    n_jobs : int, default=None
        Number of processes, see :class:`joblib.Parallel`.
    verbose : int, default=0
        Progress messages of :class:`joblib.Parallel`.

    Returns
    -------
    pandas.DataFrame
        A row for every segment of every series, in the order in which series first
        appear: the group, ``segment`` (from 1 on, as in ``summary()``),
        ``breakpoint_std_error``, ``breakpoint_lower`` and ``breakpoint_upper`` (of the
        start, as ``breakpoint_std_`` and ``breakpoint_interval_`` of a fit), the
        columns of ``segments_``, and ``n_breakpoints``, ``noise_std`` and ``r2`` of the
        series. With dates, slopes are per day and intercepts are values at 1970-01-01.

    Raises
    ------
    ValueError
        If a column is missing, if ``y_std`` is not positive, if the data contain NaN or
        infinity, or if the estimator cannot be fitted; the message names the series.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from sklearn_gn import SegmentedRegressor, fit_groups
    >>> x = np.tile(np.arange(30.0), 2)
    >>> kink = np.repeat([10.0, 20.0], 30)
    >>> data = pd.DataFrame({"dose": x, "response": np.maximum(x - kink, 0)})
    >>> data["patient"] = np.repeat(["a", "b"], 30)
    >>> table = fit_groups(
    ...     SegmentedRegressor(1), data, group="patient", target="response"
    ... )
    >>> table.loc[table["segment"] == 2, "start"].round(6).tolist()
    [10.0, 20.0]
    """
    import pandas as pd

    if not isinstance(estimator, SegmentedRegressor):
        raise ValueError(f"fit_groups takes a SegmentedRegressor, got {estimator!r}.")
    estimator = clone(estimator)
    estimator._validate_params()
    check_is_plain(estimator, "fit_groups")
    if not dates.is_frame(data):
        raise ValueError(
            f"data must be a data frame of pandas or polars, got {type(data).__name__}."
        )
    if absolute_sigma and y_std is None:
        raise ValueError("absolute_sigma=True needs y_std, the deviations.")
    others = [
        name for name in (group, target, sample_weight, y_std) if name is not None
    ]
    if features is None:
        features = [name for name in data.columns if name not in others]
    missing = [name for name in [*others, *features] if name not in data.columns]
    if missing or not features:
        raise ValueError(
            f"data has the columns {list(data.columns)}; missing are "
            f"{missing or 'features'}."
        )
    features = list(features)
    column = estimator.broken_features
    dates.check_column(column, features)
    column = features.index(column) if isinstance(column, str) else column
    X, kind = dates.replace_dates(data[features], column)
    dates.refuse_dates(X)
    names = data[group] if hasattr(data, "iloc") else data[group].to_numpy()
    codes, names = pd.factorize(names, use_na_sentinel=False)
    with naming_text(X, f"leave it out of features={features}"):
        X = _as_numbers(X)
    dates.refuse_dates(data[[target]], targets=True)
    y = _as_numbers(data[[target]], input_name="y")
    for name, values in (("X", X), ("y", y)):
        _check_finite(name, values, codes, names)
    given = None if sample_weight is None else data[sample_weight].to_numpy()
    weight = check_sample_weight(given, X)
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))[:-1]
    rows = np.split(np.argsort(codes, kind="stable"), ends)
    columns = X[:, column], y[:, 0], np.delete(X, column, axis=1), weight
    std = None if y_std is None else data[y_std].to_numpy()
    series = [
        (*(each[r] for each in columns), None if std is None else std[r]) for r in rows
    ]
    # Those of like length are fitted side by side.
    by_length = np.argsort([len(each[0]) for each in series], kind="stable")
    chunks = np.split(by_length, np.arange(_TOGETHER, len(series), _TOGETHER))
    fit = partial(delayed(_fit_chunk), estimator, kind, absolute_sigma)
    parts = Parallel(n_jobs=n_jobs, verbose=verbose)(
        fit([series[k] for k in chunk], [names[k] for k in chunk]) for chunk in chunks
    )
    found = dict(zip(by_length, chain(*parts), strict=True))
    tables = [found[k] for k in range(len(series))]
    columns = {
        name: np.concatenate([table[name] for table in tables]) for name in tables[0]
    }
    if kind is not None:
        for name in ("start", "end", "breakpoint_lower", "breakpoint_upper"):
            columns[name] = dates.from_days(columns[name])
    counts = [len(table["segment"]) for table in tables]
    return pd.DataFrame({group: names.repeat(counts), **columns})


_as_numbers = partial(check_array, dtype=np.float64, ensure_all_finite=False)


def _check_finite(name, values, codes, groups):
    """Raise a ValueError that names the first group with NaN or infinity."""
    bad = ~np.isfinite(values).all(axis=1)
    if not bad.any():
        return
    first = codes[bad][0]
    n, others = int(np.sum(bad & (codes == first))), len(np.unique(codes[bad])) - 1
    what = "NaN" if np.isnan(values[bad & (codes == first)]).any() else "infinity"
    rows = "1 row; drop it" if n == 1 else f"{n} rows; drop them"
    more = f", and rows of {counted(others, 'other group')}" if others else ""
    raise ValueError(
        f"Group {groups[first]!r}: {name} contains {what} in {rows}{more}."
    )


def _fit_chunk(estimator, kind, absolute_sigma, series, names):
    """Return tables of the segments of some series."""
    prepared, options = [], options_of(estimator, kind)
    for (x, y, linear, count, std), name in zip(series, names, strict=True):
        try:
            if not count.any():
                raise ValueError("all weights are zero.")
            weight, variance = count, None
            if std is not None:
                weight, variance = by_deviations(std, count)
            variance = variance if absolute_sigma else None
            prepared.append(prepare(x, y, linear, weight, count, variance))
            check_inside(prepared[-1], options)
        except ValueError as error:
            raise ValueError(f"Group {name!r}: {error}") from error
    covariance = Covariance(estimator.covariance, estimator.hac_lags)
    alike, tables = defaultdict(list), [None] * len(series)
    with one_blas_thread():  # more of them would only wait for each other
        found, clipped, problem = find_breakpoints(estimator, prepared, options)
        for b, (each, (t, _, form)) in enumerate(zip(prepared, found, strict=True)):
            t, free = with_known(each, options, t)
            alike[form, tuple(free)].append((b, t))
        for (form, free), members in alike.items():  # read off side by side
            numbers, t = map(list, zip(*members, strict=True))
            own = [prepared[b] for b in numbers]
            fit, figures, scales, interval, _ = infer_all(
                options._replace(form=form),
                np.stack(t),
                np.array(free, bool),
                own,
                [clipped[b] for b in numbers],
                problem.of(numbers),
                covariance,
            )
            noise = np.where(fit.is_noise_unknown, np.nan, scales)[:, None]
            none, shape = np.full((len(t), 1), np.nan), (len(t), 1 + len(free))
            columns = {
                "segment": 1 + np.arange(shape[1]),
                "breakpoint_std_error": np.hstack([none, breakpoint_errors(fit)]),
                "breakpoint_lower": np.hstack([none, interval[..., 0]]),
                "breakpoint_upper": np.hstack([none, interval[..., 1]]),
                **segment_table(fit, stack(own)[0]),
                "n_breakpoints": len(free),
                "noise_std": noise,
                "r2": figures["r2"][:, None],
            }
            columns = {n: np.broadcast_to(each, shape) for n, each in columns.items()}
            for place, b in enumerate(numbers):
                tables[b] = {name: each[place] for name, each in columns.items()}
    return tables
