"""Given values that jump: within one condition, or where two of them meet.

Near a jump no smooth function fulfils equation and conditions: it may be meant, as for
a lid that moves in a cavity, and limits the accuracy that can be reached. The default
network follows jumps of initial values that diffusion smooths
(:mod:`sklearn_gn.pde.given_values`): for it they are left out. Two conditions that
give different values at the same places are an error, and so is an equation that
differentiates a coefficient that jumps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations, combinations_with_replacement, pairwise, product

import jax.numpy as jnp
import numpy as np
from scipy.spatial import KDTree

from sklearn_gn.pde import reading
from sklearn_gn.pde.conditions import Dirichlet, Initial, Points
from sklearn_gn.pde.domains import Domain, draw
from sklearn_gn.pde.given_values import (
    DIGITS,
    JUMP,
    N_POINTS,
    PARTS,
    PLACE,
    ROUNDING,
    follows_jump,
    steepest_parts,
    values_of,
)
from sklearn_gn.pde.residual_classes import named_parameters
from sklearn_gn.pde.shapes import Box

MOST_AXES = 6  # of conditions and residuals that are searched by themselves
_NEIGHBOURS = 4  # of each point, to which chords lead
_SAME_SIDE = 0.9  # scalar product of the normals at the ends of a chord
_OFF = 0.05  # distance to a curved boundary, relative to a chord
_CONTRADICT = 10 * JUMP  # difference of two values where no solution exists
_SMOOTH = "such as a + (b - a) * jax.nn.sigmoid(({} - c) / width)"


def jumps(problem, default_network=True):
    """Return a list of messages, with what to do, on jumps of the given values."""
    if problem.domain.dim == 1:  # whose boundary is made of single points
        return []
    rng, few = np.random.RandomState(0), problem.domain.dim <= MOST_AXES
    found, given = [], _with_values(problem)
    for pair in combinations_with_replacement(given, 2):
        first, second = sorted(pair, key=lambda entry: isinstance(entry[1], Initial))
        # Initial values may disagree, where outputs have conditions of their own.
        searched = first is not second or (few and callable(first[1].value))
        if searched and isinstance(first[1], Dirichlet):
            found += _where_parts_meet(problem, first, second, rng, default_network)
    rng = np.random.RandomState(0)
    for name, condition in given if few else ():
        if callable(condition.value):
            found += _within(problem, name, condition, rng, default_network)
    is_searched = problem.regions is None and _is_searched(problem)
    for k, bounds in enumerate(problem.domain.bounds if is_searched else ()):
        places = _jumps_along(problem, None, k, bounds, True)
        if len(places):
            place = _coordinates(problem.domain, places[0])
            text = (
                f"The equation jumps at {place}, where the network is smooth and "
                "follows slowly. Write what jumps as a Piecewise, whose interfaces are "
                "known: see 'Two materials' in the user guide. Interpolate tables."
            )
            step = PLACE * np.ptp(bounds) * np.eye(problem.domain.dim)[k]
            size = np.ones(len(problem.outputs))
            points = places[0] + [-step, step]
            slopes = reading.slopes_of_equation(problem, points, size)
            if np.ptp(slopes, axis=0).max() > JUMP * np.abs(slopes).max():
                text += (
                    " A factor of derivatives of the solution jumps, and the derivative"
                    " of a jump is left out: if a flux is meant, the solution is "
                    "another one, unless it is written as div(k * grad(u))."
                )
            return [*found, text]
    return found


def _with_values(problem):
    """Names and conditions that give known values of the outputs."""
    found = []
    for name, condition in problem._named_conditions.items():
        if condition.order or not isinstance(condition, (Dirichlet, Initial)):
            continue
        names, takes_all = (), False
        if callable(condition.value):
            names, takes_all = named_parameters(condition.value, 1)
        if not (problem.unknown if takes_all else problem.unknown.keys() & names):
            found.append((name, condition))
    return found


def _coordinates(domain, place):
    """A place in words."""
    pairs = zip(domain.axes, place, strict=True)
    return ", ".join(f"{axis} = {c:.4g}" for axis, c in pairs)


def check_fluxes(problem):
    """Raise a ValueError where the equation differentiates what jumps at a place.

    Such is ``div(k * grad(u))`` with a conductivity k that jumps: no residual says that
    the flux is continuous, unless a Condition on an interface does. What is
    differentiated along an axis jumps there for two smooth fields alike.
    """
    domain = problem.domain
    # Of pieces alone: what is cut where it jumps is refused.
    regions = problem.regions and problem._interior[1]
    axes = range(domain.dim) if _is_searched(problem) else ()
    # Along whole axes, on which what is small has most points, and along their parts,
    # in which no layer is too thin to be met.
    for k, n_parts in product(axes, (1, round(N_POINTS ** (1 / domain.dim)))):
        edges = np.linspace(*domain.bounds[k], n_parts + 1)
        places = _jumps_along(problem, regions, k, edges, False)
        if len(places):
            raise ValueError(
                "interior: the equation differentiates, along "
                f"{domain.axes[k]!r}, a product with a coefficient that jumps at "
                f"{_coordinates(domain, places[0])}, as in div(k * grad(u)) with k "
                "from jnp.where, jnp.floor or a table. The derivative of the jump "
                "would be left out, and nothing would keep the flux continuous there, "
                "so that the solution would be another one. Write the coefficient as "
                "a Piecewise, whose interfaces are known: see 'Two materials' in the "
                f"user guide. Or make the step smooth, {_SMOOTH.format('x[0]')}."
            )


@dataclass(frozen=True)
class Differentiated:
    """What the equation differentiates along each axis, as a residual is a function."""

    equation: Callable

    def __call__(self, *given):
        """Values (dim * m,) at a point: of each axis as many, or zeros."""
        _, found = reading.with_fluxes(partial(self.equation, *given), given[1][0])
        m = max(map(len, found))
        return jnp.concatenate([jnp.pad(a, (0, m - len(a))) for a in found])


def flux_that_jumps(problem, values_at):
    """A message on what the equation differentiates, if it jumps in the solution.

    ``values_at`` evaluates functions like residuals at points. What jumps at a place is
    found by :func:`check_fluxes`; what jumps at a value of the solution, only here.
    """
    domain, flux = problem.domain, Differentiated(problem._interior[0].function)
    if problem.regions is not None or not _is_searched(problem):
        return ""
    X = domain.sample(N_POINTS, np.random.RandomState(0))
    known, _ = _equation_at(problem, None, None, X)

    def values(X, k):
        found = values_at(X, flux).reshape(len(X), domain.dim, -1)[:, k]
        return np.where(domain.contains(X)[:, None], found, np.nan)

    for k in np.flatnonzero([found.size for found in known]):
        low, high = X.copy(), X.copy()
        low[:, k], high[:, k] = domain.bounds[k]
        places, *ends, _ = steepest_parts(partial(values, k=k), low, high)
        steps = np.nan_to_num(np.abs(np.subtract(*ends))).max(axis=1)
        if steps.max() > JUMP:
            return (
                f"The equation differentiates, along {domain.axes[k]!r}, a product "
                "with a coefficient that jumps in the solution, at "
                f"{_coordinates(domain, places[steps.argmax()])}, as in "
                "div(k(u) * grad(u)) with k from jnp.where. The derivative of the jump "
                "is left out, so that the solution is another one. Make the step "
                f"smooth, {_SMOOTH.format('u')}."
            )
    return ""


def planes(problem, regions):
    """The half domains above planes across axes at which the equation jumps."""
    halves, bounds = [], problem.domain.bounds
    searched = _is_searched(problem) and problem.transform is None
    for k in range(problem.domain.dim) if searched else ():
        places, cuts = [], [bounds[k]]
        while cuts and len(places) < PARTS:
            (low, high), *cuts = cuts
            width = ROUNDING * (high - low)
            edges = np.linspace(low + width, high - width, PARTS + 1)
            X = np.sort(_jumps_along(problem, regions, k, edges, True)[:, k])
            # Steps that are not across the axis are found at another place each.
            found = X[1:][np.diff(np.round(X / width)) == 0]
            found = found[np.diff(found, prepend=low) > width]
            places += found.tolist()
            cuts += pairwise([low, *found, high]) if len(found) else []
        for place in places:
            above = bounds.copy()
            above[k, 0] = place
            axes = zip(problem.domain.axes, above, strict=True)
            halves.append(Box(time=None, **dict(axes)))
    return halves


def _is_searched(problem):
    """Whether jumps of the equation are looked for, which no condition joins."""
    joined = problem._is_placed and len(problem.outputs) > 1  # maybe one for each side
    return not joined and problem.domain.dim <= MOST_AXES


def _jumps_along(problem, regions, k, edges, of_equation):
    """Places (n, d) where what is differentiated along axis k, or all of it, jumps."""
    domain = problem.domain
    X = domain.sample(N_POINTS, np.random.RandomState(0))
    step = PLACE * np.ptp(domain.bounds[k]) * np.eye(domain.dim)[k]
    low, high, part = X.copy(), X.copy(), np.arange(len(X)) % (len(edges) - 1)
    low[:, k], high[:, k] = edges[part], edges[part + 1]

    def values(X, number):
        differentiated, residuals = _equation_at(problem, regions, number, X)
        found = residuals if of_equation else differentiated[k]
        found = found.reshape(len(X), -1)
        inside = domain.contains(X) & np.isfinite(found).all(axis=1)
        if number is not None:  # and clear of the others
            for beside in (X - step, X + step):
                inside &= regions.numbers(beside) == number
        return np.where(inside[:, None], found, np.nan)

    found = []
    for number in [None] if regions is None else range(len(regions.parts)):
        places, *ends, _ = steepest_parts(partial(values, number=number), low, high)
        jumps = np.abs(np.subtract(*ends)) > JUMP
        jumps = jumps.reshape(len(low), 3 if of_equation else 2, -1)
        jumps = jumps[:, -2:].all(axis=1) | (jumps[:, 0] & of_equation)
        found.append(places[jumps.any(axis=1)])
    return np.concatenate(found)


def _equation_at(problem, regions, number, X):
    """Residuals (n, 3, k), and what the equation differentiates along each axis.

    The latter, (n, 2, m), is for two waves, about which the residuals are, too, and
    before that about no field.
    """
    q, waves = len(problem.outputs), np.array([0.0, 0.7, 0.4])
    vectors = np.pi * waves[:, None, None] / np.ptp(problem.domain.bounds, axis=1)
    one = np.tile(waves[:, None] > 0, q).astype(float)
    levels = np.tile([[0.0], [3.0], [4.0]], q)
    fields = reading.PlaneWaves(np.tile(vectors, (1, q, 1)), one, one, levels)
    rng, unknown = np.random.RandomState(0), {}
    for name in problem.unknown:  # of which several may begin with the same value
        start = np.asarray(problem.start[name])
        moved = start + (np.abs(start) + (start == 0)) * rng.rand(*start.shape)
        unknown[name] = np.stack([moved] * 3)
    points = Points(problem._all_points(X[:, None]), X[:, :0])
    mask = None if number is None else np.arange(len(regions.parts)) == number
    given = problem, problem._interior[0], points, fields, unknown
    residuals, fluxes = reading.fluxes_of_waves(*given, None, regions, mask)
    return [flux[:, 1:] for flux in fluxes], residuals


def _within(problem, name, condition, rng, default_network):
    """A message on the largest jump of a condition's values along its part, if any."""
    chords = _chords(problem.domain, condition, rng)
    if not len(chords[0]):
        return []

    def values(X):
        return values_of(problem, [condition], [X])[0]

    places, before, after, size = steepest_parts(values, *chords)
    steps = np.nan_to_num(np.abs(after - before))
    row, k = np.unravel_index(steps.argmax(), steps.shape)
    followed = default_network and isinstance(condition, Initial)
    if steps[row, k] <= JUMP or (followed and follows_jump(problem, places[[row]])[0]):
        return []
    unit = np.ptp(problem.domain.bounds, axis=1)
    place = np.round(places[row] / unit, DIGITS) * unit + 0.0
    return [
        f"The values of the condition {name!r} jump: the output "
        f"{problem.outputs[k]!r} is {size[k] * before[row, k]:.4g} and "
        f"{size[k] * after[row, k]:.4g} on the two sides of "
        f"{_coordinates(problem.domain, place)}. The solution cannot follow them "
        "there, which limits the accuracy: more points, neurons or time gain little. "
        f"Make the step smooth, {_SMOOTH.format('x[0]')}, with a width of a few "
        "thousandths of the axis."
    ]


def _chords(domain, condition, rng):
    """Ends (n, d) and (n, d) of short chords of the part of a condition."""
    X, normals = _drawn_part(domain, condition, rng)
    if len(X) <= _NEIGHBOURS:
        return X[:0], X[:0]
    order = np.lexsort(X.T[::-1])
    X, normals = X[order], normals[order]
    tree = KDTree(X / np.ptp(domain.bounds, axis=1))
    _, near = tree.query(tree.data, _NEIGHBOURS + 1)
    first = np.repeat(np.arange(len(X)), _NEIGHBOURS)
    pairs = np.sort(np.column_stack([first, near[:, 1:].ravel()]), axis=1)
    i, j = np.unique(pairs, axis=0).T
    middle, on = (X[i] + X[j]) / 2, condition.where(domain)
    kept = np.sum(normals[i] * normals[j], axis=1) > _SAME_SIDE
    kept &= np.abs(domain.depth(middle)) <= _OFF * np.linalg.norm(X[i] - X[j], axis=1)
    if callable(on):
        kept &= np.asarray(on(middle), dtype=bool)
    return X[i[kept]], X[j[kept]]


def _drawn_part(domain, condition, rng):
    """Points and normals of the part of a condition; none where it has points only."""
    on = condition.where(domain)
    if isinstance(on, Domain):
        return np.zeros((2, 0, domain.dim))
    X, normals = draw(domain.boundary(on), N_POINTS, rng)
    if not normals.any():  # an end of time
        normals = np.broadcast_to(np.equal(domain.axes, domain.time), X.shape)
    return X, np.asarray(normals, dtype=float)


def check_shared_places(problem):
    """Raise a ValueError if conditions give an output different values at one place."""
    domain = problem.domain
    for (first, a), (second, b) in combinations(_with_values(problem), 2):
        parts = [condition.where(domain) for condition in (a, b)]
        faces = [c.faces(domain) or domain._faces_of_space() for c in (a, b)]
        shared = tuple(name for name in faces[1] if name in faces[0])
        if not shared or any(isinstance(on, Domain) for on in parts):
            continue
        X, _ = draw(domain.boundary(shared), N_POINTS, np.random.RandomState(0))
        for on in filter(callable, parts):
            X = X[np.asarray(on(X), dtype=bool)]
        given = problem, (a, b), (X, X), _CONTRADICT
        found = _largest_difference(*given) if len(X) else None
        if found is not None:
            i, output, values = found
            raise ValueError(
                f"The conditions {first!r} and {second!r} hold at the same places and "
                f"contradict each other: the output {output!r} is {values[0]:.4g} and "
                f"{values[1]:.4g} at {_coordinates(domain, X[i])}. Give each a "
                "part of the boundary by `on`, or outputs of its own by `outputs`."
            )


def _where_parts_meet(problem, first, second, rng, default_network):
    """A message on the largest disagreement where a flat part meets another."""
    domain, at_start = problem.domain, isinstance(second[1], Initial)
    conditions = first[1], second[1]
    places, *sides = _common_points(domain, *conditions, rng)
    if not len(places):
        return []
    inside = second[1].sample(domain, N_POINTS, rng).x[:, 0]  # shows the size
    # Values of two conditions are compared there, those of one on its two sides.
    sides = sides if first is second else (places, places)
    at = [np.concatenate([inside, side]) for side in sides]
    kept = np.arange(len(inside), len(at[0]))
    found = _largest_difference(problem, conditions, at, JUMP, kept)
    if found is not None and at_start and default_network:
        kept = kept[~follows_jump(problem, places)]
        found = _largest_difference(problem, conditions, at, JUMP, kept)
    if found is None:
        return []
    i, output, values = found
    who = f"The conditions {first[0]!r} and {second[0]!r} contradict each other where"
    meet = "their parts of the boundary meet"
    if first is second:
        who, meet = f"The values of the condition {first[0]!r} jump where", "edges meet"
    elif at_start:
        meet = "the boundary meets the start of time"
    return [
        f"{who} {meet}: the output {output!r} is {values[0]:.4g} and {values[1]:.4g} "
        f"at {_coordinates(domain, places[i - len(inside)])}. The solution jumps "
        "there, which limits the accuracy. If that is not meant, let the values agree; "
        "if it is, let one pass into the other within a few thousandths of the axis."
    ]


def _common_points(domain, first, second, rng):
    """Points (n, d) at which, or all but at which, the parts of two conditions meet."""
    found = [np.zeros((3, 0, domain.dim))]
    X, normals = _drawn_part(domain, first, rng)
    there, their_normals = _drawn_part(domain, second, rng)
    size = np.abs(domain.bounds).max()
    level = np.sum(there * their_normals, axis=1) / size
    keys = np.round(np.column_stack([their_normals, level]), DIGITS)
    for key in np.unique(keys, axis=0) if len(X) else ():
        of_plane = (keys == key).all(axis=1)
        normal = their_normals[of_plane][0]
        levels = there[of_plane] @ normal
        if of_plane.sum() == 1 or np.ptp(levels) > ROUNDING * size:
            continue
        across = normal - (normals @ normal)[:, None] * normals
        slope = across @ normal
        moved = slope > ROUNDING  # the others are parallel to the plane
        way = (levels[0] - X[moved] @ normal) / slope[moved]
        place = X[moved] + way[:, None] * across[moved]
        middle = there[of_plane].mean(axis=0)
        kept = _is_end_of(domain, first, place, X[moved])
        kept &= _is_end_of(domain, second, place, middle)
        sides = [place + ROUNDING * (side - place) for side in (X[moved], middle)]
        found.append(np.stack([place, *sides])[:, kept])
    return np.concatenate(found, axis=1)


def _is_end_of(domain, condition, place, X):
    """Whether one goes from points X of a part of the boundary to places along it."""
    back, on = place + (X - place) / N_POINTS, condition.where(domain)
    depth = np.maximum(np.abs(domain.depth(place)), np.abs(domain.depth(back)))
    kept = depth <= ROUNDING * np.abs(domain.bounds).max()
    return kept & np.asarray(on(back), dtype=bool) if callable(on) else kept


def _largest_difference(problem, conditions, places, tolerance, kept=slice(None)):
    """Place, output and values of the largest difference; None within tolerance."""
    a, b = values_of(problem, conditions, places)
    size = np.fmax(np.abs(a), np.abs(b)).max(axis=0, initial=np.finfo(float).tiny)
    with np.errstate(invalid="ignore"):  # infinite values
        differ = np.nan_to_num(np.abs(a - b) / size)[kept]
    if differ.max(initial=0) <= tolerance:
        return None
    row, k = np.unravel_index(np.argmax(differ), differ.shape)
    i = np.arange(len(a))[kept][row]
    return i, problem.outputs[k], (a[i, k], b[i, k])
