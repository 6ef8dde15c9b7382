"""From the members of a committee to the fitted attributes, in the user's units."""

import numpy as np
from scipy.special import logsumexp, softmax

from sklearn_gn.arrays.extremes import noise_deviation
from sklearn_gn.bayes import evidence_gn, huber, laplace
from sklearn_gn.bayes.layers import log_odds
from sklearn_gn.bayes.summary import Summary, penalties_by_name
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.varpro import candidates
from sklearn_gn.varpro.members import (
    is_process,
    mean_values,
    networks_of,
    shares,
)
from sklearn_gn.varpro.wide_members import objective


def set_fitted(estimator, run, rows, options, factors):
    """Set the fitted attributes of an estimator after a run."""
    members, state, n = run.best_net, run.final_state, options.evidence.n_effective
    of_classes, scaling, observed = estimator._loss != "squared", options.scaling, rows
    if options.robust:
        rows = rows._replace(y=huber.targets_of(mean_values(members, rows.x), rows))
    # 1. What is known of each member, other candidates, and the shares of all.
    n_small = len(members) - (len(state.wide.members) if options.wide else 0)
    small = candidates.with_summaries(members[:n_small], rows, options)
    wide, members = members[n_small:], small + members[n_small:]
    if members[0].model.shapes() and of_classes:
        lacking = state.wide.lacking if wide else ()
        members = candidates.of_classes(small, wide, lacking, rows, n)
    elif members[0].model.shapes() and options.evidence.alpha is None:
        # The process may take as long as the networks did.
        limit = np.inf if estimator.max_time is None else estimator.max_time
        in_time = run.stop_reason.converged and 2 * run.elapsed <= limit
        is_open = options.is_open and in_time
        members = candidates.of_regression(small, rows, options, is_open)
    members = list(members)
    for number, one in enumerate(members):
        if one.known is None:  # its penalties were not chosen
            penalties = penalties_by_name(one.model, one.net.alpha / n)
            known = Summary(penalties, objective(one, rows, n))
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
    best = max(networks, key=lambda s: s.log_evidence)
    estimator.gram_spectrum_ = np.zeros(0)
    if best.gram is not None:
        estimator.gram_spectrum_ = laplace.spectrum(best.gram)
    share = shares(members)
    if small:
        # Each start is as probable as the others before the data are seen.
        evidences = np.array([member.known.log_evidence for member in members])
        evidences = evidences[~np.isnan(evidences)]  # of all rows
        estimator.log_evidence_ = float(logsumexp(evidences) - np.log(len(evidences)))
        counted = members[:n_small] if of_classes else members
        estimator.n_effective_parameters_ = _mean(
            [member.known.n_effective_parameters for member in counted],
            share[: len(counted)],
        )
    # 3. What predicts: members without their matrices, of moved odds of the classes.
    if of_classes:
        moved = log_odds(factors, members[0].model.n_values)
        members = [member.with_output(moved=moved) for member in members]
    members = tuple(m._replace(known=m.known._replace(gram=None)) for m in members)
    estimator._fitted = None, members, scaling
    estimator.estimators_ = [
        FittedMember(estimator, member, scaling, laplace.one_or_each(own))
        for member, own in zip(members, share, strict=True)
    ]
    mean_share = np.mean(share, axis=1)
    has_share = mean_share > 0  # no part of an infinite loss is none
    losses = np.array([member.known.loss for member in members])
    estimator.loss_ = float(mean_share[has_share] @ losses[has_share])
    _set_output_layer(estimator, members, share, scaling)
    if not of_classes:
        _set_noise(estimator, members, rows, options, observed)


def _mean(values, share):
    """Mean of values of a part of the members, equally if none has a share."""
    share = np.mean(share, axis=1)
    return float(np.average(values, weights=share if np.any(share) else None))


def _set_noise(estimator, members, rows, options, observed):
    """Set the noise that the mean of the members leaves, and its degrees of freedom.

    For a given set of penalties the members are nearly linear in the targets, and their
    mean has the mean of their effective parameters, of which those of a process come
    from its own rows. ``observed`` are the rows with the targets as they were observed.
    """
    n_effective, k = options.evidence.n_effective, observed.y.shape[1]
    known = [member.known for member in members]
    each = [
        (s.n_effective_parameters + s.n_of_penalties) * n_effective / s.n_rows
        for s in known
    ]
    # A member of which nothing is known may follow all rows.
    n_parameters = _mean(np.nan_to_num(each, nan=n_effective * k), shares(members))
    freedom = laplace.degrees_of_freedom(n_effective, k, n_parameters)
    if options.robust:
        fitted = mean_values(members, observed.x)
        noise_std = huber.noise_std(fitted, observed, n_effective, n_parameters / k)
    else:
        rows = laplace.left_out_rows(rows)  # a part of many
        residuals = mean_values(members, rows.x) - rows.y
        squares = rows.weight @ residuals**2 / np.sum(rows.weight)
        variance = np.mean(squares) * n_effective * k / freedom
        ratio = laplace.noise_ratio(squares)
        noise_std = noise_deviation(1 / max(variance, evidence_gn.EXACT), ratio)
    estimator.noise_std_ = laplace.one_or_each(options.scaling.y_scale * noise_std)
    estimator._degrees_of_freedom = freedom


def _set_output_layer(estimator, members, share, scaling):
    """Set the output layer of the mean of the members, on their hidden features."""
    model = members[0].model
    d, n_networks = model.sizes[0], len(networks_of(members))
    layers = [
        own * member.model.split(member.net.theta)[0]
        for member, own in zip(members, share, strict=True)
        if not is_process(member)
    ]
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

    It is a network, or without hidden layers the linear model, the class frequencies,
    or a Gaussian process.

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

    def __init__(self, estimator, member, scaling, share):
        model, net, known = member.model, member.net, member.known
        self._member, self._scaling, self.share_ = member, scaling, share
        self._single_target = getattr(estimator, "_single_target", False)
        self._classes = getattr(estimator, "classes_", None)
        layers, self.activations_ = [], ()
        if is_process(member):
            with np.errstate(divide="ignore"):
                self.length_scales_ = scaling.x_scale / np.sqrt(model.kernel.rho)
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
