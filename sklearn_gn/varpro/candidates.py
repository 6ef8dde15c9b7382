"""What is known after a fit: shares of the members, and the fitted attributes.

The candidates of a regression are the networks of each activation, whose mean counts
as one model, the linear model, and a Gaussian process. Each gives the density of rows
that it has not seen, from its Gauss-Newton matrix or its kernel; the weights of
:mod:`sklearn_gn.bayes.stacking`, one set for each target, are the shares.

A classification has the small networks by the evidence, the wide ones, a process, and
the frequencies of the classes. Of the small networks
:func:`~sklearn_gn.bayes.laplace.left_out_values` tells the values at left-out rows, and
each wide one has been fitted without a part of them. The process is fitted to the
classes as numbers, and logits are a multiple of its values, as of those of the wide
ones (:func:`~sklearn_gn.bayes.stacking.best_factor`). A process of some rows that is
not worth its place ends the search for one.
"""

import math
import time

import numpy as np
from scipy.special import logsumexp, softmax

from sklearn_gn.arrays.extremes import noise_deviation
from sklearn_gn.arrays.threads import side_by_side
from sklearn_gn.bayes import (
    evidence,
    evidence_gn,
    gaussian_process,
    huber,
    laplace,
    stacking,
)
from sklearn_gn.bayes.evidence_gn import RegularisedLayers
from sklearn_gn.bayes.gaussian_process import GaussianProcess
from sklearn_gn.bayes.laplace import Summary, left_out_rows
from sklearn_gn.bayes.layers import Layers, contrasts
from sklearn_gn.bayes.linear_evidence import linear_model, noise_scale
from sklearn_gn.data.units import Units
from sklearn_gn.linalg.factors import work_of
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.optim.solver import Rows
from sklearn_gn.varpro.members import (
    Member,
    mean_values,
    networks_of,
    posterior_variances,
    shares,
)
from sklearn_gn.varpro.wide_members import left_out_part


def set_fitted(estimator, run, rows, options, factors):
    """Set the fitted attributes of an estimator after a run."""
    members, state, n = run.best_net, run.final_state, options.evidence.n_effective
    classifies, scaling, observed = estimator._loss != "squared", options.scaling, rows
    if options.robust:
        rows = rows._replace(y=huber.targets_of(mean_values(members, rows.x), rows))
    # 1. What is known of each member, other candidates, and the shares of all.
    has_wide = options.wide and state.wide
    n_small = len(members) - (len(state.wide.members) if has_wide else 0)
    small = with_summaries(members[:n_small], rows, options)
    wide, members = members[n_small:], small + members[n_small:]
    if members[0].model.shapes() and (classifies or options.evidence.alpha is None):
        process = state.process if options.is_open else None
        lacking = (wide, state.wide.lacking or wide) if wide else ()
        kinds, seen = candidates_of(small, rows, options, process, *lacking)
        log_p = [own for _, own in kinds]
        share = stacking.weights_of_targets(log_p, seen.weight, n)
        members = with_shares(kinds, share)
    members = list(members)
    for number, one in enumerate(members):
        if one.known is None:  # its penalties were not chosen
            net, model = one.net, one.model
            loss = evidence_gn.objective(model, net, model.error(net.theta, rows), n)
            known = Summary(laplace.penalties_by_name(model, net.alpha / n), loss)
            members[number] = one._replace(known=known)
    # 2. The penalties and the evidence, of networks by the evidence if there are some.
    networks = [member.known for member in members[: len(small or wide)]]
    estimator.alpha_ = {}
    for name in networks[0].alpha:
        mean = np.exp(np.mean([np.log(s.alpha[name]) for s in networks], axis=0))
        estimator.alpha_[name] = mean if mean.ndim else float(mean)
    methods = {s.alpha_method for s in networks}
    estimator.alpha_method_ = "lanczos" if "lanczos" in methods else methods.pop()
    if options.evidence.alpha is not None:
        estimator.alpha_method_ = "fixed"
    gram = max(networks, key=lambda s: s.log_evidence).gram
    estimator.gram_spectrum_ = np.zeros(0) if gram is None else laplace.spectrum(gram)
    share = shares(members)
    if small:
        # Each start is as probable as the others before the data are seen.
        evidences = np.array([member.known.log_evidence for member in members])
        evidences = evidences[~np.isnan(evidences)]  # of all rows
        estimator.log_evidence_ = float(logsumexp(evidences) - np.log(len(evidences)))
        counted = members[:n_small] if classifies else members
        wanted = [laplace.want_of_penalties(m.net) for m in members[:n_small]]
        estimator._want_of_penalties = np.median(wanted, axis=0).tolist()
        each = [member.known.n_effective_parameters for member in counted]
        estimator.n_effective_parameters_ = _mean(each, share[: len(counted)])
    # 3. What predicts: members without their matrices, of moved odds of the classes.
    if not classifies:
        _set_noise(estimator, members, rows, options, observed)
    else:
        moved = contrasts(np.log(factors), members[0].model.n_values)
        members = [member.with_output(moved=moved) for member in members]
    no_longer = {"gram": None, "left_out": None}
    members = tuple(m._replace(known=m.known._replace(**no_longer)) for m in members)
    estimator._fitted = None, members, scaling
    estimator.estimators_ = [
        FittedMember(estimator, member, scaling, laplace.one_or_each(own))
        for member, own in zip(members, share, strict=True)
    ]
    pairs = zip(np.mean(share, axis=1), members, strict=True)
    # No part of an infinite loss is none.
    estimator.loss_ = float(sum(own * m.known.loss for own, m in pairs if own > 0))
    _set_output_layer(estimator, members, share, scaling)


def _mean(values, share):
    """Mean of values of a part of the members, equally if none has a share."""
    share = np.mean(share, axis=1)
    return float(np.average(values, weights=share if np.any(share) else None))


def _set_noise(estimator, members, rows, options, observed):
    """Set the noise that the mean of the members leaves, and its degrees of freedom.

    The members are nearly linear in the targets, and their mean has the mean of their
    effective parameters. ``observed`` are the rows with the targets as observed.
    """
    n_effective, k = options.evidence.n_effective, observed.y.shape[1]
    known = [member.known for member in members]
    each = [(s.n_effective_parameters + s.n_of_penalties) / s.n_rows for s in known]
    # A member of which nothing is known may follow all rows.
    n_parameters = n_effective * _mean(np.nan_to_num(each, nan=k), shares(members))
    freedom = laplace.degrees_of_freedom(n_effective, k, n_parameters)
    if options.robust:
        fitted = mean_values(members, observed.x)
        noise_std = huber.noise_std(fitted, observed, n_effective, n_parameters / k)
    else:
        rows = laplace.left_out_rows(rows)  # a part of many
        fitted = mean_values(members, rows.x)
        squares = rows.weight @ (fitted - rows.y) ** 2 / np.sum(rows.weight)
        variance = np.mean(squares) * n_effective * k / freedom
        ratio = laplace.noise_ratio(squares)
        noise_std = noise_deviation(1 / max(variance, evidence_gn.EXACT), ratio)
    estimator.noise_std_ = laplace.one_or_each(options.scaling.y_scale * noise_std)
    estimator._degrees_of_freedom, estimator._noise_scale = freedom, None
    used = [m for m in members if np.any(m.share)]
    if used and not options.robust and all(m.known.left_out for m in used):
        pairs = zip(shares(used), used, strict=True)
        left_out = sum(share * np.array(m.known.left_out) for share, m in pairs)
        given = fitted, left_out, rows, n_effective, options.scaling
        estimator._noise_scale = noise_scale(*given)


def _set_output_layer(estimator, members, share, scaling):
    """Set the output layer of the mean of the members, on their hidden features."""
    model = members[0].model
    d, n_networks = model.sizes[0], len(networks_of(members))
    layers = [
        own * member.model.split(member.net.theta)[0]
        for member, own in zip(members, share, strict=True)
        if not isinstance(member.model, GaussianProcess)
    ]
    coef = np.concatenate([output[1 + d :] for output in layers[:n_networks]])
    if not model.activations:  # the features are the inputs
        coef = np.zeros_like(layers[0][1:])  # whose weights are the linear term
    constant, *slope = sum(output[: 1 + d] for output in layers)
    slope = (np.array(slope) * scaling.y_scale / scaling.x_scale[:, None]).T
    estimator.linear_coef_ = slope
    estimator.output_coef_ = (coef * scaling.y_scale).T
    constant = constant * scaling.y_scale + scaling.y_center
    estimator.output_intercept_ = constant - slope @ scaling.x_center
    estimator._n_features_out = len(coef)


def with_summaries(members, rows, options):
    """Return members by the evidence with their summaries, once they are computed."""

    def with_summary(member):
        given = member.model, member.net, rows, options.scaling, options.evidence
        return member._replace(known=member.known or laplace.summary_of(*given))

    size = max((len(member.net.theta) for member in members), default=0)
    return tuple(side_by_side(with_summary, members, work_of(len(rows.x), size)))


# --- candidates ----------------------------------------------------------------------


def candidates_of(small, rows, options, process=None, wide=(), lacking=()):
    """Return pairs of members of a kind and their log densities (m, k), and rows."""
    seen, squared = left_out_rows(rows), (small or wide)[0].model.loss == "squared"
    kinds = (of_targets if squared else of_classes)(small, rows, seen, options)
    kinds += of_process(process, seen, options)
    return of_wide(wide, lacking, kinds, seen, rows, options) if wide else (kinds, seen)


def of_targets(members, rows, some, options):
    """Return the pairs of networks, by activations, and of the linear model."""
    n_effective = options.evidence.n_effective
    linear, seen, kinds = linear_model(rows, n_effective), [], []
    if linear is not None:
        d, k = members[0].model.sizes[0], rows.y.shape[1]
        model = Layers((d,), (), k, "squared", tuple(range(d)))
        line = with_summaries((Member(linear.network(model)),), rows, options)
        members = (*members, *line)
    for member in members:
        leverage = member.net.beta * posterior_variances(member, some.x)
        given = member.values(some.x), leverage, some, n_effective
        errors, factors = laplace.left_out_errors(*given)
        # An error is a residual times a factor, which is rounded.
        left_out = errors, factors * (1 / member.net.beta + evidence_gn.EXACT * factors)
        seen.append(member._replace(known=member.known._replace(left_out=left_out)))
    for kind in dict.fromkeys(member.model.activations for member in seen):
        own = [m for m in seen if m.model.activations == kind]
        kinds.append((own, left_out_density(own, some.weight, n_effective)))
    return kinds


def left_out_density(members, weight, n_effective):
    """Return the log density (m, k) of left-out rows by the mean of some members.

    Penalties are not chosen again without a row. Each that the rows have chosen costs a
    model two units of log density: one is what a free parameter gains on rows that it
    was fitted to and loses on others, one because the simpler of equally good models is
    the better choice.
    """
    errors, variances = np.swapaxes([m.known.left_out for m in members], 0, 1)
    share = shares(members)[:, 0]
    mean = np.tensordot(share, errors, axes=1)
    variance = np.tensordot(share, variances + (errors - mean) ** 2, axes=1)
    pairs = zip(mean.T, variance.T, strict=True)
    log_p = np.transpose([stacking.log_densities(*p, weight) for p in pairs])
    n_penalties = float(share @ [m.known.n_of_penalties for m in members])
    return log_p - stacking.COST_OF_A_PENALTY * n_penalties / n_effective


def of_classes(small, rows, some, options):
    """Return the pairs of small networks and of the frequencies."""
    k, n_effective, kinds = rows.y.shape[1], options.evidence.n_effective, []
    if small:
        p = 0.0
        for member in small:
            given = member.model, member.net.theta, member.known.covariance.get()
            logits = all_classes(laplace.left_out_values(*given, some, n_effective))
            p = p + np.exp(stacking.log_probabilities(logits, some.y)) / len(small)
        n_penalties = np.mean([member.known.n_of_penalties for member in small])
        cost = stacking.COST_OF_A_PENALTY * n_penalties / n_effective
        kinds.append((list(small), np.log(p)[:, None] - cost))
    counts, moved = counts_of_classes(rows, some, n_effective)
    # The constant is a network without hidden layers, whose slopes are zero.
    d = rows.x.shape[1]
    model = Layers((d,), (), k if k > 2 else 1, "cross_entropy", tuple(range(d)))
    output = np.zeros((model.n_linear, model.n_values))
    output[0] = contrasts(np.log(counts), model.n_values)
    alpha, gamma = np.full(model.n_groups, evidence.LARGEST), np.zeros(model.n_groups)
    given = model.join(output, []), alpha, 1.0, gamma, math.nan, model
    own = stacking.log_probabilities(np.log(counts) + moved, some.y)
    return [*kinds, ([Member(RegularisedLayers(*given))], own[:, None])]


def counts_of_classes(rows, some, n_effective):
    """Return the counts, and the log factors of some rows' odds if one is left out."""
    counts = n_effective * rows.weight @ rows.y
    counts = counts + evidence.prior_of_counts(counts)
    # A row that stands for several is left out once only.
    once = np.minimum(n_effective * some.weight, 1)[:, None]
    return counts, np.log1p(-once * some.y / counts)


def of_process(found, rows, options):
    """Return the pair of a fitted process in a list, which is empty without one.

    Logits are a multiple of its values of classes. The factor counts as a penalty.
    """
    if not found:
        return []
    process, ones = found.process, np.ones(found.theta.shape[1])
    n_effective, kernel = options.evidence.n_effective, process.kernel
    if process.loss != "squared":
        values = contrasts(rows.y, len(ones)) + found.errors
        weight = n_effective * rows.weight
        factor, own = stacking.best_factor(all_classes(values), rows.y, weight)
        known = Summary({}, -float(np.average(own, weights=weight)))
        given = found.theta, None, 1.0, None, math.nan, process
        member = Member(RegularisedLayers(*given), known=known).with_output(factor)
        n_penalties = 1 + kernel.n_determined()
        own = own[:, None] - stacking.COST_OF_A_PENALTY * n_penalties / n_effective
        return [([member], own)]
    noise, y_scale = process.scale * kernel.noise, options.scaling.y_scale * ones
    n_rows = float(np.sum(process.counts))
    value = found.log_evidence - n_effective * float(np.sum(np.log(y_scale)))
    known = Summary(
        alpha={},
        loss=found.loss * options.scaling.loss_scale,
        covariance=laplace.Deferred(process.root),
        noise_ratio=ones,
        noise_std=y_scale * noise_deviation(1 / noise, ones),
        n_effective_parameters=found.gamma,
        n_of_penalties=kernel.n_determined(),
        log_evidence=value if math.isclose(n_rows, n_effective) else math.nan,
        n_rows=n_rows,
        left_out=(found.errors, np.tile(found.variances[:, None], len(ones))),
    )
    given = found.theta, None, 1 / noise, None, found.log_evidence, process
    members = [Member(RegularisedLayers(*given), known=known)]
    return [(members, left_out_density(members, rows.weight, n_effective))]


def of_wide(wide, lacking, kinds, seen, rows, options):
    """Return all pairs with that of the wide members, and rows that tell of them.

    Each of the ``lacking`` was fitted without another part of the rows, whose classes
    have the same shares: the odds of a left-out one move as those of the frequencies.
    """
    part = left_out_rows(rows._replace(y=left_out_part(rows))).y
    kept = np.flatnonzero(part < len(wide))
    values = np.array([member.values(seen.x) for member in lacking])
    logits, seen = values[part[kept], kept], Rows(*(a[kept] for a in seen))
    weight = options.evidence.n_effective * seen.weight
    _, moved = counts_of_classes(rows, seen, options.evidence.n_effective)
    factor, own = stacking.best_factor(all_classes(logits) + moved, seen.y, weight)
    kinds = [(members, log_p[kept]) for members, log_p in kinds]
    return [*kinds, ([m.with_output(factor) for m in wide], own[:, None])], seen


def beside_process(state, members, rows, options, wide=(), lacking=()):
    """Return a state with a Gaussian process, and the share of networks beside it.

    Networks that have ended keep their summaries in it. The
    :class:`~sklearn_gn.bayes.gaussian_process.FittedProcess` is searched for if it is
    None, and empty where it is not worth its place. Its targets are the values of
    classes. Where all networks are ``wide``, of many columns, it sees picked ones.
    """
    # The process may take as long as the networks did.
    if not options.is_open or time.perf_counter() > options.half_time:
        return state
    process = state.process
    model, some = (members or wide)[0].model, left_out_rows(rows)
    n_effective, loss = options.evidence.n_effective, model.loss
    ended = with_summaries(members, rows, options)
    kinds, _ = candidates_of(ended, rows, options, None, wide, lacking)

    def beside(process, index):
        """Log densities of some rows, the last by their process, and their weights."""
        seen, own = Rows(*(a[index] for a in some)), [p[index] for _, p in kinds]
        own += [p for _, p in of_process(process, seen, options)]
        return own, seen.weight, n_effective

    order = np.random.RandomState(options.seed).permutation(len(some.x))
    if process is None:
        y, center, noises = some.y, 0.0, gaussian_process.NOISES
        if loss != "squared":  # whose classes overlap
            y, noises = contrasts(y, model.n_values), noises[-1:]
            center = np.average(y, axis=0, weights=some.weight)
        counts = Rows(some.x, y - center, n_effective * some.weight)
        words = {"picks": bool(wide), "loss": loss, "center": center}
        process = gaussian_process.search(
            *(counts, order, Units.varying(*counts), noises),
            lambda *found: stacking.is_worth(*beside(*found)),
            **words,
        )
    of_networks = [bool(own[0].model.activations) for own, _ in kinds]
    share = stacking.weights_of_targets(*beside(process, np.sort(order)))
    share = float(np.sum(np.mean(share[: len(kinds)][of_networks], axis=1)))
    return state._replace(ended=ended, process=process, share=share)


# --- the shares ----------------------------------------------------------------------


def with_shares(kinds, weights):
    """Return the members of pairs, whose kinds share in the weights of these.

    Networks come first, and behind them those of the others that have a share.
    """
    networks, others = [], []
    for (members, _), weight in zip(kinds, weights, strict=True):
        for member, part in zip(members, shares(members), strict=True):
            member = member._replace(share=part * weight)
            if getattr(member.model, "activations", ()):
                networks.append(member)
            elif np.any(member.share):
                others.append(member)
    return (*networks, *others)


# --- the members that are shown ------------------------------------------------------


class FittedMember:
    """A network, linear model, class frequencies or Gaussian process of a committee.

    Attributes
    ----------
    activations_ : tuple of str
        One for each hidden layer.
    coefs_ : list of ndarray
        Weights of the hidden layers, for scaled features; zero where switched off.
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

    def __init__(self, estimator, member, scaling, share):
        model, net, known = member.model, member.net, member.known
        self._member, self._scaling, self.share_ = member, scaling, share
        self._single_target = getattr(estimator, "_single_target", False)
        self._classes = getattr(estimator, "classes_", None)
        layers, self.activations_ = [], ()
        if isinstance(model, GaussianProcess):
            self.length_scales_ = np.full(len(scaling.x_scale), np.inf)
            own = scaling.x_scale[list(model.columns)] / np.sqrt(model.kernel.rho)
            self.length_scales_[list(model.columns)] = own
        else:
            layers, self.activations_ = model.split(net.theta)[1], model.activations
        self.coefs_ = [layer[:, 1:].T.copy() for layer in layers]
        self.intercepts_ = [layer[:, 0].copy() for layer in layers]
        if layers:
            whole = np.zeros((model.sizes[0], model.sizes[1]))
            whole[list(model.features)] = self.coefs_[0]
            self.coefs_[0] = whole
        self.alpha_ = known.alpha
        if np.isfinite(known.log_evidence):
            self.log_evidence_ = known.log_evidence
            self.n_effective_parameters_ = known.n_effective_parameters
        if self._classes is None:
            self.noise_std_ = laplace.one_or_each(known.noise_std)

    def __repr__(self):
        kind = "linear model" if self._classes is None else "class frequencies"
        kind = "Gaussian process" if hasattr(self, "length_scales_") else kind
        if self.coefs_:
            kind = f"{' '.join(self.activations_)} {tuple(map(len, self.intercepts_))}"
        return f"<{kind}, share {np.mean(self.share_):.2g}>"

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
        return self._member.values(self._scaling.x(np.asarray(X, np.float64)))
