"""Taylor expansions of the reduced objective, with its inner problem solved badly.

With the exact output layer, the error of the expansion of order 0 falls like h and that
of order 1 like h^2. Where the inner problem is solved only to a tolerance, the gradient
of variable projection is not exact, and below some h the second error falls like h as
well. The package solves the inner problem to rounding, so here is an iteration that can
be stopped early.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matplotlib.lines import Line2D

NEWTON_ITERATIONS = 200
TOLERANCES = (1e-2, 1e-3, 1e-5, 1e-10)  # of the inner gradient
STEPS = np.logspace(0, -8, 17)
PENALTIES = (5e-6, 1e-4)  # of the network and of the output layer


def residual_network(params, x):
    """``u + tanh(K u) / 2`` for each of some matrices, behind an opening layer."""
    u = jnp.tanh(x @ params["opening"])
    for weight in params["weights"]:
        u = u + jnp.tanh(u @ weight) / 2
    return u


def residual_parameters(rng, n_features, width=4, depth=4):
    return {
        "opening": rng.standard_normal((n_features, width)),
        "weights": list(rng.standard_normal((depth, width, width))),
    }


def objective(output, theta, network, penalties, x, y):
    """Cross-entropy of the network with this output layer, with the penalties."""
    z = network(theta, x)
    values = z @ output[:-1] + output[-1:]
    loss = -jnp.mean(jnp.sum(y * jax.nn.log_softmax(values, axis=1), axis=1))
    squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(theta))
    alpha, alpha_output = penalties
    return loss + (alpha * squares + alpha_output * jnp.sum(output**2)) / 2


def newton_direction(output, *problem):
    """Direction of Newton's method for the output layer, and the gradient."""
    gradient = jax.grad(objective)(output, *problem)
    hessian = jax.hessian(objective)(output, *problem)
    flat = hessian.reshape(output.size, output.size)
    return -jnp.linalg.solve(flat, gradient.ravel()).reshape(output.shape), gradient


_jit = partial(jax.jit, static_argnums=2)
_objective = _jit(objective)
_direction = _jit(newton_direction)
_gradient = _jit(jax.grad(objective, argnums=1))


def inner_solution(start, problem, tol):
    """The output layer by Newton's method, until its gradient is small."""
    output, value = start, _objective(start, *problem)
    for _ in range(NEWTON_ITERATIONS):
        step, gradient = _direction(output, *problem)
        if np.linalg.norm(gradient) <= tol:
            return output
        slope, length = float(np.sum(step * gradient)), 1.0
        while True:
            longer = output + length * step
            new = _objective(longer, *problem)
            if new <= value + 1e-4 * length * slope + 1e-15 or length < 1e-9:
                break
            length /= 2
        output, value = longer, new
    raise RuntimeError(f"The inner problem was not solved to {tol:g}.")


def taylor_errors(
    X, y, network, theta, rng, tolerances=TOLERANCES, penalties=PENALTIES
):
    """Errors of the expansions of order 0 and 1 in a random direction of length one.

    Returns
    -------
    dict of tuples of ndarray
        By tolerance of the inner problem, the errors of both orders at ``STEPS``.
    """
    classes, code = np.unique(y, return_inverse=True)
    labels = np.eye(len(classes))[code]
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(theta)
        direction = rng.standard_normal(flat.size)
        direction /= np.linalg.norm(direction)
        width = jax.eval_shape(network, theta, X).shape[1]
        zero = np.zeros((width + 1, len(classes)))

        def reduced(step, tol):
            """Output layer, problem and objective at a step."""
            theta = unravel(flat + step * direction)
            problem = theta, network, penalties, X, labels
            output = inner_solution(zero, problem, tol)
            return output, problem, float(_objective(output, *problem))

        errors = {}
        for tol in tolerances:
            output, problem, here = reduced(0.0, tol)
            # The gradient of variable projection: that at fixed W.
            gradient, _ = ravel_pytree(_gradient(output, *problem))
            slope = float(gradient @ direction)
            there = np.array([reduced(step, tol)[-1] for step in STEPS])
            errors[tol] = np.abs(there - here), np.abs(there - here - STEPS * slope)
    return errors


def expansions(ax, errors):
    """Errors of order 0 (dashed) and 1 over the step, by tolerance."""
    from matplotlib import colormaps

    shades = colormaps["viridis"](np.linspace(0.9, 0, len(errors)))
    lines = []
    for color, (tol, (zeroth, first)) in zip(shades, errors.items(), strict=True):
        lines += ax.plot(STEPS, first, "o-", ms=3, color=color, label=f"{tol:g}")
        ax.plot(STEPS, zeroth, "--", color=color)
    top = np.max(zeroth)
    for order in (1, 2):  # slopes to compare with, a little above
        slope = 3 * top * (STEPS / STEPS[0]) ** order
        ax.plot(STEPS, np.where(slope < 1e-18, np.nan, slope), "k:", lw=1)
    keys = {"--": "Order 0", "-": "Order 1", ":": "$h$ and $h^2$"}
    handles = [Line2D([], [], color="black", ls=k, label=v) for k, v in keys.items()]
    ax.set_xscale("log")
    ax.set_yscale("log", nonpositive="mask")
    ax.set(xlabel="Length of the step $h$", ylabel="Error")
    ax.set_ylim(top=30 * ax.get_ylim()[1])  # room for the first legend
    ax.add_artist(ax.legend(handles=handles, loc="upper left", ncols=3))
    ax.legend(handles=lines, title="Inner tolerance", loc="lower right")
