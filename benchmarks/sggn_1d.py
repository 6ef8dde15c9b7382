"""Piecewise-linear fits in one variable, beside pwlf and piecewise-regression.

million: 15 segments of 3,000,000 points, and the seconds of an iteration by their
number. three_thousand: the same function of 3,000 points, beside the other packages.
jumps: 100 jumps without noise, also found by SegmentedRegressor. series: 240 of them.
coverage: do intervals of two standard errors hold the kinks, and a bootstrap agrees?

The functions are drawn by the seeds: kinks on [0, 1] with a least distance, slopes that
change there by 4 to 12 up or down, noise of deviation 0.05. Neurons are one more than
kinks, since the model has no linear term.
"""

import math
import statistics
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from sklearn.base import clone

from benchmarks._report import progress, settings, summary, target
from benchmarks._timing import compiling, timed, warm, warm_fit
from sklearn_gn import SegmentedRegressor, ShallowReLURegressor
from sklearn_gn.arrays import backend
from sklearn_gn.optim.solver import Rows
from sklearn_gn.segmented.problem import sum_of_squares
from sklearn_gn.segmented.programme import STARTS
from sklearn_gn.segmented.search import descend
from sklearn_gn.shallow_relu import lines
from sklearn_gn.solvers import JointGN

NOISE = 0.05
CHANGES = (4.0, 12.0)  # of the slope at a kink, in absolute value
SPREAD = 0.4  # least distance of kinks and ends, as a share of that of equal segments
NORMAL_95 = 1.959963984540054  # quantile of a two-sided interval of 95 %
ROUNDING = 1e-6  # by which an equal error may be the larger one

LARGE, SMALL = 3_000_000, 30_000  # points whose iterations are compared
ITERATIONS_TIMED = 50
N_DEFAULT = 3  # seeds of a large fit that is given nothing
SEGMENTS = 15
POINTS = 3000
JUMPS, JUMP_POINTS = 100, 20_001
SIMULATED, BOOTSTRAP = 1000, 1000  # series
COVERED_POINTS, COVERED_KINKS = 2000, 4


class SeriesSizes(NamedTuple):
    """Sizes of the problem of many series."""

    n_series: int
    n_looped: int  # the first ones, which the peers fit
    points: tuple  # least and largest number
    kinks: tuple
    segments: int  # that are fitted


SERIES = SeriesSizes(240, 6, (1500, 3000), (3, 6), 7)
SMALL_SERIES = SeriesSizes(6, 2, (130, 250), (1, 2), 3)

# What is fitted with, n_neurons apart.
ONE_FIT = {"n_init": 200}
SMALL_FIT = {"n_init": 10, "solver": JointGN(relocations=8)}
MANY_FITS = {"solver": JointGN(relocations=4)}
COVERED_FIT = {"solver": JointGN(relocations=6)}
QUICK = {"n_init": 2, "solver": JointGN(relocations=1), "max_iter": 20}

NOTES = (
    "mse_over_noise is the mean squared residual over that of the true function, which "
    "a least-squares fit of enough segments is below; rmse_truth the distance from the "
    "true function at the points. Of n neurons one usually lies outside the data and "
    "carries the slope, which leaves the n segments of the peers; a fit that keeps all "
    "inside has one segment more, of which the first is level.",
    "default is ShallowReLURegressor with nothing given: it finds the size as well. "
    "All fits of this file choose their penalties (alpha='auto').",
    "Seconds of sggn are those of a fit that compiles nothing; iteration_seconds those "
    "of a Gauss-Newton iteration of all starts, kept_iteration_seconds of the sixteen "
    "that go on, medians of 50 from random breakpoints.",
    "seconds_over_ours and mse_over_ours: a peer's figure over that of sggn on the "
    "same seed. The error of a fit that gave no model is infinite.",
    "pwlf_fitfast is pwlf's fitfast with its default of 2 starts, pwlf_fitfast_10 with "
    "10; pwlf_fit takes many minutes and runs on the first seed, with --paper-size. "
    "piecewise_regression runs with its default of 100 bootstrap restarts.",
    f"series: the peers fit the first {SERIES.n_looped} series of a seed in "
    "measured_seconds; their seconds are the multiple for all series. Everyone fits "
    f"{SERIES.segments} segments, whatever the number of kinks. Errors are means over "
    "the series; mse_over_ours compares those of the series that the peers fit "
    "(mse_over_noise_looped of sggn).",
    "coverage: every true kink is matched to the nearest breakpoint; a breakpoint "
    "outside the data has no interval and does not cover. function_coverage is the "
    "share of points at which predict's interval holds the true function. "
    f"bootstrap_ratio: the deviation of the breakpoints of {BOOTSTRAP:,} series drawn "
    "from the fit to the first one, over breakpoint_std_; median, least and largest "
    "over the kinks.",
)


# --- data ----------------------------------------------------------------------------


class Sample(NamedTuple):
    """Noisy points of a piecewise-linear function."""

    kinks: np.ndarray
    x: np.ndarray
    y: np.ndarray
    truth: np.ndarray

    def first(self, n):
        return Sample(self.kinks, self.x[:n], self.y[:n], self.truth[:n])


def random_kinks(rng, n):
    """Kinks of [0, 1] in order, not too close to each other and to the ends."""
    least = SPREAD / (n + 1)
    gaps = least + (1 - SPREAD) * rng.dirichlet(np.ones(n + 1))
    return np.cumsum(gaps)[:-1]


def draw(rng, n_points, n_kinks):
    """Points of a random function."""
    kinks = random_kinks(rng, n_kinks)
    changes = rng.choice([-1.0, 1.0], n_kinks) * rng.uniform(*CHANGES, n_kinks)
    x = rng.uniform(size=n_points)
    truth = rng.uniform(-1, 1) * CHANGES[0] * x
    for kink, change in zip(kinks, changes, strict=True):
        truth += change * np.maximum(x - kink, 0)
    return Sample(kinks, x, truth + NOISE * rng.standard_normal(n_points), truth)


def draw_series(rng, n_series, points, kinks):
    """Samples of different length; ``points`` and ``kinks`` are ranges."""
    return [
        draw(rng, rng.integers(*points, endpoint=True), k)
        for k in rng.integers(*kinks, size=n_series, endpoint=True)
    ]


# --- figures -------------------------------------------------------------------------


def errors(sample, predicted):
    """How far predictions are from the data and from the true function."""
    mse = float(np.mean((predicted - sample.y) ** 2))
    return {
        "mse": mse,
        "mse_over_noise": mse / float(np.mean((sample.truth - sample.y) ** 2)),
        "rmse_truth": math.sqrt(np.mean((predicted - sample.truth) ** 2)),
    }


def predictions(model, sample):
    return model.predict(sample.x[:, None])


def one_iteration(problem, knots):
    """A Gauss-Newton iteration from given breakpoints, for all starts side by side."""
    problem = problem.of(np.zeros(len(knots), np.intp))
    return descend(problem, knots.copy(), sum_of_squares(problem, knots), n_steps=1)


def iteration_seconds(model, sample, seed):
    """Median seconds of an iteration of all starts, and of those that are kept."""
    _, scaling = model._network
    rows = scaling.x(sample.x[:, None]), scaling.y(sample.y[:, None])
    weight = np.full(len(sample.x), 1 / len(sample.x))
    rng = np.random.default_rng(seed)
    with backend.one_blas_thread():
        problem = lines.prepare(Rows(*rows, weight)).problems[True]
        knots = rng.uniform(-1, 1, (model.n_init, model.n_neurons - 1))
        knots = np.sort(knots, axis=1)
        return {
            "all": median_seconds(one_iteration, problem, knots),
            "kept": median_seconds(one_iteration, problem, knots[:STARTS]),
        }


def median_seconds(function, *arguments):
    """Of ``ITERATIONS_TIMED`` calls after the first."""

    def call():
        function(*arguments)

    call()
    return statistics.median(timed(call)[1] for _ in range(ITERATIONS_TIMED))


def estimator_of(args, n_neurons, **words):
    words = {**words, **QUICK} if args.quick else words
    return ShallowReLURegressor(n_neurons=n_neurons, **words)


def run_of(estimator, sample, seed):
    """Figures of a fit that compiles nothing, with this seed."""
    seeded = clone(estimator).set_params(random_state=seed)
    model, seconds = warm_fit(seeded, sample.x[:, None], sample.y)
    return {
        "seed": seed,
        "seconds": seconds,
        **errors(sample, predictions(model, sample)),
    }


def chosen(estimator):
    """Its settings, of which the seed is none."""
    return settings(clone(estimator).set_params(random_state=None))


def answer_of(changed, runs, **more):
    """What a result says of a method."""
    return {"settings": changed, **more, "runs": runs, "summary": summary(runs)}


# --- peers ---------------------------------------------------------------------------


def pwlf_fitfast(x, y, n_segments, seed, pop=2):
    import pwlf

    model = pwlf.PiecewiseLinFit(x, y, seed=seed)
    model.fitfast(n_segments, pop=pop)
    return model.predict


def pwlf_fit(x, y, n_segments, seed):
    import pwlf

    model = pwlf.PiecewiseLinFit(x, y, seed=seed)
    model.fit(n_segments)
    return model.predict


def piecewise_regression(x, y, n_segments, seed):
    import piecewise_regression as package

    np.random.seed(seed)  # noqa: NPY002  it draws from this
    fit = package.Fit(x, y, n_breakpoints=n_segments - 1)
    return fit.predict if fit.best_muggeo else None


class Peer(NamedTuple):
    """A function of x, y, segments and seed that answers a model, if it finds one."""

    package: str
    fit: Callable
    settings: dict = {}
    most_seeds: int | None = None

    @property
    def missing(self):
        """Why it cannot run, or None."""
        if find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return None

    def run(self, sample, n_segments, seed):
        """Seconds and errors."""
        import_module(self.package)  # not counted
        call = partial(self.fit, sample.x, sample.y, n_segments, seed, **self.settings)
        model, seconds = timed(call)
        if model is None:
            return {"seconds": seconds, **dict.fromkeys(FIGURES, math.inf)}
        return {"seconds": seconds, **errors(sample, model(sample.x))}

    def answer(self, runs):
        name = self.package.replace("_", "-")
        return answer_of(self.settings, runs, versions={name: version(name)})


FIGURES = ("mse", "mse_over_noise", "rmse_truth")
PEERS = {
    "pwlf_fitfast": Peer("pwlf", pwlf_fitfast),
    "pwlf_fitfast_10": Peer("pwlf", pwlf_fitfast, {"pop": 10}),
    "pwlf_fit": Peer("pwlf", pwlf_fit, most_seeds=1),
    "piecewise_regression": Peer("piecewise_regression", piecewise_regression),
}
SERIES_PEERS = ("pwlf_fitfast",)


def beside(names, run_of, own, figure="mse"):
    """Answers of the peers that are installed, and why the others are skipped.

    ``run_of`` gives a run of a peer on a seed; ``own`` has by seed our seconds and the
    error that the peer's figure is compared with.
    """
    methods, skipped = {}, {}
    for name in names:
        peer = PEERS[name]
        if peer.missing:
            skipped[name] = peer.missing
            continue
        runs = []
        for seed, (seconds, error) in list(own.items())[: peer.most_seeds]:
            run = run_of(peer, seed)
            run["seconds_over_ours"] = run["seconds"] / seconds
            run["mse_over_ours"] = run[figure] / error
            runs.append({"seed": seed, **run})
            progress(name, runs[-1])
        methods[name] = peer.answer(runs)
    return methods, skipped


def peer_targets(methods, name, times):
    """That we are so many times faster than a peer, at an error no larger."""
    if name not in methods:
        return {}
    aim = partial(target, methods, name, statistic="median")
    return {
        f"target_{name}_seconds": aim("seconds_over_ours", at_least=times),
        f"target_{name}_mse": aim("mse_over_ours", at_least=1 - ROUNDING),
    }


# --- one large fit -------------------------------------------------------------------


def million_run(estimator, sample, n_small, seed):
    """Figures of a fit to all points, and the iterations of one to some of them."""
    model, seconds = warm_fit(estimator, sample.x[:, None], sample.y)
    few = sample.first(n_small)
    small, small_seconds = warm_fit(estimator, few.x[:, None], few.y)
    of_large, of_small = (
        iteration_seconds(small, points, seed) for points in (sample, few)
    )
    return {
        "seed": seed,
        "seconds": seconds,
        **errors(sample, predictions(model, sample)),
        "iterations": int(np.nansum(model.convergence_log_["inner_iterations"])),
        "small_seconds": small_seconds,
        "iteration_seconds": of_large["all"],
        "small_iteration_seconds": of_small["all"],
        "iteration_ratio": of_large["all"] / of_small["all"],
        "kept_iteration_seconds": of_large["kept"],
        "small_kept_iteration_seconds": of_small["kept"],
        "kept_iteration_ratio": of_large["kept"] / of_small["kept"],
    }


def million(args):
    n_points, n_small = (250, 150) if args.quick else (LARGE, SMALL)
    segments = 3 if args.quick else SEGMENTS
    estimator = estimator_of(args, segments, **ONE_FIT)
    runs, of_defaults, first = [], [], None
    for seed in args.seeds:
        sample = draw(np.random.default_rng(seed), n_points, segments - 1)
        seeded = clone(estimator).set_params(random_state=seed)
        if first is None:
            first = compiling(partial(seeded.fit, sample.x[:, None], sample.y))
        runs.append(million_run(seeded, sample, n_small, seed))
        progress("sggn", runs[-1])
        if len(of_defaults) < N_DEFAULT:
            of_defaults.append(run_of(ShallowReLURegressor(), sample, seed))
            progress("default", of_defaults[-1])
    methods = {
        "sggn": answer_of(chosen(estimator), runs, compile_seconds=first),
        "default": answer_of({}, of_defaults),
    }
    aim = partial(target, methods, "sggn", statistic="median")
    return {
        "description": f"{n_points:,} points, {segments} segments",
        "rows": {"large": n_points, "small": n_small},
        "methods": methods,
        "target_seconds": aim("seconds", at_most=2),
        "target_error": aim("mse_over_noise", at_most=1),
        "target_iteration": aim("iteration_ratio", at_most=1.2),
        "target_kept_iteration": aim("kept_iteration_ratio", at_most=1.2),
    }


# --- one small fit -------------------------------------------------------------------


def three_thousand(args):
    n_points, segments = (200, 3) if args.quick else (POINTS, SEGMENTS)
    estimator = estimator_of(args, segments, **SMALL_FIT)
    samples = {
        seed: draw(np.random.default_rng(seed), n_points, segments - 1)
        for seed in args.seeds
    }
    sample = samples[args.seeds[0]]
    first = compiling(partial(clone(estimator).fit, sample.x[:, None], sample.y))
    runs, of_defaults = [], []
    for seed, sample in samples.items():
        runs.append(run_of(estimator, sample, seed))
        progress("sggn", runs[-1])
        of_defaults.append(run_of(ShallowReLURegressor(), sample, seed))
        progress("default", of_defaults[-1])
    long = args.paper_size or args.quick
    theirs, skipped = beside(
        [name for name in PEERS if name != "pwlf_fit" or long],
        lambda peer, seed: peer.run(samples[seed], segments, seed),
        {run["seed"]: (run["seconds"], run["mse"]) for run in runs},
    )
    ours = answer_of(chosen(estimator), runs, compile_seconds=first)
    return {
        "description": f"{n_points:,} points, {segments} segments",
        "rows": n_points,
        "methods": {"sggn": ours, "default": answer_of({}, of_defaults), **theirs},
        "skipped": skipped,
        **peer_targets(theirs, "pwlf_fitfast", 50),
        **peer_targets(theirs, "pwlf_fitfast_10", 50),
    }


# --- jumps ---------------------------------------------------------------------------


def draw_jumps(rng, n_points, n_jumps, slopes):
    """Points of lines or constants of their own, and the rows after the jumps."""
    share, width = np.linspace(0, 1, n_points), n_points // n_jumps
    at = width * np.arange(n_jumps) + rng.integers(width // 4, 3 * width // 4, n_jumps)
    segment = np.searchsorted(at, np.arange(n_points), side="right")
    y = rng.standard_normal(n_jumps + 1)[segment]
    if slopes:
        y += n_jumps / 4 * (rng.standard_normal(n_jumps + 1)[segment] * share)
    return share, y, at


def jumps(args):
    n_points, n_jumps = (400, 4) if args.quick else (JUMP_POINTS, JUMPS)
    network = ShallowReLURegressor(n_neurons=3 * n_jumps)
    runs = {"sggn": [], "segmented_constants": [], "segmented_lines": []}
    for seed in args.seeds:
        x, y, at = draw_jumps(np.random.default_rng(seed), n_points, n_jumps, False)
        seeded = clone(network).set_params(random_state=seed)
        model, seconds = warm_fit(seeded, x[:, None], y)
        error = np.mean((model.predict(x[:, None]) - y) ** 2) / np.var(y)
        runs["sggn"].append({"seed": seed, "seconds": seconds, "share": float(error)})
        for name, words in (("constants", {"degree": 0}), ("lines", {"jumps": True})):
            rng = np.random.default_rng(seed)
            x, y, at = draw_jumps(rng, n_points, n_jumps, name == "lines")
            model = SegmentedRegressor(n_jumps, **words)
            model, seconds = timed(partial(model.fit, x[:, None], y))
            found = np.searchsorted(x, model.breakpoints_)
            share = float(model.statistics_["rss"] / len(y) / np.var(y))
            figures = {"seconds": seconds, "share": share}
            figures["found"] = int(np.isin(at, found).sum())
            runs[f"segmented_{name}"].append({"seed": seed, **figures})
        for name, several in runs.items():
            progress(name, several[-1])
    methods = {name: answer_of({}, several) for name, several in runs.items()}
    methods["sggn"]["settings"] = chosen(network)
    aim = partial(target, methods, statistic="median")
    return {
        "description": f"{n_jumps} jumps, {n_points:,} points, {3 * n_jumps} neurons, "
        "no noise; constants, and lines of their own",
        "methods": methods,
        "target_share": aim("sggn", "share", at_most=1e-20),
        "target_seconds": aim("sggn", "seconds", at_most=3),
        **{
            f"target_{name}": aim(f"segmented_{name}", "found", at_least=n_jumps)
            for name in ("constants", "lines")
        },
    }


# --- many series ---------------------------------------------------------------------


def fit_series(estimator, X, y):
    """One model for each series."""
    return [
        clone(estimator).fit(x[:, None], targets)
        for x, targets in zip(X, y, strict=True)
    ]


def fit_all(estimator, samples):
    """All series, one after the other."""
    return fit_series(estimator, [s.x for s in samples], [s.y for s in samples])


def mean_errors(samples, predicted):
    """Errors, averaged over the series."""
    found = [errors(s, p) for s, p in zip(samples, predicted, strict=True)]
    return {name: float(np.mean([f[name] for f in found])) for name in FIGURES}


def looped(peer, samples, n_series, segments, seed):
    """What a loop over all series would take, and the errors of the first ones."""
    runs = [peer.run(sample, segments, seed) for sample in samples]
    run = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    measured = sum(run["seconds"] for run in runs)
    run["seconds"] = measured * n_series / len(samples)
    return {**run, "measured_seconds": measured, "measured_series": len(samples)}


def series_run(estimator, samples, n_looped, seed):
    models, seconds = warm(partial(fit_all, estimator, samples))
    predicted = [predictions(m, s) for m, s in zip(models, samples, strict=True)]
    few = mean_errors(samples[:n_looped], predicted[:n_looped])
    run = {"seed": seed, "seconds": seconds, **mean_errors(samples, predicted)}
    progress("sggn", run)
    return {**run, "mse_over_noise_looped": few["mse_over_noise"]}


def series(args):
    sizes = SMALL_SERIES if args.quick else SERIES
    n_series, n_looped, points, kinks, segments = sizes
    estimator = estimator_of(args, segments, **MANY_FITS)
    samples = {
        seed: draw_series(np.random.default_rng(seed), n_series, points, kinks)
        for seed in args.seeds
    }
    first = compiling(partial(fit_all, estimator, samples[args.seeds[0]]))
    runs = [
        series_run(estimator.set_params(random_state=seed), several, n_looped, seed)
        for seed, several in samples.items()
    ]
    figures = "seconds", "mse_over_noise_looped"
    theirs, skipped = beside(
        SERIES_PEERS,
        lambda peer, seed: looped(
            peer, samples[seed][:n_looped], n_series, segments, seed
        ),
        {run["seed"]: tuple(run[name] for name in figures) for run in runs},
        "mse_over_noise",
    )
    ours = answer_of(chosen(estimator), runs, compile_seconds=first)
    low, high = points
    return {
        "description": f"{n_series} series of {low:,} to {high:,} points, {segments} "
        "segments each",
        "rows": {"series": n_series, "least": low, "most": high},
        "methods": {"sggn": ours, **theirs},
        "skipped": skipped,
        **peer_targets(theirs, "pwlf_fitfast", 100),
    }


# --- intervals -----------------------------------------------------------------------


def nearest(kinks, model):
    """For every kink the index of the nearest breakpoint."""
    distance = np.abs(kinks[:, None] - model.breakpoints_)
    return np.argmin(distance, axis=1)


def standardised_error(sample, model):
    """Of the breakpoints nearest the kinks, in standard errors; NaN without one."""
    index = nearest(sample.kinks, model)
    error = model.breakpoints_[index] - sample.kinks
    return error / model.breakpoint_std_[index]


def function_errors(sample, model):
    """Of the predictions at the points, in standard errors."""
    predicted, std = model.predict(sample.x[:, None], return_std=True)
    return (predicted - sample.truth) / std


def covered(errors_in_std):
    """Share of intervals of 95 % that hold the true value; NaN is none."""
    return float(np.mean(np.abs(errors_in_std) <= NORMAL_95))


def bootstrap_ratio(estimator, sample, model, n_series, rng):
    """By kink, the deviation of breakpoints of drawn series over breakpoint_std_.

    A fit with n neurons, one of which carries the slope, has 2n free parameters.
    """
    predicted = predictions(model, sample)
    freedom = len(sample.x) - 2 * estimator.n_neurons
    noise = math.sqrt(np.sum((sample.y - predicted) ** 2) / freedom)
    drawn = predicted + noise * rng.standard_normal((n_series, len(sample.x)))
    models, _ = timed(
        partial(fit_all, estimator, [sample._replace(y=y) for y in drawn])
    )
    index = nearest(sample.kinks, model)
    centre = model.breakpoints_[index]
    found = np.array([m.breakpoints_[nearest(centre, m)] for m in models])
    return found.std(axis=0, ddof=1) / model.breakpoint_std_[index]


def coverage_run(estimator, samples, n_bootstrap, seed):
    models, seconds = warm(partial(fit_all, estimator, samples))
    pairs = list(zip(samples, models, strict=True))
    errors_in_std = np.concatenate([standardised_error(*pair) for pair in pairs])
    of_function = np.concatenate([function_errors(*pair) for pair in pairs])
    rng = np.random.default_rng([seed, 1])  # not that of the samples
    ratio = bootstrap_ratio(estimator, samples[0], models[0], n_bootstrap, rng)
    return {
        "seed": seed,
        "coverage": covered(errors_in_std),
        "function_coverage": covered(of_function),
        "without_interval": float(np.mean(np.isnan(errors_in_std))),
        "bootstrap_ratio": float(np.median(ratio)),
        "bootstrap_ratio_least": float(ratio.min()),
        "bootstrap_ratio_largest": float(ratio.max()),
        "seconds": seconds,
    }


def coverage(args):
    n_series, n_bootstrap = (5, 5) if args.quick else (SIMULATED, BOOTSTRAP)
    points, kinks = (200, 2) if args.quick else (COVERED_POINTS, COVERED_KINKS)
    estimator = estimator_of(args, kinks + 1, **COVERED_FIT)
    runs = []
    for seed in args.seeds:
        rng = np.random.default_rng(seed)
        samples = [draw(rng, points, kinks) for _ in range(n_series)]
        seeded = clone(estimator).set_params(random_state=seed)
        runs.append(coverage_run(seeded, samples, n_bootstrap, seed))
        progress("sggn", runs[-1])
    methods = {"sggn": answer_of(chosen(estimator), runs)}
    aim = partial(target, methods, "sggn", "coverage", "median")
    return {
        "description": f"{n_series:,} series of {points} points, {kinks} kinks each",
        "rows": {"series": n_series, "points": points},
        "methods": methods,
        "target_least": aim(at_least=0.93),
        "target_most": aim(at_most=0.97),
    }


# --- the experiment ------------------------------------------------------------------

PROBLEMS = {
    "million": million,
    "three_thousand": three_thousand,
    "jumps": jumps,
    "series": series,
    "coverage": coverage,
}


def run(args):
    answers = {}
    for name in args.only or PROBLEMS:
        progress(f"--- {name}")
        answers[name] = PROBLEMS[name](args)
    return {"problems": answers, "notes": NOTES}
