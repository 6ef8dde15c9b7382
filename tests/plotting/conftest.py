import warnings

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn import FGNSoftmaxHead, PINNSolver, ShallowReLURegressor
from sklearn_gn.pde import Box, Dirichlet, Problem, d
from sklearn_gn.solvers import JointGN


@pytest.fixture(autouse=True)
def _no_figure_left():
    plt.close("all")
    yield
    plt.close("all")


def fitted(model, *data, **more):
    """Fit, however few the iterations are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(*data, **more)


# -- shallow networks, and a softmax head ---------------------------------------------


@pytest.fixture(scope="session")
def data_1d():
    X = np.linspace(-2, 3, 40)[:, None]
    return X, np.abs(X[:, 0] - 0.5) + np.sin(X[:, 0])


@pytest.fixture(scope="session")
def model_1d(data_1d):
    X, y = data_1d
    solver = JointGN(relocations=2)
    model = ShallowReLURegressor(3, solver=solver, random_state=0, alpha=0.0)
    return model.fit(X, y, X_val=X[::3], y_val=y[::3] + 0.1)


@pytest.fixture(scope="session")
def data_2d():
    X = np.random.default_rng(0).uniform((-1, 0), (1, 1.5), (60, 2))
    return X, np.abs(X[:, 0] + X[:, 1] - 0.5)


@pytest.fixture(scope="session")
def model_2d(data_2d):
    solver = JointGN(relocations=0)
    return ShallowReLURegressor(3, solver=solver, random_state=0, alpha=0.0).fit(
        *data_2d
    )


@pytest.fixture(scope="session")
def iris():
    X, y = load_iris(return_X_y=True)
    _, first = np.unique(X, axis=0, return_index=True)
    return X[first], y[first]


@pytest.fixture(scope="session")
def head(iris):
    return fitted(FGNSoftmaxHead(solver="adam", max_iter=1), *iris)


# -- networks with variable projection ------------------------------------------------


@pytest.fixture(scope="session")
def rings():
    """Three classes in the plane, by their distance from the origin."""
    X = np.random.default_rng(0).uniform(-1, 1, (120, 2))
    radius = np.hypot(*X.T)
    return X, np.digitize(radius, np.quantile(radius, (1 / 3, 2 / 3)))


@pytest.fixture(scope="session")
def decays():
    """Twelve outputs, six curves over time, of two parameters."""
    X = np.random.default_rng(0).uniform(1, 2, (60, 2))
    rates = X[:, 1:, None] * np.arange(1, 4)[:, None] * np.linspace(0, 1, 4)
    return X, (X[:, :1, None] * np.exp(-rates)).reshape(60, 12)


# -- differential equations -----------------------------------------------------------


def stretch(u, x):
    """A system of two equations for the outputs u, p."""
    return d(u["u"], "y")(x) + 1, d(u["p"], "x")(x) - x[0]


def parabolas(x):
    return jnp.stack([x[0] ** 2 + x[1], x[0] * x[1] + 3])


def solve(problem, *data):
    solver = PINNSolver(
        problem,
        hidden_layer_sizes=(8,),
        max_iter=3,
        n_interior=20,
        n_boundary=16,
        random_state=0,
    )
    return fitted(solver, *data)


@pytest.fixture(scope="session")
def solved():
    """Function that fits a solver to a problem, for a few iterations."""
    return solve


@pytest.fixture(scope="session")
def plane_problem():
    """What a problem of two outputs, the second known up to a constant, is made of."""
    return {
        "residual": stretch,
        "domain": Box(x=(0.0, 1.0), y=(0.0, 1.5)),
        "conditions": (Dirichlet(0.0),),
        "outputs": ("u", "p"),
        "up_to_constant": ("p",),
        "exact": parabolas,
    }


@pytest.fixture(scope="session")
def plane(plane_problem):
    """Two outputs over a rectangle."""
    return solve(Problem(**plane_problem))
