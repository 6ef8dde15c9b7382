"""What is loaded when: JAX comes with the first fit that needs it."""

import subprocess
import sys

CODE = """
import sys

import numpy as np
from sklearn.base import clone

import sklearn_gn
import sklearn_gn.callbacks
import sklearn_gn.datasets
import sklearn_gn.plotting
import sklearn_gn.quadrature
import sklearn_gn.solvers

HEAVY = {"jax", "jaxlib", "optax", "matplotlib"}


def check(after):
    loaded = HEAVY.intersection(sys.modules)
    assert not loaded, f"{after} loaded {sorted(loaded)}"


check("an import")
for name in sklearn_gn.__all__:
    kind = getattr(sklearn_gn, name)
    if isinstance(kind, type) and hasattr(kind, "get_params"):
        estimator = clone(kind())
        estimator.set_params(**estimator.get_params())
        repr(estimator)
check("a constructor, get_params or clone")

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (60, 2))
y = np.abs(X[:, 0]) + 0.1 * rng.standard_normal(60)
model = sklearn_gn.ShallowReLURegressor(4, random_state=0, max_iter=3)
model.fit(X, y, X_val=X[:9], y_val=y[:9]).predict_interval(X)
model.transform(X), model.score(X, y)
check("a fit with penalties of the evidence")

for alpha in (1e-3, "auto"):
    head = sklearn_gn.FGNSoftmaxHead(alpha=alpha).fit(X, y > 0.5)
    head.predict_proba(X), head.gram_spectrum_, head.diagnose()
check("a head of few rows")

sklearn_gn.FGNSoftmaxHead("fgn", alpha=0.1, max_iter=1).fit(X, y > 0.5)
assert "jax" in sys.modules
assert not {"optax", "matplotlib"}.intersection(sys.modules)
"""


def test_jax_is_loaded_by_the_first_fit_that_compiles():
    result = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
