r"""The problem that the default network is given: units, and known functions as inputs.

The residuals see physical units. In between, the network computes the solution in units
of its own, ``u = center + scale * network(x)``. Beside the axes, mapped to [-1, 1], the
network has the known functions that the statement of the problem shows. Each family of
``FAMILIES`` says which ones it can add:

- "waves": ``cos(k (x - m))`` and ``sin(k (x - m))``, with m the middle of the domain,
  for wave vectors k of source and given values (:mod:`.waves`);
- "dispersion": the same for waves that the equation lets pass (:mod:`.waves`);
- "corners": singular functions of corners of the domain, and of right angles that need
  them, and of crossing interfaces (:mod:`.singular`);
- "logarithms": ``log r`` for axes of symmetry outside of the domain (:mod:`.singular`);
- "similarity": solutions of the heat equation from jumps and kinks of the initial
  values (:mod:`.singular`, :mod:`sklearn_gn.pde.given_values`).

These are inputs of the first layer and of the output layer: a solution that is made of
them is linear in the weights, and one that is modulated by a smooth function can be
learnt.

"circles" adds no functions of its own, but closes axes with a Periodic condition to
circles: the sine and cosine of an axis as inputs make all derivatives of a network
periodic, and leave one condition less to meet. An equation with more than second
derivatives needs that, since the condition equates values and first derivatives only.
The solution has to be smooth where the ends of the axis meet. It is not where the
equation differs there, such as by a source, or where the initial values break.
"""

from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.pde import Problem
from sklearn_gn.pde.conditions import Periodic, Points
from sklearn_gn.pde.given_values import JUMP, ROUNDING, initial_breaks
from sklearn_gn.pde.reading import PlaneWaves, residuals_of_waves
from sklearn_gn.pinn.enrichment import waves
from sklearn_gn.pinn.enrichment.singular import (
    broken_functions,
    corner_functions,
    logarithmic_axes,
    logarithms,
    rough_corners,
)
from sklearn_gn.pinn.statement import read
from sklearn_gn.pinn.units import coefficient_starts, units

# By the name of each family: what of it a problem shows, (problem, scale, shown waves)
# -> tuple; and values of its functions at a point, (what is shown, domain, x) -> array.
FAMILIES = {
    "waves": (lambda problem, scale, shown: shown, waves.plane_waves),
    "dispersion": (waves.further_waves, waves.plane_waves),
    "corners": (lambda problem, *_: rough_corners(problem), corner_functions),
    "logarithms": (lambda problem, *_: logarithmic_axes(problem), logarithms),
    "similarity": (lambda problem, *_: initial_breaks(problem), broken_functions),
}
NAMES = ("circles", *FAMILIES)


@dataclass(frozen=True, eq=False, repr=False)
class PosedProblem(Problem):
    """A problem with units of its outputs and known functions."""

    stated: Problem | None = None  # without them
    center: tuple = ()
    scale: tuple = ()
    added: dict = field(default_factory=dict)  # what was found, by family

    @property
    def n_inputs(self):
        """Number of inputs of the network."""
        return super().n_inputs + self.n_functions

    @property
    def n_functions(self):
        """Number of the last inputs of the network, which are no axes."""
        return sum(self.function_counts.values())

    @cached_property
    def function_counts(self):
        """Number of known functions by the name of their family."""
        x, domain = np.zeros(self.domain.dim), self.domain
        with jax.enable_x64(True):
            return {
                name: jax.eval_shape(partial(FAMILIES[name][1], own, domain), x).size
                for name, own in self.added.items()
            }

    def embedding(self, x):
        """Inputs of the network: the axes, then the known functions."""
        functions = [
            FAMILIES[name][1](own, self.domain, x) for name, own in self.added.items()
        ]
        return jnp.concatenate([super().embedding(x), *functions])


def enriched(problem, stages, y=None, observed=(), names=NAMES):
    """Return problems with the units and the known functions of the last one."""
    is_periodic = any(isinstance(c, Periodic) for c in problem.conditions)
    if "circles" in names and is_periodic:
        problem, stages = on_circles(problem, stages)
    shown = ()
    if "waves" in names:
        shown = switches.kept("pinn.waves", waves.wave_vectors(problem))
    center, scale = units(problem, y, observed, shown)
    starts = coefficient_starts(problem, center, scale) if y is not None else {}
    found = {
        name: switches.kept(f"pinn.{name}", find(problem, scale, shown))
        for name, (find, _) in FAMILIES.items()
        if name in names
    }
    added = {name: own for name, own in found.items() if own}

    def pose(entry):
        arguments = {f.name: getattr(entry, f.name) for f in fields(Problem)}
        if starts:
            arguments["coefficients"] = {**entry.coefficients, **starts}
        return PosedProblem(
            **arguments, stated=entry, center=center, scale=scale, added=added
        )

    return pose(problem), [pose(stage) for stage in stages]


# --- axes that are closed to circles -------------------------------------------------


def on_circles(problem, stages):
    """Return problems whose periodic axes are circles, without their conditions."""

    def is_whole(condition):
        periodic = isinstance(condition, Periodic) and condition.derivatives
        return periodic and condition.outputs is None

    every, plain = (problem, *stages), not (problem.transform or problem.depends_on)
    whole = [{c.axis for c in one.conditions if is_whole(c)} for one in every]
    shared = set.intersection(*whole) if plain else set()
    if not shared or initial_breaks(problem):
        return problem, list(stages)
    smooth = tuple(a for a in problem.domain.axes if a in shared and _joins(problem, a))
    circles = switches.kept("pinn.circles", smooth)
    if not circles:
        return problem, list(stages)

    def closed(problem):
        periodic, kept = {*problem.periodic, *circles}, problem.conditions
        kept = [c for c in kept if not (isinstance(c, Periodic) and c.axis in circles)]
        periodic = [axis for axis in problem.domain.axes if axis in periodic]
        return replace(problem, periodic=periodic, conditions=kept)

    return closed(problem), [closed(stage) for stage in stages]


def _joins(problem, axis):
    """Whether the equation is the same at both ends of an axis, as is its slope."""
    domain, regions, reading = problem.domain, problem.regions, read(problem)
    if regions is not None and not regions.is_closed(domain, axis):
        return False
    k, q, n = domain.axes.index(axis), len(problem.outputs), len(reading.x)
    # At the ends, and a little inside of them, for nothing and a smooth periodic field.
    x, share = np.repeat(reading.x, 4, axis=0), np.array([0, JUMP**2, 1 - JUMP**2, 1])
    x[:, k] = np.tile(domain.bounds[k, 0] + share * np.ptp(domain.bounds[k]), n)
    vectors = np.outer(np.arange(1, 1 + q), reading.slow[0])
    vectors[:, k] *= 2
    sizes = np.tile([[0.0], [1.0]], q)
    waves = PlaneWaves(np.stack([vectors] * 2), sizes, sizes, 2 * sizes)
    points = Points(x[:, None], x[:, :0])
    found = residuals_of_waves(problem, reading.interior, points, waves)
    low, after, before, high = np.moveaxis(found.reshape(n, 4, 2, -1), 1, 0)
    slope, other, size = after - low, high - before, np.abs(found).max(axis=0)
    steepest = np.abs(slope).max(axis=0) + JUMP**3 * size
    joins = np.abs(high - low) <= ROUNDING * size
    return bool((joins & (np.abs(slope - other) <= JUMP * steepest)).all())
