"""PINNSolver with every solver and every rule for the damping."""

from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks._frozen._common import features, resumed, targets, weights, with_std
from benchmarks._literature import Poisson
from sklearn_gn import PINNSolver
from sklearn_gn.networks import MLP
from sklearn_gn.pde import Box, Dirichlet, Initial, Problem, Unknown, d, laplacian
from sklearn_gn.pde.problems import Kovasznay
from sklearn_gn.solvers import DNGD

SMALL = {
    "hidden_layer_sizes": (8,),
    "n_interior": 30,
    "n_boundary": 16,
    "max_iter": 8,
    "random_state": 0,
}
FEW = {"max_iter": 2}  # of twenty or a hundred steps each
X2 = features(2)


def membrane(u, x, load):
    return laplacian(u)(x) + load


def decay(u, t, rate):
    return d(u, "t") + rate * u


def one(x):
    return 1.0


def stretched(load):
    square = Box(x=(-1.0, 1.0), y=(-1.0, 1.0))
    return Problem(membrane, square, [Dirichlet(0.0)], coefficients={"load": load})


MEMBRANE = stretched(1.0)
UNKNOWN_DECAY = Problem(
    decay,
    Box(t=(0.0, 1.0)),
    (Initial(one),),
    coefficients={"rate": Unknown(0.5, positive=True)},
)


def fitted(problem=MEMBRANE, **words):
    model = PINNSolver(problem, **{**SMALL, **words}).fit()
    points = model.problem_.domain.sample(20, np.random.RandomState(0), "uniform")
    return model, model.predict(points)


def inverse():
    """The rate of a decay, from noisy observations."""
    t = np.linspace(0, 1, 40)[:, None]
    y = np.exp(-2 * t[:, 0]) + 0.02 * np.random.RandomState(0).normal(size=40)
    model = PINNSolver(UNKNOWN_DECAY, **{**SMALL, "n_boundary": 1})
    model.fit(t, y, sample_weight=weights(t))
    found = [model.coefficients_["rate"], model.coefficients_std_["rate"]]
    return model, np.concatenate([found, with_std(model, t[:9]).ravel()])


def regression(n_targets=None, **words):
    """No equation: least squares."""
    model = PINNSolver(**{**SMALL, **words}).fit(X2, targets(X2, n_targets))
    return model, with_std(model, X2[:10])


def resumed_fit():
    solver = PINNSolver(MEMBRANE, **SMALL, resample=2)
    model = resumed(solver)
    return model, model.predict(X2)


CASES = {
    "trust_region": partial(
        fitted, Kovasznay(), hidden_layer_sizes=(8, 6), n_interior=20, max_iter=6
    ),
    "uniform": partial(
        fitted,
        solver=DNGD(geodesic_acceleration=False),
        sampling="uniform",
        resample=3,
        n_interior=12,
    ),
    "loss": partial(fitted, solver=DNGD(damping_rule="loss")),
    "damping": partial(
        fitted, damping=1e-6, loss_weights="scaled", sampling="residual", resample=2
    ),
    "nystrom": partial(fitted, rank=8, n_interior=60),
    "directions": partial(fitted, replace(Poisson(4), n_laplacian_directions=2)),
    "network": partial(fitted, network=MLP((6, 5), "sin")),
    "curriculum": partial(
        fitted,
        [(stretched(0.3), 3), MEMBRANE],
        solver=DNGD(single_precision_iter=2),
    ),
    "early_stopping": partial(
        fitted, n_interior=8, max_iter=40, early_stopping=True, n_iter_no_change=2
    ),
    "inverse": inverse,
    "regression": partial(regression, 2),
    "adam": partial(fitted, solver="adam", **FEW),
    "sgd": partial(fitted, solver="sgd", **FEW),
    "lbfgs": partial(fitted, solver="lbfgs", **FEW),
    "ssbroyden": partial(fitted, solver="ssbroyden", **FEW),
    "resumed": resumed_fit,
}
