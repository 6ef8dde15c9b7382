"""Fits of VarProNetRegressor and VarProNetClassifier whose penalties are chosen."""

from functools import partial
from numbers import Real
from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays.extremes import MOST_ROWS
from sklearn_gn.base import cross_entropy
from sklearn_gn.bayes import evidence
from sklearn_gn.bayes.device_rows import rows_for, warn_of_cpu
from sklearn_gn.bayes.evidence_gn import EvidenceOptions
from sklearn_gn.data.reach import Reach, units_within_reach
from sklearn_gn.data.scaling import Scaling
from sklearn_gn.optim.solver import Rows
from sklearn_gn.runtime.fit_loop import FitRun
from sklearn_gn.varpro import committee
from sklearn_gn.varpro.batch_committee import BATCH_COMMITTEE, BatchOptions
from sklearn_gn.varpro.committee import COMMITTEE, ROBUST_COMMITTEE, Member
from sklearn_gn.varpro.committee_attributes import set_fitted
from sklearn_gn.varpro.growing_committee import GROWING_COMMITTEE
from sklearn_gn.varpro.mixed_committee import MIXED_COMMITTEE, MixedOptions, MixedState

_LARGEST_INT = np.iinfo(np.int32).max
_LEAST_PENALTY = float(np.finfo(np.float64).eps)  # less is lost to rounding
_ROWS_TO_WEIGH = 30  # from which some are left out to weigh members of two kinds
_LARGE = 1e9  # features beyond which products do not fit into single precision


class Units(NamedTuple):
    """Units of a fit in which rows beyond the reach of the others are moved."""

    scaling: Scaling
    reach: Reach

    @classmethod
    def of(cls, X, y, weight, scale):
        """Return the units of weighted data; the user's own unless ``scale``."""
        if not scale:
            _check_squares("X", X)
            _check_squares("y", y)
            scaling = Scaling.none(X, y)
            return cls(scaling, Reach.of(scaling.x(X), weight))
        units_of = partial(Scaling.of, y=y, weight=weight, each_target=True)
        return cls(*units_within_reach(units_of, X, weight))

    def x(self, X):
        """Return features in these units, within reach."""
        return self.reach.limited(self.scaling.x(X))

    def deviations(self, X, std, values):
        """Return standard errors in these units, greater for rows beyond reach."""
        return self.reach.deviations(self.scaling.x(X), std, values)

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


def _check_squares(name, values):
    """Check that the evidence, which needs squares, can take data as they are."""
    largest = float(np.max(np.abs(values)))
    if largest > np.sqrt(np.finfo(np.float64).max / values.size):
        raise ValueError(
            f"scale=False with {name} of size {largest:.3g}, whose squares no float "
            f"holds: take scale=True, or other units of {name}."
        )


class Problem(NamedTuple):
    """What a fit is given, and what leads back to the user's units."""

    rows: Rows
    options: EvidenceOptions | BatchOptions | MixedOptions
    scaling: Units


def fit(estimator, plan, X, y, weight, *, n_effective, validation, data, rng):
    """Fit a committee to canonical rows and set the fitted attributes.

    Parameters
    ----------
    estimator : VarProNetRegressor or VarProNetClassifier
    plan : Plan
        From :func:`sklearn_gn.varpro.committee_plan.plan`.
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
    if plan.n_evidence:
        rows = rows_for(estimator.device, problem.rows, plan.models[0])
        problem = problem._replace(rows=rows)
    if plan.n_evidence < len(plan.models):
        warn_of_cpu(estimator.device, "wide members by mini-batches")
    algorithm = GROWING_COMMITTEE if _may_grow(estimator) else COMMITTEE
    algorithm = ROBUST_COMMITTEE if estimator._is_robust() else algorithm
    if plan.n_evidence == 0:
        problem, algorithm = _in_batches(estimator, problem), BATCH_COMMITTEE
    elif plan.n_evidence < len(plan.models):
        batches = _in_batches(estimator, problem).options
        if isinstance(estimator.alpha, dict):  # has no penalties of the wide members
            batches = batches._replace(alpha=None)
        options = MixedOptions(
            problem.options,
            batches._replace(lacks_part=problem.options.n_effective >= _ROWS_TO_WEIGH),
            plan.n_evidence,
            problem.options.seed,
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
        max_steps=estimator._most_iterations(),
        data=data,
        attributes=lambda members: {
            "_fitted": (None, members, problem.scaling),
            **estimator._prediction_attributes(),
        },
        set_fitted=lambda: set_fitted(
            estimator, run.best_net, problem, _lacking(run.final_state)
        ),
    )


def _may_grow(estimator):
    """Whether the sizes of the networks are to be found."""
    if estimator.warm_start and hasattr(estimator, "_fitted"):
        return False
    if estimator._loss != "squared" or estimator.early_stopping:
        return False  # the validation loss does not change while a size is tried
    given = estimator.hidden_layer_sizes, estimator.alpha, estimator.n_init
    return all(isinstance(value, str) for value in given)  # which is "auto"


def _given_penalties(alpha, model):
    """Penalties of the groups, or None where they are chosen."""
    if isinstance(alpha, Real):
        return np.full(model.n_groups, max(float(alpha), _LEAST_PENALTY))
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
            dtype=np.float32 if np.max(np.abs(problem.rows.x)) < _LARGE else np.float64,
        )
    )


def _lacking(state):
    """Wide members of a mixed committee that have not seen a part of the rows."""
    return state.batches.lacking if isinstance(state, MixedState) else ()


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
            f"parameters and X now ask for {len(models)} networks with chosen "
            f"penalties, hidden_layer_sizes={models[0].sizes[1:]} and "
            f"activation={estimator.activation!r} on {models[0].sizes[0]} features. "
            "Fit a new estimator."
        )
    return tuple(
        # The linear model has no hidden weights to go on with.
        start
        if committee.is_linear(member)
        else in_units(member, scaling, problem.scaling)
        for member, start in zip(members, drawn, strict=True)
    )


def in_units(member, before, after):
    """Return a member of a former fit as a start, in the units of this one.

    Parameters
    ----------
    member : Member
    before, after : Scaling
        Units of the former fit and of this one.
    """
    model, net = member
    output, layers = model.split(net.theta)
    output, layers = output.copy(), [layer.copy() for layer in layers]
    ratio = after.x_scale / before.x_scale
    moved = (after.x_center - before.x_center) / before.x_scale
    end = 1 + model.sizes[0]
    output[0] += moved @ output[1:end]
    output[1:end] *= ratio[:, None]
    if layers:
        seen = list(model.features)
        layers[0][:, 0] += layers[0][:, 1:] @ moved[seen]
        layers[0][:, 1:] *= ratio[seen]
    if model.loss == "squared":
        output *= before.y_scale / after.y_scale
        output[0] += (before.y_center - after.y_center) / after.y_scale
    theta = model.join(output, layers)
    names = ("x_center", "x_scale", "y_center", "y_scale")
    pairs = ((getattr(before, name), getattr(after, name)) for name in names)
    same = all(np.array_equal(a, b) for a, b in pairs)
    return Member(model, net._replace(theta=theta, beta=net.beta if same else None))


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
