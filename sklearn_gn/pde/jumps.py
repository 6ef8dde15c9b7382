"""Given values that jump: within one condition, or where two of them meet.

Near a jump no smooth function fulfils equation and conditions: it may be meant, as for
a lid that moves in a cavity, and limits the accuracy that can be reached. The default
network follows jumps of initial values that diffusion smooths
(:mod:`sklearn_gn.pde.initial_breaks`): for it they are left out. Two conditions that
give different values at the same places are an error.
"""

from contextlib import nullcontext
from functools import partial
from itertools import combinations, combinations_with_replacement, product

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import KDTree

from sklearn_gn.arrays.backend import scope, to_numpy
from sklearn_gn.arrays.compilation import jit_by_size
from sklearn_gn.pde.calls import named_parameters
from sklearn_gn.pde.conditions import Dirichlet, Initial
from sklearn_gn.pde.domains import Domain
from sklearn_gn.pde.given_values import outputs_of, steepest_parts, values_of
from sklearn_gn.pde.initial_breaks import follows_jump
from sklearn_gn.pde.local_functions import fields_and_points, wave_at
from sklearn_gn.pde.operators import differentiated_values
from sklearn_gn.pde.patches import draw

_NEIGHBOURS = 4  # of each point, to which chords lead
_SAME_SIDE = 0.9  # scalar product of the normals at the ends of a chord
_OFF = 0.05  # distance to a curved boundary, relative to a chord
_LINES = 32  # along each axis
MOST_AXES = 6  # of conditions that are searched by themselves
_POINTS = 128  # of each of two conditions
_DISAGREE = 1e-3  # difference of two values, relative to the largest ones
_CONTRADICT = 1e-2  # the same where no solution exists
_FLAT, _PARALLEL = 1e-9, 1e-6  # distance to a plane; sine of the angle between two
_BACK = 0.01  # share of the way back from a common point, to tell which part it ends
_NEAR = 1e-7  # share of that way, to tell the sides of one condition apart
_DIGITS = 6  # of the normals of a plane, and of a place in units of the domain


def jumps(problem, default_network=True):
    """Return a list of messages, with what to do, on jumps of the given values.

    ``default_network``: without those that the default network follows.
    """
    if problem.domain.dim == 1:  # whose boundary is made of single points
        return []
    found = list(contradictions(problem, default_network))
    if problem.domain.dim <= MOST_AXES:
        found += _jumps_within(problem, default_network)
    return found


def check_fluxes(problem):
    """Raise a ValueError where the equation differentiates what jumps at a place.

    Such is ``div(k * grad(u))`` with a conductivity k that jumps: its derivative is
    taken on each side, without the jump, and no residual says that the flux is
    continuous. A Condition on an interface may do so. What is differentiated along an
    axis is evaluated along lines of this axis, for two smooth fields: where it jumps
    for both, the jump is one of a coefficient.
    """
    domain, faces = problem.domain, [getattr(c, "on", None) for c in problem.conditions]
    joined = any(isinstance(on, Domain) for on in faces)
    if joined or problem.transform is not None or domain.dim > MOST_AXES:
        return
    n_regions = 1 if problem.regions is None else len(problem.regions.parts)
    with jax.enable_x64(True):
        X = jax.ShapeDtypeStruct((1, domain.dim), np.float64)
        shapes = jax.eval_shape(partial(_differentiated_at, problem, None), X)
    X = domain.sample(_LINES, np.random.RandomState(0))
    for k, region in product(range(domain.dim), range(n_regions)):
        place = None
        if shapes[k].size:
            place = _jump_along(problem, region if n_regions > 1 else None, k, X)
        if place is not None:
            raise ValueError(
                "interior: the equation differentiates, along "
                f"{domain.axes[k]!r}, a product with a coefficient that jumps at "
                f"{coordinates(domain, place)}, as in div(k * grad(u)) with k from "
                "jnp.where, jnp.floor or a table. The derivative of the jump would be "
                "left out, and nothing would keep the flux continuous there, so that "
                "the solution would be another one. Write the coefficient as a "
                "Piecewise, whose interfaces are known: see 'Two materials' in the "
                "user guide. Or make the step smooth, such as "
                "a + (b - a) * jax.nn.sigmoid((x[0] - c) / width)."
            )


def _jump_along(problem, region, k, X):
    """A place (d,) at which what is differentiated along axis k jumps; or None.

    Of places within a region, by its number, or of all, on lines through points.
    """
    domain = problem.domain

    def values(X):
        with scope("float64"):
            found = to_numpy(_differentiated_at(problem, region, X)[k])
        found = found.reshape(len(X), -1)
        inside = domain.contains(X) & np.isfinite(found).all(axis=1)
        if region is not None:
            inside &= problem.regions.numbers(X) == region
        return np.where(inside[:, None], found, np.nan)

    size = np.nanmax(np.abs(values(X)), axis=0, initial=np.finfo(float).tiny)
    low, high = X.copy(), X.copy()
    low[:, k], high[:, k] = domain.bounds[k]
    places, before, after = steepest_parts(lambda X: values(X) / size, low, high)
    jumps = np.abs(after - before).reshape(len(X), 2, -1) > _DISAGREE
    jumps = jumps.all(axis=1).any(axis=1)  # for both fields
    return places[jumps.argmax()] if jumps.any() else None


@partial(jit_by_size, static_argnames=("problem", "region"))
def _differentiated_at(problem, region, X):
    """What the equation differentiates at points, of shape (n, 2, m) for each axis.

    With the coefficients of a region, by its number, or those of each point.
    """
    interior, _ = problem._interior
    low, high = problem.domain.bounds.T
    q = len(problem.outputs)

    def one(x, level, waves):
        known_at = partial(
            wave_at,
            vectors=np.full((q, 1), waves) * np.pi / (high - low),
            cosines=np.ones(q),
            sines=np.ones(q),
            level=level,
        )
        x = jnp.broadcast_to(x, (interior.n_points, x.size))
        fields, x = fields_and_points(problem, known_at, x)

        def residual():
            interior.function(fields, x, x[0][:0], problem.start)

        context = nullcontext()
        if region is not None:
            mask = np.arange(len(problem.regions.parts)) == region
            context = problem.regions.within(mask)
        with context:
            found = differentiated_values(residual, x[0])
        return [jnp.concatenate([*values, jnp.zeros(0)]) for values in found]

    def both(x):
        pairs = zip(one(x, 3.0, 0.7), one(x, 4.0, 0.4), strict=True)
        return [jnp.stack(pair) for pair in pairs]

    return jax.vmap(both)(X)


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
    kept = np.sum(normals[i] * normals[j], axis=1) > _SAME_SIDE
    kept &= np.abs(domain.depth(middle)) <= _OFF * length
    if callable(on):
        kept &= np.asarray(on(middle), dtype=bool)
    return X[i[kept]], X[j[kept]]


def _jump(problem, condition, chords):
    """Output, place and both values of the largest jump along chords, or None."""
    if chords is None or not len(chords[0]):
        return None

    def values(X):
        return values_of(problem, [condition], [X])[0][1]

    known = values(np.concatenate(chords))
    if not np.isfinite(known).all():
        return None
    size = np.maximum(np.abs(known).max(axis=0), np.finfo(float).tiny)
    places, before, after = steepest_parts(lambda X: values(X) / size, *chords)
    steps = np.nan_to_num(np.abs(after - before))
    row, k = np.unravel_index(steps.argmax(), steps.shape)
    if steps[row, k] <= _DISAGREE:
        return None
    sides = size[k] * before[row, k], size[k] * after[row, k]
    return outputs_of(problem, condition)[k], places[row], sides


# --- values that disagree where two conditions hold, or meet --------------------------


def check_shared_places(problem):
    """Raise a ValueError if conditions give an output different values at one place."""
    for (first, a), (second, b) in combinations(_with_values(problem), 2):
        X = _shared_places(problem.domain, a, b)
        if not len(X):
            continue
        found = _largest_difference(problem, (a, b), (X, X), _CONTRADICT)
        if found is not None:
            i, output, values = found
            raise ValueError(
                f"The conditions {first!r} and {second!r} hold at the same places and "
                f"contradict each other: the output {output!r} is {values[0]:.4g} and "
                f"{values[1]:.4g} at {coordinates(problem.domain, X[i])}. Give each a "
                "part of the boundary by `on`, or outputs of its own by `outputs`."
            )


def contradictions(problem, default_network):
    """Yield a message on each two conditions that disagree where their parts meet.

    These are values on the boundary and at the start of time, and values on two parts
    of the boundary, of which one is flat, and which may be those of one condition.
    Initial values may disagree with each other, where there are outputs of which each
    has its own. ``default_network``: without what the default network follows.
    """
    rng, few = np.random.RandomState(0), problem.domain.dim <= MOST_AXES
    for pair in combinations_with_replacement(_with_values(problem), 2):
        if pair[0] is pair[1] and not (few and callable(pair[0][1].value)):
            continue
        sides = [entry for entry in pair if isinstance(entry[1], Dirichlet)]
        starts = [entry for entry in pair if isinstance(entry[1], Initial)]
        if len(sides) == 2 or (sides and starts):
            yield from _of_a_pair(problem, *sides, *starts, rng, default_network)


def _of_a_pair(problem, first, second, rng, default_network):
    conditions, at_start = (first[1], second[1]), isinstance(second[1], Initial)
    places = _common_points(problem.domain, *conditions, rng)
    found = _disagreement(problem, *conditions, places, rng)
    if found and at_start and default_network:
        places = places[:, ~follows_jump(problem, places[0])]
        found = _disagreement(problem, *conditions, places, rng)
    if found is None:
        return
    output, place, values = found
    who = f"The conditions {first[0]!r} and {second[0]!r} contradict each other where"
    meet = "their parts of the boundary meet"
    meant = (
        "The solution jumps there, which limits the accuracy. If that is not meant, "
        "let the values agree; if it is, let one pass into the other smoothly, within "
        "a few thousandths of the axis."
    )
    if first is second:
        who, meet = f"The values of the condition {first[0]!r} jump where", "edges meet"
    elif at_start:
        meet = "the boundary meets the start of time"
    yield (
        f"{who} {meet}: the output {output!r} is {values[0]:.4g} and {values[1]:.4g} "
        f"at {coordinates(problem.domain, place)}. {meant}"
    )


def coordinates(domain, place):
    """A place in words."""
    pairs = zip(domain.axes, place, strict=True)
    return ", ".join(f"{axis} = {c:.4g}" for axis, c in pairs)


def _with_values(problem):
    named = problem._named_conditions()
    return [entry for entry in named if gives_values(problem, entry[1])]


def gives_values(problem, condition):
    """Whether a condition gives values of the outputs that are known."""
    if not isinstance(condition, (Dirichlet, Initial)):
        return False
    if getattr(condition, "order", 0):
        return False
    named, takes_all = (
        named_parameters(condition.value, 1)
        if callable(condition.value)
        else ((), False)
    )
    return not (problem.unknown and (takes_all or set(named) & set(problem.unknown)))


# --- where two conditions hold, and where their parts of the boundary meet -----------


def _shared_places(domain, *conditions):
    """Points of the faces on which all of the conditions hold."""
    faces, chosen = None, []
    for condition in conditions:
        on = condition.where(domain)
        if isinstance(on, Domain):
            return np.zeros((0, domain.dim))
        if callable(on):
            chosen.append(on)
        whole = callable(on) or on == "boundary"
        names = domain.patches() if whole else (on,) if isinstance(on, str) else on
        faces = [name for name in names if faces is None or name in faces]
    if not faces:
        return np.zeros((0, domain.dim))
    X, _ = draw(domain.boundary(tuple(faces)), _POINTS, np.random.RandomState(0))
    for on in chosen:
        X = X[np.asarray(on(X), dtype=bool)]
    return X


def _common_points(domain, first, second, rng):
    """Points (n, d) at which the parts of two conditions end in each other.

    Points of the first one are moved along it to each plane of the second one. Beside
    them, points on the first and on the second part that are all but there.
    """
    drawn = [drawn_part(domain, condition, rng) for condition in (first, second)]
    found = [np.zeros((3, 0, domain.dim))]
    if any(part is None for part in drawn):
        return found[0]
    (X, normals), (there, their_normals) = drawn
    for normal, of_plane in _planes(domain, there, their_normals):
        across = normal - (normals @ normal)[:, None] * normals
        slope = across @ normal
        moved = slope > _PARALLEL
        level = there[of_plane][0] @ normal
        way = (level - X[moved] @ normal) / slope[moved]
        place = X[moved] + way[:, None] * across[moved]
        middle = there[of_plane].mean(axis=0)
        kept = _is_end_of(domain, first, place, X[moved])
        kept &= _is_end_of(domain, second, place, middle)
        sides = [place + _NEAR * (side - place) for side in (X[moved], middle)]
        found.append(np.stack([place, *sides])[:, kept])
    return np.concatenate(found, axis=1)


def drawn_part(domain, condition, rng):
    """Points and normals of the part of a condition; None where it has points only."""
    on = condition.where(domain)
    if isinstance(on, Domain):
        return None
    X, normals = draw(domain.boundary(on), _POINTS, rng)
    if not normals.any():  # an end of time
        normals = np.broadcast_to(np.equal(domain.axes, domain.time), X.shape)
    return X, np.asarray(normals, dtype=float)


def _planes(domain, X, normals):
    """Yield the normal of each plane that points lie in, and which ones do."""
    size = np.abs(domain.bounds).max()
    level = np.sum(X * normals, axis=1) / size
    keys = np.round(np.column_stack([normals, level]), _DIGITS)
    for key in np.unique(keys, axis=0):
        chosen = (keys == key).all(axis=1)
        normal = normals[chosen][0]
        if chosen.sum() > 1 and np.ptp(X[chosen] @ normal) <= _FLAT * size:
            yield normal, chosen


def _is_end_of(domain, condition, place, X):
    """Whether one goes from points X of a part of the boundary to places along it."""
    back, on = place + _BACK * (X - place), condition.where(domain)
    depth = np.maximum(np.abs(domain.depth(place)), np.abs(domain.depth(back)))
    kept = depth <= _FLAT * np.abs(domain.bounds).max()
    return kept & np.asarray(on(back), dtype=bool) if callable(on) else kept


# --- values there --------------------------------------------------------------------


def _disagreement(problem, first, second, places, rng):
    """Output, place and both values where two conditions differ most, or None.

    Of the places that :func:`_common_points` returns.

    Two sides of one condition differ close to the place, where it has but one value.
    """
    X, *sides = places
    if not len(X):
        return None
    inside = second.sample(problem.domain, _POINTS, rng).x[:, 0]  # shows the size
    sides = sides if first is second else (X, X)
    at = [np.concatenate([side, inside]) for side in sides]
    found = _largest_difference(problem, (first, second), at, _DISAGREE, len(X))
    return found and (found[1], X[found[0]], found[2])


def _largest_difference(problem, conditions, places, tolerance, n=None):
    """Number of the place, output and both values where two conditions differ most.

    Of the first n places, the others show the size; None if they differ by less than
    the tolerance, relative to the largest values.
    """
    (a_names, a), (b_names, b) = values_of(problem, conditions, places)
    common = [name for name in a_names if name in b_names]
    a = a[:, [a_names.index(name) for name in common]]
    b = b[:, [b_names.index(name) for name in common]]
    if not (a.size and np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    size = np.maximum(np.abs(a), np.abs(b)).max(axis=0)
    differ = np.abs(a - b)[:n]
    if (differ <= tolerance * size).all():
        return None
    i, k = np.unravel_index(np.argmax(differ), differ.shape)
    return i, common[k], (a[i, k], b[i, k])
