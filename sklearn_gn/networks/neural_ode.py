"""Residual network as a discretised ordinary differential equation."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.networks._base import Network, check_positive


@dataclass(eq=False)
class NeuralODE(Network):
    r"""Antisymmetric neural ODE.

    An opening layer, then a flow whose weights depend on time,

    .. math::
        u(0) = \tanh(K_0 x + b_0), \qquad
        u' = \tanh((K(t) - K(t)^T - \gamma I) \, u + b(t)), \quad 0 < t < T,

    by the classical Runge-Kutta method with one step per cell. The weights are
    parameters at the ends of the cells and linear in between; the strict triangle
    determines the antisymmetric matrix. Training begins with few cells; on every
    further level their number doubles and the weights are interpolated.

    Parameters
    ----------
    width : int, default=8
        Number of features.
    final_time : float, default=4.0
        T, without unit.
    n_cells : int, default=2
        Number of cells on the first level.
    n_levels : int, default=3
        Number of levels.
    input_gain : float, default=0.1
        Factor of the opening weights at the start.
    """

    plain_penalty = False

    width: int = 8
    final_time: float = 4.0
    n_cells: int = 2
    n_levels: int = 3
    input_gain: float = 0.1

    def check(self) -> None:
        """Raise a ValueError where a parameter is out of its range."""
        for name in ("width", "n_cells", "n_levels"):
            check_positive(name, getattr(self, name), Integral)
        for name in ("final_time", "input_gain"):
            check_positive(name, getattr(self, name))

    def init(self, rng: np.random.RandomState, n_inputs: int) -> Mapping[str, Any]:
        """Draw weights that do not depend on time; biases are zero.

        A dict holds ``opening_weight``, ``opening_bias``, and one row a time node of
        ``triangle`` and ``bias``.
        """
        n, nodes = self.width, self.n_cells + 1
        opening = rng.standard_normal((n_inputs, n)) * np.sqrt(2)
        triangle = rng.standard_normal(n * (n - 1) // 2) * np.sqrt(2 / n)
        return {
            "opening_weight": self.input_gain * opening,
            "opening_bias": np.zeros(n),
            "triangle": np.tile(triangle, (nodes, 1)),
            "bias": np.zeros((nodes, n)),
        }

    def apply(self, params: Any, x: Any) -> Any:
        """Return the features, of shape (m, width); the parameters have the cells."""
        opening = params["opening_bias"][None, :]
        u = jnp.tanh(x @ _effective(params["opening_weight"]) + opening)
        step = self.final_time / (params["bias"].shape[0] - 1)
        kernels = self._kernels(params["triangle"])
        nodes = kernels, params["bias"]

        def field(u, kernel, bias):
            return jnp.tanh(u @ kernel + bias[None, :])

        def cell(u, ends):
            (k0, b0), (k1, b1) = ends
            km, bm = (k0 + k1) / 2, (b0 + b1) / 2
            first = field(u, k0, b0)
            second = field(u + step / 2 * first, km, bm)
            third = field(u + step / 2 * second, km, bm)
            fourth = field(u + step * third, k1, b1)
            return u + step / 6 * (first + 2 * second + 2 * third + fourth), None

        left = tuple(a[:-1] for a in nodes)
        right = tuple(a[1:] for a in nodes)
        u, _ = lax.scan(cell, u, (left, right))
        return u

    def _kernels(self, triangle):
        """Transposed matrices ``K^T - K - gamma I`` of the time nodes."""
        n = self.width
        rows, cols = np.triu_indices(n, 1)
        upper = jnp.zeros((triangle.shape[0], n, n), triangle.dtype)
        upper = upper.at[:, rows, cols].set(triangle)
        eye = jnp.eye(n, dtype=triangle.dtype)
        skew = jnp.swapaxes(upper, 1, 2) - upper
        return skew - 1e-4 * eye[None]  # which keeps the flow from growing

    def roughness(self, params: Any) -> Any:
        """Return ``B theta``: opening weights as they are, the others' changes in time.

        Squared and summed, these are ``|K_0|^2 + |b_0|^2`` plus the integral of the
        squared time derivative, where K_0 holds the opening parameters, the root of
        the number of inputs times the weights that meet the inputs.
        """
        step = self.final_time / (params["bias"].shape[0] - 1)
        changes = {
            name: jnp.diff(params[name], axis=0) / np.sqrt(step)
            for name in ("triangle", "bias")
        }
        return {**params, **changes}

    def split(self, params: Any) -> Any:
        """Return weights and biases, each of the opening layer and of the flow."""
        return (
            [_effective(params["opening_weight"]), params["triangle"]],
            [params["opening_bias"], params["bias"]],
        )

    def level_of(self, params: Any) -> int:
        """Return the number of the level that parameters belong to."""
        cells = params["bias"].shape[0] - 1
        return int(np.log2(cells // self.n_cells))

    def refine(self, params: Any) -> Any:
        """Return parameters for twice the cells, the same function of time."""

        def between(nodes):
            fine = np.empty((2 * len(nodes) - 1, nodes.shape[1]), nodes.dtype)
            fine[::2] = nodes
            fine[1::2] = (nodes[1:] + nodes[:-1]) / 2
            return fine

        finer = {name: between(params[name]) for name in ("triangle", "bias")}
        return {**params, **finer}


def _effective(weight):
    """Weights that meet the inputs: the parameters over the root of their number.

    In these parameters short steps, such as those in a Krylov space, leave the opening
    layer nearer to where it is and fit by the flow, which generalises better.
    """
    return weight / np.sqrt(weight.shape[0])
