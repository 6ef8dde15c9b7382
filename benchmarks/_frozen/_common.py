"""What the cases share: data by numpy with fixed seeds, and a fit that is resumed."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.base import clone

from sklearn_gn.callbacks import Checkpoint

N_ROWS = 120


def features(dim, n=N_ROWS):
    """Rows in [-1, 1]^dim; the first ones are those at which cases predict."""
    return np.random.RandomState(dim).uniform(-1, 1, (n, dim))


def targets(X, n_targets=None):
    """Kinks, a curve and noise: no network fits them to rounding level."""
    waves = np.abs(X[:, 0] - 0.2) + np.sin(3 * X[:, -1])
    y = waves[:, None] * np.array([1.0, -0.5]) + np.abs(X[:, :1] + 0.4)
    y += 0.1 * np.random.RandomState(0).normal(size=y.shape)
    return y[:, 0] if n_targets is None else y[:, :n_targets]


def classes(X, n_classes=3):
    """Labels by a noisy curve through the first and the last feature."""
    score = 2 * X[:, 0] + X[:, -1] ** 2
    score += 0.5 * np.random.RandomState(0).normal(size=len(X))
    inner = np.linspace(0, 1, n_classes + 1)[1:-1]
    return np.searchsorted(np.quantile(score, inner), score)


def weights(X):
    """Sample weights, one in ten of them zero."""
    weight = np.random.RandomState(1).uniform(0.2, 2.0, len(X))
    weight[::10] = 0
    return weight


def with_std(model, X):
    """Predictions with their standard deviations, as columns."""
    return np.column_stack(model.predict(X, return_std=True))


def resumed(model, *data):
    """A fit of 5 iterations, gone on with by another estimator to 10."""
    with TemporaryDirectory() as folder:
        model = model.set_callbacks(Checkpoint(Path(folder, "fit.ckpt")))
        model.set_params(max_iter=5).fit(*data)
        return clone(model).set_params(max_iter=10).fit(*data)
