"""The members of a committee, and what they predict together.

A member is a small network (:class:`~sklearn_gn.bayes.layers.Layers`) with the
penalties that were chosen for it. The mean of several predicts better than the one of
highest evidence. Beside networks may stand a linear model, or the frequencies of the
classes, which are networks without hidden layers, and a Gaussian process.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax, logsumexp

from sklearn_gn.bayes import laplace
from sklearn_gn.bayes.evidence_gn import RegularisedLayers
from sklearn_gn.bayes.gaussian_process import GaussianProcess
from sklearn_gn.bayes.layers import forward
from sklearn_gn.optim.multinomial import all_classes


class Member(NamedTuple):
    """One model of a committee."""

    net: RegularisedLayers  # with its model, Layers or a GaussianProcess
    share: Any = None  # in predictions, a number or (k,); None before it is known
    known: Any = None  # after the fit, a Summary of sklearn_gn.bayes.laplace

    @property
    def model(self):
        """The model whose parameters these are."""
        return self.net.model

    def values(self, x):
        """Return the values at rows in the units of the fit, of shape (m, k)."""
        return self.model.values(self.net.theta, x)

    def with_output(self, factor=1.0, moved=0.0):
        """Return the member whose values have a factor, and other constants."""
        model, net = self.model, self.net
        if isinstance(model, GaussianProcess):
            model = model._replace(center=factor * model.center + moved)
            net = net._replace(theta=factor * net.theta, model=model)
            return self._replace(net=net)
        output, layers = model.split(net.theta)
        output = factor * output
        output[0] += moved
        return self._replace(net=net._replace(theta=model.join(output, layers)))


def networks_of(members):
    """Return the members with as many hidden layers as the first, which has all."""
    own = [m for m in members if not isinstance(m.model, GaussianProcess)]
    return tuple(m for m in own if len(m.model.sizes) == len(own[0].model.sizes))


# --- predictions ---------------------------------------------------------------------


def shares(members):
    """Return the shares of the members in predictions, which sum to one.

    Of shape (members, 1), or one column for each target. Members of one kind share in
    the inverse of the noise that each leaves, as in a mean of measurements of different
    precision: equally if they predict classes, nearly so on noisy tables, while on
    exact data members that cannot represent the function have hardly any share. The
    kinds share as rows decide that they have not seen
    (:mod:`sklearn_gn.varpro.candidates`).
    """
    if members[0].share is not None:
        return np.array([np.atleast_1d(member.share) for member in members])
    precision = np.array([member.net.beta or 1.0 for member in members])
    return precision[:, None] / np.sum(precision)


def mean_values(members, x):
    """Return the mean of the members' values, or the logits of mean probabilities."""
    pairs = [
        (member.values(x), share)
        for member, share in zip(members, shares(members), strict=True)
        if np.any(share)
    ]
    if members[0].model.loss == "squared":
        return sum(share * values for values, share in pairs)
    # Only ratios count, and factors of the size of one keep most digits.
    log_p = [
        log_softmax(all_classes(values), axis=1) + np.log(len(pairs) * share)
        for values, share in pairs
    ]
    logits = logsumexp(log_p, axis=0) - math.log(len(pairs))
    return logits[:, 1:] - logits[:, :1] if pairs[0][0].shape[1] == 1 else logits


def hidden_features(members, x):
    """Return the last hidden layers of all networks side by side; else the inputs."""
    if not members[0].model.activations:
        return x
    last = [
        forward(m.model, m.model.split(m.net.theta)[1], x)[0][-1].values.T
        for m in networks_of(members)
    ]
    return np.concatenate(last, axis=1)


def variances(members, x):
    """Return the variances of the mean of the members, of shape (m, k)."""
    mean, found = mean_values(members, x), 0.0
    for member, share in zip(members, shares(members), strict=True):
        if np.any(share):
            own = member.known.noise_ratio * posterior_variances(member, x)
            # Squares beyond the floats are infinite, and no part of infinity is none.
            with np.errstate(over="ignore", invalid="ignore"):
                squares = own + (member.values(x) - mean) ** 2
                found = found + np.where(share > 0, share * squares, 0)
    return found


def posterior_variances(member, x):
    """Return the variances of a member's values, of shape (m, k)."""
    covariance = member.known.covariance.get()
    if isinstance(member.model, GaussianProcess):
        return member.model.variances(covariance, x)
    return laplace.value_variances(member.model, member.net.theta, covariance, x)
