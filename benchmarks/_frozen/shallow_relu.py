"""ShallowReLURegressor with every solver, and several series."""

from functools import partial

import numpy as np

from benchmarks._frozen._common import features, resumed, targets, weights, with_std
from sklearn_gn import ShallowReLURegressor
from sklearn_gn.solvers import JointGN, SgGN

X1, X3 = features(1), features(3)
SMALL = {
    "n_neurons": 5,
    "alpha": 0.0,
    "solver": JointGN(relocations=2),
    "max_iter": 10,
    "random_state": 0,
}
SGGN = SgGN(relocations=2)


def regressor(**words):
    return ShallowReLURegressor(**{**SMALL, **words})


def fitted(X, n_targets=None, *, sample_weight=None, **words):
    model = regressor(**words)
    model.fit(X, targets(X, n_targets), sample_weight=sample_weight)
    return model, with_std(model, X[:10])


def resumed_fit():
    model = resumed(regressor(solver=SGGN), X3, targets(X3))
    return model, model.predict(X3)


def series():
    """Two lengths and weights; the figures are those of the last series."""
    X = [X1[:60], X1[:90], X1]
    models = [
        regressor().fit(rows, targets(rows), sample_weight=weights(rows)) for rows in X
    ]
    values = np.concatenate([model.predict(X1[:7]) for model in models])
    return models[-1], values


CASES = {
    "evidence": partial(fitted, X3, alpha="auto", sample_weight=weights(X3)),
    "vpgn_1d": partial(fitted, X1),
    "vpgn_1d_damping": partial(fitted, X1, alpha=1e-6),
    "vpgn_weights": partial(fitted, X3, 2, sample_weight=weights(X3), n_init=3),
    "vpgn_early_stopping": partial(
        fitted, X3, n_neurons=12, max_iter=40, early_stopping=True, n_iter_no_change=2
    ),
    "auto_1d": partial(fitted, X1, n_neurons="auto", solver=JointGN(relocations=0)),
    "auto": partial(
        fitted, X3, n_neurons="auto", criterion="gcv", solver=JointGN(relocations=0)
    ),
    "sggn": partial(fitted, X3, solver=SGGN, alpha=1e-6, damping=1e-6, rank=12),
    "sggn_1d_float32": partial(
        fitted, X1, solver=SgGN(relocations=0), dtype="float32", max_iter=6
    ),
    "lm": partial(fitted, X3, solver="lm", alpha=1e-6, rank=12),
    "lm_hidden": partial(fitted, X3, solver="lm_hidden", n_init=2),
    "kfra": partial(fitted, X3, solver="kfra"),
    "bfgs": partial(fitted, X3, solver="bfgs", init="horizontal"),
    "adam": partial(fitted, X3, solver="adam"),
    "resumed": resumed_fit,
    "series": series,
}
