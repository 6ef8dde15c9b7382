"""Fits of VarProNetRegressor and VarProNetClassifier whose penalties are chosen."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from sklearn_gn.core import backend, evidence, evidence_gn
from sklearn_gn.core.classifier import cross_entropy
from sklearn_gn.core.evidence_gn import EvidenceOptions
from sklearn_gn.core.extremes import MOST_ROWS
from sklearn_gn.core.fit_loop import FitRun
from sklearn_gn.core.large_gram import LARGEST_DENSE, LargeGram, affordable
from sklearn_gn.core.layers import Layers, row_blocks
from sklearn_gn.core.linear_evidence import linear_model
from sklearn_gn.core.reach import Reach, units_within_reach
from sklearn_gn.core.scaling import Scaling
from sklearn_gn.core.solver import Rows
from sklearn_gn.varpro import committee
from sklearn_gn.varpro.batch_committee import (
    BATCH_COMMITTEE,
    BatchOptions,
    objective,
)
from sklearn_gn.varpro.calibration import calibrated
from sklearn_gn.varpro.committee import COMMITTEE, Member
from sklearn_gn.varpro.members import FittedMember
from sklearn_gn.varpro.mixed_committee import MIXED_COMMITTEE, MixedOptions

ACTIVATIONS = ("relu", "tanh")  # of the members by turns
_NEURONS = {"squared": 10, "cross_entropy": 4}
_MEMBERS = 6  # at most
_WORK = 8e8  # of an iteration of all members, in products of the matrices' entries
_MOST_WORK_OF_CLASSES = 4e9  # of one member; else deep networks
_MOST_WORK_OF_ALL_ROWS = 2e8  # the same of a default classifier; else mini-batches
_WIDTH = 100  # of the members by mini-batches
_BATCH_MEMBERS = 4
_MOST_MIXED = 4  # members of each kind of a small default classifier
_LARGEST_INT = np.iinfo(np.int32).max


class Units(NamedTuple):
    """Units of a fit in which rows beyond the reach of the others are moved."""

    scaling: Scaling
    reach: Reach

    @classmethod
    def of(cls, X, y, weight, scale):
        """Return the units of weighted data; the user's own unless ``scale``."""
        if not scale:
            scaling = Scaling.none(X, y)
            return cls(scaling, Reach.of(scaling.x(X), weight))
        units_of = partial(Scaling.of, y=y, weight=weight, each_target=True)
        return cls(*units_within_reach(units_of, X, weight))

    def x(self, X):
        """Return features in these units, within reach."""
        return self.reach.limited(self.scaling.x(X))

    @property
    def x_center(self):
        """Centres of the features."""
        return self.scaling.x_center

    @property
    def x_scale(self):
        """Scales of the features."""
        return self.scaling.x_scale

    @property
    def y_center(self):
        """Centres of the targets."""
        return self.scaling.y_center

    @property
    def y_scale(self):
        """Scale of the targets, or of each."""
        return self.scaling.y_scale

    @property
    def loss_scale(self):
        """Factor from losses in these units to those of the user."""
        return self.scaling.loss_scale


class Plan(NamedTuple):
    """The networks of the members, and how they are fitted."""

    models: list  # of Layers; those by the evidence stand first
    n_evidence: int  # whose penalties the evidence chooses; the others' are fixed


class Problem(NamedTuple):
    """What a fit is given, and what leads back to the user's units."""

    rows: Rows
    options: EvidenceOptions | BatchOptions | MixedOptions
    scaling: Units


def plan(estimator, n_rows, n_features, n_values):
    """Return the :class:`Plan` of a committee, or None where there is none.

    Penalties are chosen by the evidence for fully connected networks that the default
    solver fits, where the dense Gauss-Newton matrix is small enough. Many classes in
    many rows want wide networks, for which it is not: the default members of a
    classifier are wide there, and fitted by mini-batches. In smaller tables half of
    them are.

    Parameters
    ----------
    estimator : VarProNetRegressor or VarProNetClassifier
        Its constructor parameters are read.
    n_rows, n_features : int
    n_values : int
        Targets, or columns for the classes.
    """
    alpha, network = estimator.alpha, estimator.network
    chosen = isinstance(alpha, dict) or (isinstance(alpha, str) and alpha == "auto")
    chosen = chosen and isinstance(network, str) and network == "mlp"
    if not chosen or not estimator._default_solver():
        return None
    sizes = _checked(estimator)

    def models(names, sizes):
        return [
            Layers(
                sizes=(n_features, *sizes),
                activations=_activations(estimator.activation, name, sizes),
                n_values=n_values,
                loss=estimator._loss,
                features=tuple(range(n_features)),
            )
            for name in names
        ]

    pair = models(ACTIVATIONS, sizes)
    size = len(pair[0].groups())
    work = (n_rows + 2 * size) * size**2
    n_members = estimator.n_init
    if n_members == "auto" and _continues_committee(estimator):
        n_members = len(estimator._fitted[1])
    if _by_batches(estimator, work):
        n_members = _BATCH_MEMBERS if n_members == "auto" else n_members
        return Plan(models(("relu",), (_WIDTH,)) * n_members, 0)
    if estimator._loss == "squared":
        if not affordable(n_rows, size):
            return None
        if size > LARGEST_DENSE and 2 * pair[0].n_linear * n_values > size:
            return None  # most parameters are the last layer's: it is eliminated there
    elif size > LARGEST_DENSE or work > _MOST_WORK_OF_CLASSES:
        return None
    if n_members == "auto":
        n_members = 2 * int(min(max(_WORK / work, 2), _MEMBERS) // 2)
    members = [pair[number % len(pair)] for number in range(n_members)]
    if not _is_mixed(estimator):
        return Plan(members, n_members)
    if _continues_committee(estimator):
        n_members //= 2
    members = members[: min(n_members, _MOST_MIXED)]
    wide = models(("relu",), (_WIDTH,)) * len(members)
    return Plan(members + wide, len(members))


def _by_batches(estimator, work):
    """Whether the members of a default classifier are fitted by mini-batches."""
    default = isinstance(estimator.hidden_layer_sizes, str)
    if not default or estimator._loss == "squared":
        return False
    if _continues_committee(estimator):  # as the former ones
        return estimator._fitted[1][0].model.sizes[1:] == (_WIDTH,)
    return work > _MOST_WORK_OF_ALL_ROWS


def _is_mixed(estimator):
    """Whether half of the members of a default classifier are wide networks."""
    default = isinstance(estimator.hidden_layer_sizes, str)
    if not default or estimator._loss == "squared":
        return False
    if _continues_committee(estimator):  # as the former ones
        return estimator._fitted[1][-1].model.sizes[1:] == (_WIDTH,)
    return estimator.n_init == "auto"


def _continues_committee(estimator):
    """Whether the starts are the members of the former fit."""
    warm = estimator.warm_start and hasattr(estimator, "_fitted")
    return warm and estimator._fitted[0] is None


def _activations(given, name, sizes):
    """Activations of all layers of a member."""
    if isinstance(given, str):
        given = (name if given == "auto" else given,) * len(sizes)
    return tuple(given)


def _checked(estimator):
    """Return the sizes of the hidden layers; a ValueError names what is wrong."""
    sizes, activation = estimator.hidden_layer_sizes, estimator.activation
    if isinstance(sizes, str):
        sizes = (_NEURONS[estimator._loss],)
        if isinstance(activation, str) and activation == "auto":
            return sizes
    # The networks load JAX, which fits with default settings do without.
    from sklearn_gn.networks import MLP
    from sklearn_gn.networks._base import checked_network, checked_sizes

    sizes = checked_sizes("hidden_layer_sizes", sizes)
    checked_network(MLP(sizes, _activations(activation, "tanh", sizes)))
    return sizes


def fit(estimator, plan, X, y, weight, *, n_effective, validation, data, rng):
    """Fit a committee to canonical rows and set the fitted attributes.

    Parameters
    ----------
    estimator : VarProNetRegressor or VarProNetClassifier
    plan : Plan
        From :func:`plan`.
    X, y, weight : ndarrays
        Rows with targets, or with probabilities of the classes; weights that sum to
        one.
    n_effective : float
        Number of rows, counted by their weights.
    validation : tuple or None
    data : dict
        ``X``, ``y`` and ``metadata`` for callbacks.
    rng : RandomState
    """
    alpha = _given_penalties(estimator.alpha, plan.models[0])
    problem = _problem(estimator, X, y, weight, n_effective, alpha, rng)
    algorithm = COMMITTEE
    if plan.n_evidence == 0:
        problem, algorithm = _in_batches(estimator, problem), BATCH_COMMITTEE
    elif plan.n_evidence < len(plan.models):
        options = MixedOptions(
            problem.options,
            _in_batches(estimator, problem).options._replace(alpha=None),
            plan.n_evidence,
        )
        problem, algorithm = problem._replace(options=options), MIXED_COMMITTEE
    starts = _starts(estimator, plan.models, problem, rng)
    run = FitRun(
        estimator,
        algorithm,
        (problem.rows, problem.options),
        [starts],
        loss_scale=problem.scaling.loss_scale,
        val_loss=_validation_loss(estimator, validation, problem.scaling),
        validation=validation,
    )
    estimator._run(
        run,
        max_steps=estimator.max_iter,
        data=data,
        attributes=lambda members: {
            "_fitted": (None, members, problem.scaling),
            **estimator._prediction_attributes(),
        },
        set_fitted=lambda: _set_fitted(estimator, run.best_net, problem),
    )


def _given_penalties(alpha, model):
    """Penalties of the groups, or None where they are chosen."""
    if not isinstance(alpha, dict):
        return None
    lengths = {
        "slope": None,
        "coef": None,
        "bias": None,
        "weights": model.n_feature_groups,
        "layers": max(0, len(model.sizes) - 2),
    }
    return evidence.named_penalties(alpha, lengths)


def _problem(estimator, X, y, weight, n_effective, alpha, rng):
    scaling = Units.of(X, estimator._scaled_part(y), weight, estimator.scale)
    rows = Rows(scaling.x(X), estimator._scaled_targets(y, scaling), weight)
    options = EvidenceOptions(
        n_effective=min(max(n_effective, len(X)), MOST_ROWS),
        damping=None if estimator.damping is None else float(estimator.damping),
        rank=estimator.rank,
        tol=float(estimator.tol),
        seed=int(rng.randint(_LARGEST_INT)),
        alpha=alpha,
    )
    return Problem(rows, options, scaling)


def _in_batches(estimator, problem):
    """The problem with the options of mini-batches."""
    options = problem.options
    continues = estimator.warm_start and hasattr(estimator, "_fitted")
    return problem._replace(
        options=BatchOptions(
            n_effective=options.n_effective,
            damping=options.damping,
            tol=options.tol,
            seed=options.seed,
            continues=continues,
            alpha=options.alpha,
        )
    )


def _starts(estimator, models, problem, rng):
    """Random members, or those of the former fit."""
    seeds = rng.randint(_LARGEST_INT, size=len(models))
    drawn = [
        committee.first_member(
            model,
            problem.rows,
            problem.options.n_effective,
            np.random.RandomState(seed),
        )
        for model, seed in zip(models, seeds, strict=True)
    ]
    if not (estimator.warm_start and hasattr(estimator, "_fitted")):
        return tuple(drawn)
    before, members, scaling = estimator._fitted
    same = before is None and [
        member.model._replace(features=model.features)
        for member, model in zip(members, models, strict=False)
    ] == list(models)
    if not same or len(members) != len(models):
        raise ValueError(
            "warm_start=True continues with the networks of the previous fit; the "
            f"parameters now ask for {len(models)} of hidden_layer_sizes="
            f"{models[0].sizes[1:]} and activation={estimator.activation!r} on "
            f"{models[0].sizes[0]} features, with chosen penalties. Fit a new "
            "estimator."
        )
    return tuple(
        # The linear model has no hidden weights to go on with.
        start
        if committee.is_linear(member)
        else committee.in_units(member, scaling, problem.scaling)
        for member, start in zip(members, drawn, strict=True)
    )


def _validation_loss(estimator, validation, scaling):
    if validation is None:
        return None
    X, y, weight = validation
    x = scaling.x(X)
    if estimator._loss == "cross_entropy":
        return lambda net: cross_entropy(committee.mean_values(net, x), y, weight)
    t = estimator._scaled_targets(y, scaling)

    def loss(net):
        error = committee.mean_values(net, x) - t
        return 0.5 * float(weight @ np.sum(error**2, axis=1))

    return loss


# --- fitted attributes ---------------------------------------------------------------


class Summary(NamedTuple):
    """What the evidence says of a member, in the user's units."""

    covariance: evidence_gn.PosteriorCovariance | None
    # (k,)  variance of the noise of each target, over the mean of all
    noise_ratio: np.ndarray
    gram: np.ndarray | LargeGram | None  # Gauss-Newton matrix
    alpha_method: str
    loss: float
    alpha: dict
    noise_std: np.ndarray  # (k,)
    n_effective_parameters: float
    log_evidence: float


def _summary(problem, member):
    model, net = member
    n_effective = problem.options.n_effective
    y_scale = np.broadcast_to(problem.scaling.y_scale, model.n_values)
    sums = model.sums(net.theta, problem.rows)
    groups = model.groups()
    scale = net.beta * n_effective  # of the objective divided by the sum of weights
    precision = evidence.prior_precision(groups, net.alpha)
    loss = (sums.error + float(np.sum(precision * net.theta**2)) / scale) / 2
    # At the last penalties; those of the log are at the ones before.
    found = evidence_gn.curvature(sums, groups, net.alpha, net.beta, n_effective)
    value = evidence_gn.log_evidence(model, found, scale * loss, net.beta, n_effective)
    end = 3 + model.n_feature_groups
    penalties = net.alpha / scale
    if model.loss == "squared":  # of features that have left the first layer
        gone = np.setdiff1d(np.arange(model.sizes[0]), model.features)
        penalties[3 + gone] = evidence.LARGEST / scale
        value -= n_effective * float(np.sum(np.log(y_scale)))
    noise_ratio = _noise_ratio(model, net.theta, problem.rows)
    return Summary(
        covariance=evidence_gn.PosteriorCovariance(
            model, sums, net.alpha, net.beta, n_effective
        ),
        noise_ratio=noise_ratio,
        gram=sums.gram,
        alpha_method=evidence_gn.alpha_method(sums.gram),
        loss=loss * problem.scaling.loss_scale if loss > 0 else 0.0,
        alpha=_by_name(penalties, end),
        noise_std=y_scale * np.sqrt(noise_ratio / net.beta),
        n_effective_parameters=float(np.sum(found.gamma)) + model.n_free,
        log_evidence=value,
    )


def _noise_ratio(model, theta, rows):
    """Variance of the residuals of each target, over the mean of all."""
    if model.loss != "squared" or model.n_values == 1:
        return np.ones(model.n_values)
    squares = np.zeros(model.n_values)
    for x, y, weight in row_blocks(rows, model.n_linear + model.n_values):
        squares += weight @ (model.values(theta, x) - y) ** 2
    return evidence_gn.noise_ratio(squares)


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


def _calibrated(problem, pair):
    """A member of classes with the logits that predict left-out rows best."""
    (model, net), summary = pair
    theta = calibrated(
        model,
        net.theta,
        summary.covariance.get(),
        problem.rows,
        problem.options.n_effective,
    )
    return Member(model, net._replace(theta=theta))


def _or_linear(problem, pairs):
    """Members and summaries, the linear model instead of those of lower evidence.

    Members that find structure in noise do not pay for their parameters.
    """
    model = pairs[0][0].model if pairs else None
    competes = model and model.loss == "squared" and len(model.sizes) > 1
    if not competes or problem.options.alpha is not None:
        return pairs
    linear = linear_model(problem.rows, problem.options.n_effective)
    if linear is None:
        return pairs
    y_scale = np.broadcast_to(problem.scaling.y_scale, model.n_values)
    value = linear.log_evidence - problem.options.n_effective * np.sum(np.log(y_scale))
    return [
        (member, summary)
        if summary.log_evidence >= value
        else (
            found := committee.linear_member(member.model, linear),
            _summary(problem, found),
        )
        for member, summary in pairs
    ]


def _n_by_evidence(options, members):
    """Number of the members whose penalties the evidence has chosen."""
    if isinstance(options, MixedOptions):
        return options.n_evidence
    return 0 if isinstance(options, BatchOptions) else len(members)


def _set_fitted(estimator, members, problem):
    n_evidence = _n_by_evidence(problem.options, members)
    by_evidence, wide = members[:n_evidence], members[n_evidence:]
    heavy = committee.is_worth_threads(members[0].model, problem.rows)
    with backend.one_blas_thread:
        summaries = committee.side_by_side(
            partial(_summary, problem), by_evidence, heavy
        )
        pairs = _or_linear(problem, list(zip(by_evidence, summaries, strict=True)))
        by_evidence = tuple(member for member, _ in pairs)
        summaries = [summary for _, summary in pairs]
        if estimator._loss == "cross_entropy":
            pairs = list(zip(by_evidence, summaries, strict=True))
            by_evidence = tuple(
                committee.side_by_side(partial(_calibrated, problem), pairs, heavy)
            )
    of_wide = [_summary_of_batches(problem, member) for member in wide]
    chosen, summaries = summaries or of_wide, summaries + of_wide
    members = by_evidence + wide
    scaling = problem.scaling
    estimator._fitted = None, members, scaling
    if estimator._loss == "squared":
        estimator._covariances = tuple(s.covariance for s in summaries)
        estimator._noise_ratios = tuple(s.noise_ratio for s in summaries)
    best = max(chosen, key=lambda s: s.log_evidence)
    estimator.gram_spectrum_ = np.zeros(0)
    if best.gram is not None:
        estimator.gram_spectrum_ = evidence_gn.spectrum(best.gram)
    estimator.estimators_ = [
        FittedMember(estimator, member, scaling, summary)
        for member, summary in zip(members, summaries, strict=True)
    ]
    estimator.alpha_ = {
        name: np.exp(np.mean([np.log(s.alpha[name]) for s in chosen], axis=0))
        for name in chosen[0].alpha
    }
    methods = {s.alpha_method for s in chosen}
    estimator.alpha_method_ = "lanczos" if "lanczos" in methods else methods.pop()
    if problem.options.alpha is not None:
        estimator.alpha_method_ = "fixed"
    estimator.loss_ = float(np.mean([s.loss for s in summaries]))
    if n_evidence:
        # Each start is as probable as the others before the data are seen.
        evidences = [summary.log_evidence for summary in chosen]
        estimator.log_evidence_ = float(logsumexp(evidences)) - math.log(n_evidence)
        estimator.n_effective_parameters_ = float(
            np.mean([s.n_effective_parameters for s in chosen])
        )
    if estimator._loss == "squared":
        pairs = zip(members, summaries, strict=True)
        variances = [s.noise_ratio / m.net.beta for m, s in pairs]
        variance = committee.shares(members) @ variances
        noise_std = scaling.y_scale * np.sqrt(variance)
        estimator.noise_std_ = evidence_gn.one_or_each(noise_std)
    _set_output_layer(estimator, members, scaling)


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
