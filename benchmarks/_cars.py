"""The setting of the paper's figure 3: accuracy against time on 196 classes."""

import time
from functools import partial

import jax
import numpy as np
from scipy.special import logsumexp

from benchmarks._report import progress, summary
from sklearn_gn.arrays import backend
from sklearn_gn.softmax_head.head import AffineHead, BatchedRows, HeadOptions
from sklearn_gn.softmax_head.minibatch import (
    ALGORITHMS,
    Walk,
    adam_epoch,
    adam_start,
    fgn_epoch,
    sgn_epoch,
    sgn_start,
    step_settings,
)
from sklearn_gn.solvers import FGN, SGN, Adam

CARS_BATCH = 128
RATE = 0.1  # of the paper, for FGN and SGN
CARS_HORIZON = 12.0  # seconds of training that every method gets
CARS_GRID = 200
CARS_METHODS = {  # epoch, what it carries at first, solver object, further arguments
    "adam": (adam_epoch, adam_start, Adam(learning_rate=3e-4), {}),
    "sgn": (
        sgn_epoch,
        sgn_start,
        SGN(learning_rate=RATE),
        {"cg_iterations": np.int32(5)},
    ),
    "fgn": (
        fgn_epoch,
        Walk,
        FGN(learning_rate=RATE),
        {"averaged": False, "n_competitors": 0, "cg_iterations": 5},
    ),
}
CARS_NOTES = (
    "cars_like: the sizes and settings of the paper's Cars196 experiment on generated "
    "features (see benchmarks/_data.py): float32, no penalty, batches of 128 drawn "
    "once a seed, the last one filled from the start, damping 1, at most 5 steps of "
    "CG; rates 3e-4 (adam) and 0.1. The data set is that of seed 0; a seed shuffles "
    "the training rows. Heads start at zero. Seconds are those of the epochs alone; "
    "building the Grams of the features (fgn) is counted. The paper's horizon was "
    "3.65 s on a GPU.",
)


def cars_curve(name, split, seed, horizon):
    """Seconds, accuracy and cross-entropy on the test rows after every epoch."""
    epoch, start, solver, arguments = CARS_METHODS[name]
    n, d = split.X_train.shape
    order = np.random.RandomState(seed).permutation(n)
    n_batches = -(-n // CARS_BATCH)
    order = np.append(order, order[: n_batches * CARS_BATCH - n])
    one = np.float32(1)
    rows = BatchedRows(
        split.X_train[order].astype(np.float32),
        split.y_train[order].astype(np.int32),
        np.full(len(order), one / n),
        np.int32(n),
        np.int32(n_batches),
    )
    options = HeadOptions(
        alpha=0 * one,
        damping=1.0,
        rank=1,
        intercept=one,
        tol=0 * one,
        batch_size=CARS_BATCH,
        seed=np.int32(seed),
        solver=solver,
    )
    points = []
    with backend.scope("float32"):
        zero = AffineHead(
            np.zeros((d, split.n_classes), np.float32),
            np.zeros(split.n_classes, np.float32),
        )
        seconds = []
        for _ in range(2):  # the first time compiles
            begun = time.perf_counter()
            data = ALGORITHMS[name].prepare(rows, options)
            jax.block_until_ready(data)
            seconds.append(time.perf_counter() - begun)
        used = seconds[-1]
        step = partial(
            epoch,
            data=data,
            settings=step_settings(options),
            batch_size=CARS_BATCH,
            **arguments,
        )
        net, memory = zero, start(zero)
        jax.block_until_ready(step(net, memory))
        while used < horizon:
            begun = time.perf_counter()
            net, memory = jax.block_until_ready(step(net, memory))
            used += time.perf_counter() - begun
            logits = split.X_test @ np.asarray(net.weight, np.float64) + np.asarray(
                net.bias
            )
            right = np.mean(logits.argmax(axis=1) == split.y_test)
            entropy = np.mean(
                logsumexp(logits, axis=1) - logits[np.arange(len(logits)), split.y_test]
            )
            points.append((used, right, entropy))
    return np.array(points)


def run_cars(split, seeds, horizon):
    """Mean curves over the seeds, and the times to the final accuracies."""
    grid = np.linspace(0, horizon, CARS_GRID + 1)[1:]
    curves = {name: [] for name in CARS_METHODS}
    for seed in seeds:
        for name in CARS_METHODS:  # in turn
            points = cars_curve(name, split, seed, horizon)
            first = [0.0, 1 / split.n_classes, np.log(split.n_classes)]
            points = np.vstack([first, points])
            curves[name].append(
                [np.interp(grid, points[:, 0], points[:, k]) for k in (1, 2)]
            )
            progress(
                f"cars_like seed {seed} {name}: {points[-1]}, {len(points)} epochs"
            )
    curves = {name: np.array(values) for name, values in curves.items()}
    means = {name: values[:, 0].mean(axis=0) for name, values in curves.items()}

    def seconds_to(values, accuracy):
        reached = np.flatnonzero(values >= accuracy)
        return float(grid[reached[0]]) if len(reached) else np.nan

    methods = {}
    for name, values in curves.items():
        runs = []
        for (accuracy, entropy), seed in zip(values, seeds, strict=True):
            goals = {
                f"seconds_to_final_of_{other}": seconds_to(accuracy, means[other][-1])
                for other in ("adam", "sgn")
            }
            final = {"accuracy": accuracy[-1], "cross_entropy": entropy[-1]}
            runs.append({"seed": seed, **final, "best": accuracy.max(), **goals})
        methods[name] = {
            "settings": {"learning_rate": CARS_METHODS[name][2].learning_rate},
            "curves": {
                "seconds": grid.tolist(),
                "accuracy_mean": means[name].tolist(),
                "accuracy_std": values[:, 0].std(axis=0).tolist(),
                "cross_entropy_mean": values[:, 1].mean(axis=0).tolist(),
            },
            "seconds_of_mean_curve": {
                f"to_final_of_{other}": seconds_to(means[name], means[other][-1])
                for other in ("adam", "sgn")
            },
            "runs": runs,
            "summary": summary(runs),
        }
    paper = {
        "adam": [{"accuracy": 0.4224, "cross_entropy": 2.8449}],
        "sgn": [{"accuracy": 0.4416, "cross_entropy": 2.3603}],
        "fgn": [{"accuracy": 0.4429, "cross_entropy": 2.3519}],
    }
    return {
        "description": f"accuracy against time, {split}, {horizon:g} s each",
        "methods": methods,
        "paper": paper,
    }
