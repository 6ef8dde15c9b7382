"""The fit of a committee from its rows to the fitted attributes.

The problem is made in scaled units, the members are fitted
(:mod:`sklearn_gn.varpro.committee`), rows that they have not seen give them, and other
candidates, their shares, and what the evidence found is set in the user's units.
"""

import math
from functools import partial
from numbers import Real
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.extremes import MOST_ROWS, noise_deviation
from sklearn_gn.bayes import evidence, evidence_gn, huber, laplace
from sklearn_gn.bayes.device_rows import rows_for, warn_of_cpu
from sklearn_gn.bayes.evidence_gn import EvidenceOptions
from sklearn_gn.bayes.gaussian_process import Root
from sklearn_gn.bayes.laplace import degrees_of_freedom
from sklearn_gn.bayes.layers import row_blocks
from sklearn_gn.bayes.linear_evidence import linear_model
from sklearn_gn.data.units import Units
from sklearn_gn.linalg.large_gram import LargeGram, work_of
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.optim.solver import Rows
from sklearn_gn.varpro import candidates, wide_members
from sklearn_gn.varpro.committee import COMMITTEE, ROBUST_COMMITTEE, CommitteeOptions
from sklearn_gn.varpro.members import (
    first_member,
    in_units,
    is_process,
    is_worth_threads,
    linear_member,
    mean_values,
    networks_of,
    shares,
    side_by_side,
    with_odds,
    with_shares,
)

_LARGEST_INT = np.iinfo(np.int32).max
_LEAST_PENALTY = float(np.finfo(np.float64).eps)  # less is lost to rounding
_ROWS_TO_WEIGH = 30  # from which some are left out to weigh members of two kinds
_LARGE = 1e9  # features beyond which products do not fit into single precision


class Problem(NamedTuple):
    """What a fit is given, and what leads back to the user's units."""

    rows: Rows
    options: CommitteeOptions
    scaling: Units
    by_default: bool  # whether the candidates are open, not networks that are asked for

    @property
    def n_effective(self):
        """Number of rows, counted by their weights."""
        return self.options.evidence.n_effective


def fit(estimator, plan, X, y, weight, n_effective, factors, *, validation, data, rng):
    """Fit the committee of a :class:`Plan` and set the fitted attributes.

    y has targets, or probabilities of the classes. The weights of the distinct rows sum
    to one, ``n_effective`` counts rows by them as they were given, and ``factors``
    multiply the odds of the classes.
    """
    problem = _problem(estimator, plan, X, y, weight, n_effective, rng)
    estimator._run_from(
        [_starts(estimator, plan.models, problem, rng)],
        ROBUST_COMMITTEE if estimator._is_robust() else COMMITTEE,
        (problem.rows, problem.options),
        (None, problem.scaling),
        mean_values,
        lambda run: set_fitted(estimator, run, problem, factors),
        validation=validation,
        data=data,
    )


# --- the problem ---------------------------------------------------------------------


def _problem(estimator, plan, X, y, weight, n_effective, rng):
    """The rows in the units of the fit, and all settings."""
    if not estimator.scale:
        _check_squares("X", X)
        _check_squares("y", y)
    scaling = estimator._units(X, y, weight, each_target=True)
    rows = Rows(scaling.x(X), scaling.y(y), weight)
    warm = estimator.warm_start and hasattr(estimator, "_fitted")
    alpha, model = estimator.alpha, plan.models[0]  # given penalties of the groups
    if isinstance(alpha, Real):
        alpha = np.full(model.n_groups, max(float(alpha), _LEAST_PENALTY))
    elif isinstance(alpha, dict):
        lengths = dict.fromkeys(("slope", "coef", "bias"))
        lengths["weights"] = model.n_feature_groups
        lengths["layers"] = max(0, len(model.sizes) - 2)
        alpha = evidence.named_penalties(alpha, lengths)
    else:
        alpha = None
    options = EvidenceOptions(
        n_effective=min(max(n_effective, len(X)), MOST_ROWS),
        damping=None if estimator.damping is None else float(estimator.damping),
        rank=estimator.rank,
        tol=float(estimator.tol),
        seed=int(rng.randint(_LARGEST_INT)),
        alpha=alpha,
    )
    if plan.n_evidence:
        rows = rows_for(estimator.device, rows, model)
    wide = None
    if plan.n_evidence < len(plan.models):
        warn_of_cpu(estimator.device, "wide members by mini-batches")
        both = plan.n_evidence > 0
        # A dict has no penalties of wide members beside small ones.
        of_wide = None if both and isinstance(estimator.alpha, dict) else alpha
        in_range = np.max(np.abs(rows.x)) < _LARGE
        wide = wide_members.WideOptions(
            n_effective=options.n_effective,
            damping=options.damping,
            tol=options.tol,
            continues=warm,
            alpha=of_wide,
            dtype=np.float32 if in_range else np.float64,
            lacks_part=_can_weigh(plan.models, options.n_effective),
        )
    given = estimator.hidden_layer_sizes, estimator.alpha, estimator.n_init
    by_default = estimator._loss == "squared" and not estimator._is_robust()
    by_default &= all(isinstance(value, str) for value in given)  # which is "auto"
    # The validation loss does not change while a size is tried.
    adds = given[2] == "auto" and not (warm or estimator.early_stopping)
    adds &= not estimator._is_robust()
    grows, size = adds and by_default, len(model.groups())
    most_work = work_of(len(X), size) / 2 if grows else 0.0
    by_default &= estimator.activation == "auto"
    options = CommitteeOptions(
        options, wide, plan.n_evidence, adds, most_work, options.seed
    )
    return Problem(rows, options, scaling, by_default)


def _check_squares(name, values):
    """Check that the evidence, which needs squares, can take data as they are."""
    largest = float(np.max(np.abs(values)))
    if largest > np.sqrt(np.finfo(np.float64).max / values.size):
        raise ValueError(
            f"scale=False with {name} of size {largest:.3g}, whose squares no float "
            f"holds: take scale=True, or other units of {name}."
        )


def _starts(estimator, models, problem, rng):
    """Random members, or those of the former fit."""
    seeds = rng.randint(_LARGEST_INT, size=len(models))
    drawn = [
        first_member(
            model, problem.rows, problem.n_effective, np.random.RandomState(seed)
        )
        for model, seed in zip(models, seeds, strict=True)
    ]
    if not (estimator.warm_start and hasattr(estimator, "_fitted")):
        return tuple(drawn)
    before, members, scaling = estimator._fitted
    members = networks_of(members) if before is None else ()
    same = before is None and [
        member.model._replace(features=model.features)
        for member, model in zip(members, models, strict=False)
    ] == list(models)
    if not same or len(members) != len(models):
        raise ValueError(
            "warm_start=True continues with the networks of the previous fit; the "
            f"parameters and X now ask for {len(models)} networks with chosen "
            f"penalties, hidden_layer_sizes={models[0].sizes[1:]} and "
            f"activation={estimator.activation!r} on {models[0].sizes[0]} features. "
            "Fit a new estimator."
        )
    return tuple(in_units(member, scaling, problem.scaling) for member in members)


# --- the fitted attributes -----------------------------------------------------------


class Summary(NamedTuple):
    """What is known of a member, in the user's units; of wide ones the first two."""

    alpha: dict
    loss: float
    covariance: laplace.PosteriorCovariance | None = None
    # (k,)  variance of the noise of each target, over the mean of all
    noise_ratio: np.ndarray | None = None
    gram: np.ndarray | LargeGram | None = None  # Gauss-Newton matrix
    alpha_method: str = "prior"
    noise_std: np.ndarray | None = None  # (k,)
    n_effective_parameters: float = math.nan
    n_of_penalties: float = math.nan  # parameters that their choice amounts to
    log_evidence: float = math.nan


def set_fitted(estimator, run, problem, factors):
    """Set the fitted attributes of an estimator after a run."""
    observed, members, wide = problem.rows, run.best_net, ()
    if problem.options.wide:
        k = len(members) - len(run.final_state.wide.members)
        members, wide = members[:k], members[k:]
    if estimator._is_robust():
        fitted = mean_values(members, observed.x)
        targets = huber.targets_of(fitted, observed)
        problem = problem._replace(rows=observed._replace(y=targets))
    with backend.one_blas_thread:
        heavy = bool(members) and is_worth_threads(members[0].model, problem.rows)
        small = members
        summaries = side_by_side(partial(_summary, problem), members, heavy)
        if _competes(problem, members):
            small, summaries = _stacked(
                problem, members, summaries, run.stop_reason.converged
            )
        members = small + wide
        n = problem.n_effective
        summaries += [
            Summary(
                _by_name(member.model, member.net.alpha / n),
                wide_members.objective(member, problem.rows, n),
            )
            for member in wide
        ]
        if estimator._loss != "squared" and _can_weigh(members, n):
            lacking = run.final_state.wide.lacking if wide else ()
            of_small = summaries[: len(small)]
            members = candidates.of_classes(
                small, of_small, wide, lacking, problem.rows, n
            )
            summaries += [
                Summary({}, wide_members.objective(member, problem.rows, n))
                for member in members[len(summaries) :]
            ]
    # The wide members have fixed penalties, and no evidence.
    chosen, scaling = summaries[: len(small)] or summaries, problem.scaling
    if estimator._loss != "squared":
        members = tuple(with_odds(m, factors) for m in members)
    estimator._fitted = None, members, scaling
    share = shares(members)
    estimator.estimators_ = [
        FittedMember(estimator, member, scaling, summary, laplace.one_or_each(own))
        for member, summary, own in zip(members, summaries, share, strict=True)
    ]
    mean_share = np.mean(share, axis=1)
    has_share = mean_share > 0  # no part of an infinite loss is none
    losses = np.array([s.loss for s in summaries])
    estimator.loss_ = float(mean_share[has_share] @ losses[has_share])
    networks = [s for m, s in zip(members, chosen, strict=False) if networks_of((m,))]
    estimator.alpha_ = {
        name: np.exp(np.mean([np.log(s.alpha[name]) for s in networks], axis=0))
        for name in networks[0].alpha
    }
    methods = {s.alpha_method for s in networks}
    estimator.alpha_method_ = "lanczos" if "lanczos" in methods else methods.pop()
    if problem.options.evidence.alpha is not None:
        estimator.alpha_method_ = "fixed"
    best = max(networks, key=lambda s: s.log_evidence)
    estimator.gram_spectrum_ = np.zeros(0)
    if best.gram is not None:
        estimator.gram_spectrum_ = laplace.spectrum(best.gram)
    if small:
        # Each start is as probable as the others before the data are seen.
        evidences = np.array([s.log_evidence for s in chosen])
        evidences = evidences[~np.isnan(evidences)]  # of all rows
        estimator.log_evidence_ = float(logsumexp(evidences) - np.log(len(evidences)))
        estimator.n_effective_parameters_ = float(
            _mean([s.n_effective_parameters for s in chosen], mean_share[: len(chosen)])
        )
    if estimator._loss == "squared":
        estimator._covariances = tuple(s.covariance for s in summaries)
        estimator._noise_ratios = tuple(s.noise_ratio for s in summaries)
        _set_noise(estimator, members, summaries, problem, observed)
    _set_output_layer(estimator, members, scaling)


def _can_weigh(members, n_effective):
    """Whether rows that are left out weigh the members of a classification."""
    has_layers = bool(getattr(members[0], "model", members[0]).shapes())
    return has_layers and n_effective >= _ROWS_TO_WEIGH


def _competes(problem, members):
    """Whether there are networks by the evidence, with other candidates beside them."""
    if not members or members[0].model.loss != "squared":
        return False
    return bool(members[0].model.shapes()) and problem.options.evidence.alpha is None


def _stacked(problem, members, summaries, ended):
    """Return the members of all candidates with their shares, and the summaries.

    The process is left out of a fit that was not to go on, and where networks of a
    certain kind are asked for.
    """
    rows, n_effective = problem.rows, problem.n_effective
    found = candidates.of_networks(members, summaries, rows, n_effective)
    linear = linear_model(rows, n_effective)
    if linear is not None:
        member = linear_member(members[0].model.with_all_features(), linear)
        pair = member, _summary(problem, member)
        found.append(candidates.of_linear(linear, *pair, rows, n_effective))
    if problem.by_default and ended:
        summary_of = partial(_process_summary, problem)
        seed = problem.options.seed
        process = candidates.of_process(rows, n_effective, found, summary_of, seed)
        found += [] if process is None else [process]
    return candidates.stacked(found, rows, n_effective)


def _process_summary(problem, found):
    """The :class:`Summary` of a Gaussian process."""
    k, n_effective = problem.rows.y.shape[1], problem.n_effective
    y_scale = np.broadcast_to(problem.scaling.y_scale, k)
    noise = found.process.scale * found.process.kernel.noise
    value = found.log_evidence - n_effective * float(np.sum(np.log(y_scale)))
    sees_all = len(found.process.x) == len(problem.rows.x)
    return Summary(
        alpha={},
        loss=found.loss * problem.scaling.loss_scale,
        covariance=Root(found.process),
        noise_ratio=np.ones(k),
        noise_std=y_scale * noise_deviation(1 / noise, np.ones(k)),
        n_effective_parameters=found.gamma,
        n_of_penalties=found.process.kernel.n_determined(),
        log_evidence=value if sees_all else math.nan,  # that of other data
    )


def _mean(values, share):
    """Mean of values of a part of the members, equally if none has a share."""
    return float(np.average(values, weights=share if np.any(share) else None))


def _summary(problem, member):
    """The :class:`Summary` of a member by the evidence."""
    model, net = member
    n_effective, k = problem.n_effective, model.n_values
    y_scale = np.broadcast_to(problem.scaling.y_scale, k)
    sums = evidence_gn.sums_of(model, net.theta, problem.rows)
    found, value, loss = evidence_gn.at_last_penalties(model, net, sums, n_effective)
    scale = net.beta * n_effective  # of the objective divided by the sum of weights
    penalties, noise_ratio = net.alpha / scale, np.ones(k)
    if model.loss == "squared":  # of features that have left the first layer
        gone = np.setdiff1d(np.arange(model.sizes[0]), model.features)
        penalties[3 + gone] = evidence.LARGEST / scale
        value -= n_effective * float(np.sum(np.log(y_scale)))
        if k > 1:
            squares = _squares(model, partial(model.values, net.theta), problem.rows)
            noise_ratio = laplace.noise_ratio(squares)
    of_penalties = 0.0
    if problem.options.evidence.alpha is None:
        of_penalties = evidence.parameters_of_penalties(found.gamma, model.groups())
    return Summary(
        covariance=laplace.PosteriorCovariance(
            model, sums, net.alpha, net.beta, n_effective
        ),
        noise_ratio=noise_ratio,
        gram=sums.gram,
        alpha_method=evidence_gn.alpha_method(sums.gram),
        loss=loss * problem.scaling.loss_scale if loss > 0 else 0.0,
        alpha=_by_name(model, penalties),
        noise_std=y_scale * noise_deviation(net.beta, noise_ratio),
        n_effective_parameters=float(np.sum(found.gamma)) + model.n_free,
        n_of_penalties=of_penalties,
        log_evidence=value,
    )


def _by_name(model, penalties):
    weights, layers = np.split(penalties[3:], [model.n_feature_groups])
    named = dict(zip(("slope", "coef", "bias"), penalties[:3], strict=True))
    return {**named, "weights": weights, "layers": layers}


def _squares(model, values, rows):
    """Weighted sums of the squared residuals of values, a function of x, (k,)."""
    squares = np.zeros(model.n_values)
    for x, y, weight in row_blocks(rows, model.n_linear + model.n_values):
        squares += weight @ (values(x) - y) ** 2
    return squares


def _set_noise(estimator, members, summaries, problem, observed):
    """Set the noise that the mean of the members leaves, and its degrees of freedom.

    For a given set of penalties the members are nearly linear in the targets, and their
    mean has the mean of their effective parameters, of which those of a process come
    from its own rows. ``observed`` are the rows with the targets as they were observed.
    """
    n_effective, k = problem.n_effective, observed.y.shape[1]
    n_rows = [np.sum(m.model.counts) if is_process(m) else n_effective for m in members]
    n_parameters = _mean(
        [
            (s.n_effective_parameters + s.n_of_penalties) * n_effective / n
            for s, n in zip(summaries, n_rows, strict=True)
        ],
        np.mean(shares(members), axis=1),
    )
    freedom = degrees_of_freedom(n_effective, k, n_parameters)
    if estimator._is_robust():
        fitted = mean_values(members, observed.x)
        noise_std = huber.noise_std(fitted, observed, n_effective, n_parameters / k)
    else:
        rows = laplace.left_out_rows(problem.rows)  # a part of many
        residuals = mean_values(members, rows.x) - rows.y
        squares = rows.weight @ residuals**2 / np.sum(rows.weight)
        variance = np.mean(squares) * n_effective * k / freedom
        ratio = laplace.noise_ratio(squares)
        noise_std = noise_deviation(1 / max(variance, evidence_gn.EXACT), ratio)
    noise_std = problem.scaling.y_scale * noise_std
    estimator.noise_std_ = laplace.one_or_each(noise_std)
    estimator._degrees_of_freedom = freedom


def _set_output_layer(estimator, members, scaling):
    """Set the output layer of the mean of the members, on their hidden features."""
    model = members[0].model
    d = model.sizes[0]
    layers = [
        member.net.share * member.model.split(member.net.theta)[0]
        for member in with_shares(members, shares(members))
        if not is_process(member)
    ]
    n_networks = len(networks_of(members))
    coef = np.concatenate([output[1 + d :] for output in layers[:n_networks]])
    if not model.activations:  # the features are the inputs
        coef = np.zeros_like(layers[0][1:])  # whose weights are the linear term
    constant, *slope = sum(output[: 1 + d] for output in layers)
    slope = (np.array(slope) * scaling.y_scale / scaling.x_scale[:, None]).T
    estimator.linear_coef_ = slope
    estimator.output_coef_ = (coef * scaling.y_scale).T
    estimator.output_intercept_ = (
        constant * scaling.y_scale + scaling.y_center - slope @ scaling.x_center
    )
    estimator._n_features_out = len(coef)


class FittedMember:
    """One member of a committee: it predicts, and says what the evidence chose.

    It is a network, the linear model or the class frequencies, a network whose hidden
    weights are zero, or a Gaussian process, which has no layers.

    Attributes
    ----------
    activations_ : tuple of str
        One for each hidden layer.
    coefs_ : list of ndarray
        Weights of the hidden layers, for scaled features; those of features that the
        evidence has switched off are zero.
    intercepts_ : list of ndarray
        Biases of the hidden layers.
    alpha_ : dict
        Penalties of the groups of parameters.
    log_evidence_ : float
        Logarithm of the evidence; only where it chose the penalties, as the next one.
    n_effective_parameters_ : float
        Number of well-determined parameters.
    noise_std_ : float or ndarray of shape (n_targets,)
        Standard deviation of the noise; of regressors only.
    share_ : float or ndarray of shape (n_targets,)
        Its share in the predictions of the committee.
    length_scales_ : ndarray of shape (n_features,)
        Distances in each feature over which a Gaussian process varies; only of one.
    """

    def __init__(self, estimator, member, scaling, summary, share):
        self._member, self._scaling = member, scaling
        self._single_target = getattr(estimator, "_single_target", False)
        self._classes = getattr(estimator, "classes_", None)
        model, net = member
        layers: list = []
        self.activations_: tuple = ()
        if is_process(member):
            with np.errstate(divide="ignore"):
                self.length_scales_ = scaling.x_scale / np.sqrt(model.kernel.rho)
        else:
            _, layers = model.split(net.theta)
            self.activations_ = model.activations
        self.coefs_ = [layer[:, 1:].T.copy() for layer in layers]
        self.intercepts_ = [layer[:, 0].copy() for layer in layers]
        if layers:
            whole = np.zeros((model.sizes[0], model.sizes[1]))
            whole[list(model.features)] = self.coefs_[0]
            self.coefs_[0] = whole
        self.alpha_ = summary.alpha
        self.share_ = share
        if np.isfinite(summary.log_evidence):
            self.log_evidence_ = summary.log_evidence
            self.n_effective_parameters_ = summary.n_effective_parameters
        if self._classes is None:
            self.noise_std_ = laplace.one_or_each(summary.noise_std)

    def predict(self, X):
        """Predict the targets, or the labels, as the committee returns them."""
        if self._classes is not None:
            return self._classes[np.argmax(self.predict_proba(X), axis=1)]
        y = self._values(X) * self._scaling.y_scale + self._scaling.y_center
        return y[:, 0] if self._single_target else y

    def predict_proba(self, X):
        """Probabilities of the classes, in the order of ``classes_``."""
        return softmax(all_classes(self._values(X)), axis=1)

    def _values(self, X):
        model, net = self._member
        return model.values(net.theta, self._scaling.x(np.asarray(X, np.float64)))
