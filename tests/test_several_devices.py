"""Fits whose rows or points are divided among several devices: those of one device.

One process with eight forced devices computes everything, and two processes some of it.
The heads have tests of their own.
"""

import json

import pytest

from tests.processes import output, outputs_of_two, start

# Differences from one device, by number of devices: of functions of the points, of one
# step, and of the final loss of fits.
CODE = """
import json, warnings
import numpy as np
from sklearn.base import clone
from sklearn_gn import (
    PINNSolver,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)
from sklearn_gn.arrays import backend
from sklearn_gn.arrays import devices
from sklearn_gn.pde import Box, Dirichlet, Problem, laplacian
from sklearn_gn.pinn import iteration
from sklearn_gn.pinn.pieces import compiled_jacobian
from sklearn_gn.pinn.dngd import quadratic_model
from sklearn_gn.solvers import GNvpro, JointGN, SgGN

warnings.simplefilter("ignore")


def bump(u, x):
    import jax.numpy as jnp

    return laplacian(u)(x) + 2 * jnp.pi**2 * jnp.prod(jnp.sin(jnp.pi * x))


problem = Problem(bump, Box(x=(0, 1), y=(0, 1)), [Dirichlet(0.0)])
few = dict(hidden_layer_sizes=(6, 6), n_interior=26, n_boundary=8, random_state=0)
many = dict(few, n_interior=75, n_boundary=20)
steps = {  # fewer residuals than weights, and more
    "dual step": PINNSolver(problem, **few, max_iter=1),
    "primal step": PINNSolver(problem, **many, max_iter=1),
    "gradient steps": PINNSolver(problem, **few, solver="adam", max_iter=1),
}
rng = np.random.RandomState(0)
X = rng.normal(size=(50, 2))
y = np.sin(X[:, 0]) + X[:, 0] * X[:, 1]
label = (y > 0).astype(int)
given = dict(activation="tanh", alpha=1e-3, random_state=0, n_init=1)


def network(sizes, max_iter=1, **parameters):
    return VarProNetRegressor(
        hidden_layer_sizes=sizes, max_iter=max_iter, **parameters, **given
    )


def kinks(solver, **parameters):
    return ShallowReLURegressor(
        3, solver=solver, alpha=1e-4, random_state=0, n_init=1, **parameters
    )


steps |= {
    "step of SgGN": kinks(SgGN(relocations=0), max_iter=1),
    "joint step": kinks(JointGN(relocations=0), max_iter=1),
    "krylov step": network((4,), solver=GNvpro(curvature="krylov")),
    "primal step on rows": network(
        (4,), solver=GNvpro(curvature="dense"), damping=1e-2
    ),
    "step in all weights": network((4,), solver="gn"),
    "quasi-Newton step": network((4,), solver="lbfgs_vpro"),
    "step for classes": VarProNetClassifier(
        hidden_layer_sizes=(4,), solver="gnvpro", max_iter=1, **given
    ),
}
fits = {
    "fit with a round of relocation": kinks(JointGN(relocations=1), max_iter=4),
    # Eigenvectors of the rows are known to the root of rounding.
    "fit in the space of the rows": network(
        (20, 8), 2, solver=GNvpro(curvature="dense")
    ),
    "fit to batches": network((4,), 8, solver=GNvpro(batch_size=20)),
    "fit": PINNSolver(problem, **few, max_iter=6, resample=4),
    "fit by conjugate gradients": PINNSolver(problem, **few, rank=10, max_iter=3),
}


def fit(model, device=None):
    model = clone(model).set_params(device=device)
    if isinstance(model, PINNSolver):
        return model.fit()
    return model.fit(X, label if isinstance(model, VarProNetClassifier) else y)


def parameters(model):
    if isinstance(model, ShallowReLURegressor):
        return np.ravel(model.hyperplanes_)
    return np.concatenate([np.ravel(a) for a in model.coefs_ + model.intercepts_])


def kernels(mesh, n):
    batches = sampled(n)
    placed = type("Steps", (), {"mesh": mesh})
    settings = type("Settings", (), {"steps": placed})
    with backend.scope("float64"):
        batches = iteration.on_devices(batches, settings)
        loss = iteration.losses_of_classes(model, net, batches).sum()
        jacobian = compiled_jacobian(model, net, batches)
        quadratic = quadratic_model(model, net, batches, *jacobian)
        # Rows may come in another order, with rows of zero.
        values = np.linalg.eigvalsh(np.asarray(quadratic.curvature))[::-1][:30]
        found = loss, quadratic.gradient_norm, quadratic.gradient_decrease, values
        return [np.asarray(a) for a in found]


def relative(found, wanted):
    pairs = zip(found, wanted, strict=True)
    return [np.max(np.abs(a - b)) / np.max(b) for a, b in pairs]


fitted = steps["dual step"].fit()._fitted
model, net = fitted.model, fitted.net


def sampled(n):
    from sklearn_gn.pinn.iteration import Sampler

    return Sampler(n, n // 3, "sobol", "float64").draw(model, 0, 0, 0)


answer = {}
one = {n: kernels(None, n) for n in (26, 75)}
one |= {name: parameters(fit(m)) for name, m in steps.items()}
one |= {name: fit(m).loss_ for name, m in fits.items()}
for count in (1, 2, 4, 8):
    device = list(range(count))
    found = {
        f"kernels of {n}": relative(kernels(devices.mesh_of(device), n), one[n])
        for n in (26, 75)
    }
    for name, m in steps.items():
        found[name] = parameters(fit(m, device)) - one[name]
    for name, m in fits.items():
        difference = fit(m, device).loss_ - one[name]
        found["loss of " + name] = difference / max(one[name], 1)
    answer[count] = {name: float(np.max(np.abs(d))) for name, d in found.items()}
print(json.dumps(answer))
"""

TWO = """
import sys, warnings
import jax

jax.config.update("jax_cpu_collectives_implementation", "gloo")
if sys.argv[1] != "alone":
    jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import numpy as np
from sklearn_gn import PINNSolver, ShallowReLURegressor, VarProNetRegressor
from sklearn_gn.pde import Box, Dirichlet, Problem, d
from sklearn_gn.solvers import GNvpro, JointGN

warnings.simplefilter("ignore")


def string(u, x):
    return d(u, "x", "x")(x) + 1


rng = np.random.RandomState(0)
X = rng.normal(size=(50, 2))
y = np.abs(X[:, 0]) + X[:, 1]
given = dict(
    random_state=0, max_iter=3, device=None if sys.argv[1] == "alone" else [0, 1]
)
batches = GNvpro(batch_size=20)
losses = [
    PINNSolver(
        Problem(string, Box(x=(0, 1)), [Dirichlet(0.0)]),
        hidden_layer_sizes=(5,), n_interior=30, n_boundary=2, resample=2, **given,
    ).fit(),
    VarProNetRegressor(
        hidden_layer_sizes=(4,), solver=batches, alpha=1e-3, n_init=1, **given
    ).fit(X, y),
    ShallowReLURegressor(3, solver=JointGN(relocations=1), alpha=1e-4, **given).fit(
        X, y
    ),
]
print(*(repr(float(model.loss_)) for model in losses))
"""


@pytest.mark.slow
def test_any_number_of_devices_gives_the_same():
    flags = "--xla_force_host_platform_device_count=8"
    answer = json.loads(output(start(CODE, flags=flags)))
    assert list(answer) == ["1", "2", "4", "8"]
    for count, found in answer.items():
        for name, difference in found.items():
            allowed = 1e-8 if name.startswith("loss") else 1e-10
            if name.endswith("conjugate gradients"):  # they enlarge rounding errors
                allowed = 1e-6
            assert difference <= allowed, (count, name, difference)


@pytest.mark.slow
def test_two_processes_give_what_one_gives():
    lines = outputs_of_two(TWO)
    assert lines[0] == lines[1]
    alone = output(start(TWO, "alone"))
    found, wanted = (
        [float(loss) for loss in line.split()] for line in (lines[0], alone)
    )
    assert found == pytest.approx(wanted, abs=1e-8)
