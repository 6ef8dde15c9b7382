"""Summary of a fit as text and as HTML."""

from dataclasses import dataclass
from functools import partial
from html import escape

import numpy as np

_SMALLEST_P = 1e-16  # p-values below it are rounding errors of the tail
_FEW_DAYS = np.timedelta64(3, "D")  # shorter series show their dates to the second


def summarise(model, covariance):
    """Return the summary of a SegmentedRegressor, whose positions may be dates."""
    figures, views = model.statistics_, model._views()
    facts = {
        "Rows": figures["n_rows"],
        "Degrees of freedom": figures["degrees_of_freedom"],
        "Breakpoints": sum(len(view.breakpoints_) for view in views),
        "Covariance": covariance,
    }
    if model._family.has_known_variance:
        facts |= {
            "Family": model._family.name,
            "D2": figures["d2"],
            "Deviance": figures["deviance"],
            "Dispersion": figures["dispersion"],
        }
    else:
        facts |= {"R2": figures["r2"], "Noise std": model.noise_std_}
    facts |= {"AIC": figures["aic"], "BIC": figures["bic"]}
    if len(model.autocorrelation_):
        facts["Noise autoregression"] = ", ".join(
            f"{phi:.3g}" for phi in model.autocorrelation_
        )
    dates = any(kind is not None for kind in model._date_kinds)
    return Summary("Segmented regression", facts, _tables(model), _notes(model, dates))


def _tables(model):
    """Return the columns of each table, by heading, in the order of R's segmented."""
    lower, upper = "[0.025", "0.975]"
    views, parameters = model._views(), model.parameters_
    breakpoints, segments = {}, {}
    for view in views:
        of = f" of {view._names()[0]}" if len(views) > 1 else ""
        own, *lines = _tables_of(view, lower, upper)
        if len(view.breakpoints_):
            breakpoints[f"Breakpoints{of}"] = own
        segments[f"Segments{of}"] = lines[0]
    coefficients = {
        "name": parameters["name"],
        "coef": parameters["estimate"],
        "std err": parameters["std_error"],
        "t": parameters["t"],
        "P>|t|": np.array([_p_value(p) for p in parameters["p_value"]]),
        lower: parameters["lower"],
        upper: parameters["upper"],
    }
    return breakpoints | {"Parameters": coefficients} | segments


def _tables_of(model, lower, upper):
    """Return the breakpoints and the segments of one broken feature."""
    segments, interval = model.segments_, model.breakpoint_interval_
    if model._date_kind is not None:
        span = segments["end"][-1] - segments["start"][0]
        positions = partial(_dates, span=span)
    else:
        width = np.append(model.breakpoint_std_, interval[:, 1] - interval[:, 0])
        positions = partial(_digits, width=width)
    breakpoints = {
        "number": np.arange(1, len(model.breakpoints_) + 1),
        "position": positions(model.breakpoints_),
        "std err": model.breakpoint_std_,
        lower: positions(interval[:, 0]),
        upper: positions(interval[:, 1]),
    }
    if np.isnan(model.breakpoint_std_).all():  # jumps
        del breakpoints["std err"]
    if model._fit.form.step:
        breakpoints["jump"] = model.jumps_
    lines = {
        "number": np.arange(1, len(segments["start"]) + 1),
        "start": positions(segments["start"]),
        "end": positions(segments["end"]),
        "rows": segments["n_rows"],
        "intercept": segments["intercept"],
        "slope": segments["slope"],
        "std err": segments["slope_std_error"],
        lower: segments["slope_lower"],
        upper: segments["slope_upper"],
    }
    return breakpoints, lines


def _digits(values, width):
    """Return positions as text with as many digits as their uncertainty asks for.

    They differ in the digits that are printed where they differ by two digits of the
    smallest of the widths.
    """
    width = width[np.isfinite(width) & (width > 0)]
    size = np.abs(values[np.isfinite(values)]).max(initial=0)
    if not (len(width) and size > 0):
        return values
    digits = int(np.clip(np.ceil(np.log10(size / width.min())) + 2, 5, 16))
    texts = []
    for value in values:
        plain = np.isfinite(value) and 1e-4 <= abs(value) < 1e16
        if not plain:
            texts.append(_cell(value))
            continue
        # Digits after the point, so that all positions are rounded alike.
        places = digits - 1 - int(np.floor(np.log10(size)))
        text = f"{value:.{max(places, 0)}f}"
        texts.append(text.rstrip("0").rstrip(".") if "." in text else text)
    return np.array(texts)


def _p_value(p):
    """Return a p-value as text, as far as it is known."""
    if np.isnan(p):
        return ""
    return f"<{_SMALLEST_P:g}" if p < _SMALLEST_P else f"{p:.4g}"


def _notes(model, dates):
    """Return what to know when reading the tables."""
    notes = ["Outside the data, the first and the last line are extended."]
    if any(fit.free.any() for fit in model._fits):
        notes.append(
            "Changes at an estimated breakpoint have no p-value; "
            "breakpoint_test(X, y) has one."
        )
    if dates:
        notes.append(
            "Slopes are per day, and intercepts are values at 1970-01-01. Standard "
            "errors of breakpoints are in days."
        )
    if model._fit.is_noise_unknown:
        notes.append(
            "There are no more rows than parameters: the noise cannot be estimated, "
            "and there are no standard errors, tests and intervals."
        )
    return notes


@dataclass(eq=False, repr=False)
class Summary:
    """Tables of a fit; ``print`` shows them as text, a notebook as HTML.

    Attributes
    ----------
    title : str
    facts : dict
        Figures of the whole fit by name.
    tables : dict
        By heading a dict of columns, each an array with one entry for each line.
    notes : list of str
    """

    title: str
    facts: dict
    tables: dict
    notes: list

    def __str__(self):
        blocks = [_text_table(name, table) for name, table in self.tables.items()]
        width = max(len(line) for block in blocks for line in block)
        facts = _text_facts(self.facts, width)
        width = max(width, *map(len, facts))
        lines = [self.title.center(width).rstrip(), "=" * width, *facts]
        for block in blocks:
            lines += ["=" * width, block[0], "-" * width, *block[1:]]
        lines += ["=" * width, *self.notes]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self):
        facts = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(_cell(value))}</td></tr>"
            for name, value in self.facts.items()
        )
        parts = [f"<h4>{escape(self.title)}</h4><table>{facts}</table>"]
        for name, table in self.tables.items():
            head = "".join(f"<th>{escape(column)}</th>" for column in table)
            body = "".join(
                "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>"
                for line in zip(*_cells(table), strict=True)
            )
            parts.append(
                f"<table><caption>{escape(name)}</caption><thead><tr>{head}</tr>"
                f"</thead><tbody>{body}</tbody></table>"
            )
        parts += [f"<p>{escape(note)}</p>" for note in self.notes]
        return "".join(parts)


def _text_facts(facts, width):
    """Return the figures in two columns."""
    items = [(f"{name}:", _cell(value)) for name, value in facts.items()]
    half = -(-len(items) // 2)
    left, right = items[:half], items[half:] + [("", "")] * (2 * half - len(items))
    room = max((width - 3) // 2, *(len(name) + len(value) + 2 for name, value in items))
    return [
        f"{a}{b.rjust(room - len(a))}   {c}{d.rjust(room - len(c))}".rstrip()
        for (a, b), (c, d) in zip(left, right, strict=True)
    ]


def _text_table(name, table):
    """Return the lines of a table; the first one is its head."""
    columns = _cells(table)
    widths = [
        max(len(head), *map(len, column))
        for head, column in zip(table, columns, strict=True)
    ]
    widths[0] = max(widths[0], len(name))
    heads = [name, *list(table)[1:]]
    lines = []
    for cells in [heads, *zip(*columns, strict=True)]:
        first, *rest = (
            cell.ljust(w) if k == 0 else cell.rjust(w)
            for k, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        lines.append("  ".join([first, *rest]))
    return lines


def _dates(values, span):
    """Return dates as text, with seconds only if the data span less than a few days."""
    unit = "datetime64[s]" if span < _FEW_DAYS else "datetime64[m]"
    whole = "T00:00:00" if span < _FEW_DAYS else "T00:00"
    texts = values.astype(unit).astype(str)
    texts = [text.removesuffix(whole).replace("T", " ") for text in texts]
    return np.where(np.isnat(values), "", texts)


def _cells(table):
    return [[_cell(value) for value in column] for column in table.values()]


def _cell(value):
    if isinstance(value, str):
        return value
    value = float(value)
    if not np.isfinite(value):
        return "" if np.isnan(value) else str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.5g}"
