"""VarProNetRegressor and VarProNetClassifier with every solver."""

from functools import partial

from benchmarks._frozen._common import (
    classes,
    features,
    resumed,
    targets,
    weights,
    with_std,
)
from sklearn_gn import VarProNetClassifier, VarProNetRegressor
from sklearn_gn.networks import NeuralODE
from sklearn_gn.solvers import SGD, Adam, GNvpro

X3, IMAGES = features(3), features(36)
SMALL = {"hidden_layer_sizes": (6, 5), "max_iter": 8, "random_state": 0}


def regression(n_targets=None, *, sample_weight=None, **words):
    model = VarProNetRegressor(**{**SMALL, "alpha": (1e-2, 1e-4), **words})
    model.fit(X3, targets(X3, n_targets), sample_weight=sample_weight)
    return model, with_std(model, X3[:10])


def classification(X=X3, *, sample_weight=None, **words):
    model = VarProNetClassifier(**{**SMALL, "alpha": 1e-3, **words})
    model.fit(X, classes(X), sample_weight=sample_weight)
    return model, model.predict_proba(X[:20])


def resumed_fit():
    solver = GNvpro(batch_size=40)
    model = VarProNetRegressor(**SMALL, alpha=(1e-2, 1e-4), solver=solver)
    model = resumed(model, X3, targets(X3))
    return model, model.predict(X3)


CASES = {
    "gnvpro_dense": partial(
        regression, 2, solver=GNvpro(curvature="dense"), sample_weight=weights(X3)
    ),
    "gnvpro_krylov": partial(
        regression, solver=GNvpro(curvature="krylov"), rank=8, alpha=(1e-2, 1e-4)
    ),
    "gnvpro_damping": partial(regression, damping=1e-3, activation="silu"),
    "gnvpro_levels": partial(regression, network=NeuralODE(4, n_levels=2), max_iter=8),
    "gnvpro_batches": partial(
        regression, solver=GNvpro(batch_size=40, iterations_per_batch=2)
    ),
    "gnvpro_early_stopping": partial(
        regression,
        hidden_layer_sizes=(20,),
        alpha=(1e-6, 1e-4),
        max_iter=40,
        early_stopping=True,
        n_iter_no_change=2,
    ),
    # More than 1200 weights: standard deviations are those of the output layer.
    "gnvpro_wide": partial(regression, hidden_layer_sizes=(40, 30), max_iter=4),
    "gn": partial(regression, solver="gn", rank=8),
    "lbfgs_vpro": partial(regression, solver="lbfgs_vpro"),
    "adam": partial(regression, solver=Adam(batch_size=32)),
    "sgd": partial(regression, solver=SGD(batch_size=32)),
    "resumed": resumed_fit,
    "evidence": partial(regression, 2, alpha="auto", sample_weight=weights(X3)),
    "classifier_evidence": partial(classification, alpha="auto"),
    "classifier_gnvpro": partial(
        classification, sample_weight=weights(X3), class_weight="balanced"
    ),
    "classifier_gn": partial(classification, solver="gn", rank=8),
    "classifier_lbfgs_vpro": partial(classification, solver="lbfgs_vpro"),
    "classifier_adam_cnn": partial(
        classification, IMAGES, solver="adam", network="cnn", max_iter=3
    ),
    "classifier_sgd": partial(classification, solver=SGD(batch_size=32)),
}
