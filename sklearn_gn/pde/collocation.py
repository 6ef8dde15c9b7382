"""Points at which the residuals of a problem are taken."""

from typing import Literal

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.pde.checks import named_errors
from sklearn_gn.pde.conditions import Points


class CollocationMixin:
    """Points of a problem, drawn for all residual classes."""

    def all_points(self, x: Array) -> Array:
        """Points (N, P, d) with those at which outputs of some axes are taken."""
        return np.concatenate([x, *(p(x) for _, p in self._projections)], axis=1)

    def sample(
        self,
        n_interior: int,
        n_boundary: int,
        rng: np.random.RandomState,
        method: Literal["sobol", "halton", "uniform"] = "sobol",
    ) -> dict[str, Points]:
        """Draw points for all residual classes.

        Parameters
        ----------
        n_interior : int
            Number of points inside.
        n_boundary : int
            Shared in equal parts by the conditions that do not have their own number.
        rng : RandomState
            Source of the random numbers.
        method : {"sobol", "halton", "uniform"}, default="sobol"
            How the points are drawn.

        Returns
        -------
        dict of Points
            By the name of the class, in the order of ``residual_classes``.
        """
        named = self._named_conditions()
        sharing = [name for name, c in named if c.own_number is None]
        if len(sharing) > n_boundary:
            raise ValueError(
                f"n_boundary={n_boundary} is too few for the conditions {sharing}."
            )
        counts = {name: c.own_number for name, c in named}
        for i, name in enumerate(sharing):  # the first ones take what is left over
            counts[name] = (n_boundary + len(sharing) - 1 - i) // len(sharing)
        return self._draw(n_interior, counts, rng, method)

    def probes(self, n: int, rng: np.random.RandomState) -> dict[str, Points]:
        """Draw uniform points, as many for each residual class.

        Parameters
        ----------
        n : int
            Number of points of each class.
        rng : RandomState
            Source of the random numbers.

        Returns
        -------
        dict of Points
            As from ``sample``.
        """
        counts = dict.fromkeys(dict(self._named_conditions()), n)
        return self._draw(n, counts, rng, "uniform")

    def draw_directions(self, rng: np.random.RandomState) -> Array | None:
        """Draw the axes from which Laplacians are estimated.

        Parameters
        ----------
        rng : RandomState
            Source of the random numbers.

        Returns
        -------
        ndarray of int or None
            None where Laplacians are exact.
        """
        if self.n_laplacian_directions is None:
            return None
        axes, time = self.domain.axes, self.domain.time
        space = [i for i, name in enumerate(axes) if name != time]
        count = min(self.n_laplacian_directions, len(space))
        return rng.choice(space, count, replace=False).astype(np.int32)

    def _draw(self, n_interior, counts, rng, method):
        x = self.domain.sample(n_interior, rng, method)
        points = {"interior": Points(x[:, None], x[:, :0])}
        for name, condition in self._named_conditions():
            with named_errors(name):
                points[name] = condition.sample(self.domain, counts[name], rng, method)
        return {n: p._replace(x=self.all_points(p.x)) for n, p in points.items()}
