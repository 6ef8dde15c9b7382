"""The first answer of a fresh process for each estimator: import, first and later fits.

The process has imported neither NumPy nor the library before.
"""

import time
from functools import partial

from benchmarks._gates.common import Row, timed_fits

LATER = 3


def answered(make, load):
    """Import the library, fit an estimator, and fit it again."""
    start = time.perf_counter()
    import sklearn_gn

    model_of = partial(make, sklearn_gn)
    model_of(0)  # names of the package may be imported when they are asked for
    imported = time.perf_counter() - start
    _, figures = timed_fits(model_of, *load(), later=LATER)
    return {"first_seconds_import": imported, **figures}


def regressor(package, seed):
    return package.VarProNetRegressor(random_state=seed)


def network(package, seed):
    return package.ShallowReLURegressor(random_state=seed)


def classifier(package, seed):
    return package.VarProNetClassifier(random_state=seed)


def head(package, seed):
    return package.FGNSoftmaxHead(random_state=seed)


def broken_line(package, seed):
    return package.SegmentedRegressor()


def poisson(package, seed):
    """-u'' = exp(x) on an interval, u = 0 at its ends."""
    import jax.numpy as jnp

    from sklearn_gn.pde import Box, Dirichlet, Problem, laplacian

    problem = Problem(
        lambda u, x: laplacian(u)(x) + jnp.exp(x[0]), Box(x=(0, 1)), [Dirichlet(0.0)]
    )
    return package.PINNSolver(problem, random_state=seed)


def line(n):
    import numpy as np

    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(size=n))
    y = np.abs(x - 0.3) + 2 * np.abs(x - 0.7) + 0.05 * rng.standard_normal(n)
    return x[:, None], y


def shipped(name):
    """A table of scikit-learn."""
    from sklearn import datasets
    from sklearn.preprocessing import scale

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return scale(X), y


def rows(data):
    """The six estimators."""
    return {
        "shallow_relu": Row("200 x 1", partial(answered, network, partial(line, 200))),
        "varpro_regressor": Row(
            "442 x 10", partial(answered, regressor, partial(shipped, "diabetes"))
        ),
        "varpro_classifier": Row(
            "178 x 13, 3 classes",
            partial(answered, classifier, partial(shipped, "wine")),
        ),
        "softmax_head": Row(
            "1,797 x 64, 10 classes",
            partial(answered, head, partial(shipped, "digits")),
        ),
        "segmented": Row("100 x 1", partial(answered, broken_line, partial(line, 100))),
        "pinn": Row(
            "Poisson's equation on an interval", partial(answered, poisson, tuple)
        ),
    }
