r"""The problem that the default network is given: units, and known functions as inputs.

The residuals see physical units. In between, the outputs of the network are those of
the solution in units of their own, ``u = center + scale * network(x)``. Beside the
axes, mapped to [-1, 1], the network has the known functions that the statement of the
problem shows. Each family of ``FAMILIES`` says which ones it can add:

- "waves": ``cos(k (x - m))`` and ``sin(k (x - m))``, with m the middle of the domain,
  for wave vectors k of source and given values (:mod:`.waves`);
- "dispersion": the same for waves that the equation lets pass (:mod:`.dispersion`);
- "corners": singular functions of corners of the domain, and of right angles that need
  them, and of crossing interfaces (:mod:`.corners`);
- "similarity": solutions of the heat equation from jumps and kinks of the initial
  values (:mod:`.similarity`, :mod:`sklearn_gn.pde.initial_breaks`).

These are inputs of the first layer and of the output layer: a solution that is made of
them is linear in the weights, and one that is modulated by a smooth function can be
learnt. "circles" adds no functions of its own, but turns periodic axes to their sines
and cosines (:mod:`.circles`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.pde import Problem
from sklearn_gn.pde.initial_breaks import initial_breaks
from sklearn_gn.pde.local_functions import followed_by
from sklearn_gn.pinn.enrichment import dispersion, waves
from sklearn_gn.pinn.enrichment.circles import on_circles
from sklearn_gn.pinn.enrichment.corners import corner_functions, rough_corners
from sklearn_gn.pinn.enrichment.similarity import similarity_functions
from sklearn_gn.pinn.units import coefficient_starts, units


class Family(NamedTuple):
    """Known functions of a kind."""

    find: Callable  # (problem, scale, shown waves) -> tuple of what the problem shows
    at: Callable  # (found, domain, x) -> values of the functions at a point


FAMILIES = {
    "waves": Family(lambda problem, scale, shown: shown, waves.plane_waves),
    "dispersion": Family(dispersion.further_waves, waves.plane_waves),
    "corners": Family(lambda problem, *_: rough_corners(problem), corner_functions),
    "similarity": Family(
        lambda problem, *_: initial_breaks(problem), similarity_functions
    ),
}
NAMES = ("circles", *FAMILIES)


@dataclass(frozen=True, eq=False, repr=False)
class PosedProblem(Problem):
    """A problem with units of its outputs and known functions."""

    center: tuple = ()
    scale: tuple = ()
    added: dict = field(default_factory=dict)  # what was found, by family

    def __reduce__(self):
        return PosedProblem, self._arguments()

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
                name: jax.eval_shape(partial(FAMILIES[name].at, own, domain), x).size
                for name, own in self.added.items()
            }

    def embedding(self, x):
        """Inputs of the network: those of the axes, then the known functions."""
        functions = [
            FAMILIES[name].at(own, self.domain, x) for name, own in self.added.items()
        ]
        return jnp.concatenate([super().embedding(x), *functions])

    def field(self, function, directions=None):
        """The field of a network, in physical units."""

        def scaled(outputs):
            outputs = jnp.ravel(outputs)  # of each region
            return np.resize(self.scale, outputs.shape).astype(outputs.dtype) * outputs

        return super().field(followed_by(function, scaled, self.center), directions)


def posed(problem, stages, y=None, observed=(), names=NAMES):
    """Return problems with the units and the known functions of the last one."""
    if "circles" in names:
        problem, stages = on_circles(problem, stages)
    shown = ()
    if "waves" in names:
        shown = switches.kept("pinn.waves", waves.wave_vectors(problem))
    center, scale = units(problem, y, observed, shown)
    starts = coefficient_starts(problem, center, scale) if y is not None else {}
    found = {
        name: switches.kept(f"pinn.{name}", family.find(problem, scale, shown))
        for name, family in FAMILIES.items()
        if name in names
    }
    added = {name: own for name, own in found.items() if own}

    def pose(entry):
        arguments = {f.name: getattr(entry, f.name) for f in fields(Problem)}
        if starts:
            arguments["coefficients"] = {**entry.coefficients, **starts}
        return PosedProblem(**arguments, center=center, scale=scale, added=added)

    return pose(problem), [pose(stage) for stage in stages]
