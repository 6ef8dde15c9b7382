"""Tables with which a regression by the evidence has little or nothing to do."""

import warnings

import numpy as np
import pytest

from sklearn_gn import ShallowReLURegressor, VarProNetRegressor

RNG = np.random.RandomState(0)
X, NOISE = RNG.randn(60, 4), 0.1 * RNG.randn(60)
KINK = X[:, 0] + np.abs(X[:, 1])
FEW = (np.arange(60) < 40).astype(float)
LONE = (np.arange(60) < 1).astype(float)
# Features, targets, weights, and least and largest noise level.
TABLES = {
    "constant target": (X, np.full(60, 3.0), None, 0, 1e-10),
    "zero target": (X, np.zeros(60), None, 0, 1e-10),
    "linear without noise": (X, X @ [1, 2, 0, 0.0], None, 0, 1e-10),
    "fewer rows than features": (RNG.randn(30, 50), RNG.randn(30), None, 0.1, 2),
    "one row": (X[:1], KINK[:1], None, 0, 1e-10),
    "a row, the others without weight": (X, KINK, LONE, 0, 1e-10),
    "copies of features": (X[:, [0, 0, 1, 1]], KINK + NOISE, None, 0.07, 0.13),
    "constant features": (np.ones((60, 3)), X[:, 0], None, 0.5, 2),
    "equal rows of features": (np.repeat(X[:1], 60, 0), X[:, 0], None, 0.5, 2),
    "rows without weight": (X, KINK + NOISE + 1e3 * (FEW == 0), FEW, 0.05, 0.15),
}


@pytest.mark.parametrize("n_features", [1, 4])
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kind", [ShallowReLURegressor, VarProNetRegressor])
def test_all_figures_are_finite_or_a_warning_names_the_cause(kind, name, n_features):
    features, y, weight, least, largest = TABLES[name]
    if n_features == 1 and name not in ("copies of features", "rows without weight"):
        features = features[:, :1]
        if name == "linear without noise":
            y = 2 * features[:, 0]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = kind(random_state=0).fit(features, y, sample_weight=weight)
        lower, upper = model.predict_interval(features)
    for message in {str(one.message) for one in told}:
        assert "noise cannot be estimated" in message.replace("\n", " ")
    penalties = getattr(model, "alpha_", {})  # one feature may be without
    for values in (*penalties.values(), lower, upper, model.predict(features)):
        assert np.isfinite(values).all()
    assert least <= model.noise_std_ <= largest
    assert np.all(lower <= upper)
    if weight is None and largest < 1e-8:
        np.testing.assert_allclose(model.predict(features), y, atol=1e-8)
