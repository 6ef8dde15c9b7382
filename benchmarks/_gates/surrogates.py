"""Surrogates by VarProNetRegressor: simulations of the package uqtestfuns, and a sine.

``error`` is the root mean square error on 5,000 new points over the standard deviation
of the function there. Points are drawn from the distribution of the inputs.
``process_error``, of the sine alone, is that of a Gaussian process of scikit-learn, the
best of ten starts.
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
PERIODS = (1, 4, 10, 20)


def simulation(name, n):
    """Points and values of a simulation: n to fit, then the new ones."""
    import numpy as np
    import uqtestfuns

    function = getattr(uqtestfuns, name)()
    inputs = function.prob_input.marginals
    uniform = np.random.default_rng(0).uniform(size=(n + NEW, len(inputs)))
    X = np.column_stack([m.icdf(u) for m, u in zip(inputs, uniform.T, strict=True)])
    return X, np.ravel(function(X))


def sine(periods, n):
    """The same of a sine over a number of periods."""
    import numpy as np

    x = np.random.default_rng(0).uniform(size=n + NEW)
    return x[:, None], np.sin(2 * np.pi * periods * x)


def error_of(model, X, y):
    import numpy as np

    return float(np.sqrt(np.mean((model.predict(X) - y) ** 2)) / y.std())


def fitted(load, n):
    """Fit n points by default settings."""
    from sklearn_gn import VarProNetRegressor

    X, y = load(n)
    model, figures = timed_fits(
        lambda seed: VarProNetRegressor(random_state=seed), X[:n], y[:n]
    )
    return {"error": error_of(model, X[n:], y[n:]), **figures}


def beside_a_process(periods, n=400):
    """The same for a sine, and the error of a Gaussian process."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    load = partial(sine, periods)
    figures = fitted(load, n)
    X, y = load(n)
    kernel = ConstantKernel() * RBF(1.0, (1e-3, 1e3)) + WhiteKernel(1e-6, (1e-12, 1))
    process = GaussianProcessRegressor(kernel, n_restarts_optimizer=9, random_state=0)
    process.fit(X[:n], y[:n])
    return {**figures, "process_error": error_of(process, X[n:], y[n:])}


def rows(data):
    """Every simulation, by its number of runs, and the sine by its periods."""
    found = {
        f"periods_{periods}": Row(
            f"a sine of {periods} periods, 400 points",
            partial(beside_a_process, periods),
        )
        for periods in PERIODS
    }
    if find_spec("uqtestfuns") is None:
        left_out("surrogates: they need the package uqtestfuns")
        return found
    return found | {
        f"{name.lower()}_{n}": Row(
            f"{name}, {n} points", partial(fitted, partial(simulation, name), n)
        )
        for name, numbers in RUNS.items()
        for n in numbers
    }
