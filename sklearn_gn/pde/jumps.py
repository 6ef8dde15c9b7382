"""Given values that jump: within one condition, or where two of them meet.

Near a jump no smooth function fulfils equation and conditions: it may be meant, as for
a lid that moves in a cavity, and limits the accuracy that can be reached. The default
network follows jumps of initial values that diffusion smooths
(:mod:`sklearn_gn.pde.initial_breaks`): for it they are left out.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import KDTree

from sklearn_gn._caller import warn_user
from sklearn_gn.pde.conditions import Initial
from sklearn_gn.pde.corner_values import (
    MOST_AXES,
    contradictions,
    coordinates,
    drawn_part,
    gives_values,
)
from sklearn_gn.pde.domains import Domain
from sklearn_gn.pde.given_values import values_of
from sklearn_gn.pde.initial_breaks import follows_jump
from sklearn_gn.pde.operators import differentiates_jumps

_NEIGHBOURS = 4  # of each point, to which chords lead
_PARALLEL = 0.9  # scalar product of the normals at the ends of a chord
_OFF = 0.05  # distance to a curved boundary, relative to a chord
_PARTS, _CUTS = 64, 4  # of a chord, of which the steepest is cut again
_JUMP = 1e-3  # of a value, relative to the largest one
_DIGITS = 6  # of a place, in units of the domain's size


def warn_of_jumps(problem, default_network=True):
    """Warn of each jump of the given values; the parameters are those of jumps()."""
    for message in jumps(problem, default_network):
        warn_user(message)


def jumps(problem, default_network=True):
    """Return a message, with what to do, for each jump of the given values.

    Parameters
    ----------
    problem : Problem
    default_network : bool, default=True
        Whether to leave out what the default network follows.

    Returns
    -------
    list of str
    """
    if problem.domain.dim == 1:  # whose boundary is made of single points
        return []
    found = list(contradictions(problem, default_network))
    if problem.domain.dim <= MOST_AXES:
        found += _jumps_within(problem, default_network)
    return found


def warn_of_lost_jumps(problem):
    """Warn where the equation differentiates a product with a coefficient that jumps.

    Its derivative is taken on each side, without the jump, so that no residual says
    that the flux is continuous. A Condition on an interface may do so.

    Parameters
    ----------
    problem : Problem
    """
    interior, *_ = problem.residual_classes()
    faces = [getattr(condition, "on", None) for condition in problem.conditions]
    joined = any(isinstance(on, Domain) for on in faces)
    x = jax.ShapeDtypeStruct((interior.n_points, problem.domain.dim), np.float64)

    def residual(x):
        field = problem.field(lambda x: jnp.ones(len(problem.outputs), x.dtype))
        fields = (field,) * interior.n_points
        return interior.function(fields, x, x[0, :0], problem.start)

    def trace():
        with jax.enable_x64(True):
            jax.eval_shape(residual, x)

    if not joined and differentiates_jumps(trace):
        warn_user(
            "The equation differentiates a product with a Piecewise coefficient, as in "
            "div(k * grad(u)): the derivative of its jump is left out, and nothing "
            "keeps the flux continuous there, so that the solution is another one. "
            "Use one output for each side, and join them by a Condition on the "
            "interface: see 'Two materials' in the user guide."
        )


def _jumps_within(problem, default_network):
    """Messages on conditions whose own values jump."""
    domain, rng, messages = problem.domain, np.random.RandomState(0), []
    size = np.ptp(domain.bounds, axis=1)
    for name, condition in problem._named_conditions():
        if not (gives_values(problem, condition) and callable(condition.value)):
            continue
        found = _jump(problem, condition, _chords(domain, condition, rng))
        if found is None:
            continue
        output, place, values = found
        at_start = default_network and isinstance(condition, Initial)
        if at_start and follows_jump(problem, place[None]).all():
            continue
        place = np.round(place / size, _DIGITS) * size + 0.0
        messages.append(
            f"The values of the condition {name!r} jump: the output {output!r} is "
            f"{values[0]:.4g} and {values[1]:.4g} on the two sides of "
            f"{coordinates(domain, place)}. The solution cannot follow them there, "
            "which limits the accuracy: more points, neurons or time gain little. Make "
            "the step smooth, such as a + (b - a) * jax.nn.sigmoid((x[0] - c) / width) "
            "for one from a to b at c, with a width of a few thousandths of the axis."
        )
    return messages


def _chords(domain, condition, rng):
    """Ends (n, d) and (n, d) of short chords of the part of a condition."""
    part = drawn_part(domain, condition, rng)
    if part is None:
        return None
    order = np.lexsort(part[0].T[::-1])
    X, normals = (a[order] for a in part)
    tree = KDTree(X / np.ptp(domain.bounds, axis=1))
    _, near = tree.query(tree.data, _NEIGHBOURS + 1)
    first = np.repeat(np.arange(len(X)), _NEIGHBOURS)
    pairs = np.sort(np.column_stack([first, near[:, 1:].ravel()]), axis=1)
    i, j = np.unique(pairs, axis=0).T
    middle, on = (X[i] + X[j]) / 2, condition.where(domain)
    length = np.linalg.norm(X[i] - X[j], axis=1)
    kept = np.sum(normals[i] * normals[j], axis=1) > _PARALLEL
    kept &= np.abs(domain.depth(middle)) <= _OFF * length
    if callable(on):
        kept &= np.asarray(on(middle), dtype=bool)
    return X[i[kept]], X[j[kept]]


def _jump(problem, condition, chords):
    """Output, place and both values of the largest jump along chords, or None.

    The change along a tiny part of a chord vanishes for continuous values, however
    steep they are.
    """
    if chords is None or not len(chords[0]):
        return None
    low, high = chords
    rows, size = np.arange(len(low)), None
    share = np.linspace(0, 1, _PARTS + 1)[:, None]
    for _ in range(_CUTS):
        X = low[:, None] + share * (high - low)[:, None]
        flat = X.reshape(-1, X.shape[2])
        ((names, values),) = values_of(problem, [condition], [flat])
        if not np.isfinite(values).all():
            return None
        values = values.reshape(*X.shape[:2], -1)
        if size is None:
            size = np.maximum(np.abs(values).max(axis=(0, 1)), np.finfo(float).tiny)
        steps = np.abs(np.diff(values, axis=1)) / size
        part = steps.max(axis=2).argmax(axis=1)
        low, high = X[rows, part], X[rows, part + 1]
    steps = steps[rows, part]
    row, k = np.unravel_index(steps.argmax(), steps.shape)
    if steps[row, k] <= _JUMP:
        return None
    sides = values[row, part[row] : part[row] + 2, k]
    return names[k], (low[row] + high[row]) / 2, sides
