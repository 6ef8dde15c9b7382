"""Shallow ReLU networks on the problems of the SgGN paper, beside its baselines.

Step function, delta-like peaks, band and random network of Cai, Ding, Liu, Liu and Xia,
"A structure-guided Gauss-Newton method for shallow ReLU neural network", section 6. The
loss is theirs, J = 1/2 integral (u - t)^2 by the composite midpoint rule with h = 0.01.
"""

import sys
from typing import NamedTuple

import numpy as np
from sklearn.base import clone

from benchmarks import _report
from benchmarks._report import summary, target
from benchmarks._timing import compile_seconds, timed_fit
from sklearn_gn import ShallowReLURegressor
from sklearn_gn.solvers import Adam, JointGN, SgGN

# Skewed values, and pieces of uneven length: evenly spaced breakpoints miss the jumps.
STEP_VALUES = (0.2, 0.9, 0.4, 2.6, 0.1, 0.6, 1.5, 0.3, 3.8, 0.7)
STEP_JUMPS = (0.7, 1.9, 2.4, 3.8, 4.5, 5.9, 6.6, 8.1, 9.2)
PEAKS = {  # centre: sharpness
    -(np.pi**2) / 10: 1e4,
    -(np.pi - 5 / 2): 1e3,
    np.sqrt(85) / 10: 5e3,
}
MOST_SECONDS = 20.0  # of a fit that compiles nothing
NETWORK_SEED = 0  # of the target network of the "random" problems

NOTES = (
    "J = loss * volume, the integral of the paper's formula; the loss of the estimator "
    "is normalised by the sum of weights. The paper's own figures agree with ours in "
    "size if they are losses rather than integrals. The targets compare J with them, "
    "which is the stricter reading.",
    "Seconds are those of a fit that compiles nothing. Steps count the Gauss-Newton "
    "steps inside the rounds of relocation, and the shifts tried by lm and lm_hidden.",
    "All methods start from the same hyperplanes with the optimal output layer; the "
    "paper draws the output coefficients of the baselines from N(0, 0.01).",
    "auto is ShallowReLURegressor with its defaults, which choose the size and the "
    "penalties; the other methods have the paper's number of neurons and no penalty.",
    "One run of every method but auto, vpgn, sggn and sggn_default, which alone draw "
    "random numbers. The paper's BFGS figures are medians of 30 runs.",
    "vpgn and sggn run with 60 rounds of relocation, sggn_default with its default of "
    "20; vpgn from 8 starts where there is one variable. sggn_bare (no relocation), "
    "lm, lm_hidden, bfgs "
    "and kfra may take as many iterations as the paper's longest run, adam 10,000.",
    "adam starts from the paper's rate or from 0.01, whichever ends lower, and halves "
    "it ten times over the run. kfra uses its default damping. Both act on scaled "
    "features.",
    "The paper does not give its step function nor the parameters of its random "
    f"network. Ours: values {STEP_VALUES} with jumps at {STEP_JUMPS}; network drawn "
    f"with seed {NETWORK_SEED}.",
)


class Problem(NamedTuple):
    """A problem of the paper, with what the paper reports and what we aim at."""

    description: str
    X: np.ndarray
    y: np.ndarray
    volume: float
    n_neurons: int
    init: str
    max_iter: int  # of the paper's second-order methods
    learning_rate: float  # of the paper's Adam
    paper: dict
    aim: tuple  # statistic of sggn's J over the seeds, bound


# --- the problems --------------------------------------------------------------------


def midpoints(low, high, h):
    """Midpoints of the cells of size h."""
    return low + h * (np.arange(round((high - low) / h)) + 0.5)


def step(h=0.01):
    """Ten constant pieces on [0, 10]."""
    x = midpoints(0, 10, h)
    return x[:, None], np.asarray(STEP_VALUES)[np.searchsorted(STEP_JUMPS, x)]


def peaks(h=0.01):
    """Sum of ``1 / (d (x - centre)^2 + 1)`` on [-1.5, 1.5]."""
    x = midpoints(-1.5, 1.5, h)
    return x[:, None], sum(1 / (d * (x - c) ** 2 + 1) for c, d in PEAKS.items())


def square(h=0.01):
    """Midpoints on [-1, 1]^2, and the cell indices of both coordinates."""
    x = midpoints(-1, 1, h)
    cells = np.stack(np.meshgrid(np.arange(len(x)), np.arange(len(x)), indexing="ij"))
    i, j = cells.reshape(2, -1)
    return np.column_stack([x[i], x[j]]), i, j


def band(h=0.01):
    """1 where ``-0.5 <= x1 + x2 <= 0.5``, -1 elsewhere, on [-1, 1]^2.

    ``x1 + x2 = -2 + (i + j + 1) h`` is compared in integers: many midpoints lie on the
    edges of the band, and rounding would label them at random.
    """
    X, i, j = square(h)
    n = round(2 / h)
    diagonal = 4 * (i + j + 1)
    return X, np.where((3 * n <= diagonal) & (diagonal <= 5 * n), 1.0, -1.0)


def target_network(seed=NETWORK_SEED):
    """Lines (b, w) through random points of [-0.8, 0.8]^2, and random coefficients."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal((5, 2))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    point = rng.uniform(-0.8, 0.8, (5, 2))
    bias = -np.sum(normal * point, axis=1, keepdims=True)
    return np.hstack([bias, normal]), rng.standard_normal(5), rng.standard_normal()


def random_network(h=0.01):
    """The target network on [-1, 1]^2."""
    X, _, _ = square(h)
    lines, coef, intercept = target_network()
    hidden = np.maximum(lines[:, 0] + X @ lines[:, 1:].T, 0)
    return X, hidden @ coef + intercept


def _figures(*pairs):
    return [{"J": J, "iterations": iterations} for J, iterations in pairs]


def problems(h=None):
    """All problems, with one mesh size for all or the paper's."""
    mesh = {} if h is None else {"h": h}
    network = random_network(**mesh)
    return {
        "step": Problem(
            "ten-piece step function on [0, 10], 30 neurons",
            *step(**mesh),
            volume=10.0,
            n_neurons=30,
            init="uniform",
            max_iter=825,
            learning_rate=0.1,
            paper={
                "SgGN": _figures((8.76e-4, 9), (6.56e-9, 825)),
                "BFGS": _figures((4.03e-3, 207), (2.65e-3, 825)),
                "KFRA": _figures((1.61e-3, 825)),
                "Adam": _figures((8.14e-3, 10_000)),
            },
            aim=("max", 1e-20),
        ),
        "peaks": Problem(
            "three delta-like peaks on [-1.5, 1.5], 15 neurons",
            *peaks(**mesh),
            volume=3.0,
            n_neurons=15,
            init="uniform",
            max_iter=334,
            learning_rate=0.02,
            paper={
                "SgGN": _figures((1.87e-3, 12), (2.19e-4, 334)),
                "BFGS": _figures((3.74e-3, 91), (2.33e-3, 334)),
                "KFRA": _figures((2.97e-3, 334)),
                "Adam": _figures((3.94e-3, 10_000)),
            },
            aim=("median", 1.75e-4),
        ),
        "band": Problem(
            "band of 1 between -1 on [-1, 1]^2, 4 neurons",
            *band(**mesh),
            volume=4.0,
            n_neurons=4,
            init="uniform",
            max_iter=142,
            learning_rate=0.01,
            paper={
                "SgGN": _figures((8.82e-2, 9), (3.16e-3, 142)),
                "BFGS": _figures((9.20e-2, 100), (8.92e-2, 142)),
                "KFRA": _figures((9.40e-2, 142)),
                "Adam": _figures((9.23e-2, 10_000)),
            },
            aim=("max", 1e-20),
        ),
        "random_horizontal": Problem(
            "network of 5 neurons on [-1, 1]^2 from horizontal lines",
            *network,
            volume=4.0,
            n_neurons=5,
            init="horizontal",
            max_iter=207,
            learning_rate=0.1,
            paper={
                "SgGN": _figures((6.28e-22, 99), (6.68e-27, 207)),
                "BFGS": _figures((7.50e-22, 207)),
                "KFRA": _figures((6.12e-2, 207)),
                "Adam": _figures((1.17e-5, 10_000)),
            },
            aim=("median", 1e-24),
        ),
        "random_vertical": Problem(
            "network of 5 neurons on [-1, 1]^2 from vertical lines",
            *network,
            volume=4.0,
            n_neurons=5,
            init="vertical",
            max_iter=105,
            learning_rate=0.1,
            paper={
                "SgGN": _figures((2.35e-4, 4), (4.34e-26, 105)),
                "BFGS": _figures((5.21e-4, 30), (2.71e-4, 105)),
                "KFRA": _figures((5.56e-2, 105)),
                "Adam": _figures((2.15e-4, 10_000)),
            },
            aim=("median", 1e-24),
        ),
    }


# --- the methods ---------------------------------------------------------------------

METHODS = (
    "auto",
    "vpgn",
    "sggn",
    "sggn_default",
    "sggn_bare",
    "lm",
    "lm_hidden",
    "bfgs",
    "kfra",
    "adam",
)


RANDOM = ("auto", "vpgn", "sggn", "sggn_default")  # the others draw no numbers here


def settings(method, problem):
    """Parameters of the estimator that differ from the defaults, in variants."""
    if method == "auto":  # nothing given: penalties and size are chosen
        return [{"alpha": "auto"}]
    common = {
        "n_neurons": problem.n_neurons,
        "init": problem.init,
        "solver": "sggn",
    }
    if method == "vpgn":
        starts = {"n_init": 8} if problem.X.shape[1] == 1 else {}
        return [{**common, "solver": JointGN(relocations=60), **starts}]
    if method == "sggn":  # rounds end by themselves once the loss is at rounding
        return [{**common, "solver": SgGN(relocations=60)}]
    if method == "sggn_default":
        return [common]
    if method == "sggn_bare":
        bare = SgGN(relocations=0)
        return [{**common, "solver": bare, "max_iter": problem.max_iter}]
    if method == "adam":
        adam = {**common, "max_iter": 10_000}
        rates = sorted({problem.learning_rate, 0.01})
        return [{**adam, "solver": Adam(learning_rate=rate)} for rate in rates]
    return [{**common, "solver": method, "max_iter": problem.max_iter}]


def shortest(method, solver):
    """Changes after which a fit calls every compiled function and soon stops."""
    if method in RANDOM and method != "auto":
        # No decrease satisfies this tol: relocation comes at once, in all kinds of
        # rounds.
        kind = JointGN if isinstance(solver, JointGN) else SgGN
        return {"solver": kind(relocations=4), "tol": 1e30}
    return {"max_iter": 3}


def outcome(model, problem, seconds):
    return {
        "J": model.loss_ * problem.volume,
        "loss": model.loss_,
        "iterations": model.n_iter_,
        "steps": int(np.nansum(model.convergence_log_["inner_iterations"])),
        "seconds": seconds,
        "stop_reason": model.stop_reason_,
    }


def run_variant(method, parameters, problem, seeds):
    # The problem of the paper: no penalty, a given number of neurons.
    estimator = ShallowReLURegressor(**{"alpha": 0.0, **parameters})
    short = clone(estimator).set_params(**shortest(method, estimator.solver))
    compiling = compile_seconds(short, problem.X, problem.y)
    deterministic = method not in RANDOM
    runs = []
    for seed in seeds[:1] if deterministic else seeds:
        estimator.set_params(random_state=seed)
        model, seconds = timed_fit(estimator, problem.X, problem.y)
        runs.append({"seed": seed, **outcome(model, problem, seconds)})
        print(f"{method:10s} {runs[-1]}", file=sys.stderr, flush=True)
    return {
        "settings": _report.settings(estimator),
        "deterministic": deterministic,
        "compile_seconds": compiling,
        "runs": runs,
        "summary": summary(runs),
    }


def run_method(method, problem, seeds, overrides):
    """The best variant of a method."""
    variants = [
        run_variant(method, {**parameters, **overrides}, problem, seeds)
        for parameters in settings(method, problem)
    ]
    return min(variants, key=lambda answer: answer["summary"]["J"]["median"])


def run_problem(problem, seeds, overrides):
    methods = {
        method: run_method(method, problem, seeds, overrides) for method in METHODS
    }
    targets = {
        key: target(methods, method, "J", *problem.aim)
        for key, method in (
            ("target", "vpgn"),
            ("target_sggn", "sggn"),
            ("target_default", "sggn_default"),
            ("target_auto", "auto"),
        )
        if method in methods
    }
    if "vpgn" in methods:
        seconds = target(methods, "vpgn", "seconds", "max", MOST_SECONDS)
        targets["target_seconds"] = seconds
    return {
        "description": problem.description,
        "rows": len(problem.X),
        "volume": problem.volume,
        "methods": methods,
        "paper": problem.paper,
        **targets,
    }


def run(args):
    overrides = {"max_iter": 20} if args.quick else {}
    answers = {}
    for name, problem in problems(h=0.1 if args.quick else None).items():
        if args.only and name not in args.only:
            continue
        print(f"--- {name}", file=sys.stderr, flush=True)
        answers[name] = run_problem(problem, args.seeds, overrides)
        args.write({"problems": answers, "notes": NOTES})
    return {"problems": answers, "notes": NOTES}
