"""scimba on JAX: its energy natural gradient, or its DSGNAR."""

import jax
import jax.numpy as jnp
import numpy as np
from scimba_jax.domains.meshless_domains.domains_2d import Square2D
from scimba_jax.nonlinear_approximation.approximation_spaces import (
    approximation_spaces,
)
from scimba_jax.nonlinear_approximation.model_class.funcparam_vectorial import (
    ParamVecFunction,
)
from scimba_jax.nonlinear_approximation.networks.mlp import MLP
from scimba_jax.nonlinear_approximation.numerical_solvers.projectors import Projector
from scimba_jax.physical_models.abstract_residuals import BoundaryResidual
from scimba_jax.physical_models.elliptic_pde.navier_stokes_stationary import (
    NavierStokesND,
)

from benchmarks._peers import _common

STEPS = 2  # between two points of the curve
METHODS = {"eng": "ENG", "dsgnar": "DSGNAR"}


class GivenVelocity(BoundaryResidual):
    """The first two components on the boundary."""

    def construct_residual(self, flow):
        return ParamVecFunction.cat([flow.component(0), flow.component(1)])


class FixedPoints:
    """Hands out the same points for good."""

    def __init__(self, task, inside, outside):
        interior, boundary = jnp.asarray(task.interior), jnp.asarray(task.boundary)
        normals = jnp.zeros_like(boundary)  # which the condition does not use
        self.points = {inside: (interior,), outside: (boundary, normals)}

    def build_sample_func(self, *counts):
        return lambda key: (key, self.points)


def space_of(task):
    key = jax.random.PRNGKey(task.seed)
    net = MLP(2, 3, hidden_sizes=list(task.hidden), activation="tanh", key=key)
    return approximation_spaces.ApproximationSpace(
        {"x": 2},
        [(net, "vec", 3)],
        model_type="x",
        pre_processing=lambda x: (_common.unit(x),),
    )


def projector_of(task):
    bounds = np.stack([_common.LOW, _common.HIGH], axis=1).tolist()
    domain = Square2D(bounds, is_main_domain=True)
    sides = domain.get_all_boundaries()
    conditions = {
        label: GivenVelocity(
            side,
            size=2,
            model_type="x",
            f_rhs=lambda x, n: _common.exact_velocity(x, jnp),
        )
        for label, side in sides.items()
    }
    model = NavierStokesND(domain, nu=_common.VISCOSITY, bc_residuals=conditions)
    (outside,) = sides
    points = FixedPoints(task, domain.get_label(), outside)
    # The weights of PINNSolver: the losses are the same, but for a factor of two.
    weights = {domain.get_label(): [1.0] * 3, outside: [1.0] * 2}
    return Projector(
        model, space_of(task), points, METHODS[task.method], weights=weights
    )


def fit(task, curve):
    projector, key = projector_of(task), jax.random.PRNGKey(task.seed)

    def steps(projector, n):
        return projector.project(
            key, projector.space, n, scan_chunk=STEPS, resample=False, tqdm_leave=False
        )[1]

    @jax.jit
    def velocity(net, x):
        return jax.vmap(lambda x: net(_common.unit(x)))(jnp.asarray(x))

    jax.block_until_ready(steps(projector, STEPS).best_loss)  # compiles
    curve.start()
    while not curve.done:
        projector = steps(projector, STEPS)
        jax.block_until_ready(projector.best_loss)
        loss = projector.best_loss["total"] / 2
        net = projector.space.models[0]
        curve.add(lambda loss=loss: loss, lambda x, net=net: velocity(net, x))
    return {"method": METHODS[task.method], "weights": "all 1"}


if __name__ == "__main__":
    _common.main("scimba", fit)
