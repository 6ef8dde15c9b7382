"""The functions of rows of differential equations and networks, compiled for devices.

Each comes with the bytes that its collective operations should move: the sums that the
page on several devices lists.
"""

import warnings

import jax
import numpy as np

from sklearn_gn.arrays import backend, devices
from sklearn_gn.optim.solver import Rows

ROWS = 8192  # as many as are multiplied at a time, so that there is no loop over them
# Of a Krylov space. The product, in a loop, counts once, and what comes after it whole.
_RANK = 5


def programs(k):
    """Compiled functions for k devices, and the bytes of the model."""
    mesh = devices.mesh_of(list(range(k)))
    with backend.scope("float64"):
        lowered = {
            "dngd, more residuals": _gramian(mesh, (32, 32), 4096),
            "dngd, fewer residuals": _gramian(mesh, (60, 60), 2048),
            "gnvpro, krylov": _variable_projection(mesh, "krylov"),
            "gnvpro, dense": _variable_projection(mesh, "dense"),
            "joint step": _joint_step(mesh),
        }
        return {name: (one.compile(), model) for name, (one, model) in lowered.items()}


def _gramian(mesh, sizes, n_interior):
    """The Gramian of Poisson's equation, with the gradient."""
    from benchmarks._literature import Poisson
    from sklearn_gn import PINNSolver
    from sklearn_gn.pinn.dngd import quadratic_model
    from sklearn_gn.pinn.pieces import compiled_jacobian

    solver = PINNSolver(Poisson(2), hidden_layer_sizes=sizes, max_iter=1)
    solver.set_params(n_interior=20, n_boundary=8, random_state=0)
    with warnings.catch_warnings(action="ignore"):
        solver.fit()
    model, net = solver._fitted.model, solver._fitted.net
    batches = []
    for batch, n in zip(_sampled(model), (n_interior, n_interior // 8), strict=True):
        x, data, scale = (np.resize(a, (n, *a.shape[1:])) for a in batch[:3])
        x, data, scale = devices.put_rows([x, data, scale], mesh)
        batches.append(batch._replace(x=x, data=data, scale=scale))
    r, parts = compiled_jacobian(model, net, tuple(batches))
    lowered = quadratic_model.compiled.lower(model, net, tuple(batches), r, parts)
    n_weights = sum(leaf.size for leaf in jax.tree.leaves(net))
    if len(r) > n_weights:
        return lowered, 8 * n_weights**2
    passed_on = sum(leaf.size for leaf in jax.tree.leaves(parts)) // 2
    return lowered, 8 * (len(r) ** 2 + passed_on)


def _sampled(model):
    from sklearn_gn.pinn.iteration import Sampler

    return Sampler(64, 32, "sobol", "float64").draw(model, 0, 0, 0)


def _variable_projection(mesh, form, widths=(32, 32, 16), n_features=4):
    """The reduced Gauss-Newton matrix of a network with one output."""
    from sklearn_gn.networks import MLP
    from sklearn_gn.networks._base import initial_parameters
    from sklearn_gn.varpro import gnvpro
    from sklearn_gn.varpro.problem import Model, Net, Penalties
    from sklearn_gn.varpro.training import prepare

    rng, p = np.random.default_rng(0), widths[-1] + 1
    network = MLP(widths, "tanh")
    x = rng.normal(size=(ROWS, n_features))
    theta = initial_parameters(network, np.random.RandomState(0), x[:1])
    theta = backend.map_leaves(np.asarray, backend.to_numpy(theta))
    net = Net(theta, np.zeros((p, 1)))
    rows = prepare(Rows(x, x[:, :1], np.full(ROWS, 1 / ROWS)), mesh)
    penalties = Penalties(np.float64(1e-3), np.float64(1e-3))
    model = Model(network, "squared")
    n = sum(leaf.size for leaf in jax.tree.leaves(theta))
    inner = mesh.size * p**2 + p + n  # factors to be joined, W, and the gradient
    if form == "dense":
        lowered = gnvpro.dense_model.lower(model, net, rows, penalties, False)
        return lowered, 8 * (inner + n**2 + 2 * p * n)
    lowered = gnvpro.krylov_model.lower(model, net, rows, penalties, True, _RANK)
    return lowered, 8 * (inner + n + 3 * p)


def _joint_step(mesh, n_neurons=40, n_features=10):
    """The matrices of both layers of a shallow ReLU network."""
    from sklearn_gn.shallow_relu import sggn
    from sklearn_gn.shallow_relu.network import ShallowReLU, initial_networks
    from sklearn_gn.shallow_relu.problem import FitOptions

    rng, one = np.random.default_rng(0), np.float64(1)
    x = rng.normal(size=(ROWS, n_features))
    rows = Rows(x, x[:, :1], np.full(ROWS, 1 / ROWS))
    rows = rows if mesh is None else Rows(*devices.put_rows(rows, mesh))
    hyperplanes = rng.normal(size=(n_neurons, 1 + n_features))
    several = initial_networks(hyperplanes[None], 0, 1, "float64")
    net = ShallowReLU(*(leaf[0] for leaf in several))
    numbers = np.int32(1000), 1e-12 * one, 1e-10 * one, 1e-6 * one
    options = FitOptions(one, None, *numbers, *(np.int32(1),) * 2, one, np.int32(0))
    matrices = devices.by_rows(sggn.reduced_model, devices.jitted())
    p, layer = 1 + n_neurons, hyperplanes.size
    # The products of the hidden layer are in single precision.
    return matrices.lower(net, rows, options), 8 * p * (p + layer) + 8 * layer**2
