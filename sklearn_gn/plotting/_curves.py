"""Curves of a SolutionDisplay: outputs along one axis, and what is known of them."""

import numpy as np

_ALIKE = 10.0  # by which outputs on one panel differ in size
_BAND = 2  # standard deviations
_BAND_NAME = f"± {_BAND} std"
_POINTS, _END, _REST = "Observations", "End of a window", "Not solved"
_MARKS = (_BAND_NAME, _POINTS, _END, _REST)  # the last entries of the legend
_MOST_INSIDE = 6  # entries of a legend that do not cover the curves
_BESIDE = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
_LABEL_WIDTH = 25  # characters that fit beside a panel
_BROAD = {"color": "0.75", "linewidth": 5, "zorder": 1}


def of_one_size(columns):
    """Return groups of outputs whose values are alike in size, in their order.

    Parameters
    ----------
    columns : ndarray of shape (n_points, n_outputs)
    """
    finite = np.where(np.isfinite(columns), columns, 0)
    sizes = np.abs(finite).max(axis=0)
    left, groups = list(np.argsort(-sizes, kind="stable")), []
    while left:
        largest = sizes[left[0]]
        group = [k for k in left if sizes[k] * _ALIKE >= largest or sizes[k] == 0]
        groups.append(sorted(group))
        left = [k for k in left if k not in group]
    return sorted(groups)


class Curves:
    """What is drawn along one axis.

    Parameters
    ----------
    display : SolutionDisplay
    name : str
        Of the solution.
    kwargs : dict
        Style of its curves.
    """

    def __init__(self, display, name, kwargs):
        self.display, self.name, self.kwargs = display, name, kwargs
        (self.x,) = display.ticks
        self.names = np.atleast_1d(display.output_name)
        self.columns = self._by_output(display.solution)
        self.groups = of_one_size(self.columns)
        self.lines, self.bands, self.points, self.windows = [], [], [], []
        ends = display.window_ends
        self.ends = np.zeros(0) if ends is None else np.asarray(ends)
        self.solved = self.x <= (self.ends[-1] if len(self.ends) else np.inf)

    def _by_output(self, values):
        return None if values is None else np.reshape(values, (len(self.x), -1))

    def draw(self, axes):
        """Draw on one panel for each group of outputs, and one for the error."""
        *above, below = axes
        references = []
        for panel, group in zip(above, self.groups, strict=True):
            references += self._draw_reference(panel, group)
            for k in group:
                self._draw_output(panel, k)
            names = ", ".join(self.names[group])
            if len(group) == 1 or len(names) <= _LABEL_WIDTH:
                panel.set_ylabel(names)  # the legend has them all
            panel.tick_params(labelbottom=False)
        self._draw_errors(below)
        self.lines[len(self.names) : len(self.names)] = references
        for panel in axes:
            self._mark_windows(panel)
            panel.set_xlim(self.x[0], self.x[-1])
        for panel in above:
            handles, labels = panel.get_legend_handles_labels()
            if len(labels) > 1:
                order = sorted(handles, key=lambda h: h.get_label() in _MARKS)
                place = _BESIDE if len(labels) > _MOST_INSIDE else {}
                panel.legend(handles=order, fontsize="small", **place)

    def _draw_reference(self, panel, group):
        reference, label = self._by_output(self.display.reference), "Reference"
        lines = []
        for k in group if reference is not None else ():
            lines += panel.plot(self.x, reference[:, k], label=label, **_BROAD)
            label = None
        return lines

    def _draw_output(self, panel, k):
        curve = np.where(self.solved, self.columns[:, k], np.nan)
        label = self.name if len(self.names) == 1 else str(self.names[k])
        style = {"label": label, **self.kwargs}
        if len(self.names) > 1:
            style.setdefault("color", f"C{k % 10}")
        (line,) = panel.plot(self.x, curve, **style)
        self.lines.append(line)
        std = self._by_output(self.display.std)
        if std is not None:
            width, color = _BAND * std[:, k], line.get_color()
            known = any(b.axes is panel for b in self.bands)
            label = None if known else _BAND_NAME
            style = {"alpha": 0.25, "linewidth": 0, "label": label}
            band = panel.fill_between(
                self.x, curve - width, curve + width, color=color, **style
            )
            self.bands.append(band)
        self._draw_observations(panel, k, line.get_color())

    def _draw_observations(self, panel, k, color):
        if self.display.observations is None:
            return
        places, values = self.display.observations
        values = np.reshape(values, (len(places), -1))[:, k]
        if np.isnan(values).all():
            return
        known = any(line.axes is panel for line in self.points)
        label = None if known else _POINTS
        style = {"marker": ".", "linestyle": "none", "color": color, "alpha": 0.7}
        self.points += panel.plot(places, values, label=label, **style)

    def _draw_errors(self, panel):
        errors = self._by_output(self.display.error)
        outputs = list(self.lines)
        for error, line in zip(errors.T, outputs, strict=False):
            color = line.get_color() if errors.shape[1] > 1 else "tab:red"
            error = np.where(self.solved, error, np.nan)
            self.lines += panel.plot(self.x, error, color=color)
        if np.any(errors > 0):
            panel.set_yscale("log", nonpositive="mask")
        panel.set(xlabel=self.display.axis_names[0], ylabel=self.display._error_name)

    def _mark_windows(self, panel):
        inner = self.ends[self.ends < self.x[-1]]
        for k, end in enumerate(inner):
            style = {"color": "0.6", "linewidth": 1, "linestyle": ":", "zorder": 0}
            label = _END if k == 0 else None
            self.windows.append(panel.axvline(end, label=label, **style))
        if not self.solved.all():
            style = {"facecolor": "0.95", "edgecolor": "0.85", "hatch": "//"}
            rest = self.ends[-1], self.x[-1]
            panel.axvspan(*rest, label=_REST, zorder=0, **style)


def observed_values(estimator):
    """Return places and values (m, n_outputs) of the observations.

    None where there are none, or where the fit has not kept them.

    Parameters
    ----------
    estimator : PINNSolver
        Of a problem of one axis.
    """
    posterior = estimator._posterior
    if posterior is None:
        return None
    for kind, batch in zip(posterior.model.classes, posterior.batches, strict=True):
        if kind.residual.name != "data":
            continue
        there = np.asarray(batch.scale) > 0  # the others fill the array up
        x, y = np.asarray(batch.x)[there, 0, 0], np.asarray(batch.data)[there]
        values = np.full((len(x), len(estimator.problem_.outputs)), np.nan)
        for column, entry in zip(y.T, estimator._fitted.observed, strict=True):
            if not callable(entry):
                values[:, entry] = column
        return None if np.isnan(values).all() else (x, values)
    return None
