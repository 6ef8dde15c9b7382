"""Write the results pages of the documentation from ``benchmarks/results/*.json``.

Before Sphinx reads its sources, every result file becomes a section of one of the pages
below: a table for each problem, the figures that the paper prints, the targets that
were met and missed, a plot of the error against the time where the file has curves,
and the command, machine and versions. Nothing on these pages is typed by hand.
"""

import ast
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {  # title and result files of every page
    "defaults": (
        "Default settings",
        ("defaults", "calibration", "first_answer", "cliffs", "cross_validation"),
    ),
    "shallow_relu": (
        "ShallowReLURegressor and SegmentedRegressor",
        ("sggn", "sggn_1d", "segmented", "sggn_large"),
    ),
    "softmax_head": (
        "FGNSoftmaxHead",
        ("fgn_heads", "head_path", "head_penalty", "fgn_mechanism"),
    ),
    "varpro": (
        "VarProNetRegressor and VarProNetClassifier",
        ("smooth", "varpro_cdr", "varpro_dcr", "varpro_images", "varpro_tabular"),
    ),
    "pinn": (
        "PINNSolver",
        (
            "pinn_defaults",
            "pinn_demos",
            "pinn_estimates",
            "pinn_kovasznay",
            "pinn_poisson10d",
            "pinn_poisson5d",
            "pinn_heat",
            "pinn_allen_cahn",
            "pinn_burgers",
            "pinn_paper",
            "pinn_peers",
            "pinn_step",
            "pinn_memory",
        ),
    ),
    "long_runs": (
        "Kills, hostile input, searches, large data",
        ("kills", "hostile", "searches", "scale"),
    ),
}
NOT_SHOWN = {"ablation", "frozen", "gates"}  # what a change is compared with
_MANY = 5  # problems of equal methods that share one table
_LABELS = {"error": "Relative error", "test": "Test error or accuracy"}  # of curves
_WITH_RANGES = 4  # methods in a table of medians and ranges; with more, of medians
_SHORTEST = 1e-3  # time that a plot shows, as a share of the longest


# --- the pages -----------------------------------------------------------------------


def write_pages(folder, results=RESULTS):
    """Write the pages into a folder; return their names.

    Parameters
    ----------
    folder : Path
        Is made if it is not there.
    results : Path
        Folder of the result files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    unknown = set(found) - NOT_SHOWN - {n for _, names in PAGES.values() for n in names}
    if unknown:
        raise ValueError(f"No page shows the results {sorted(unknown)}.")
    written = []
    for page, (title, names) in PAGES.items():
        parts = [_heading(title, "=")]
        parts += [_experiment(n, found[n], folder) for n in names if n in found]
        if len(parts) > 1:
            _write(folder / f"{page}.rst", "\n\n".join(parts) + "\n")
            written.append(page)
    _write(folder / "index.rst", _index(found, written))
    return written


def _write(path, text):
    # An unchanged file keeps its time, so that Sphinx does not read it again.
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _index(found, written):
    rows = [["Experiment", "Measures", "Targets met", "Date"]]
    for page in written:
        for name in PAGES[page][1]:
            if name in found:
                aims = [a for p in found[name]["problems"].values() for a in _aims(p)]
                met = f"{sum(a['passed'] for a in aims)} of {len(aims)}" if aims else ""
                link = f":ref:`{name} <results-{name}>`"
                rows.append([link, _purpose(name), met, found[name]["date"]])
    text = (
        "Every figure of this section comes from a file in ``benchmarks/results``, "
        "which the command above each table writes. Times are those of the machine "
        "that is named there; compare them within a table, not between tables. A "
        "target that was missed is shown as such."
    )
    tree = ["", ".. toctree::", "   :hidden:", "", *(f"   {p}" for p in written), ""]
    return "\n".join([_heading("Results", "="), "", text, "", _table(rows), *tree])


def _experiment(name, result, folder):
    command = f"python -m benchmarks {name}"
    parts = [
        f".. _results-{name}:\n\n{_heading(name, '-')}",
        f"{_purpose(name)}\n\n.. code-block:: bash\n\n   {command}",
        _circumstances(result),
    ]
    for problems in _alike(result["problems"]):
        if len(problems) >= _MANY:
            parts += _shared_tables(problems)
        else:
            parts += [_problem(name, n, p, folder) for n, p in problems.items()]
    notes = [f"- {_escaped(note)}" for note in result["notes"]]
    return "\n\n".join([*parts, "\n".join(["Notes:", "", *notes])] if notes else parts)


def _alike(problems):
    """Return the problems in groups of equal methods."""
    groups = {}
    for name, problem in problems.items():
        groups.setdefault(frozenset(problem["methods"]), {})[name] = problem
    return list(groups.values())


def _purpose(name):
    """Return the first line of the docstring of an experiment."""
    tree = ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text())
    return _escaped(ast.get_docstring(tree).splitlines()[0])


def _circumstances(result):
    machine, versions = result["machine"], result["versions"]
    packages = ", ".join(
        f"{p} {versions[p]}" for p in ("python", "scikit-learn", "jax", "numpy")
    )
    device = "" if machine["device"] == "cpu" else f", {machine['device']}"
    seeds = len(result["seeds"])
    return (
        f"*{result['date']}; {machine['cpu']}, {_count(machine['cores'], 'core')}"
        f"{device}; {_count(seeds, 'seed')}; {packages}.*"
    )


def _count(number, noun):
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- tables --------------------------------------------------------------------------


def _problem(experiment, name, problem, folder):
    figures = list(
        dict.fromkeys(f for m in problem["methods"].values() for f in m["summary"])
    )
    summaries = {m: answer["summary"] for m, answer in problem["methods"].items()}
    cell = _cell if len(summaries) <= _WITH_RANGES else _median_cell
    rows = [["", *(f"``{method}``" for method in summaries)]]
    for figure in figures:
        cells = [cell(summary.get(figure)) for summary in summaries.values()]
        rows.append([_words(figure), *cells])
    parts = [f".. rubric:: {_escaped(problem['description'])}", _table(rows)]
    parts += _below(problem)
    if problem.get("curves"):
        parts.append(_plot(f"{experiment}_{name}", problem["curves"], folder))
    return "\n\n".join(part for part in parts if part)


def _shared_tables(problems):
    """Return a table a figure: problems down, methods across."""
    first = next(iter(problems.values()))["methods"]
    methods = list(first)
    figures = [f for m in methods for f in first[m]["summary"]]
    common = [f for f in dict.fromkeys(figures) if figures.count(f) > 1]
    for figure in common:
        rows = [["Problem", *(f"``{m}``" for m in methods)]]
        for problem in problems.values():
            summaries = [problem["methods"][m]["summary"] for m in methods]
            values = [_median_cell(summary.get(figure)) for summary in summaries]
            rows.append([_escaped(problem["description"]), *values])
        yield f".. rubric:: {_words(figure).capitalize()} (medians)"
        yield _table(rows)
    for name, problem in problems.items():
        below = _below(problem)
        if below:
            yield f"``{name}``: {_escaped(problem['description'])}"
            yield from below


def _aims(problem):
    return [problem[key] for key in problem if key.startswith("target")]


def _below(problem):
    lines = []
    for method, figures in problem.get("paper", {}).items():
        text = "; ".join(
            ", ".join(f"{_words(k)} {_number(v)}" for k, v in f.items())
            for f in figures
        )
        lines.append(f"- Paper, {method}: {text}.")
    for method, reason in problem.get("skipped", {}).items():
        lines.append(f"- Not run, ``{method}``: {_escaped(str(reason))}")
    for aim in _aims(problem):
        sign, bound = ("at most", "at_most") if "at_most" in aim else ("at least", None)
        verdict = "met" if aim["passed"] else "**missed**"
        lines.append(
            f"- Target, {aim['statistic']} of {_words(aim['figure'])} of "
            f"``{aim['method']}`` {sign} {_number(aim[bound or 'at_least'])}: {verdict}"
            f" ({_number(aim['value'])})."
        )
    return ["\n".join(lines)] if lines else []


def _table(rows):
    if len(rows) < 2 or len(rows[0]) < 2:  # no method has run, or no figure is common
        return ""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows:
        lines += [f"   {'* -' if i == 0 else '  -'} {c}" for i, c in enumerate(row)]
    return "\n".join(lines)


def _heading(text, underline):
    return f"{text}\n{underline * len(text)}"


def _words(figure):
    return _escaped(figure.replace("_", " "))


def _escaped(text):
    """Return text whose characters mean nothing to reStructuredText."""
    return "".join(f"\\{c}" if c in "*`|_\\" else c for c in text)


def _cell(value):
    if value is None or value["median"] is None:
        return "\\-"
    text = _number(value["median"])
    if value["min"] == value["max"]:
        return text
    return f"{text} ({_number(value['min'])} to {_number(value['max'])})"


def _median_cell(value):
    return "\\-" if value is None else _number(value["median"])


def _number(value):
    if value is None:
        return "\\-"
    if isinstance(value, str | bool):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and value == int(value)):
        return f"{int(value):,}"
    return f"{value:.3g}"


# --- plots ---------------------------------------------------------------------------


def _plot(name, curves, folder):
    """Draw error against seconds; return the directive that shows the picture."""
    column = next((c for c in _LABELS if all(c in v for v in curves.values())), None)
    if column is None or any("seconds" not in curve for curve in curves.values()):
        return ""
    draw_curves(folder / f"{name}.svg", curves, column)
    return f".. image:: {name}.svg\n   :alt: {column} against seconds\n   :width: 560"


def draw_curves(path, curves, column):
    """Draw a column of the curves against their seconds into a file.

    Parameters
    ----------
    path : Path
    curves : dict
        By method: equally long lists ``seconds`` and others.
    column : str
        Name of the list that is drawn.
    """
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "sklearn_gn"  # equal files for equal data
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    longest = max(max(curve["seconds"]) for curve in curves.values())
    with plt.style.context("tableau-colorblind10"):
        figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for method, curve in curves.items():
        points = [
            (s, y)
            for s, y in zip(curve["seconds"], curve[column], strict=True)
            if s is not None and s > _SHORTEST * longest and y is not None and y > 0
        ]
        if points:
            ax.plot(*zip(*points, strict=True), label=method, linewidth=1.5)
    ax.set(xscale="log", xlabel="Seconds", ylabel=_LABELS[column])
    ax.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    ax.xaxis.set_minor_formatter(ticker.NullFormatter())
    low, high = ax.dataLim.intervaly
    if low > 0 and high > 20 * low:  # errors; not shares of correct answers
        ax.set_yscale("log")
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small", frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


# --- Sphinx --------------------------------------------------------------------------


def setup(app):
    """Write the pages before Sphinx looks for its sources."""

    def write(app, _):
        write_pages(Path(app.srcdir, "results"))

    app.connect("config-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
