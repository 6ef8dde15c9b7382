r"""The wide members of a classifier: fast Gauss-Newton steps, and their share.

Where a Gauss-Newton matrix of all rows would be too dear, the members are wide networks
whose penalties are normal priors of fixed size, and an iteration is an epoch of
mini-batches. The cross-entropy of a row with the true class t is ``log(1 + exp(-f))``
of its margin

    f = u_t - log sum_{j != t} exp(u_j).

Fast Gauss-Newton (Korbit and Zanon) keeps the curvature along the margin alone, so that
the system of a step has one row an example. In place of the curvature itself, which is
nearly zero for rows that are far on the wrong side, there stands h(f), that of
:func:`~sklearn_gn.optim.multinomial.bounding_curvature`: no step is too long for the
margins, linear in the parameters, that it is taken for.
With Q the derivatives of the margins of a batch, weights w that sum to one, the
residuals r = w sigmoid(-f), R^2 = w h and D the damping and penalties, the step is

    D^-1 (Q^T z - A theta),   z = r - R (1 + R K R)^-1 R Q D^-1 (Q^T r - A theta),

with K = Q D^-1 Q^T. The derivatives in an affine map are products of its inputs and of
what is propagated back to it, and K is a sum of products of their Gram matrices.

In smaller tables wide members stand beside small ones by the evidence, which takes
classes that are nearly separable for noisier than they are; wide networks do well
there, and fit noise where classes overlap. Rows that a fit has not seen tell: each wide
member is fitted without another quarter of the rows before it sees all of them.
"""

import math
from typing import NamedTuple

import numpy as np

from sklearn_gn.arrays.threads import side_by_side
from sklearn_gn.bayes import evidence
from sklearn_gn.bayes.evidence_gn import SOME_ROWS, objective
from sklearn_gn.bayes.layers import forward
from sklearn_gn.bayes.low_rank import positive_precision
from sklearn_gn.linalg.factors import factor
from sklearn_gn.optim.multinomial import (
    all_classes,
    bounding_curvature,
    cross_entropy,
    margins,
    to_columns,
)
from sklearn_gn.optim.solver import Report, Rows

EPOCHS = 16  # in which the damping rises; the last half once more on all rows
_FIRST_DAMPING = 0.1  # of the curvature, which it reaches in the last epoch
_BATCH = 128
N_PARTS = 4  # of the rows, of which each wide member lacks one; as many members


class WideState(NamedTuple):
    """The wide members, and their place in the schedule."""

    members: tuple  # of Member
    iteration: int = 0
    lacking: tuple = ()  # members that have not seen their part, once all see all rows


# --- epochs --------------------------------------------------------------------------


def init(members, options):
    """Return the state of wide members that start from some.

    The :class:`~sklearn_gn.bayes.evidence_gn.EvidenceOptions` have the damping of all
    epochs, or None if it rises, and given penalties of the groups.
    """
    alpha = np.append(10.0, np.ones(members[0].model.n_groups - 1))
    if options.alpha is not None:
        alpha = options.n_effective * options.alpha
    starts = [m._replace(net=m.net._replace(alpha=alpha, beta=1.0)) for m in members]
    return WideState(tuple(starts))


def step(rows, state, options, seed):
    """Return the state and the report after an epoch of every member, or a part of it.

    An epoch of many rows is divided, so that the fit may stop on the way. Members lack
    a part of the rows at first and end with all of them: otherwise they predict worse
    where classes are nearly separable. With ``tol=0`` the schedule does not end a fit.
    """
    parts = max(1, math.isqrt(len(rows.x) // SOME_ROWS))
    (epoch, part), last = divmod(state.iteration, parts), EPOCHS + EPOCHS // 2
    lacks_part = epoch < EPOCHS
    place = epoch if lacks_part else epoch - EPOCHS // 2  # in the schedule
    damping = options.damping
    if damping is None:
        damping = _FIRST_DAMPING ** (1 - min(1.0, place / (EPOCHS - 1)))
    # Products of products must fit into single precision.
    largest = np.finfo(np.float32).max ** 0.25
    dtype = np.float32 if np.max(np.abs(rows.x)) < largest else np.float64
    of_part = left_out_part(rows) if lacks_part else None

    def after_epoch(job):
        number, member = job
        seen = rows
        if lacks_part:
            kept = of_part != number % N_PARTS
            weight = rows.weight[kept]
            seen = Rows(rows.x[kept], rows.y[kept], weight / np.sum(weight))
        rng = np.random.default_rng([seed, number, epoch])
        settings = options.n_effective, damping, dtype
        return run_epoch(member, seen, *settings, rng, slice(part, None, parts))

    jobs = list(enumerate(state.members))
    work = _BATCH * len(rows.x) * sum(state.members[0].model.sizes)
    members, losses = zip(*side_by_side(after_epoch, jobs, work), strict=True)
    loss = float(np.mean(losses))
    if not math.isfinite(loss):
        return state, Report(loss, math.nan, stop="non_finite")
    iteration = state.iteration + 1
    stop = "tol" if iteration == last * parts and options.tol > 0 else None
    lacking = members if iteration == EPOCHS * parts else state.lacking
    report = Report(loss, math.nan, step_size=1.0, damping=damping, stop=stop)
    return WideState(members, iteration, lacking), report


def run_epoch(member, rows, n_effective, damping, dtype, rng, some=slice(None)):
    """Return the member after batches of an epoch, and the objective on the way."""
    model, net = member.model, member.net
    output, layers = model.split(net.theta)
    maps = [a.astype(dtype) for a in (output.T, *layers)]
    # The weights of one input of an affine map have one penalty.
    penalties = evidence.prior_precision(model.groups(), net.alpha) / n_effective
    of_output, of_layers = model.split(penalties)
    penalties = of_output[:, 0], *(layer[0] for layer in of_layers)
    penalties = [a.astype(dtype) for a in penalties]
    n, label, total, taken = len(rows.x), np.argmax(rows.y, axis=1), 0.0, 0.0
    for index in np.array_split(rng.permutation(n), max(1, round(n / _BATCH)))[some]:
        share = np.sum(rows.weight[index])
        batch = (
            rows.x[index].astype(dtype),
            label[index],
            (rows.weight[index] / share).astype(dtype),
        )
        maps, loss = batch_step(model, maps, batch, penalties, damping)
        total, taken = total + share * loss, taken + share
    output, *layers = (a.astype(np.float64) for a in maps)
    net = net._replace(theta=model.join(output.T, layers))
    loss = objective(model, net, 2 * float(total / taken), n_effective)
    return member._replace(net=net), loss


def batch_step(model, maps, batch, penalties, damping):
    """Return the affine maps after the step of a batch, and the loss before it.

    The maps, of shape (values, inputs), are the output layer, then the hidden layers;
    the penalties belong to the inputs. A batch has the features, the numbers of the
    classes, and weights that sum to one.
    """
    x, label, weight = batch
    output, *layers = maps
    trace, f = forward(model, layers, x)
    inputs = [f, *(layer.inputs for layer in trace)]
    of_true = margins(all_classes((output @ inputs[0]).T), label)
    gradient = -to_columns(of_true.gradient).T
    # The derivatives of the margins in the values, and in the neurons of each layer.
    back, upper = [], output[:, -model.sizes[-1] :].T @ gradient
    for layer, own in zip(reversed(layers), reversed(trace), strict=True):
        back.append(own.slopes * upper)
        upper = layer[:, 1:].T @ back[-1]
    back = [gradient, *reversed(back)]
    damping = maps[0].dtype.type(damping)
    # Without damping, free weights have the least one that the arithmetic stands.
    shifts = [positive_precision(a + damping, scale=1.0) for a in penalties]
    pulls = [
        penalty / shift * a
        for penalty, shift, a in zip(penalties, shifts, maps, strict=True)
    ]
    roots = [h / np.sqrt(a)[:, None] for h, a in zip(inputs, shifts, strict=True)]
    # Of an array and itself NumPy computes half of the product.
    kernel = sum((q.T @ q) * (h.T @ h) for q, h in zip(back, roots, strict=True))
    residual = weight * of_true.p_rest
    root = np.sqrt(weight * bounding_curvature(of_true.margin))
    along = kernel @ residual - sum(
        np.sum(q * (pull @ h), axis=0)
        for q, h, pull in zip(back, inputs, pulls, strict=True)
    )
    system = root[:, None] * kernel * root
    # Beside a kernel of 1e16, the one alone would be lost to rounding.
    floor = np.finfo(system.dtype).eps * np.trace(system)
    found = factor(system, 1 + floor, overwrite=True)
    z = residual - root * found.solve(root * along)
    moved = [
        a + ((z * q) @ h.T) / shift - pull
        for a, q, h, shift, pull in zip(maps, back, inputs, shifts, pulls, strict=True)
    ]
    return moved, float(weight @ cross_entropy(of_true.margin))


# --- rows left out -------------------------------------------------------------------


def left_out_part(rows):
    """Return the number of the part, (m,), that each row belongs to."""
    order = np.argsort(np.argmax(rows.y, axis=1), kind="stable")
    return np.argsort(order) % N_PARTS
