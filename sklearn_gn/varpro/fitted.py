"""From the members of a committee to the fitted attributes.

What is known of each member stands in a :class:`Summary`. Rows that the members have
not seen give them, and other candidates, their shares
(:mod:`sklearn_gn.varpro.candidates`), and what the evidence found is set in the user's
units.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax

from sklearn_gn.arrays import backend
from sklearn_gn.arrays.extremes import noise_deviation
from sklearn_gn.bayes import evidence, evidence_gn, huber, laplace
from sklearn_gn.bayes.laplace import degrees_of_freedom
from sklearn_gn.bayes.layers import RegularisedLayers, sum_over_blocks
from sklearn_gn.bayes.linear_evidence import linear_model
from sklearn_gn.linalg.large_gram import LargeGram
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.varpro import candidates, wide_members
from sklearn_gn.varpro.members import (
    Member,
    is_process,
    is_worth_threads,
    layers_of,
    mean_values,
    networks_of,
    shares,
    side_by_side,
    with_shares,
)


class Summary(NamedTuple):
    """What is known of a member, in the user's units; of wide ones the first two."""

    alpha: dict
    loss: float
    covariance: laplace.Deferred | None = None
    # (k,)  variance of the noise of each target, over the mean of all
    noise_ratio: np.ndarray | None = None
    gram: np.ndarray | LargeGram | None = None  # Gauss-Newton matrix
    alpha_method: str = "prior"
    noise_std: np.ndarray | None = None  # (k,)
    n_effective_parameters: float = math.nan
    n_of_penalties: float = math.nan  # parameters that their choice amounts to
    log_evidence: float = math.nan


def set_fitted(estimator, run, rows, options, factors):
    """Set the fitted attributes of an estimator after a run."""
    observed, members, wide = rows, run.best_net, ()
    n, of_classes = options.evidence.n_effective, estimator._loss != "squared"
    if options.wide:
        k = len(members) - len(run.final_state.wide.members)
        members, wide = members[:k], members[k:]
    if estimator._is_robust():
        targets = huber.targets_of(mean_values(members, observed.x), observed)
        rows = observed._replace(y=targets)
    with backend.one_blas_thread():
        heavy = bool(members) and is_worth_threads(members[0].model, rows)
        chosen = side_by_side(partial(summary_of, rows, options), members, heavy)
        if of_classes:
            if (members or wide)[0].model.shapes():
                lacking = run.final_state.wide.lacking if wide else ()
                members = candidates.of_classes(members, chosen, wide, lacking, rows, n)
        elif members[0].model.shapes() and options.evidence.alpha is None:
            # The process may take as long as the networks did.
            limit = np.inf if estimator.max_time is None else estimator.max_time
            is_open = run.stop_reason.converged and 2 * run.elapsed <= limit
            kernel = getattr(run.final_state, "kernel", None)
            members, chosen = _stacked(rows, options, members, chosen, is_open, kernel)
    # The wide members have fixed penalties, and no evidence; no penalties a constant.
    summaries = list(chosen)
    for member in members[len(chosen) :]:
        has_weights = bool(networks_of((member,)))
        alpha = _by_name(member.model, member.net.alpha / n) if has_weights else {}
        summaries.append(Summary(alpha, wide_members.objective(member, rows, n)))
    if of_classes:
        members = tuple(m.with_output(partial(_moved, factors)) for m in members)
    share, scaling = shares(members), options.scaling
    estimator._fitted = None, members, scaling
    estimator.estimators_ = [
        FittedMember(estimator, member, scaling, summary, laplace.one_or_each(own))
        for member, summary, own in zip(members, summaries, share, strict=True)
    ]
    mean_share = np.mean(share, axis=1)
    has_share = mean_share > 0  # no part of an infinite loss is none
    losses = np.array([s.loss for s in summaries])
    estimator.loss_ = float(mean_share[has_share] @ losses[has_share])
    known = zip(members, chosen or summaries, strict=False)
    networks = [summary for member, summary in known if networks_of((member,))]
    estimator.alpha_ = {}
    for name in networks[0].alpha:
        mean = np.exp(np.mean([np.log(s.alpha[name]) for s in networks], axis=0))
        estimator.alpha_[name] = mean if mean.ndim else float(mean)
    methods = {s.alpha_method for s in networks}
    estimator.alpha_method_ = "lanczos" if "lanczos" in methods else methods.pop()
    if options.evidence.alpha is not None:
        estimator.alpha_method_ = "fixed"
    best = max(networks, key=lambda s: s.log_evidence)
    estimator.gram_spectrum_ = np.zeros(0)
    if best.gram is not None:
        estimator.gram_spectrum_ = laplace.spectrum(best.gram)
    if chosen:
        # Each start is as probable as the others before the data are seen.
        evidences = np.array([s.log_evidence for s in chosen])
        evidences = evidences[~np.isnan(evidences)]  # of all rows
        estimator.log_evidence_ = float(logsumexp(evidences) - np.log(len(evidences)))
        estimator.n_effective_parameters_ = float(
            _mean([s.n_effective_parameters for s in chosen], mean_share[: len(chosen)])
        )
    if not of_classes:
        estimator._covariances = tuple(s.covariance for s in summaries)
        estimator._noise_ratios = tuple(s.noise_ratio for s in summaries)
        _set_noise(estimator, members, summaries, rows, options, observed)
    _set_output_layer(estimator, members, scaling)


def _moved(factors, output):
    """The output layer whose odds of the classes are multiplied by factors, (k,)."""
    moved = np.log(factors)
    two = output.shape[1] == 1
    moved = moved[1:] - moved[:1] if two else moved - np.mean(moved)
    return np.concatenate([output[:1] + moved, output[1:]])


def _stacked(rows, options, members, summaries, is_open, kernel):
    """Return the members of all candidates with their shares, and the summaries."""
    n_effective = options.evidence.n_effective
    found = candidates.of_networks(members, summaries, rows, n_effective)
    linear = linear_model(rows, n_effective)
    if linear is not None:  # a network whose neurons are off
        model = members[0].model.with_all_features()
        output = np.zeros((model.n_linear, model.n_values))
        output[: len(linear.coef)] = linear.coef
        theta = model.join(output, [np.zeros(shape) for shape in model.shapes()])
        alpha, gamma = linear.penalties(model.n_groups)
        net = RegularisedLayers(theta, alpha, linear.beta, gamma, linear.log_evidence)
        member = Member(model, net)
        pair = member, summary_of(rows, options, member)
        found.append(candidates.of_linear(linear, *pair, rows, n_effective))
    if options.is_open and is_open:
        process = candidates.of_process(
            rows,
            n_effective,
            found,
            partial(summary_of_process, rows, options),
            options.seed,
            kernel,
        )
        found += [] if process is None else [process]
    return candidates.stacked(found, rows, n_effective)


def summary_of_process(rows, options, found):
    """The :class:`Summary` of a Gaussian process."""
    k, n_effective = rows.y.shape[1], options.evidence.n_effective
    y_scale = np.broadcast_to(options.scaling.y_scale, k)
    noise = found.process.scale * found.process.kernel.noise
    value = found.log_evidence - n_effective * float(np.sum(np.log(y_scale)))
    sees_all = len(found.process.x) == len(rows.x)
    return Summary(
        alpha={},
        loss=found.loss * options.scaling.loss_scale,
        covariance=laplace.Deferred(found.process.root),
        noise_ratio=np.ones(k),
        noise_std=y_scale * noise_deviation(1 / noise, np.ones(k)),
        n_effective_parameters=found.gamma,
        n_of_penalties=found.process.kernel.n_determined(),
        log_evidence=value if sees_all else math.nan,  # that of other data
    )


def _mean(values, share):
    """Mean of values of a part of the members, equally if none has a share."""
    return float(np.average(values, weights=share if np.any(share) else None))


def summary_of(rows, options, member):
    """The :class:`Summary` of a member by the evidence."""
    model, net = member
    n_effective, k = options.evidence.n_effective, model.n_values
    y_scale = np.broadcast_to(options.scaling.y_scale, k)
    sums = evidence_gn.sums_of(model, net.theta, rows)
    found, value, loss = evidence_gn.at_penalties(model, net, sums, n_effective)
    scale = net.beta * n_effective  # of the objective divided by the sum of weights
    penalties, noise_ratio = net.alpha / scale, np.ones(k)
    if model.loss == "squared":  # of features that have left the first layer
        gone = np.setdiff1d(np.arange(model.sizes[0]), model.features)
        penalties[3 + gone] = evidence.LARGEST / scale
        value -= n_effective * float(np.sum(np.log(y_scale)))
        if k > 1:
            noise_ratio = laplace.noise_ratio(
                sum_over_blocks(
                    lambda x, y, weight: weight @ (model.values(net.theta, x) - y) ** 2,
                    rows,
                    model.n_linear + k,
                )
            )
    of_penalties = 0.0
    if options.evidence.alpha is None:
        of_penalties = evidence.parameters_of_penalties(found.gamma, model.groups())
    return Summary(
        covariance=laplace.deferred_covariance(
            model, sums, net.alpha, net.beta, n_effective
        ),
        noise_ratio=noise_ratio,
        gram=sums.gram,
        alpha_method=evidence_gn.alpha_method(sums.gram),
        loss=loss * options.scaling.loss_scale if loss > 0 else 0.0,
        alpha=_by_name(model, penalties),
        noise_std=y_scale * noise_deviation(net.beta, noise_ratio),
        n_effective_parameters=float(np.sum(found.gamma)) + model.n_free,
        n_of_penalties=of_penalties,
        log_evidence=value,
    )


def _by_name(model, penalties):
    weights, layers = np.split(penalties[3:], [model.n_feature_groups])
    named = dict(zip(("slope", "coef", "bias"), penalties[:3].tolist(), strict=True))
    return {**named, "weights": weights, "layers": layers}


def _set_noise(estimator, members, summaries, rows, options, observed):
    """Set the noise that the mean of the members leaves, and its degrees of freedom.

    For a given set of penalties the members are nearly linear in the targets, and their
    mean has the mean of their effective parameters, of which those of a process come
    from its own rows. ``observed`` are the rows with the targets as they were observed.
    """
    n_effective, k = options.evidence.n_effective, observed.y.shape[1]
    n_rows = [np.sum(m.model.counts) if is_process(m) else n_effective for m in members]
    each = [
        (s.n_effective_parameters + s.n_of_penalties) * n_effective / n
        for s, n in zip(summaries, n_rows, strict=True)
    ]
    # A member of which nothing is known may follow all rows.
    each = np.nan_to_num(each, nan=n_effective * k)
    n_parameters = _mean(each, np.mean(shares(members), axis=1))
    freedom = degrees_of_freedom(n_effective, k, n_parameters)
    if estimator._is_robust():
        fitted = mean_values(members, observed.x)
        noise_std = huber.noise_std(fitted, observed, n_effective, n_parameters / k)
    else:
        rows = laplace.left_out_rows(rows)  # a part of many
        residuals = mean_values(members, rows.x) - rows.y
        squares = rows.weight @ residuals**2 / np.sum(rows.weight)
        variance = np.mean(squares) * n_effective * k / freedom
        ratio = laplace.noise_ratio(squares)
        noise_std = noise_deviation(1 / max(variance, evidence_gn.EXACT), ratio)
    noise_std = options.scaling.y_scale * noise_std
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
        model, layers = member.model, layers_of(member)
        self.activations_ = () if is_process(member) else model.activations
        if is_process(member):
            with np.errstate(divide="ignore"):
                self.length_scales_ = scaling.x_scale / np.sqrt(model.kernel.rho)
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
        return self._member.values(self._scaling.x(np.asarray(X, np.float64)))
