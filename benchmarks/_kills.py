"""One solver, killed and interrupted at random moments: the work of ``kills``.

``python -m benchmarks._kills ESTIMATOR SOLVER KILLS INTERRUPTS SEED`` prints one JSON
object. Every fit runs in a process of its own, forked from one that has loaded JAX and
has not used it.
"""

import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
import warnings
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_info

import sklearn_gn
from sklearn_gn.callbacks import Checkpoint
from sklearn_gn.pde import Box, Initial, Problem, d
from sklearn_gn.runtime import checkpoint
from sklearn_gn.solvers import (
    NETWORK_SOLVERS,
    PINN_SOLVERS,
    SHALLOW_RELU_SOLVERS,
    SOFTMAX_HEAD_SOLVERS,
    GNvpro,
)

for module in (  # before the forks
    "shallow_relu.algorithms",
    "varpro.baselines",
    "softmax_head.minibatch",
    "pinn.fitting",
):
    importlib.import_module(f"sklearn_gn.{module}")

ROWS = 60
COMMON = {"max_iter": 20, "random_state": 0}
DEFAULT = "default"  # the solver that an estimator without settings has
FINISHED = b"finished"
LONGEST = 300.0  # seconds of a process, which is killed then

# --- what is fitted ------------------------------------------------------------------


def decay(u, t):
    return d(u, "t") + u


def one(x):
    return 1.0


def solvers(name):
    """Names of the solvers of an estimator, and of its defaults."""
    known = {
        "FGNSoftmaxHead": SOFTMAX_HEAD_SOLVERS,
        "PINNSolver": PINN_SOLVERS,
        "SegmentedRegressor": [],
        "ShallowReLURegressor": SHALLOW_RELU_SOLVERS,
        "VarProNetClassifier": NETWORK_SOLVERS,
        "VarProNetRegressor": NETWORK_SOLVERS,
    }[name]
    batches = ["gnvpro in batches"] if name.startswith("VarPro") else []
    return [*([] if name == "PINNSolver" else [DEFAULT]), *known, *batches]


def problem(name, solver):
    """A small model of a solver, and the arguments of its ``fit``."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, 2))
    y = np.abs(X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(ROWS)
    labels = np.digitize(y, [0.3, 1.0])
    if name == "SegmentedRegressor":
        return sklearn_gn.SegmentedRegressor("auto"), (X[:, :1], y)
    if name == "PINNSolver":
        equation = Problem(decay, Box(t=(0.0, 1.0)), (Initial(one),))
        words = {"hidden_layer_sizes": (4,), "n_interior": 20, "solver": solver}
        return sklearn_gn.PINNSolver(equation, **COMMON, **words), ()
    words = dict(COMMON)
    if solver != DEFAULT:
        words |= {"alpha": 1e-3, "tol": 0.0, "solver": solver}
    if solver == "gnvpro in batches":
        words["solver"] = GNvpro(batch_size=20)
    if name.startswith("VarPro"):
        words["hidden_layer_sizes"] = (4,)
    elif name == "ShallowReLURegressor":
        words["n_neurons"] = 4
    classifies = name in ("FGNSoftmaxHead", "VarProNetClassifier")
    return getattr(sklearn_gn, name)(**words), (X, labels if classifies else y)


def figures(model, data):
    """What two equal fits have in common, bit for bit: predictions and the log."""
    points = data[0] if data else np.linspace(0, 1, 7)[:, None]
    answer = getattr(model, "predict_proba", model.predict)(points)
    log = getattr(model, "convergence_log_", {})
    columns = {k: v for k, v in log.items() if k != "time"}
    return {"answer": answer, **columns}


def equal(one, other):
    return one.keys() == other.keys() and all(
        np.array_equal(one[key], other[key], equal_nan=one[key].dtype.kind == "f")
        for key in one
    )


def quietly(model, data):
    """Fit; the warnings of a fit that is cut short are meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(*data)


# --- processes -----------------------------------------------------------------------


def forked(work):
    """Run a function of a file descriptor in another process; its id and its pipe."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks, and is not in use yet
        child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        work(writing)
        os.write(writing, FINISHED)
        os._exit(0)
    finally:  # an error, whose traceback the parent waits for no longer
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def wait_for(pipe, seconds, until=None):
    """Read a pipe for some seconds, or until its writer ends or ``until`` is met."""
    content, end = b"", time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            break
        part = os.read(pipe, 65536)
        content += part
        if not part or (until is not None and until(content)):
            break
    return content


def end(child, pipe):
    """Kill a process as ``kill -9`` does; return what it had still said."""
    os.kill(child, signal.SIGKILL)
    rest = wait_for(pipe, LONGEST)
    os.close(pipe)
    os.waitpid(child, 0)
    return rest


def in_process(work):
    """What a function returns in another process: a dict of arrays."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "answer.npz")
        child, pipe = forked(lambda _: np.savez(path, **work()))
        said = wait_for(pipe, LONGEST, lambda content: FINISHED in content)
        end(child, pipe)
        if FINISHED not in said:
            raise RuntimeError("A process failed that nobody killed.")
        with np.load(path) as file:
            return dict(file)


# --- kill -9 -------------------------------------------------------------------------


class Announce:
    """A callback that writes the length of the log after each save."""

    def __init__(self, pipe):
        self.pipe = pipe

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context):
        if context.task_name == "iteration":
            os.write(self.pipe, f"{len(estimator._fit_run.log)}\n".encode())
        return False


def kills(name, solver, n_kills, rng):
    """Kill a fit again and again; it is resumed each time, and compared at its end."""
    model, data = problem(name, solver)
    whole = in_process(lambda: figures(quietly(model, data), data))
    n_rows = len(whole["loss"])
    found = {"kills": 0, "lost": 0, "unequal": 0, "left_files": 0, "ends": 0}
    found["moments"] = []
    with tempfile.TemporaryDirectory() as folder:
        path, answer = Path(folder, "fit.ckpt"), Path(folder, "answer.npz")

        def work(pipe):
            callbacks = Checkpoint(path, every=0), Announce(pipe)
            fitted = quietly(clone(model).set_callbacks(*callbacks), data)
            np.savez(answer, **figures(fitted, data))

        while found["kills"] < n_kills or path.exists():
            child, pipe = forked(work)
            if found["kills"] < n_kills:
                said = moment(pipe, rng, n_rows)
            else:
                said = wait_for(pipe, LONGEST)
            said += end(child, pipe)
            if FINISHED in said:
                with np.load(answer) as file:
                    found["unequal"] += not equal(dict(file), whole)
                names = {each.name for each in Path(folder).iterdir()}
                found["left_files"] += len(names - {path.name, answer.name})
                found["ends"] += 1
                path.unlink()
                continue
            if found["kills"] == n_kills:
                raise RuntimeError("A resumed fit failed that nobody killed.")
            found["kills"] += 1
            rows = saved_rows(path)
            announced = int(said.split()[-1]) if said.split() else 0
            found["lost"] += len(rows) < announced
            found["unequal"] += not np.array_equal(rows, whole["loss"][: len(rows)])
            found["moments"].append(len(rows) / n_rows)
    return found


def moment(pipe, rng, n_rows):
    """Wait for a random moment: after some saves, a part of the time between two."""
    n_saves, share = rng.integers(0, n_rows // 2 + 1), rng.uniform()
    times = [time.perf_counter()]

    def reached(content):
        times.extend([time.perf_counter()] * (content.count(b"\n") - len(times) + 1))
        return content.count(b"\n") >= n_saves

    said = wait_for(pipe, LONGEST, reached) if n_saves else b""
    between = np.mean([b - a for a, b in pairwise(times)]) if len(times) > 1 else 0.1
    return said + wait_for(pipe, share * between) if FINISHED not in said else said


def saved_rows(path):
    """Losses that a file has; none where there is no file."""
    snapshot = checkpoint.load(path)
    log = () if snapshot is None else snapshot["progress"]["log"]
    return np.array([row["loss"] for row in log])


# --- Ctrl-C --------------------------------------------------------------------------


def interrupts(name, solver, n_interrupts, rng):
    """Press Ctrl-C at random moments of fits in one process."""
    model, data = problem(name, solver)
    whole = figures(quietly(clone(model), data), data)
    began = time.perf_counter()
    quietly(clone(model), data)
    seconds = time.perf_counter() - began
    before = _settings()
    kept, raised, unusable = 0, 0, 0
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # that of SIGINT
    while kept + raised < n_interrupts:
        pressed = clone(model)
        names = set(vars(pressed))
        outcome = press(pressed, data, rng.uniform(0, seconds))
        if outcome == "late":
            continue
        if outcome == "raised":
            raised += 1
            wrong = set(vars(pressed)) != names
        else:
            kept += 1
            wrong = not usable(figures(pressed, data), whole)
        wrong |= _settings() != before
        wrong |= not equal(figures(quietly(pressed, data), data), whole)
        unusable += wrong
    return {"interrupts": kept + raised, "kept": kept, "unusable": unusable}


def press(model, data, seconds):
    """Fit, and interrupt it after some seconds; how it ended."""
    fitted = False
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            quietly(model, data)
            fitted = True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return "late" if fitted else "raised"
    return "kept" if getattr(model, "stop_reason_", "") == "interrupted" else "late"


def usable(found, whole):
    """Whether an interrupted model predicts, and its log is the beginning of the whole.

    Its last row may have been evaluated anew.
    """
    n_rows = max(len(found["loss"]) - 1, 0)
    return np.isfinite(found["answer"]).all() and np.array_equal(
        found["loss"][:n_rows], whole["loss"][:n_rows]
    )


def _settings():
    """Settings of the process that a fit changes for its time."""
    threads = [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]
    return jax.config.jax_enable_x64, threads, np.geterr()


def run(name, solver, n_kills, n_interrupts, seed):
    """All figures of one solver."""
    start, rng = time.perf_counter(), np.random.default_rng(seed)
    has_checkpoints = name != "SegmentedRegressor"
    found = kills(name, solver, n_kills, rng) if has_checkpoints else {"kills": 0}
    moments = found.pop("moments", [])
    ctrl_c = in_process(lambda: interrupts(name, solver, n_interrupts, rng))
    return {
        "seed": seed,
        **found,
        "earliest_kill": min(moments, default=None),
        "latest_kill": max(moments, default=None),
        **{key: int(value) for key, value in ctrl_c.items()},
        "seconds": time.perf_counter() - start,
    }


if __name__ == "__main__":
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory()
        sklearn_gn.enable_compilation_cache(folder.name)
    print(json.dumps(run(*sys.argv[1:3], *map(int, sys.argv[3:6]))))
