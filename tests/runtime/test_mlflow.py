"""Heads saved by MLflow, and loaded by a process that knows nothing else of them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import skops.io as sio
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sklearn_gn
from sklearn_gn import FGNSoftmaxHead, FGNSoftmaxHeadCV

mlflow = pytest.importorskip("mlflow.sklearn")
LOAD = """
import sys, mlflow, numpy as np
X, expected = np.load("X.npy"), np.load("expected.npy")
model = mlflow.sklearn.load_model("model")
assert np.array_equal(model.predict_proba(X), expected)
assert np.array_equal(
    mlflow.pyfunc.load_model("model").predict(X), expected.argmax(axis=1)
)
assert "jax" not in sys.modules
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of MLflow
@pytest.mark.parametrize("form", ["skops", "cloudpickle"])
@pytest.mark.parametrize("head", [FGNSoftmaxHead(), FGNSoftmaxHeadCV([0.1, 1.0])])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_fresh_process_loads_what_mlflow_saved(head, scaled, form, tmp_path):
    rng = np.random.RandomState(0)
    y = np.arange(90) % 3
    X = rng.randn(90, 4) + 2 * np.eye(4)[y]
    model = make_pipeline(StandardScaler(), head) if scaled else head
    model.fit(X, y)
    words = {"serialization_format": form}
    if form == "skops":
        types = sio.get_untrusted_types(data=sio.dumps(model))
        assert all(name.startswith("sklearn_gn.") for name in types)
        words["skops_trusted_types"] = types
    mlflow.save_model(model, str(tmp_path / "model"), **words)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "expected.npy", model.predict_proba(X))
    root = str(Path(sklearn_gn.__file__).parents[1])
    process = subprocess.run(
        [sys.executable, "-c", LOAD],
        env={**os.environ, "PYTHONPATH": root},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
