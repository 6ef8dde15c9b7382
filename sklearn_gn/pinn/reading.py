"""What a problem states, read once: at points of its own, by whoever asks.

Units, known functions and findings ask what the residuals of a class are for plane
waves as fields, which derivatives the equation depends on, and how many values the
conditions give at the ends of each axis.
"""

from functools import cached_property, lru_cache

import numpy as np

from sklearn_gn.pde.given_values import N_POINTS, ROUNDING
from sklearn_gn.pde.jumps import MOST_AXES
from sklearn_gn.pde.reading import derivatives, residuals_of_waves, slopes_of_equation


class Reading:
    """The residual classes of a problem, points of each, and what they show."""

    def __init__(self, problem):
        self.problem, rng = problem, np.random.RandomState(0)
        self.interior, *self.conditions = problem.residual_classes()
        self.drawn = problem.probes(N_POINTS, rng)
        self.x = self.drawn["interior"].x[:, 0]
        # Axes from which Laplacians are estimated.
        self.directions = problem._draw_directions(rng)

    def residuals(self, kind, waves, unknown=None):
        """Residuals (n, m, k) of a class for plane waves as fields."""
        given = self.problem, kind, self.drawn[kind.name], waves, unknown
        return residuals_of_waves(*given, self.directions)

    @cached_property
    def factors(self):
        """Factors (n, m, d, powers) of the derivatives along axes; None: not known.

        They are those about a smooth field, at points (n,), of each output in each
        residual (m,).
        """
        dim, q = self.problem.domain.dim, len(self.problem.outputs)
        if self.interior.n_points > 1 or dim > MOST_AXES:
            return None
        slopes = slopes_of_equation(self.problem, self.x, np.ones(q))
        if not np.isfinite(slopes).all():
            return None
        every = derivatives(dim)
        powers = range(1 + len(every[-1]))
        along = [[every.index((k,) * power) for power in powers] for k in range(dim)]
        factors = np.swapaxes(slopes, 2, 3)[..., along]
        return factors.reshape(len(slopes), -1, dim, len(powers))

    @cached_property
    def orders(self):
        """Highest derivative (d,) along each axis; None: not known, or not local."""
        if self.factors is None:
            return None
        seen = np.any(self.factors != 0, axis=(0, 1))
        highest = np.max(seen * np.arange(seen.shape[1]), axis=1)
        return None if seen[:, -1].any() else highest

    @cached_property
    def ends(self):
        """Ends of each axis at which conditions hold, by its name, with their values.

        What compares two ends has half of its values at each, and a single point has
        none.
        """
        axes, bounds = self.problem.domain.axes, self.problem.domain.bounds
        ends = {name: [] for name in axes}
        for kind in self.conditions:
            x = self.drawn[kind.name].x.reshape(-1, len(axes))
            n_values = kind.n_outputs / kind.condition.n_fields
            for k, name in enumerate(axes):
                there = np.abs(x[:, [k]] - bounds[k]) <= ROUNDING * np.ptp(bounds[k])
                for held, word in zip(there.T, ("min", "max"), strict=True):
                    if held.any():
                        covers = len(axes) == 1 or np.ptp(x[held], axis=0).any()
                        ends[name].append((f"{name}={word}", n_values * covers))
        return ends

    @property
    def numbers_of_conditions(self):
        """Values that are given along each axis, and those that the equation needs.

        Those at its ends; all, of an ordinary differential equation. Empty if not
        known.
        """
        if self.orders is None:
            return {}
        given = [sum(n for _, n in ends) for ends in self.ends.values()]
        if len(given) == 1:
            numbers = [
                k.n_outputs
                / k.condition.n_fields
                * len(np.unique(self.drawn[k.name].x))
                for k in self.conditions
            ]
            given = [sum(numbers)]
        needed = (
            self.problem.n_network_outputs * self.orders
        ).tolist()  # of all regions
        both = zip(given, needed, strict=True)
        return dict(zip(self.problem.domain.axes, both, strict=True))


def read(problem):
    """The reading of a problem, as it was stated before it got units and functions."""
    return _reading(getattr(problem, "stated", problem))


_reading = lru_cache(maxsize=4)(Reading)
