"""SeriesDisplay: the broken lines of many series, a small panel each."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Self

import numpy as np

from sklearn_gn.data import dates
from sklearn_gn.plotting._common import Display, date_axis


@dataclass(kw_only=True, eq=False, repr=False)
class SeriesDisplay(Display):
    """Small multiples: the broken lines of several series on the same axes.

    Keyword arguments of :meth:`plot` go to the LineCollection of every broken line.

    Use :meth:`from_table` to create it from the table of
    :func:`~sklearn_gn.fit_groups`.

    Parameters
    ----------
    names : list
        Names of the series, the titles of the panels.
    lines : list of ndarray of shape (n_segments, n_points, 2)
        For each series points (x, y) of its segments; two ends of a straight line.
    intervals : list of ndarray of shape (n_breakpoints, 3)
        For each series its breakpoints and the limits of their 95 % intervals.
    samples : list of tuple (x, y), default=None
        Samples of each series. None draws none.
    is_date : bool, default=False
        Whether positions are days since 1970, drawn as dates.
    feature_name, target_name : str, default=None
        Labels of the axes.
    n_columns : int, default=4
        Largest number of panels side by side.

    Attributes
    ----------
    lines_, intervals_ : lists of matplotlib LineCollection
        The broken lines, and the intervals of the breakpoints, bars at the bottom.
    points_ : list of matplotlib PathCollection
        The samples.
    axes_, ax_, figure_ : ndarray of matplotlib Axes, Axes and Figure
        The panels (without a series they are empty), the first of them, and the figure.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from sklearn_gn import SegmentedRegressor, fit_groups
    >>> from sklearn_gn.plotting import SeriesDisplay
    >>> x = np.tile(np.arange(30.0), 2)
    >>> data = pd.DataFrame({"dose": x, "patient": np.repeat(["a", "b"], 30)})
    >>> data["response"] = np.maximum(x - np.repeat([10.0, 20.0], 30), 0)
    >>> words = {"group": "patient", "target": "response"}
    >>> table = fit_groups(SegmentedRegressor(1), data, **words)
    >>> display = SeriesDisplay.from_table(table, data, **words, feature="dose")
    >>> display.names
    ['a', 'b']
    """

    names: Sequence[Any]
    lines: Sequence[Any]
    intervals: Sequence[Any]
    samples: Sequence[Any] | None = None
    is_date: bool = False
    feature_name: str | None = None
    target_name: str | None = None
    n_columns: int = 4

    def _draw(self, ax, kwargs):
        """Draw a panel for every series."""
        n, n_columns = len(self.names), min(self.n_columns, len(self.names))
        shape = -(-n // n_columns), n_columns
        axes = self._panels(ax, *shape, size=(2.4, 1.9), share=True)
        self.lines_, self.intervals_, self.points_ = [], [], []
        for k, panel in enumerate(axes.ravel()):
            if k >= n:
                panel.set_visible(False)
                continue
            self._plot_series(panel, k, kwargs)
            if k + n_columns >= n:
                panel.set_xlabel(self.feature_name)
                panel.tick_params(axis="x", labelbottom=True)
            if k % n_columns == 0:
                panel.set_ylabel(self.target_name)
        return axes

    def _plot_series(self, ax, k, kwargs):
        from matplotlib.collections import LineCollection

        positions = dates.from_days if self.is_date else np.asarray
        if self.samples is not None:
            x, y = self.samples[k]
            points = ax.scatter(positions(x), y, s=5, color="0.6", linewidths=0)
            self.points_.append(points)
        ends = np.array(self.lines[k], dtype=object)
        if self.is_date:
            from matplotlib.dates import date2num

            ends[..., 0] = date2num(dates.from_days(ends[..., 0].astype(float)))
            date_axis(ax, most_ticks=5)  # fewer do not suit every range
        words = {"color": "tab:blue", "linewidth": 1.5, **kwargs}
        line = LineCollection(ends.astype(float), **words)
        self.lines_.append(ax.add_collection(line))
        at_bottom = {"transform": ax.get_xaxis_transform(), "color": "tab:orange"}
        t, low, high = positions(self.intervals[k]).T
        height = np.full(len(t), 0.04)
        self.intervals_.append(ax.hlines(height, low, high, linewidth=3, **at_bottom))
        ax.vlines(t, 0, 1, linewidth=0.6, alpha=0.6, **at_bottom)
        ax.margins(y=0.1)
        ax.autoscale_view()
        ax.set_title(fill(str(self.names[k]), 30), fontsize="small")

    @classmethod
    def from_table(
        cls,
        table: Any,
        data: Any = None,
        *,
        group: str,
        target: str | None = None,
        feature: str | None = None,
        series: Sequence[Any] | None = None,
        n_columns: int = 4,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw series of the table that :func:`~sklearn_gn.fit_groups` returns.

        Parameters
        ----------
        table : pandas.DataFrame
            The segments of fits of one feature. Other features are taken as zero.
        data : pandas.DataFrame, default=None
            The rows that were fitted; samples are drawn only where they are given.
        group : str
            Column that names the series, in both frames.
        target, feature : str, default=None
            Columns of data, and labels of the axes. Samples need both.
        series : sequence, default=None
            Names of the series to draw. If None, the first 16 of the table.
        n_columns : int, default=4
            Largest number of panels side by side.
        ax, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : SeriesDisplay
            What is drawn.

        Raises
        ------
        ValueError
            If a column or a series is missing, or if data are given without ``target``
            and ``feature``.
        """
        if group not in table.columns:
            raise ValueError(f"group={group!r} is not a column of the table.")
        limits = "start", "breakpoint_lower", "breakpoint_upper"
        needed = "start", "end", "intercept", "slope", *limits[1:]
        absent = [name for name in needed if name not in table.columns]
        if absent:
            text = f"The table lacks the columns {absent}: give a table of fit_groups."
            raise ValueError(text)
        names = list(table[group].unique())
        series = names[:16] if series is None else list(series)
        missing = [name for name in series if name not in names]
        if missing or not series:
            raise ValueError(f"series must name series of the table, not {missing}.")
        samples = None
        if data is not None:
            for word, column in (("target", target), ("feature", feature)):
                if column not in data.columns:
                    raise ValueError(
                        f"{word}={column!r} is not a column of data. Samples need the "
                        "names of two, target and feature."
                    )
            x, y = _numbers(data[feature]), np.asarray(data[target], dtype=float)
            given = np.asarray(data[group])
            samples = [(x[given == name], y[given == name]) for name in series]
        lines, intervals = [], []
        for name in series:
            part = table[table[group] == name]
            powers = [c for c in ("quadratic", "slope", "intercept") if c in part]
            ends = _numbers(part["start"]), _numbers(part["end"])
            x = np.linspace(*ends, 50 if "quadratic" in powers else 2, axis=1)
            y = np.polyval([part[[c]].to_numpy() for c in powers], x)
            lines.append(np.stack([x, y], axis=-1))
            after_first = part.iloc[1:]  # which has no breakpoint
            columns = [_numbers(after_first[column]) for column in limits]
            intervals.append(np.stack(columns, axis=1))
        return cls(
            names=series,
            lines=lines,
            intervals=intervals,
            samples=samples,
            is_date=dates.kind_of(table["start"]) is not None,
            feature_name=feature,
            target_name=target,
            n_columns=n_columns,
        ).plot(ax, **kwargs)


def _numbers(column):
    """Positions as numbers; dates in days."""
    if dates.kind_of(column) is not None:
        return dates.to_days(column)
    return np.asarray(column, dtype=float)
