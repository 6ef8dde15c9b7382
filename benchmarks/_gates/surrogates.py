"""Surrogates of six simulations of the package uqtestfuns, by VarProNetRegressor.

``error`` is the root mean square error on 5,000 new points over the standard deviation
of the function there. Points are drawn from the distribution of the inputs.
"""

from functools import partial
from importlib.util import find_spec

from benchmarks._gates.common import Row, left_out, timed_fits

NEW = 5000  # points of the error
RUNS = {  # numbers of points
    "Ishigami": (100, 500),
    "OTLCircuit": (50, 300),
    "Piston": (100, 1000),
    "WingWeight": (100, 300),
    "Borehole": (200, 1000),
    "RobotArm": (500, 1000),
}


def fitted(name, n):
    """Fit n runs of a simulation."""
    import numpy as np
    import uqtestfuns

    from sklearn_gn import VarProNetRegressor

    function = getattr(uqtestfuns, name)()
    inputs = function.prob_input.marginals
    uniform = np.random.default_rng(0).uniform(size=(n + NEW, len(inputs)))
    X = np.column_stack([m.icdf(u) for m, u in zip(inputs, uniform.T, strict=True)])
    y = np.ravel(function(X))
    model, figures = timed_fits(
        lambda seed: VarProNetRegressor(random_state=seed), X[:n], y[:n]
    )
    error = np.sqrt(np.mean((model.predict(X[n:]) - y[n:]) ** 2)) / y[n:].std()
    return {"error": float(error), **figures}


def rows(data):
    """Every simulation, by its number of runs."""
    if find_spec("uqtestfuns") is None:
        left_out("surrogates: they need the package uqtestfuns")
        return {}
    return {
        f"{name.lower()}_{n}": Row(f"{name}, {n} points", partial(fitted, name, n))
        for name, numbers in RUNS.items()
        for n in numbers
    }
