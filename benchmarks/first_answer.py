"""Seconds until a fresh process has an answer: import, first fit, later fits.

A row is a process of its own, ``python -m benchmarks.first_answer QUESTION``, which
prints its figures as JSON. The methods of a task take turns, all tasks with the first
seed before any with the second. The result is written after every row, and a run goes
on from the rows in its file, so one that is cut off, or ends after ``--minutes``, loses
nothing; delete the file to begin anew.
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
PATIENCE = 150  # seconds after which a process is given up
CACHED = "_cached"  # ends the names of rows that read the compilation cache
MINUTES = 60  # of a run, where --minutes is not given
FACTOR_REPEATS = 5  # of the linear algebra that an iteration is compared with
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
    "trace, lower and xla: seconds of the first fit that JAX spends on following the "
    "Python functions, writing them down and compiling them; programs: their number.",
    "linear_algebra_share: seconds of a Gram matrix of the size of the Gauss-Newton "
    "system and of its Cholesky factor, by NumPy with one thread, over the median "
    "seconds of an iteration of the last fit.",
    f"A process that takes more than {PATIENCE} seconds is given up, and the method is "
    "skipped in that task.",
    "PINNSolver has no peer here (see pinn_peers): its fit ends with a relative error "
    "of 1e-4 (burgers), or after one iteration (kovasznay). relative_error is that of "
    "the last fit: where it is larger, the fit ended before, and its seconds are not "
    "those of the goal.",
)


class Method(NamedTuple):
    """How a process imports and makes an estimator."""

    imports: str
    make: str  # an expression with ``seed``
    ours: bool = True
    system: str = "None"  # rows and unknowns of the Gauss-Newton system of ``model``


class Task(NamedTuple):
    """A fit by several methods."""

    description: str
    data: str  # an expression that makes X, y
    methods: dict
    n_later: int = 3  # fits after the first one of a process


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


WEIGHTS = "sum(a.size for a in (*model.coefs_, *model.intercepts_))"


def ours(name, arguments="", system="None"):
    arguments = f"{arguments}, random_state=seed" if arguments else "random_state=seed"
    make = f"{name}({arguments})"
    return Method(f"from sklearn_gn import {name}", make, system=system)


def pinn(arguments, ending):
    """A solver, and a callback or a setting that ends its fit."""
    made = ours("PINNSolver", arguments)
    problems = (
        "from benchmarks._burgers import Burgers",
        "from sklearn_gn.pde.problems import Kovasznay",
    )
    imports = "\n".join([made.imports, *problems])
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


N_LATER = {"small": 3, "medium": 1, "large": 1}


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
            n_later=N_LATER[size],
        )
    for size, n in {"small": 442, "medium": 5000, "large": 50_000}.items():
        found[f"table_{size}"] = Task(
            f"{n} x 10",
            f"table({n})",
            {
                "shallow_relu": ours(
                    "ShallowReLURegressor",
                    system="len(y), model.hyperplanes_.size + model.output_coef_.size",
                ),
                "varpro": ours("VarProNetRegressor"),
                "varpro_alpha": ours(
                    "VarProNetRegressor",
                    "alpha=1e-3, hidden_layer_sizes=(64, 64)",
                    system=f"len(y), {WEIGHTS}",
                ),
                "mlp": MLP,
                "hist_gradient_boosting": BOOSTING,
            },
            n_later=N_LATER[size],
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
            n_later=N_LATER[size],
        )
    found["burgers"] = Task(
        "Burgers' equation, layers (20, 20)",
        "nothing()",
        {
            "pinn": pinn(
                "Burgers(), hidden_layer_sizes=(20, 20)",
                ".set_callbacks(until(1e-4))",
            )
        },
        n_later=1,
    )
    found["kovasznay"] = Task(
        "Kovasznay flow, default network and points, one iteration",
        "nothing()",
        {"pinn": pinn("Kovasznay(), max_iter=1", "")},
    )
    return found


def quick_tasks():
    """The same tasks, all tiny."""
    tiny = {"line": "line(40)", "table": "table(60)", "classes": "classes(90, 4, 3)"}
    found = {}
    for name, task in tasks().items():
        data = tiny.get(name.split("_")[0], task.data)
        found[name] = task._replace(data=data, n_later=1)
    method = found["burgers"].methods["pinn"]
    make = method.make.replace("(20, 20)", "(4,), max_iter=2")
    found["burgers"].methods["pinn"] = method._replace(make=make)
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
    later = []
    for seed in range(1, 1 + task.n_later):
        model, seconds = fitted(method, spaces, X, y, seed)
        later.append(seconds)
    figures = {
        "import_seconds": import_seconds,
        "first_fit_seconds": first,
        "answer_seconds": import_seconds + first,
        "later_fit_seconds": median(later),
    }
    if X is not None and hasattr(model, "score"):
        figures["score"] = float(model.score(X, y))
    log = getattr(model, "convergence_log_", {})
    if "relative_error" in log:  # of a fit that may end before its goal
        figures["relative_error"] = float(log["relative_error"][-1])
    size = eval(method.system, {**spaces, "model": model})
    if size is not None:
        figures |= iteration_figures(model, *size)
    return figures


def iteration_figures(model, n_rows, n_unknowns):
    """Seconds of an iteration, and the share that its linear algebra needs."""
    import numpy as np

    times = np.asarray(model.convergence_log_["time"])
    if len(times) < 3:
        return {}
    seconds = float(np.median(np.diff(times)))
    share = linear_algebra_seconds(n_rows, n_unknowns) / seconds
    return {"iteration_seconds": seconds, "linear_algebra_share": share}


def linear_algebra_seconds(n_rows, n_unknowns):
    """Seconds of a Gram matrix, and of its Cholesky factor, with one thread."""
    import numpy as np
    from threadpoolctl import threadpool_limits

    # By the smaller one of the two Gram matrices.
    rng = np.random.default_rng(0)
    n, k = sorted((n_rows, n_unknowns))
    jacobian, eye = rng.standard_normal((n, k)), np.eye(n)
    seconds = []
    with threadpool_limits(1, "blas"):
        for _ in range(FACTOR_REPEATS):
            start = time.perf_counter()
            np.linalg.cholesky(jacobian @ jacobian.T + eye)
            seconds.append(time.perf_counter() - start)
    return median(seconds)


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


def run_process(
    name, method, quick, *, cache=None, with_stages=False, seconds=PATIENCE
):
    """Figures of a new process, which is given up after some seconds."""
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
        timeout=seconds,
    )
    return json.loads(process.stdout.splitlines()[-1])


# --- the experiment ------------------------------------------------------------------


def rows_of(chosen, seeds):
    """Task, name and seed of every row, in the order in which they are run."""
    for seed in seeds:
        for name, task in chosen.items():
            for method, made in task.methods.items():
                yield name, method, seed
                # A later process of large data computes longer than it compiles.
                if made.ours and (seed == 0 or task.n_later > 1):
                    yield name, method + CACHED, seed


def run(args):
    from benchmarks._report import progress

    chosen = quick_tasks() if args.quick else tasks()
    chosen = {n: t for n, t in chosen.items() if not args.only or n in args.only}
    problems = _started(args, chosen)
    answer = {"problems": problems, "notes": NOTES}
    end = time.monotonic() + 60 * (args.minutes or MINUTES)
    with tempfile.TemporaryDirectory() as folder:
        for name, method, seed in rows_of(chosen, args.seeds):
            problem, left = problems[name], end - time.monotonic()
            runs = problem["methods"].get(method, {"runs": []})["runs"]
            is_done = any(r["seed"] == seed for r in runs)
            if is_done or _plain(method) in problem["skipped"] or left <= 0:
                continue
            try:
                run = _row(name, method, args.quick, seed, folder, min(left, PATIENCE))
            except subprocess.TimeoutExpired:
                if left < PATIENCE:
                    break
                reason = f"takes more than {PATIENCE} seconds"
                problem["skipped"][_plain(method)] = reason
            except subprocess.CalledProcessError as error:
                lines = error.stderr.strip().splitlines()
                problem["skipped"][_plain(method)] = lines[-1] if lines else "failed"
            else:
                _add(problem, chosen[name], method, run)
                progress(name, method, seed, round(run["answer_seconds"], 2))
            args.write(answer)
    return answer


def _started(args, chosen):
    """The problems with the rows that the file has already."""
    kept = {}
    if args.out is not None and args.out.exists():
        before = json.loads(args.out.read_text())
        if before["quick"] == args.quick:
            kept = before["problems"]
    return {
        name: {
            "description": task.description,
            "methods": kept.get(name, {}).get("methods", {}),
            "skipped": kept.get(name, {}).get("skipped", {}),
        }
        for name, task in chosen.items()
    }


def _row(name, method, quick, seed, folder, seconds):
    """The figures of a row; the first of a method that compiles fills the cache."""
    plain = _plain(method)
    if plain == method:
        run = run_process(name, method, quick, seconds=seconds)
        made = (quick_tasks() if quick else tasks())[name].methods[method]
        if seed == 0 and made.ours and name.endswith("small"):
            run |= run_process(name, method, quick, with_stages=True, seconds=seconds)
        return {"seed": seed, **run}
    cache = Path(folder) / name / plain
    if not cache.exists():
        run_process(name, plain, quick, cache=str(cache), seconds=seconds)
    run = run_process(name, plain, quick, cache=str(cache), seconds=seconds)
    return {"seed": seed, **run}


def _add(problem, task, method, run):
    from benchmarks._report import summary

    made = task.methods[_plain(method)]
    row = problem["methods"].setdefault(
        method, {"settings": {"constructor": made.make}, "runs": []}
    )
    row["runs"].append(run)
    row["summary"] = summary(row["runs"])


def _plain(method):
    return method.removesuffix(CACHED)


if __name__ == "__main__":
    name, method, quick, with_stages = json.loads(sys.argv[1])
    task = (quick_tasks() if quick else tasks())[name]
    print(json.dumps(fresh_process(task, task.methods[method], with_stages)))
