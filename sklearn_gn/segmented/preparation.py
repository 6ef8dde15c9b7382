"""From the user's parameters and data to the problem of the search."""

from numbers import Real
from typing import NamedTuple

import numpy as np
from sklearn.utils import column_or_1d

from sklearn_gn._caller import warn_user
from sklearn_gn.data import dates
from sklearn_gn.data.rows import validate_data, weights_of
from sklearn_gn.optim.stop import counted
from sklearn_gn.segmented.least_squares import Rows
from sklearn_gn.segmented.problem import (
    DEPENDENT,
    FEWEST_ROWS,
    HALF,
    Form,
    Limits,
    Problem,
    Scaling,
    make_table,
    take,
)

_KINDS = {
    None: "numbers",
    "utc": "dates with a time zone",
    "local": "dates without a time zone",
}


class Options(NamedTuple):
    """The options, in the user's units."""

    form: Form
    known: np.ndarray  # (k,) breakpoints that are kept
    bounds: tuple  # of the other breakpoints
    min_distance: float
    min_rows: float | None
    autocorrelation: int | str | None = None  # of the noise: an order, or "auto"
    criterion: str = "bic"
    kind: str | None = None  # of dates, in which breakpoints are given


def options_of(model, kind):
    """Return what the parameters of a model ask for; ``kind`` is the kind of dates."""
    known, bounds = np.empty(0), (-np.inf, np.inf)
    if model.breakpoints is not None:
        known = np.unique(_positions("breakpoints", model.breakpoints, kind))
    if model.bounds is not None:
        bounds = _positions("bounds", model.bounds, kind)
    if len(bounds) != 2 or not bounds[0] <= bounds[1]:
        raise ValueError(f"bounds must be (low, high), got {model.bounds!r}.")
    distance = model.min_distance
    if distance:
        distance = dates.given_length("min_distance", distance, kind)
    if model.degree == 2:
        plain = dict.fromkeys(("flat", "slopes", "through"))
        if isinstance(model.broken_features, list):
            plain["broken_features"] = 0
        text = "degree=2 cannot be combined with {}."
        refuse(model, text, kinks=True, jumps=False, **plain)
    is_mixed = model.jumps == "auto" and model.degree == 1 and bool(model.kinks)
    if is_mixed:
        text = 'jumps="auto" cannot be combined with {}: '
        text += "give jumps=True or False."
        refuse(model, text, flat=None, breakpoints=None)
    form = Form(
        slope=model.degree if model.flat not in ("first", "both") else 0,
        ramp=model.degree if model.kinks else 0,
        step=model.degree == 0 or bool(model.jumps),
        flat_end=model.flat in ("last", "both"),
        kinds=() if is_mixed else None,
    )
    if not (form.ramp or form.step):
        raise ValueError("kinks=False and jumps=False: nothing happens at breakpoints.")
    if not form.ramp:
        text = "{} needs lines whose slopes change: set degree=1 and kinks=True."
        refuse(model, text, flat=None)
    more = model.min_rows, model.autocorrelation, model.criterion, kind
    return Options(form, known, tuple(bounds), distance, *more)


def refuse(model, text, **plain):
    """Raise a ValueError with a text for the first parameter that is not as given."""
    for name, value in plain.items():
        given = getattr(model, name)
        if given is not value and np.any(given != value):
            raise ValueError(text.format(f"{name}={given!r}"))


def _positions(name, given, kind):
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


def parse_slopes(slopes, n_segments):
    """Return the conditions on slopes: (name, segments, sign, value, is_equal).

    The slope, or the difference of the slopes of two segments, times the sign is equal
    to the value times the sign, or at least that.
    """
    of_all = isinstance(slopes, tuple)
    entries = [slopes] * n_segments if of_all else list(slopes)
    if len(entries) != n_segments:
        raise ValueError(
            f"slopes={slopes!r} has {len(entries)} entries, but the line has "
            f"{n_segments} segments: give one for each, or a tuple (low, high)."
        )
    found, first = [], {}
    for j, entry in enumerate(entries):
        name = f"slopes={slopes!r}" if of_all else f"slopes[{j}]={entry!r}"
        if isinstance(entry, str):
            if entry in first:
                found.append((name, (first[entry], j), 1, 0.0, True))
            first.setdefault(entry, j)
        elif entry is not None and isinstance(entry, Real) and np.isfinite(entry):
            found.append((name, (j,), 1, float(entry), True))
        elif isinstance(entry, (tuple, list)) and len(entry) == 2:
            for sign, bound in zip((1, -1), entry, strict=True):
                if bound is not None and np.isfinite(bound):
                    found.append((name, (j,), sign, float(bound), False))
        elif entry is not None:
            raise ValueError(
                f"{name} must be None, a slope, a pair (low, high), or a text that "
                "names segments with the same slope."
            )
    return found


def parse_points(through):
    """Return the points (x, y) that the line goes through, of shape (m, 2)."""
    try:
        points = np.atleast_2d(np.asarray(through, dtype=np.float64))
    except (TypeError, ValueError):
        points = np.empty(0)
    if points.ndim != 2 or points.shape[1] != 2 or not np.isfinite(points).all():
        raise ValueError(
            f"through must be a point (x, y) or a list of points, got {through!r}."
        )
    return points


def refuse_parts(model, text):
    """Raise a ValueError for what needs all points of one column at once."""
    plain = {"covariance": "nonrobust", "loss": "squared_error", "family": "gaussian"}
    refuse(model, text, **plain, slopes=None, through=None)
    if model.degree == 2:
        refuse(model, text, degree=1)


def check_is_plain(model, name):
    """Raise a ValueError where only least squares of one feature will do."""
    text = f"{name} is for least squares of one broken feature, not for {{}}."
    refuse(model, text, family="gaussian", slopes=None, through=None)
    if isinstance(model.broken_features, list):
        refuse(model, text, broken_features=0)


# --- the data ------------------------------------------------------------------------


class Data(NamedTuple):
    """The user's rows as numbers."""

    x: np.ndarray  # (n, F) of the broken features
    linear: np.ndarray  # (n, m) of the others
    y: np.ndarray  # (n,) or (n, q)
    weight: np.ndarray  # repeats times precisions
    repeats: np.ndarray
    variance: float | None  # of a row of weight one, if it is known
    kinds: list  # of dates, by broken feature


def read(model, X, y, weights, y_std=None, absolute_sigma=False, multi_output=False):
    """Return the :class:`Data`, and set the numbers of the broken features."""
    given, kinds = model.broken_features, []
    features = given if isinstance(given, list) else [given]
    for feature in features:
        if isinstance(feature, str) and dates.is_frame(X):
            dates.check_column(feature, list(X.columns))
        X, kind = dates.replace_dates(X, feature)
        kinds.append(kind)
    checks = {"y_numeric": True, "multi_output": multi_output}
    X, y = validate_data(model, X, y, dtype=np.float64, **checks)
    y = y if y.ndim == 2 and y.shape[1] > 1 else column_or_1d(y, warn=True)
    n, names = model.n_features_in_, list(getattr(model, "feature_names_in_", ()))
    model._columns = []
    for feature in features:
        if isinstance(feature, str):
            dates.check_column(feature, names)
            feature = names.index(feature)
        if not -n <= feature < n:
            raise ValueError(
                f"broken_features={feature} is out of range: X has {n} features."
            )
        model._columns.append(feature % n)
    if len(set(model._columns)) < len(features) or not features:
        raise ValueError(f"broken_features={given!r} must name different features.")
    weight, repeats, variance = weights_of(weights, y_std, X)
    variance = variance if absolute_sigma else None
    x, linear = X[:, model._columns], np.delete(X, model._columns, axis=1)
    return Data(x, linear, y.astype(np.float64), weight, repeats, variance, kinds)


def read_more(model, X, *y, **checks):
    """Return new rows of a fitted model as numbers."""
    given = X
    for column, expected in zip(model._columns, model._date_kinds, strict=True):
        X, kind = dates.replace_dates(X, column)
        if kind != expected:
            asked, held = (_KINDS[each] for each in (expected, kind))
            held = dates.held(given, column) if kind is None else held
            raise ValueError(f"The model was fitted on {asked}, but X holds {held}.")
    return validate_data(model, X, *y, reset=False, dtype=np.float64, **checks)


class Prepared(NamedTuple):
    """A series in the units of the search."""

    rows: Rows  # in the order of x, without those of no weight
    scaling: Scaling
    repeats: np.ndarray  # (n,) rows that each stands for
    variance: float | None = None  # of the noise, in the units of the search
    order: np.ndarray | None = None  # numbers of the rows
    has_precisions: bool = False  # weights are not how often rows count

    def select(self, kept):
        """Return the same with some of the rows, in the same units."""
        rows = Rows(*(a[kept] for a in self.rows[:4]))
        return self._replace(rows=rows, repeats=self.repeats[kept])


def prepare(x, y, linear, weight, repeats=None, variance=None, rest=0.0):
    """Sort and scale the rows of one series, which stand for so many ``repeats``."""
    order = np.argsort(x, kind="stable")
    order = order[weight[order] > 0]
    has_precisions = repeats is not None and repeats is not weight
    repeats = weight if repeats is None else repeats
    rows = x, y, linear, weight, repeats
    x, y, linear, weight, repeats = (each[order] for each in rows)
    size, share = np.float64((x[-1] - x[0]) / 2), weight / weight.sum()
    values = np.column_stack([y, linear])
    centers = share @ values
    # A constant has the size one; the largest deviation keeps squares from overflowing.
    largest = np.abs(values - centers).max(axis=0)
    units = np.where(largest > 0, largest, 1)
    deviations = units * np.sqrt(share @ ((values - centers) / units) ** 2)
    deviations = np.where(largest > 0, deviations, 1)
    of_x = np.float64((x[0] + x[-1]) / 2), size if size > 0 else np.float64(1)
    of_y, of_linear = (centers[0], deviations[0]), (centers[1:], deviations[1:])
    scaling = Scaling(*of_x, *of_y, *of_linear)
    x, values = np.clip((x - of_x[0]) / of_x[1], -1, 1), (values - centers) / deviations
    rest = rest / scaling.y_size / scaling.y_size
    rows = Rows(x, values[:, 0], values[:, 1:], weight, rest)
    if variance is not None:
        variance = variance / scaling.y_size / scaling.y_size
    return Prepared(rows, scaling, repeats, variance, order, has_precisions)


def fewest_rows(form, n_rows):
    """Return how many rows of so many a segment has at least by default."""
    of_kinks = FEWEST_ROWS + (form.ramp > 1)
    return np.maximum(of_kinks, np.minimum(10, n_rows / 10) if form.step else 0)


def problem_of(prepared, options, with_candidates=True):
    """Return the problem of several series that are searched side by side."""
    rows, scaling, repeats = stack(prepared)
    table = make_table(rows, repeats, max(options.form.slope, 1))
    n_rows = rows.weight.sum(axis=1)
    table.square[:, 0] += rows.rest / n_rows
    with np.errstate(over="ignore"):
        min_distance = options.min_distance / scaling.size
    least = options.min_rows
    least = fewest_rows(options.form, n_rows) if least is None else least
    least = np.full(len(n_rows), least, float)
    low, high = scaling.x(np.array(options.bounds)).T
    # The rows at which the first and the last segment have enough of them.
    enough, n = least[:, None] * (1 - HALF), table.n_rows[:, None]
    ends = np.argmax(table.count[:, 1:] >= enough, axis=1)[:, None]
    after = np.sum(table.count[:, :-1] <= take(table.count, n) - enough, axis=1)
    ends = np.hstack([ends, np.clip(after[:, None] - 1, 0, n - 1), 0 * n, n - 1])
    first, last, start, end = take(table.x, ends).T
    form, beside = options.form, np.sqrt(DEPENDENT)  # where segments are level
    first = np.maximum(
        first, start + np.maximum(min_distance, beside * (not form.slope))
    )
    last = np.minimum(last, end - np.maximum(min_distance, beside * form.flat_end))
    given = low, high, min_distance, least
    limits = Limits(*given, np.maximum(low, first), np.minimum(high, last))
    problem = Problem(table, options.form, scaling.x(options.known), limits)
    return problem.at() if with_candidates else problem


def check_inside(prepared, options):
    """Known breakpoints must lie inside the data."""
    known, kind = options.known, options.kind
    low, high = prepared.scaling.to_user(np.array([-1.0, 1.0]))
    if np.any((known <= low) | (known >= high)):
        ends = _as_text((low, high), kind)
        given = known.tolist() if kind is None else _as_text(known, kind)
        raise ValueError(
            f"breakpoints={given!r} must lie inside the data, between {ends[0]} and "
            f"{ends[1]}."
        )


def _as_text(positions, kind):
    """Return positions in the user's units as text, dates as dates."""
    if kind is None:
        return [f"{t:.6g}" for t in positions]
    seconds = dates.from_days(positions).astype("datetime64[s]")
    return [str(t).removesuffix("T00:00:00") for t in seconds]


def warn_of_room(model, prepared, options, found):
    """Warn where the data have no room for as many breakpoints as were asked for."""
    asked = model.n_breakpoints
    if asked == "auto" or found >= asked:
        return
    data, bounds = prepared.scaling.to_user(np.array([-1.0, 1.0])), options.bounds
    n_segments, n_rows = asked + len(options.known) + 1, prepared.rows.weight.sum()
    least = options.min_rows
    if least is None:  # of many segments a tenth of the rows is too many
        least = fewest_rows(options.form, 100.0 if n_segments > 10 else 0.0)
    if bounds[0] >= data[1] or bounds[1] <= data[0]:
        (low, high), ends = (_as_text(each, options.kind) for each in (bounds, data))
        advice = (
            f"bounds=({low}, {high}) lie outside the data, which reach from {ends[0]} "
            f"to {ends[1]}: give bounds inside."
        )
    elif n_rows < least * n_segments:
        advice = (
            f"The {n_segments} segments need {least:g} rows each, "
            f"{least * n_segments:g} in all, and the data have {n_rows:g}. Lower "
            "n_breakpoints, or min_rows."
        )
    else:
        wider = ", or widen bounds" if np.isfinite(bounds).any() else ""
        advice = f"Lower n_breakpoints, or min_rows and min_distance{wider}."
    warn_user(
        f"The fit has {counted(found, 'breakpoint')}, not n_breakpoints={asked}: the "
        f"data have no room for more. {advice}"
    )


def stack(prepared):
    """Return padded rows and scalings of several series, and what rows stand for."""
    first = prepared[0]
    shape = len(prepared), max([len(each.rows.x) for each in prepared])
    x, y, weight, repeats = np.zeros((4, *shape))
    linear = np.zeros((*shape, first.rows.linear.shape[1]))
    rest = np.zeros(len(prepared))
    for b, each in enumerate(prepared):
        own, n = each.rows, len(each.rows.x)
        x[b, :n], y[b, :n], linear[b, :n], weight[b, :n], rest[b] = own
        repeats[b, :n] = each.repeats
    scaling = map(np.stack, zip(*(each.scaling for each in prepared), strict=True))
    return Rows(x, y, linear, weight, rest), Scaling(*scaling), repeats


def with_known(prepared, options, t):
    """Return all breakpoints, ascending, and which of them are free."""
    known = prepared.scaling.x(options.known)
    free = np.repeat([True, False], [len(t), len(known)])
    t = np.concatenate([t, known])
    order = np.argsort(t, kind="stable")
    return t[order], free[order]
