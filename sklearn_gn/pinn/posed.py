r"""A problem as the network is given it: outputs of unit size, and waves as inputs.

Periodic axes are circles (:mod:`sklearn_gn.pinn.circles`).

The residuals see physical units. In between, the outputs of the network are those of
the solution in units of their own, ``u = center + scale * network(x)``, and beside the
axes, mapped to [-1, 1], the network has

- waves ``cos(k (x - m))`` and ``sin(k (x - m))``, with m the middle of the domain, for
  wave vectors k that the problem shows (:mod:`sklearn_gn.pinn.spectrum`, on many axes
  :mod:`sklearn_gn.pinn.lines`) or that its equation lets pass
  (:mod:`sklearn_gn.pinn.dispersion`);
- singular functions of corners of the domain, and of right angles that need them
  (:mod:`sklearn_gn.pde.corners`);
- functions that fall off from its holes (:mod:`sklearn_gn.pde.corners`);
- solutions of the heat equation from jumps and kinks of the initial values
  (:mod:`sklearn_gn.pde.initial_breaks`).

These are inputs of the first layer and of the output layer: a solution that is made of
them is linear in the weights, and one that is modulated by a smooth function can be
learnt.
"""

import math
from dataclasses import dataclass, fields

import jax.numpy as jnp
import numpy as np

from sklearn_gn import _switches as switches
from sklearn_gn.pde import Problem
from sklearn_gn.pde.corners import holes, rough_corners
from sklearn_gn.pde.initial_breaks import initial_breaks
from sklearn_gn.pde.local_functions import followed_by
from sklearn_gn.pinn import dispersion, lines, spectrum
from sklearn_gn.pinn.circles import on_circles
from sklearn_gn.pinn.output_units import units
from sklearn_gn.pinn.similarity import n_similarity_functions, similarity_functions

_WHOLE = 0.01  # distance of an exponent to a whole number
_TINY = 1e-30  # what is left alone
_NEXT = 1e-12  # distance from a corner, in units of the domain's size


@dataclass(frozen=True, eq=False, repr=False)
class PosedProblem(Problem):
    """A problem with units of its outputs and waves."""

    center: tuple = ()
    scale: tuple = ()
    waves: tuple = ()  # wave vectors, each of d numbers
    corners: tuple = ()  # Corner, each with two functions
    holes: tuple = ()  # Hole, each with one function more than it has axes
    breaks: tuple = ()  # Break, each with two functions for each of its rates

    def __reduce__(self):
        return PosedProblem, self._arguments()

    @property
    def n_inputs(self):
        """Number of inputs of the network."""
        return super().n_inputs + self.n_functions

    @property
    def n_functions(self):
        """Number of the last inputs of the network, which are no axes."""
        of_holes = sum(1 + len(hole.axes) for hole in self.holes)
        plane = 2 * (len(self.waves) + len(self.corners))
        return plane + of_holes + n_similarity_functions(self.breaks)

    def embedding(self, x):
        """Inputs of the network: those of the axes, then cosines and sines of waves."""
        plain = super().embedding(x)
        if not self.n_functions:
            return plain
        found = [plain]
        if self.waves:
            middle = self.domain.bounds.mean(axis=1).astype(x.dtype)
            phase = np.array(self.waves).astype(x.dtype) @ (x - middle)
            found += [jnp.cos(phase), jnp.sin(phase)]
        size = float(np.ptp(self.domain.bounds, axis=1).max())
        if self.corners:
            found.append(corner_functions(self.corners, x, size))
        found += [hole_functions(hole, x) for hole in self.holes]
        if self.breaks:
            found.append(similarity_functions(self.breaks, self.domain, x))
        return jnp.concatenate(found)

    def field(self, function, directions=None):
        """The field of a network, in physical units."""

        def scaled(outputs):
            scale = np.array(self.scale, outputs.dtype)
            return scale * self.as_outputs(outputs, "the network")

        return super().field(followed_by(function, scaled, self.center), directions)


def corner_functions(corners, x, size):
    """Real and imaginary parts of singular functions of ``z / size``, with cut-offs.

    Those are ``z^a``, or ``z^a log z`` where a is a whole number, corner after corner.
    All corners are taken at once: one by one they take seconds to compile.
    """

    def column(values):
        return np.array(values).astype(x.dtype)

    a = column([math.pi / corner.opening for corner in corners])
    middle = np.array([corner.middle for corner in corners])
    c, s = column(np.cos(middle)), column(np.sin(middle))
    place = column([corner.place for corner in corners])
    offset = x[np.array([corner.axes for corner in corners])] - place
    along = (c * offset[:, 0] + s * offset[:, 1]) / size
    across = (c * offset[:, 1] - s * offset[:, 0]) / size
    # At the corner the angle has no derivatives: take those next to it, inside.
    along += jnp.where((along == 0) & (across == 0), _NEXT, 0)
    square = along**2 + across**2 + _TINY
    angle = jnp.arctan2(across, along)
    real, imaginary = jnp.cos(a * angle), jnp.sin(a * angle)
    whole = np.abs(a - np.round(a)) < _WHOLE
    if whole.any():
        log = jnp.log(square) / 2
        real, imaginary = (
            jnp.where(whole, log * real - angle * imaginary, real),
            jnp.where(whole, log * imaginary + angle * real, imaginary),
        )
    radius = square ** (a / 2)
    reach = column([size / corner.reach for corner in corners])
    if reach.any():
        radius *= jnp.maximum(1 - square * reach**2, 0) ** 3
    return jnp.stack([radius * real, radius * imaginary], axis=1).ravel()


def hole_functions(hole, x):
    """The fundamental solution and the image of a point in the sphere of a hole."""
    offset = x[np.array(hole.axes)] - np.array(hole.center).astype(x.dtype)
    square = jnp.sum(offset**2) / hole.radius**2 + _TINY
    plane = len(hole.axes) == 2
    fundamental = -jnp.log(square) / 2 if plane else 1 / jnp.sqrt(square)
    return jnp.concatenate([fundamental[None], offset / (hole.radius * square)])


def posed(problem, stages, y=None, observed=()):
    """Return problems with the units and the waves of the last one."""
    problem, stages = on_circles(problem, stages)
    many_axes = problem.domain.dim > spectrum.MOST_AXES
    waves = (lines if many_axes else spectrum).wave_vectors(problem)
    center, scale = units(problem, y, observed, waves)
    passing = dispersion.wave_vectors(problem, scale, waves)
    most = max(len(waves), spectrum.MOST_WAVES + dispersion.MOST_WAVES)
    waves = spectrum.distinct(
        (*waves, *passing), problem.domain, most, dispersion.EQUAL
    )

    added = {
        "waves": waves,
        "corners": switches.kept("pinn.corners", rough_corners(problem)),
        "holes": switches.kept("pinn.holes", holes(problem.domain)),
        "breaks": switches.kept("pinn.similarity", initial_breaks(problem)),
    }

    def pose(entry):
        arguments = {f.name: getattr(entry, f.name) for f in fields(Problem)}
        return PosedProblem(**arguments, center=center, scale=scale, **added)

    return pose(problem), [pose(stage) for stage in stages]
