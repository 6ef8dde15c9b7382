"""Collocation points: where the residuals of a differential equation are taken."""

from dataclasses import dataclass, replace

import numpy as np

from sklearn_gn.data.row_checks import row_codes
from sklearn_gn.pinn import pieces
from sklearn_gn.pinn.control import LEAST_POINTS, Sizes
from sklearn_gn.pinn.model import Batch
from sklearn_gn.pinn.solution import reference
from sklearn_gn.pinn.windows import SinceBefore

_POOL = 10  # candidates for every point drawn where the residual is large
_FRESH = np.iinfo(np.uint32).max  # number of the draw that is never trained on
_FRESH_SHARE = 4  # times as many points: they decide which network is best
FEW_AXES = 20  # up to which points may follow the residual


@dataclass(frozen=True)
class Sampler:
    """Draws points, the same ones for the same numbers.

    With the method "residual", half of the interior points have a probability in
    proportion to the squared residual: that of Wu et al., "A comprehensive study of
    non-adaptive and residual-based adaptive sampling", with k = 2 and c = 1. Residuals
    count in units of the size of their class if ``in_units``.
    """

    n_interior: int
    n_boundary: int
    method: str
    dtype: str
    in_units: bool = False

    def draw(self, model, seed, stage, number, net=None):
        """Draw the points of all residual classes but those of observations."""
        if model.classes[0].residual.name == "data":  # without an equation
            return ()
        rng = np.random.RandomState([seed, stage, number])
        problem = model.problem
        axes = problem._draw_directions(rng)
        adaptive = self.method == "residual"
        method = "sobol" if adaptive else self.method
        points = problem.sample(self.n_interior, self.n_boundary, rng, method)

        def batch_of_class(known):
            kind, size = known.residual, known.size if self.in_units else 1.0
            x, data, share = distinct(*points[kind.name])
            if isinstance(kind.function, SinceBefore):  # nothing, before a window
                data = np.zeros((len(data), kind.n_outputs))
            weight = kind.weight / size**2 * len(x) * share
            return batch_of(x, data, weight, self.dtype, axes)

        batches = tuple(map(batch_of_class, model.classes[: len(points)]))
        if adaptive and net is not None and number > 0:
            own = points["interior"]
            points["interior"] = self._moved_to_residuals(model, net, own, batches, rng)
            batches = batch_of_class(model.classes[0]), *batches[1:]
        return batches

    def fresh(self, model, seed, times=1):
        """Draw more points, which no fit trains on, or so many times as many."""
        few = model.problem.domain.dim <= FEW_AXES
        least = LEAST_POINTS if few else Sizes(0, 0)
        times *= _FRESH_SHARE
        larger = replace(
            self,
            n_interior=times * max(self.n_interior, least.n_interior),
            n_boundary=times * max(self.n_boundary, least.n_boundary),
        )
        return larger.draw(model, seed, 0, _FRESH)

    def reference(self, problem, seed):
        """Draw points with the exact solution there; None where it is not known."""
        if problem.exact is None:
            return None
        rng = np.random.RandomState(seed)
        n, points, values = reference(problem, rng)
        if len(points) > n:
            chosen = np.sort(rng.permutation(len(points))[:n])
            points, values = points[chosen], values[chosen]
        return points.astype(self.dtype), values.astype(self.dtype)

    def _moved_to_residuals(self, model, net, points, batches, rng):
        """Replace every other point by one drawn where residuals are large."""
        n, problem = self.n_interior // 2, model.problem
        x = problem.domain.sample(_POOL * n, rng, "sobol")
        pool = type(points)(problem._all_points(x[:, None]), x[:, :0])
        candidates = batch_of(*pool, 1.0, self.dtype, batches[0].axes)
        model = model._replace(classes=model.classes[: len(batches)])
        r = pieces.residuals(model, net, (candidates, *batches[1:]), batches)
        n_rows = len(x) * model.classes[0].residual.n_outputs
        rows = r[:n_rows].reshape(len(x), -1)
        square = np.sum(np.square(rows, dtype=float), axis=1)
        if not 0 < square.sum() < np.inf or np.count_nonzero(square) < n:
            return points
        chosen = rng.choice(len(square), n, replace=False, p=square / square.sum())
        pairs = zip(points, pool, strict=True)
        return type(points)(
            *(np.concatenate([kept[: len(kept) - n], a[chosen]]) for kept, a in pairs)
        )


def distinct(x, data):
    """Points that differ, with the share of the given ones that each stands for."""
    codes = row_codes(x.reshape(len(x), -1), data)  # rows may have 100,000 numbers
    _, first, counts = np.unique(codes, return_index=True, return_counts=True)
    order = np.argsort(first)
    return x[first[order]], data[first[order]], counts[order] / len(x)


def batch_of(x, data, weight, dtype, axes=None):
    """Points (N, P, d) of a class, whose ``weight`` is one number or one for each."""
    share = np.broadcast_to(np.asarray(weight, float) / len(x), len(x))
    scale = np.sqrt(share).astype(dtype)
    return Batch(x.astype(dtype), data.astype(dtype), scale, axes)
