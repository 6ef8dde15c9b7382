"""GNvpro on images with the convolutional network of its paper, beside Adam and SGD."""

from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split

from benchmarks import _data
from benchmarks._own_copies import load_cifar10
from benchmarks._report import progress, summary, target
from benchmarks._timing import compile_seconds
from benchmarks._varpro import (
    EPOCH_COST,
    Problem,
    add_inner_share,
    answer,
    curve,
    figures,
    middle,
    recorded_fit,
    short,
)
from sklearn_gn import VarProNetClassifier
from sklearn_gn.networks import CNN
from sklearn_gn.solvers import SGD, Adam, GNvpro

ITERATIONS = 3  # of every batch
TUNING_SHARE = 0.25  # of the work of gnvpro, for fits that compare learning rates
INNER_SHARE = 0.1  # of the time of a fit, at most
RATES = {"adam": (1e-3, 3e-3, 1e-2), "sgd": (1e-2, 3e-2, 1e-1)}
OTHERS = {"adam": Adam, "sgd": SGD}
BEYOND = 2  # times the work and the seconds of gnvpro, which adam and sgd get
EPOCHS_BETWEEN = 2  # the points of a curve of Adam or SGD
PAPER = {  # of CIFAR-10
    "GNvpro": [{"test": 0.6805}],
    "L-BFGSvpro": [{"test": 0.6728}],
    "Adam": [{"test": 0.6634}],
    "SGD, Nesterov": [{"test": 0.7295}],
}
NOTES = (
    "Accuracies are those of the network that a fit returns when it ends there, the "
    "one with the lowest objective. gnvpro keeps a batch for "
    f"{ITERATIONS} iterations, and goes over all of them once, at the paper's size "
    "twice. adam and sgd run until both their work units and their seconds exceed "
    f"{BEYOND} times those of gnvpro; their figures are those of that end.",
    "ahead_of_NAME_units and ahead_of_NAME_seconds: the share of the iterations of "
    "gnvpro after which its test accuracy is higher than that of NAME with no more "
    "units, or seconds. The seconds of adam and sgd contain the loss of all rows after "
    "every epoch, for the log, which their units do not.",
    "Work units are passes over all training rows, forward or backward. Seconds are "
    "those of fits that compile nothing; scoring on the way is not counted.",
    f"Learning rates are the best of {RATES} by the validation accuracy after "
    f"{TUNING_SHARE:.0%} of the work of gnvpro, on the first seed; batches of 64.",
    "inner_share: seconds of the inner problems, solved again one by one from the "
    "recorded networks, over those of the fit.",
    "rank is 5, of 5, 10 and 30 the one with the best validation accuracy on "
    "Fashion-MNIST after 30 units, and 30 at the paper's size.",
    "Pixels less their mean, over their deviation, of all training pixels alike.",
)


class Size(NamedTuple):
    """Rows of the parts and of a batch; sweeps over the batches."""

    train: int
    validation: int
    test: int
    batch: int
    sweeps: int = 1
    rank: int = 5


SMALL = Size(4000, 2000, 10_000, 2000)
PAPER_SIZE = Size(40_000, 10_000, 10_000, 10_000, sweeps=2, rank=30)
QUICK = Size(64, 32, 64, 32, rank=3)


def subset(data, size):
    """The three parts, drawn with a fixed seed, pixels of mean 0 and variance 1."""
    train, validation = train_test_split(
        np.arange(len(data.X_train)),
        train_size=size.train,
        test_size=size.validation,
        random_state=_data.SEED,
        stratify=data.y_train,
    )
    parts = {
        "train": (data.X_train[train], data.y_train[train]),
        "validation": (data.X_train[validation], data.y_train[validation]),
        "test": (data.X_test[: size.test], data.y_test[: size.test]),
    }
    mean, deviation = parts["train"][0].mean(), parts["train"][0].std()
    return {name: ((X - mean) / deviation, y) for name, (X, y) in parts.items()}


def estimators(shape, size):
    """GNvpro with the paper's settings, Adam and SGD on the same objective."""
    common = partial(
        VarProNetClassifier,
        network=CNN(shape),
        alpha=(1e-4, 1e-2),
        scale=False,
        dtype="float32",
        tol=0.0,
    )
    gnvpro = common(
        solver=GNvpro(
            curvature="krylov", batch_size=size.batch, iterations_per_batch=ITERATIONS
        ),
        rank=size.rank,
        max_iter=size.train // size.batch * ITERATIONS * size.sweeps,
    )
    return gnvpro, {name: common(solver=kind()) for name, kind in OTHERS.items()}


def run_images(data, shape, size, seeds):
    parts = subset(data, size)
    description = ", ".join(f"{len(X):,} {name}" for name, (X, _) in parts.items())
    problem = Problem(f"images, {description}", parts, accuracy_score, higher=True)
    gnvpro, others = estimators(shape, size)
    ours, first = run_gnvpro(gnvpro, problem, seeds)
    answers, curves = {"gnvpro": first}, {"gnvpro": curve(ours[middle(ours)])}
    axes = ("work_units", "seconds")
    for name, estimator in others.items():
        theirs, answers[name] = run_other(name, estimator, problem, ours, seeds)
        curves[name] = curve(theirs[middle(theirs)])
        for axis in axes:
            add_ahead(first, f"ahead_of_{name}_{axis}", ours, theirs, axis)
    aim = partial(target, answers, "gnvpro")
    return {
        "description": problem.description,
        "rows": {name: len(X) for name, (X, _) in parts.items()},
        "methods": answers,
        "curves": curves,
        "target_inner": aim("inner_share", "median", INNER_SHARE),
        **{
            f"target_{name}_{axis}": aim(
                f"ahead_of_{name}_{axis}", "median", at_least=1
            )
            for name, axis in product(others, axes)
        },
    }


def run_gnvpro(estimator, problem, seeds):
    """Points and answer of GNvpro."""
    compiling = compile_seconds(short(estimator), *problem.train)
    recorders = []
    for seed in seeds:
        estimator.set_params(random_state=seed)
        recorders.append(recorded_fit(estimator, problem)[1])
        progress("gnvpro", seed, figures(recorders[-1].points))
    points = [recorder.points for recorder in recorders]
    found = answer(estimator, points, seeds, compiling)
    add_inner_share(found, recorders, "float32")
    return points, found


def add_ahead(method, figure, ours, theirs, axis):
    """Add to every run of ours how often it is ahead of theirs."""
    for run, mine, other in zip(method["runs"], ours, theirs, strict=True):
        run[figure] = ahead(mine, other, axis)
    method["summary"] = summary(method["runs"])


def run_other(name, estimator, problem, ours, seeds):
    """Points and answer of Adam or SGD, at the best rate."""
    compiling = compile_seconds(short(estimator), *problem.train)
    units = ours[0][-1]["work_units"]
    rate = best_rate(name, estimator, problem, units, seeds[0])
    estimator = clone(estimator).set_params(solver__learning_rate=rate, max_iter=10**6)
    recorded = []
    for seed, points in zip(seeds, ours, strict=True):
        estimator.set_params(random_state=seed)
        _, recorder = recorded_fit(
            estimator, problem, until=beyond(points[-1]), every=EPOCHS_BETWEEN
        )
        recorded.append(recorder.points)
        progress(name, seed, figures(recorder.points))
    return recorded, answer(estimator, recorded, seeds, compiling)


def best_rate(name, estimator, problem, units, seed):
    epochs = max(1, int(TUNING_SHARE * units / EPOCH_COST))

    def validation(rate):
        trial = clone(estimator).set_params(
            solver__learning_rate=rate, max_iter=epochs, random_state=seed
        )
        _, recorder = recorded_fit(trial, problem, every=epochs)
        accuracy = recorder.points[-1]["validation"]
        progress(name, f"rate {rate:g}: validation accuracy {accuracy:.4f}")
        return accuracy

    return problem.best(RATES[name], validation)


def beyond(last):
    """Tells whether a point has ``BEYOND`` times both budgets of another."""
    axes = ("work_units", "seconds")
    return lambda point: all(point[axis] >= BEYOND * last[axis] for axis in axes)


def ahead(ours, theirs, axis):
    """Share of our points with a better test figure than theirs had by then."""

    def by_then(budget):
        scores = [point["test"] for point in theirs if point[axis] <= budget]
        return scores[-1] if scores else 0.0

    return float(np.mean([p["test"] > by_then(p[axis]) for p in ours]))


# --- the data sets -------------------------------------------------------------------


def cifar10(data_dir):
    """The user's copy, where there is one."""
    return _data.Split(*load_cifar10(data_dir))


def data_sets(args):
    """Functions that load the images, and their shapes, by name."""
    if args.quick:
        X, y = np.random.default_rng(0).random((200, 36)), np.arange(200) % 3
        X[y == 0, :18] += 1
        X[y == 1, ::6] += 1
        small = _data.Split(X[:100], y[:100], X[100:], y[100:])
        return {"small": (lambda: small, (6, 6))}
    sets = {
        "fashion_mnist": (lambda: _data.fashion_mnist(args.data), (28, 28)),
        "mnist": (lambda: _data.mnist(args.data), (28, 28)),
    }
    if (args.data / "cifar-10-batches-py").is_dir():
        sets["cifar10"] = (lambda: cifar10(args.data), (32, 32, 3))
    return sets


def run(args):
    size = PAPER_SIZE if args.paper_size else SMALL
    size = QUICK if args.quick else size
    seeds = args.seeds if args.paper_size or args.quick else args.seeds[:1]
    sets, answers = data_sets(args), {}
    for name in args.only or sets:
        progress(f"--- {name}")
        load, shape = sets[name]
        answers[name] = run_images(load(), shape, size, seeds)
        if name == "cifar10":
            answers[name]["paper"] = PAPER
    return {"problems": answers, "notes": NOTES}
