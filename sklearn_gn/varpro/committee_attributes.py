"""Fitted attributes of a committee, in the user's units."""

import math
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.extremes import noise_deviation
from sklearn_gn.bayes import evidence, evidence_gn, evidence_posterior, huber, left_out
from sklearn_gn.bayes.layers import row_blocks
from sklearn_gn.bayes.linear_evidence import beats, linear_model
from sklearn_gn.bayes.noise import degrees_of_freedom
from sklearn_gn.linalg.large_gram import LargeGram
from sklearn_gn.varpro import committee
from sklearn_gn.varpro.batch_committee import BatchOptions, objective
from sklearn_gn.varpro.calibration import factor_of_logits, left_out_values, scaled
from sklearn_gn.varpro.members import FittedMember
from sklearn_gn.varpro.mixed_committee import MixedOptions
from sklearn_gn.varpro.weighing import share_and_factor


class Summary(NamedTuple):
    """What the evidence says of a member, in the user's units."""

    covariance: evidence_posterior.PosteriorCovariance | None
    # (k,)  variance of the noise of each target, over the mean of all
    noise_ratio: np.ndarray
    gram: np.ndarray | LargeGram | None  # Gauss-Newton matrix
    alpha_method: str
    loss: float
    alpha: dict
    noise_std: np.ndarray  # (k,)
    n_effective_parameters: float
    n_of_penalties: float  # parameters that their choice amounts to
    log_evidence: float


def set_fitted(estimator, members, problem, lacking=()):
    """Set the fitted attributes of an estimator.

    Parameters
    ----------
    estimator : VarProNetRegressor or VarProNetClassifier
    members : tuple of Member
    problem : Problem
        The rows, options and units of the fit.
    lacking : tuple of Member, default=()
        The members that are fitted by mini-batches, as they were before they saw all
        rows; empty if they have not.
    """
    observed = problem.rows
    if estimator._is_robust():
        fitted = committee.mean_values(members, observed.x)
        targets = huber.targets_of(fitted, observed)
        problem = problem._replace(rows=observed._replace(y=targets))
    n_evidence = _n_by_evidence(problem.options, members)
    members, summaries = _summarised(members, n_evidence, problem, lacking)
    # The members by mini-batches have fixed penalties, and no evidence.
    chosen, scaling = summaries[:n_evidence] or summaries, problem.scaling
    estimator._fitted = None, members, scaling
    if estimator._loss == "squared":
        estimator._covariances = tuple(s.covariance for s in summaries)
        estimator._noise_ratios = tuple(s.noise_ratio for s in summaries)
    shares = committee.shares(members)
    estimator.estimators_ = [
        FittedMember(estimator, member, scaling, summary, float(share))
        for member, summary, share in zip(members, summaries, shares, strict=True)
    ]
    estimator.loss_ = float(shares @ [s.loss for s in summaries])
    _set_penalties(estimator, chosen, problem.options)
    best = max(chosen, key=lambda s: s.log_evidence)
    estimator.gram_spectrum_ = np.zeros(0)
    if best.gram is not None:
        estimator.gram_spectrum_ = evidence_posterior.spectrum(best.gram)
    if n_evidence:
        # Each start is as probable as the others before the data are seen.
        evidences = [summary.log_evidence for summary in chosen]
        estimator.log_evidence_ = float(logsumexp(evidences)) - math.log(n_evidence)
        estimator.n_effective_parameters_ = float(
            np.mean([s.n_effective_parameters for s in chosen])
        )
    if estimator._loss == "squared":
        _set_noise(estimator, members, chosen, problem, observed)
    _set_output_layer(estimator, members, scaling)


def _summarised(members, n_evidence, problem, lacking):
    """Return the members, linear or calibrated where that is better, and summaries."""
    by_evidence, wide = members[:n_evidence], members[n_evidence:]
    heavy = committee.is_worth_threads(members[0].model, problem.rows)
    with backend.one_blas_thread:
        summaries = committee.side_by_side(
            partial(_summary, problem), by_evidence, heavy
        )
        pairs = _or_linear(problem, list(zip(by_evidence, summaries, strict=True)))
        summaries = [summary for _, summary in pairs]
        summaries += [_summary_of_batches(problem, member) for member in wide]
        if members[0].model.loss == "cross_entropy":
            factors = committee.side_by_side(partial(_factor, problem), pairs, heavy)
            return _weighed(problem, pairs, factors, wide, lacking), summaries
    return tuple(member for member, _ in pairs) + wide, summaries


def _set_penalties(estimator, summaries, options):
    """Set the penalties, and how they were chosen."""
    estimator.alpha_ = {
        name: np.exp(np.mean([np.log(s.alpha[name]) for s in summaries], axis=0))
        for name in summaries[0].alpha
    }
    methods = {s.alpha_method for s in summaries}
    estimator.alpha_method_ = "lanczos" if "lanczos" in methods else methods.pop()
    if options.alpha is not None:
        estimator.alpha_method_ = "fixed"


def _set_noise(estimator, members, summaries, problem, observed):
    """Set the noise that the mean of the members leaves, and its degrees of freedom.

    For a given set of penalties the members are nearly linear in the targets, and their
    mean has the mean of their effective parameters. Its residuals are smaller than
    those of the members by what these disagree on.

    Parameters
    ----------
    estimator : VarProNetRegressor
    members : tuple of Member
    summaries : list of Summary
    problem : Problem
    observed : Rows
        Those of the problem, with the targets as they were observed.
    """
    n_effective, k = problem.options.n_effective, observed.y.shape[1]
    n_parameters = np.mean(
        [s.n_effective_parameters + s.n_of_penalties for s in summaries]
    )
    freedom = degrees_of_freedom(n_effective, k, n_parameters)
    if estimator._is_robust():
        fitted = committee.mean_values(members, observed.x)
        noise_std = huber.noise_std(fitted, observed, n_effective, n_parameters / k)
    else:
        squares = np.zeros(k)
        for x, y, weight in row_blocks(problem.rows, members[0].model.n_linear + k):
            squares += weight @ (committee.mean_values(members, x) - y) ** 2
        variance = np.mean(squares) * n_effective * k / freedom
        ratio = evidence_posterior.noise_ratio(squares)
        noise_std = noise_deviation(1 / max(variance, evidence_gn.EXACT), ratio)
    noise_std = problem.scaling.y_scale * noise_std
    estimator.noise_std_ = evidence_posterior.one_or_each(noise_std)
    estimator._degrees_of_freedom = freedom


def _set_output_layer(estimator, members, scaling):
    """Output layer of the mean of the members, on their hidden features."""
    share = committee.shares(members)
    layers = [
        weight * model.split(net.theta)[0]
        for weight, (model, net) in zip(share, members, strict=True)
    ]
    d = members[0].model.sizes[0]
    coef = np.concatenate([output[1 + d :] for output in layers])
    if not members[0].model.activations:  # the features are the inputs
        coef = np.zeros_like(layers[0][1:])  # whose weights are the linear term
    constant = np.sum([output[0] for output in layers], axis=0)
    slope = np.sum([output[1 : 1 + d] for output in layers], axis=0)
    slope = (slope * scaling.y_scale / scaling.x_scale[:, None]).T
    estimator.linear_coef_ = slope
    estimator.output_coef_ = (coef * scaling.y_scale).T
    estimator.output_intercept_ = (
        constant * scaling.y_scale
        + estimator._output_center(scaling)
        - slope @ scaling.x_center
    )
    estimator._n_features_out = len(coef)


def _summary(problem, member):
    model, net = member
    n_effective = problem.options.n_effective
    y_scale = np.broadcast_to(problem.scaling.y_scale, model.n_values)
    sums = evidence_gn.sums_of(model, net.theta, problem.rows)
    found, value, loss = evidence_gn.at_last_penalties(model, net, sums, n_effective)
    end = 3 + model.n_feature_groups
    scale = net.beta * n_effective  # of the objective divided by the sum of weights
    penalties = net.alpha / scale
    if model.loss == "squared":  # of features that have left the first layer
        gone = np.ones(model.sizes[0], dtype=bool)
        gone[list(model.features)] = False
        penalties[3:end][gone] = evidence.LARGEST / scale
        value -= n_effective * float(np.sum(np.log(y_scale)))
    noise_ratio = _noise_ratio(model, net.theta, problem.rows)
    return Summary(
        covariance=evidence_posterior.PosteriorCovariance(
            model, sums, net.alpha, net.beta, n_effective
        ),
        noise_ratio=noise_ratio,
        gram=sums.gram,
        alpha_method=evidence_gn.alpha_method(sums.gram),
        loss=loss * problem.scaling.loss_scale if loss > 0 else 0.0,
        alpha=_by_name(penalties, end),
        noise_std=y_scale * noise_deviation(net.beta, noise_ratio),
        n_effective_parameters=float(np.sum(found.gamma)) + model.n_free,
        n_of_penalties=0.0
        if problem.options.alpha is not None
        else evidence.parameters_of_penalties(found.gamma, model.groups()),
        log_evidence=value,
    )


def _noise_ratio(model, theta, rows):
    """Variance of the residuals of each target, over the mean of all."""
    if model.loss != "squared" or model.n_values == 1:
        return np.ones(model.n_values)
    squares = np.zeros(model.n_values)
    for x, y, weight in row_blocks(rows, model.n_linear + model.n_values):
        squares += weight @ (model.values(theta, x) - y) ** 2
    return evidence_posterior.noise_ratio(squares)


def _summary_of_batches(problem, member):
    """What is known of a member without its Gauss-Newton matrix."""
    model, net = member
    n_effective = problem.options.n_effective
    end = 3 + model.n_feature_groups
    penalties = net.alpha / n_effective
    return Summary(
        covariance=None,
        noise_ratio=np.ones(model.n_values),
        gram=None,
        alpha_method="prior",
        loss=objective(member, problem.rows, n_effective),
        alpha=_by_name(penalties, end),
        noise_std=np.full(model.n_values, math.nan),
        n_effective_parameters=math.nan,
        n_of_penalties=math.nan,
        log_evidence=math.nan,
    )


def _by_name(penalties, end):
    return {
        "slope": penalties[0],
        "coef": penalties[1],
        "bias": penalties[2],
        "weights": penalties[3:end],
        "layers": penalties[end:],
    }


def _factor(problem, pair):
    """Factor with which the logits of a member predict left-out rows best."""
    (model, net), summary = pair
    return factor_of_logits(
        model,
        net.theta,
        summary.covariance.get(),
        problem.rows,
        problem.options.n_effective,
    )


def _weighed(problem, pairs, factors, wide, lacking):
    """Members of classes whose logits and shares predict left-out rows best."""
    small = tuple(
        scaled(member, factor)
        for (member, _), factor in zip(pairs, factors, strict=True)
    )
    if not (small and wide and problem.options.batches.lacks_part):
        return small + wide
    rows, n_effective = problem.rows, problem.options.n_effective
    some = left_out.some_of(rows)
    of_small = [
        factor
        * left_out_values(model, net.theta, summary.covariance.get(), some, n_effective)
        for ((model, net), summary), factor in zip(pairs, factors, strict=True)
    ]
    if not np.isfinite(of_small).all():
        return small + wide
    of_wide = [model.values(net.theta, some.x) for model, net in lacking or wide]
    share, factor = share_and_factor(of_small, of_wide, rows, n_effective)
    wide = tuple(scaled(member, factor) for member in wide)
    return _sharing(small, share) + _sharing(wide, 1 - share)


def _sharing(members, share):
    """Members of classes with a share of the predictions in equal parts."""
    each = share / len(members)
    return tuple(m._replace(net=m.net._replace(beta=each)) for m in members)


def _or_linear(problem, pairs):
    """Members and summaries, the linear model in place of those that it beats.

    Members that find structure in noise do not pay for their parameters.
    """
    model = pairs[0][0].model if pairs else None
    competes = model and model.loss == "squared" and len(model.sizes) > 1
    if not competes or problem.options.alpha is not None:
        return pairs
    rows, n_effective = problem.rows, problem.options.n_effective
    linear = linear_model(rows, n_effective)
    if linear is None:
        return pairs
    y_scale = np.broadcast_to(problem.scaling.y_scale, model.n_values)
    units = n_effective * np.sum(np.log(y_scale))

    def is_beaten(member, summary):
        value = summary.log_evidence + units
        errors = partial(_left_out_errors, member, summary, n_effective)
        return beats(linear, value, member.net.gamma, rows, n_effective, errors)

    @cache
    def linear_pair(model):
        member = committee.linear_member(model, linear)
        return member, _summary(problem, member)

    return [
        linear_pair(member.model) if is_beaten(member, summary) else (member, summary)
        for member, summary in pairs
    ]


def _left_out_errors(member, summary, n_effective, rows):
    """Errors of a member at rows, each of them left out."""
    (model, net), covariance = member, summary.covariance.get()
    found = []
    for x, y, weight in row_blocks(rows, model.n_values * len(net.theta)):
        residuals = model.values(net.theta, x) - y
        variances = committee.posterior_variances(model, net, covariance, x)
        found.append(
            left_out.errors(residuals, net.beta * variances, weight, n_effective)
        )
    return np.concatenate(found)


def _n_by_evidence(options, members):
    """Number of the members whose penalties the evidence has chosen."""
    if isinstance(options, MixedOptions):
        return options.n_evidence
    return 0 if isinstance(options, BatchOptions) else len(members)
