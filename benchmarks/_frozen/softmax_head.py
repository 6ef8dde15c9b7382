"""FGNSoftmaxHead with every solver."""

from functools import partial

from benchmarks._frozen._common import classes, features, weights
from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.solvers import FGN, SGN, Adam

X4, WIDE = features(4), features(300, n=500)
SMALL = {"alpha": 1e-3, "max_iter": 8, "random_state": 0}


def head(**words):
    return FGNSoftmaxHead(**{**SMALL, **words})


def fitted(X=X4, n_classes=4, *, sample_weight=None, **words):
    model = head(**words)
    model.fit(X, classes(X, n_classes), sample_weight=sample_weight)
    return model, model.predict_proba(X[:20])


def partly_fitted():
    """Two epochs, each on half of the rows."""
    model, y = head(solver=FGN(batch_size=32)), classes(X4, 4)
    for rows in (slice(0, 60), slice(60, 120)):
        model.partial_fit(X4[rows], y[rows], classes=range(4))
    return model, model.predict_proba(X4)


CASES = {
    "fgn_newton": partial(fitted, sample_weight=weights(X4), class_weight="balanced"),
    "fgn_newton_auto": partial(fitted, alpha="auto", max_iter=100),
    # From 16,384 coefficients on, epochs of FGN come first.
    "fgn_newton_large": partial(fitted, WIDE, 110, max_iter=4),
    "fgn": partial(fitted, solver=FGN(batch_size=32), sample_weight=weights(X4)),
    "fgn_rank": partial(
        fitted, solver=FGN(batch_size=32, shuffle=True), rank=2, damping=0.1
    ),
    "sgn": partial(
        fitted,
        solver=SGN(learning_rate=0.5, batch_size=32),
        alpha=0.0,
        max_iter=40,
        early_stopping=True,
        n_iter_no_change=2,
    ),
    "adam": partial(fitted, solver=Adam(batch_size=32), class_weight={0: 2.0}),
    "partial_fit": partly_fitted,
}
