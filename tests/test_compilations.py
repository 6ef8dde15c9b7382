"""How many programs a first fit with default settings compiles."""

import warnings

import jax
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn import (
    FGNSoftmaxHead,
    PINNSolver,
    SegmentedRegressor,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)
from sklearn_gn.pde import Box, Dirichlet, Problem, laplacian

N_ROWS = 30


def membrane(u, x):
    return laplacian(u)(x) + 1


def disc():
    return Problem(membrane, Box(x=(0, 1), y=(0, 1)), [Dirichlet(0.0)])


# What a fit compiles: few programs, as few eager
# operations as possible, each of which is one.
BUDGET = {
    "shallow_relu": (lambda: ShallowReLURegressor(random_state=0), 2, 0),
    "segmented": (SegmentedRegressor, 1, 0),
    "one_feature": (lambda: ShallowReLURegressor(2, random_state=0), 1, 0),
    "one_feature_auto": (lambda: ShallowReLURegressor(random_state=0), 1, 0),
    "softmax_head": (FGNSoftmaxHead, 2, 4),
    "varpro": (lambda: VarProNetRegressor(random_state=0, max_iter=3), 2, 4),
    "varpro_alpha": (
        lambda: VarProNetRegressor(alpha=1e-3, random_state=0, max_iter=3),
        2,
        4,
    ),
    "varpro_classes": (lambda: VarProNetClassifier(random_state=0, max_iter=3), 2, 4),
    "pinn": (
        lambda: PINNSolver(
            disc(),
            hidden_layer_sizes=(4, 4),
            n_interior=30,
            n_boundary=20,
            max_iter=6,
            random_state=0,
        ),
        0,
        9,
    ),
}


@pytest.mark.parametrize("name", sorted(BUDGET))
def test_a_first_fit_compiles_few_programs(name, compiled):
    make, n_features, most = BUDGET[name]
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (N_ROWS, n_features)) if n_features else None
    y = None if X is None else np.abs(X[:, 0]) + 0.1 * rng.standard_normal(N_ROWS)
    if name in ("softmax_head", "varpro_classes"):
        y = y > 0.5
    jax.clear_caches()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        make().fit(X, y)
    programs = [p for p in compiled if p != "jit(<lambda>)"]
    assert len(programs) <= most, programs
