"""Regions into which the pieces of coefficients cut a domain, and what joins them.

Where a coefficient jumps, the solution has a kink, or a jump in a higher derivative. So
a network has outputs of its own for each region in which all
:class:`~sklearn_gn.pde.Piecewise` coefficients of the equation are smooth, and the
interfaces get residuals of their own. These follow from the equation alone: what it
differentiates must not jump, since a jump would be a Dirac distribution that no other
term cancels. For ``div(k * grad(u))`` that is the flux along the normal, and u, which
is differentiated first. :func:`sklearn_gn.pde.operators.jump_of` finds the terms, at as
many levels of derivatives as the equation has.
"""

import inspect
import operator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import count
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from sklearn_gn.arrays.libraries import namespace
from sklearn_gn.pde import reading
from sklearn_gn.pde.coefficients import Piecewise, piece_numbers, present
from sklearn_gn.pde.conditions import BaseCondition, Points
from sklearn_gn.pde.domains import NUDGE, Domain, draw, join, measured, product, select
from sklearn_gn.pde.given_values import MANY_POINTS, N_POINTS, PLACE
from sklearn_gn.pde.local_functions import HIGHEST, UNROLLED
from sklearn_gn.pde.operators import holding, jump_of
from sklearn_gn.pde.residual_classes import ResidualClass, call, flat, named_parameters
from sklearn_gn.pde.shapes import Box

_side: ContextVar[int] = ContextVar("side", default=0)


class Part(NamedTuple):
    """A region: numbers of pieces, and half spaces that cut it off from others."""

    pieces: tuple  # one for each partition
    sides: tuple  # of (axis, place, whether above the place)


@dataclass(frozen=True)
class Regions:
    """Parts of a domain, by partitions, in which the coefficients are smooth."""

    partitions: tuple
    parts: tuple

    def masks(self, X: Any) -> Any:
        """Which of the m regions points (n, d) are in, of shape (n, m)."""
        xp = namespace(X)
        numbers = [piece_numbers(domains, X) for domains in self.partitions]
        columns = []
        for part in self.parts:
            pairs = zip(numbers, part.pieces, strict=True)
            inside = [own == number for own, number in pairs]
            inside += [(X[:, k] > place) == above for k, place, above in part.sides]
            columns.append(reduce(operator.and_, inside))
        found = xp.stack(columns, axis=1)
        unknown = ~found.any(axis=1)  # a part that is too small to be found
        first = xp.arange(len(self.parts)) == 0
        return found | (unknown[:, None] & first[None])

    def numbers(self, X: Any) -> Any:
        """Numbers of the regions of points (n, d), in NumPy."""
        return self.masks(X).argmax(axis=1)

    def is_closed(self, domain: Any, axis: str) -> bool:
        """Whether the regions at both ends of an axis are the same."""
        k = domain.axes.index(axis)
        low = domain.sample(MANY_POINTS, np.random.RandomState(0))
        high = low.copy()
        low[:, k], high[:, k] = domain.bounds[k]
        return bool((self.numbers(low) == self.numbers(high)).all())

    def within(self, mask: Any) -> AbstractContextManager:
        """Evaluate coefficients and fields as in one region, everywhere."""
        keys = np.array([part.pieces for part in self.parts])
        pieces = {
            domains: jnp.sum(jnp.where(mask, keys[:, j], 0))
            for j, domains in enumerate(self.partitions)
        }
        return holding(present, (pieces, mask))

    def interfaces(self, domain: Any) -> Any:
        """The patch of all places at which two regions meet."""
        step, faces = NUDGE * domain._size(), list(_faces(self.partitions, domain))

        def kept(number, points, normals):
            first, second = points - step * normals, points + step * normals
            found = (domain.depth(first) >= 0) & (domain.depth(second) >= 0)
            found &= self.numbers(first) != self.numbers(second)
            for other in {piece for piece, _ in faces[:number]} - {faces[number][0]}:
                found &= np.abs(other.depth(points[:, : other.dim])) > step  # has it
            return found

        rng, pairs = np.random.RandomState(0), enumerate(faces)
        found = [select(patch, partial(kept, number)) for number, (_, patch) in pairs]
        return join(p for p in found if len(measured(p, N_POINTS, rng)[0]))


def _faces(partitions, domain):
    """Yield the pieces, each with the patches of its faces, along all axes."""
    for piece in dict.fromkeys(piece for domains in partitions for piece in domains):
        left, patches = domain.axes[piece.dim :], piece.patches().values()
        if left:
            named = dict(zip(left, domain.bounds[piece.dim :], strict=True))
            rest = Box(time=None, **named).interior()
            patches = [product(patch, rest) for patch in patches]
        for patch in patches:
            yield piece, patch


def regions_of(domain: Any, partitions: Any) -> Regions | None:
    """The regions of a domain, by tuples of pieces; None where there is but one."""
    partitions = tuple(dict.fromkeys(partitions))
    if not partitions:
        return None
    rng, step = np.random.RandomState(0), NUDGE * domain._size()
    X = [domain.sample(MANY_POINTS, rng)]
    for _, patch in _faces(partitions, domain):
        points, normals, _ = measured(patch, N_POINTS, rng)
        X += [points - step * normals, points + step * normals]
    X = np.concatenate(X)
    X = X[domain.depth(X) >= 0]
    keys = np.stack([piece_numbers(domains, X) for domains in partitions], axis=1)
    parts = []
    for key in np.unique(keys, axis=0):
        own = (keys == key).all(axis=1)
        for sides in _sides(domain, X, own, partitions, key):
            parts.append(Part(tuple(key.tolist()), sides))
    return Regions(partitions, tuple(parts)) if len(parts) > 1 else None


def _sides(domain, X, own, partitions, key, sides=()):
    """Yield half spaces of the parts of a region that planes across axes separate."""
    faces = {
        (axis, float(place))
        for domains in partitions
        for piece in domains
        for axis in range(piece.dim)
        for place in piece.bounds[axis]
    }
    for axis, place in sorted(faces):
        above = X[:, axis] > place
        plane = X.copy()
        plane[:, axis] = place
        plane = plane[domain.depth(plane) >= 0]
        numbers = np.stack([piece_numbers(d, plane) for d in partitions], axis=1)
        crossed = not len(plane) or (numbers == key).all(axis=1).any()
        if (own & above).any() and (own & ~above).any() and not crossed:
            for is_above in (False, True):
                half, more = own & (above == is_above), (axis, place, is_above)
                yield from _sides(domain, X, half, partitions, key, (*sides, more))
            return
    yield sides


@dataclass(frozen=True)
class RegionalResidual:
    """Residual of the first of several domains that contains the point."""

    pieces: tuple  # of (Domain, residual)

    def __post_init__(self):
        for domain, residual in self.pieces:
            if not isinstance(domain, Domain) or not callable(residual):
                raise ValueError(
                    "residual must be a function, or map domains to functions, got "
                    f"{domain!r}: {residual!r}."
                )

    @property
    def __signature__(self) -> inspect.Signature:
        """The field, the point, and the coefficients of all residuals."""
        kinds = inspect.Parameter
        given = [kinds(name, kinds.POSITIONAL_ONLY) for name in ("u", "x")]
        names = [named_parameters(residual, 2)[0] for _, residual in self.pieces]
        named = dict.fromkeys(name for found in names for name in found)
        more = [kinds(name, kinds.KEYWORD_ONLY) for name in named]
        return inspect.Signature([*given, *more])

    def __call__(self, u: Any, x: Any, /, **coefficients: Any) -> Any:
        """Residuals at a point, of shape (k,)."""
        numbered = ((domain, k) for k, (domain, _) in enumerate(self.pieces))
        number = Piecewise(len(self.pieces), *numbered)(x)
        found = [flat(call(r, (u, x), coefficients), x) for _, r in self.pieces]
        if len(sizes := {len(values) for values in found}) > 1:
            raise ValueError(f"regions must have as many equations, got {sizes}.")
        return jnp.select([number == k for k in range(len(found))], found, found[-1])

    def check(self, domain: Any) -> None:
        """Raise a ValueError if a part of the domain has no equation."""
        X = domain.sample(MANY_POINTS, np.random.RandomState(0))
        domains = tuple(piece for piece, _ in self.pieces)
        left_out = piece_numbers(domains, X) == len(domains)
        if left_out.any():
            raise ValueError(
                f"residual: none of its domains contains {X[left_out][0].tolist()}. "
                "The first one that contains a point has its equation: let the last "
                "one be the whole domain, or cover it."
            )


class Row(NamedTuple):
    """A residual of an interface: the difference of two terms, or their sum."""

    level: int  # of derivatives, from the outermost one
    number: int  # of the equation
    sign: float  # that of the second term, -1 where its equation has the other sign
    # Terms of the field on either side; or else jumps with the coefficients of either.
    natural: bool = False


@dataclass(frozen=True)
class Interface(BaseCondition):
    """What the equation differentiates does not jump between two regions."""

    equation: Any = None  # the function of a field and a point
    regions: Any = None
    rows: tuple = ()
    linear: bool = False  # in all derivatives

    needs_normals = True
    n_fields = 2  # next to the interface, where known functions may have a cut
    n_more_data = 3

    def sample(self, domain: Any, n: int, rng: Any, method: Any = "sobol") -> Points:
        """Draw n points of all interfaces, of the same density."""
        points, normals = draw(self.regions.interfaces(domain), n, rng, method)
        step = NUDGE * domain._size() * normals
        numbers = [self.regions.numbers(x) for x in (points - step, points + step)]
        sides = [points - NUDGE * step, points + NUDGE * step]
        width = np.full(len(points), PLACE * domain._size())
        data = np.column_stack([normals, width, *numbers])
        return Points(np.stack(sides, axis=1), data)

    def __call__(self, fields: Any, points: Any, data: Any, coefficients: Any) -> Any:
        """Jumps at a point, of shape (k,)."""
        x, numbers = points[0], np.arange(len(self.regions.parts), dtype=data.dtype)
        normal, (width, *sides) = data[: x.size], data[x.size :]

        @contextmanager
        def on_side(k):
            with holding(_side, k), self.regions.within(numbers == sides[k]):
                yield

        first, second = partial(on_side, 0), partial(on_side, 1)

        # Coefficients are taken clear of the interface, fields next to it.
        clear = x - width * normal, x + width * normal

        def value(y):  # of the side on which functions are evaluated
            k = _side.get()
            return fields[k](points[k] + (y - clear[k]))

        field = fields[0].derived(value, fields[0].outputs)

        def residual(y):
            at = clear[_side.get()] + (y - x)
            return flat(call(self.equation, (field, at), coefficients), y)

        def terms(level, side, other=None):
            with side():
                return jump_of(residual, x, normal, level, other, self.linear)

        found, known = [], {}
        for level, number, sign, natural in self.rows:
            key = level, natural
            if key not in known and natural:
                known[key] = terms(level, first), terms(level, second)
            elif key not in known:  # by the coefficients of both: one may vanish
                own, others = terms(level, first, second), terms(level, second, first)
                known[key] = own / 2, others / 2
            own, others = known[key]
            found.append(own[number] - sign * others[number])
        return jnp.stack(found)


def interface_of(problem, regions):
    """The interface of a problem, with all levels at which something may jump."""
    interface = Interface(equation=problem.residual, regions=regions)
    rng, low_high = np.random.RandomState(0), problem.domain.bounds
    points = interface.sample(problem.domain, N_POINTS, rng, "uniform")
    shape = problem.n_network_outputs, len(low_high)
    waves = np.pi * rng.standard_normal(shape) / np.ptp(low_high, axis=1)
    numbers = range(problem._interior[0].n_outputs)

    def sizes(level, waves, natural=False, linear=False):  # (2, k), of both signs
        rows = [Row(level, i, sign, natural) for sign in (1.0, -1.0) for i in numbers]
        known = replace(interface, rows=tuple(rows), linear=linear)
        kind = ResidualClass("interface", known, known.n_fields, 1.0, len(rows))
        # A wave for each output of each region.
        one = np.ones((1, len(waves)))
        waves = reading.PlaneWaves(waves[None], 0 * one, one, 2 * one)
        found = reading.residuals_of_waves(problem, kind, points, waves)[:, 0]
        return np.sum(found**2, axis=0).reshape(2, -1)

    counts, linear = np.zeros(len(numbers), int), True  # of levels of each equation
    signs = []  # with which terms do not cancel
    for level in count(1):
        found = sizes(level, waves)
        if not found.any():
            break
        counts[found.any(axis=0)] = level
        signs.append(1.0 - 2 * found.argmax(axis=0))
        linear &= np.allclose(found, sizes(level, waves, linear=True), rtol=NUDGE)
    if problem.domain.dim <= UNROLLED:
        _check_derivatives(problem, points, counts)
    rows = [
        Row(k, i, signs[k - 1][i])
        for i, n in enumerate(counts)
        for k in range(1, n + 1)
    ]
    if isinstance(problem.residual, RegionalResidual):
        # Natural conditions have the coefficients of either side; the others, half of
        # them, are those of the solution. Equations may differ in their signs.
        same = np.resize(waves[: len(problem.outputs)], shape)
        for j, (level, i, *_) in enumerate(rows):
            if 2 * level <= counts[i]:
                sign = 1.0 - 2 * sizes(level, same, natural=True)[:, i].argmin()
                rows[j] = Row(level, i, sign, natural=True)
    return replace(interface, rows=tuple(sorted(rows)), linear=linear)


def _check_derivatives(problem, points, counts):
    """Raise a ValueError where derivatives across interfaces are not by operators."""
    x, dim = points.x[:, 0], problem.domain.dim
    slopes = reading.slopes_of_equation(problem, x, np.ones(len(problem.outputs)))
    seen = (np.nan_to_num(slopes) != 0).any(axis=(0, 3))
    known = reading.derivatives(dim)
    along = np.array([[axes.count(k) for k in range(dim)] for axes in known])
    across = ((points.data[:, :dim] != 0) @ along.T).max(axis=0)
    is_local = ~seen[:, along.sum(axis=1) == HIGHEST].any(axis=1)
    if (is_local & (np.max(seen * across, axis=1) > counts)).any():
        raise ValueError(
            f"interior: the equation jumps at {x[0].round(4).tolist()}, and has "
            "derivatives that are not taken by d, grad, div, laplacian or hessian, but "
            "by such as jax.grad: what is continuous there is not known. Write all "
            "derivatives of the field by these operators, as in div(k * grad(u))(x)."
        )
