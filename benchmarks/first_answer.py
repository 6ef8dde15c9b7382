"""Seconds until a fresh process has an answer: import, first fit, later fits.

A run is a process of its own, ``python -m benchmarks.first_answer TASK METHOD``, which
prints its figures as JSON; the methods take turns.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
N_LATER = 3  # fits after the first one of a process
PATIENCE = 600  # seconds after which a process is given up
CACHED = "_cached"  # ends the names of runs that read the compilation cache
SETTINGS = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES",
    "SKLEARN_GN_COMPILATION_CACHE",
    "XLA_FLAGS",
)

NOTES = (
    "Default settings but for those in the name of a method; another random_state for "
    "every fit; a run is a fresh process.",
    "import_seconds is the import of the estimator, with those of NumPy, SciPy and "
    "scikit-learn; baseline_import, a method of its own, is that of LinearRegression "
    "and its fit. first_fit_seconds includes compilation and the import of JAX, which "
    "comes with the first fit that needs it. later_fit_seconds is the median over the "
    "later fits of the process.",
    "Names that end in _cached: a later process, which reads what an earlier one has "
    "kept with SKLEARN_GN_COMPILATION_CACHE.",
    "compilation, one process by method: seconds of the first fit that JAX spends on "
    "following the Python functions (trace), writing them down (lower) and compiling "
    "them (xla), and the number of programs.",
    "PINNSolver has no peer here (see pinn_peers): its fit ends with a relative error "
    "of 1e-4 (burgers), or after one iteration (kovasznay).",
)


class Method(NamedTuple):
    """How a process imports and makes an estimator."""

    imports: str
    make: str  # an expression with ``seed``
    ours: bool = True


class Task(NamedTuple):
    """A fit by several methods."""

    description: str
    data: str  # an expression that makes X, y
    methods: dict


# --- the tasks -----------------------------------------------------------------------


def line(n):
    import numpy as np

    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 1, n))
    y = np.abs(x - 0.3) + 2 * np.abs(x - 0.7) + 0.05 * rng.standard_normal(n)
    return x[:, None], y


def table(n):
    from sklearn.datasets import load_diabetes, make_friedman1
    from sklearn.preprocessing import scale

    if n == 442:
        X, y = load_diabetes(return_X_y=True)
    else:
        X, y = make_friedman1(n, n_features=10, noise=1.0, random_state=0)
    return scale(X), scale(y)


def classes(n, d, k):
    from sklearn.datasets import load_digits, make_classification
    from sklearn.preprocessing import scale

    if n == 1797:
        X, y = load_digits(return_X_y=True)
    else:
        X, y = make_classification(
            n, d, n_informative=d // 2, n_classes=k, class_sep=2.0, random_state=0
        )
    return scale(X), y


def nothing():
    return None, None


BASELINE = Method(
    "from sklearn.linear_model import LinearRegression", "LinearRegression()", False
)
MLP = Method(
    "from sklearn.neural_network import MLPRegressor",
    "MLPRegressor(random_state=seed)",
    False,
)
MLP_CLASSIFIER = Method(
    "from sklearn.neural_network import MLPClassifier",
    "MLPClassifier(random_state=seed)",
    False,
)
BOOSTING = Method(
    "from sklearn.ensemble import HistGradientBoostingRegressor",
    "HistGradientBoostingRegressor(random_state=seed)",
    False,
)
LOGISTIC = Method(
    "from sklearn.linear_model import LogisticRegression",
    "LogisticRegression(C=1000 / len(y), max_iter=1000)",
    False,
)
SEGMENTED = Method("from sklearn_gn import SegmentedRegressor", "SegmentedRegressor()")
PWLF = Method("import pwlf", "Pwlf()", False)


def ours(name, arguments=""):
    arguments = f"{arguments}, random_state=seed" if arguments else "random_state=seed"
    return Method(f"from sklearn_gn import {name}", f"{name}({arguments})")


def pinn(arguments, ending):
    """A solver, and a callback or a setting that ends its fit."""
    made = ours("PINNSolver", arguments)
    imports = f"{made.imports}\nfrom sklearn_gn.pde import problems"
    return Method(imports, made.make + ending)


class Pwlf:
    """Piecewise-linear fit of pwlf with five segments."""

    def fit(self, X, y):
        import pwlf

        pwlf.PiecewiseLinFit(X[:, 0], y).fitfast(5)
        return self


def until(error):
    """A callback that stops a fit of a relative error."""
    from sklearn_gn.callbacks import _Callback, _run_of

    class Until(_Callback):
        def on_fit_task_end(self, estimator, context):
            log = _run_of(self, estimator).log
            return bool(log) and log[-1]["relative_error"] <= error

    return Until()


def tasks():
    """All tasks, by name."""
    found = {}
    for size, n in {"small": 200, "medium": 5000, "large": 1_000_000}.items():
        found[f"line_{size}"] = Task(
            f"{n} x 1",
            f"line({n})",
            {
                "shallow_relu_4": ours("ShallowReLURegressor", "4"),
                "shallow_relu": ours("ShallowReLURegressor"),
                "segmented": SEGMENTED,
                **({"pwlf": PWLF} if n < 10_000 else {}),
                **({"baseline_import": BASELINE} if n == 200 else {}),
            },
        )
    for size, n in {"small": 442, "medium": 5000, "large": 50_000}.items():
        found[f"table_{size}"] = Task(
            f"{n} x 10",
            f"table({n})",
            {
                "shallow_relu": ours("ShallowReLURegressor"),
                "varpro": ours("VarProNetRegressor"),
                "varpro_alpha": ours("VarProNetRegressor", "alpha=1e-3"),
                "mlp": MLP,
                "hist_gradient_boosting": BOOSTING,
            },
        )
    shapes = {"small": (1797, 64, 10), "medium": (10_000, 50, 20)}
    shapes["large"] = 50_000, 200, 100
    for size, shape in shapes.items():
        found[f"classes_{size}"] = Task(
            "{} x {}, {} classes".format(*shape),
            f"classes{shape}",
            {
                "softmax_head": ours("FGNSoftmaxHead"),
                "logistic_regression": LOGISTIC,
                "varpro": ours("VarProNetClassifier"),
                "mlp": MLP_CLASSIFIER,
            },
        )
    found["burgers"] = Task(
        "Burgers' equation, layers (20, 20)",
        "nothing()",
        {
            "pinn": pinn(
                "problems.Burgers(), hidden_layer_sizes=(20, 20)",
                ".set_callbacks(until(1e-4))",
            )
        },
    )
    found["kovasznay"] = Task(
        "Kovasznay flow, default network and points, one iteration",
        "nothing()",
        {"pinn": pinn("problems.Kovasznay(), max_iter=1", "")},
    )
    return found


def quick_tasks():
    """One task of each kind, tiny."""
    found = {name: tasks()[name] for name in ("line_small", "table_small")}
    line, table = found["line_small"], found["table_small"]
    keep = {"shallow_relu_4": line.methods["shallow_relu_4"]}
    found["line_small"] = line._replace(data="line(40)", methods=keep)
    keep = {name: table.methods[name] for name in ("shallow_relu", "mlp")}
    found["table_small"] = table._replace(methods=keep)
    return found


# --- a process -----------------------------------------------------------------------


def fresh_process(task, method, with_stages):
    """Figures of this process, which has imported nothing of the package yet."""
    warnings.simplefilter("ignore")
    spaces = dict(vars(sys.modules[__name__]))
    start = time.perf_counter()
    exec(method.imports, spaces)
    import_seconds = time.perf_counter() - start
    spaces["X"], spaces["y"] = X, y = eval(task.data, spaces)
    if with_stages:
        return compilation_stages(lambda: fitted(method, spaces, X, y, 0))
    model, first = fitted(method, spaces, X, y, 0)
    _, later = zip(
        *(fitted(method, spaces, X, y, seed) for seed in range(1, 1 + N_LATER)),
        strict=True,
    )
    figures = {
        "import_seconds": import_seconds,
        "first_fit_seconds": first,
        "answer_seconds": import_seconds + first,
        "later_fit_seconds": median(later),
    }
    if X is not None and hasattr(model, "score"):
        figures["score"] = float(model.score(X, y))
    return figures


def fitted(method, spaces, X, y, seed):
    """A fitted model, and the seconds from its constructor on."""
    start = time.perf_counter()
    model = eval(method.make, spaces, {"seed": seed})
    model.fit(X, y)
    return model, time.perf_counter() - start


def compilation_stages(fit):
    """Seconds of a first fit by stage of the compilation, and its programs."""
    import jax

    from benchmarks._timing import stages

    programs = []

    def listen(event, seconds, **_):
        programs.append(event) if event.endswith("backend_compile_duration") else None

    jax.monitoring.register_event_duration_secs_listener(listen)
    fit()
    return {**stages(), "programs": len(programs)}


def run_process(name, method, quick, *, cache=None, with_stages=False):
    """Figures of a new process, or why there are none."""
    environment = {k: v for k, v in os.environ.items() if k not in SETTINGS}
    if cache is not None:
        environment["SKLEARN_GN_COMPILATION_CACHE"] = cache
    question = json.dumps([name, method, quick, with_stages])
    command = [sys.executable, "-m", "benchmarks.first_answer", question]
    process = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return json.loads(process.stdout.splitlines()[-1])


# --- the experiment ------------------------------------------------------------------


def run(args):
    from benchmarks._report import progress, summary

    chosen = quick_tasks() if args.quick else tasks()
    problems = {}
    for name in [n for n in chosen if not args.only or n in args.only]:
        task = chosen[name]
        runs, skipped, stages = {}, {}, {}
        with tempfile.TemporaryDirectory() as cache:
            for seed in args.seeds:
                for method, made in task.methods.items():
                    if method in skipped:
                        continue
                    try:
                        _add_runs(runs, name, method, made, args.quick, cache, seed)
                        if seed == args.seeds[0] and made.ours:
                            stages[method] = run_process(
                                name, method, args.quick, with_stages=True
                            )
                    except subprocess.TimeoutExpired:
                        skipped[method] = f"takes more than {PATIENCE} seconds"
                    except subprocess.CalledProcessError as error:
                        skipped[method] = error.stderr.strip().splitlines()[-1]
        problems[name] = {
            "description": task.description,
            "methods": {
                method: {
                    "settings": {"constructor": task.methods[_plain(method)].make},
                    "runs": each,
                    "summary": summary(each),
                }
                for method, each in runs.items()
                if each
            },
            "compilation": stages,
            "skipped": skipped,
        }
        answers = {
            m: round(each["summary"]["answer_seconds"]["median"], 2)
            for m, each in problems[name]["methods"].items()
        }
        progress(name, json.dumps(answers))
    return {"problems": problems, "notes": NOTES}


def _add_runs(runs, name, method, made, quick, cache, seed):
    runs.setdefault(method, []).append(run_process(name, method, quick))
    if not made.ours:
        return
    if not any(Path(cache).rglob(f"{method}.filled")):
        run_process(name, method, quick, cache=cache)
        (Path(cache) / f"{method}.filled").touch()
    found = run_process(name, method, quick, cache=cache)
    runs.setdefault(method + CACHED, []).append(found)


def _plain(method):
    return method.removesuffix(CACHED)


if __name__ == "__main__":
    name, method, quick, with_stages = json.loads(sys.argv[1])
    task = (quick_tasks() if quick else tasks())[name]
    print(json.dumps(fresh_process(task, task.methods[method], with_stages)))
