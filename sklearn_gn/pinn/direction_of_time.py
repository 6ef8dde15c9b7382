"""Equations that are followed in the wrong direction of time.

Along waves of space ``exp(i k x)``, an equation ``a u_t + b u_xx + ...`` changes the
solution by ``exp(b k**2 / a * t)``: short waves decay where a and b have opposite
signs, and grow without bound where they have the same one. Conditions at the last time
exchange the two. ``a u_tt + b u_xx`` lets waves pass where the signs are opposite, and
else they grow in both directions.
"""

import numpy as np

from sklearn_gn.pinn import determination

_ABSENT = 1e-9  # size of a derivative's factor, relative to the largest one


def growing_waves(problem):
    """What to say of an equation along which short waves grow; "" if none do.

    With observations such an equation is an inverse problem, and no mistake.
    """
    domain = problem.domain
    single = len(problem.outputs) == problem.residual_classes()[0].n_outputs == 1
    fixed = problem.transform or problem.periodic or problem.unknown
    plain = single and not fixed and problem.n_laplacian_directions is None
    if domain.time is None or domain.dim == 1 or not plain:
        return ""
    rng = np.random.RandomState(0)
    ends = determination.conditions_at_ends(problem, rng)[domain.time]
    if len(set(ends)) != 1:
        return ""
    factors = determination.factors_of_derivatives(problem, rng)
    axis = None if factors is None else _growing(factors, domain, ends)
    return "" if axis is None else _message(domain, axis, ends)


def _growing(factors, domain, ends):
    """The axis of space along which short waves grow; None if there is none."""
    of_time = domain.axes.index(domain.time)
    orders = determination.highest_orders(factors)
    order = orders[of_time]
    if order not in (1, 2) or len(ends) != order:
        return None
    along = [k for k in range(domain.dim) if k != of_time]
    if max(orders[along]) != 2:
        return None
    forwards = order == 2 or ends[0].endswith("=min")
    for k in along:
        product = factors[:, of_time, order] * factors[:, k, 2]
        product = product if forwards else -product
        if product.min() > _ABSENT * np.abs(factors).max() ** 2:
            return k
    return None


def _message(domain, axis, ends):
    t, x = domain.time, domain.axes[axis]
    order = len(ends)  # of the equation in time
    first = ", ".join([repr(t)] * order)
    pair = f"d(u, {first}) and d(u, {x!r}, {x!r})"
    if ends[0].endswith("=max"):
        return (
            f"The solution is given at {ends[0]}, but the signs of {pair} are those of "
            f"diffusion, which runs forwards from {t}=min: backwards short waves grow "
            "without bound, and there is a solution for special values only. State "
            "Initial values, or check the signs."
        )
    kind, right = {
        1: (
            "diffusion backwards in time",
            f"that of diffusion is d(u, {t!r})(x) - k * d(u, {x!r}, {x!r})(x)",
        ),
        2: (
            "a potential that is given on one side only",
            f"that of a wave is d(u, {t!r}, {t!r})(x) - c**2 * d(u, {x!r}, {x!r})(x)",
        ),
    }[order]
    return (
        f"Short waves grow without bound from {ends[0]} on: {pair} have the same sign, "
        f"which is {kind}. There is a solution for special values only, and small "
        f"errors spoil it. Check the signs of the residual; {right}."
    )
