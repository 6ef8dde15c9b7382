"""Fitted models elsewhere: saved and loaded, as scikit-learn's own, in threads."""

import os
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import joblib
import numpy as np
import onnxruntime
import pytest
import skops.io
from skl2onnx import to_onnx
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler

import sklearn_gn.base
from sklearn_gn import (
    FGNSoftmaxHead,
    PINNSolver,
    SegmentedRegressor,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)
from sklearn_gn.callbacks import LogWriter
from sklearn_gn.networks import CNN

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.RandomState(0)
X = RNG.standard_normal((40, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 1.0]
Y1 = X[:, 0] + np.abs(X[:, 1])
Y2 = np.column_stack([Y1, X[:, 2] ** 2])
LABELS = np.array(["a", "b", "c"])[RNG.randint(0, 3, 40)]
SHORT = {"max_iter": 3, "random_state": 0}
ONE = {"hidden_layer_sizes": (3,), "alpha": 0.1, **SHORT}
# Solvers that compile little: which one fitted a network changes nothing below.
BY_ADAM, BY_GN, BY_LM = {"solver": "adam"}, {"solver": "gn"}, {"solver": "lm"}

EXPORTED = {
    "shallow": lambda: ShallowReLURegressor(**SHORT).fit(X, Y1),
    "shallow, two targets": lambda: ShallowReLURegressor(**SHORT).fit(X, Y2),
    "shallow, no penalty": lambda: ShallowReLURegressor(
        3, alpha=0, **BY_LM, **SHORT
    ).fit(X, Y1),
    "committee": lambda: VarProNetRegressor(**SHORT).fit(X, Y1),
    "committee, two targets": lambda: VarProNetRegressor(**SHORT).fit(X, Y2),
    "committee of deep networks": lambda: VarProNetRegressor(
        hidden_layer_sizes=(3, 2), activation="tanh", n_init=2, **SHORT
    ).fit(X, Y1),
    "network": lambda: VarProNetRegressor(**ONE).fit(X, Y1),
    "network, two targets": lambda: VarProNetRegressor(
        **{**ONE, **BY_ADAM, "activation": "sigmoid"}
    ).fit(X, Y2),
    "classifiers": lambda: VarProNetClassifier(**SHORT).fit(X, LABELS),
    "classifiers, two classes": lambda: VarProNetClassifier(**SHORT).fit(
        X, LABELS == "a"
    ),
    "classifiers and a process": lambda: VarProNetClassifier(random_state=0).fit(
        X, np.sin(4 * X[:, 0]) > 0
    ),
    "classifier": lambda: VarProNetClassifier(**ONE, **BY_GN).fit(X, LABELS),
    "classifier, two classes": lambda: VarProNetClassifier(**ONE, **BY_GN).fit(
        X, LABELS == "b"
    ),
    "head": lambda: FGNSoftmaxHead(max_iter=3).fit(X, LABELS),
    "head, two classes": lambda: FGNSoftmaxHead(max_iter=3, fit_intercept=False).fit(
        X, LABELS == "b"
    ),
}
MODELS = {
    **EXPORTED,
    "pinn": lambda: PINNSolver(hidden_layer_sizes=(3,), **SHORT).fit(X, Y1),
    "segmented": lambda: SegmentedRegressor().fit(X, Y1),
}


@cache
def fitted(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MODELS[name]()


# -- saved and loaded -----------------------------------------------------------------


def outputs(model):
    """What a model predicts, with standard deviations where it has them."""
    if hasattr(model, "predict_proba"):
        return [model.predict_proba(X)]
    return list(model.predict(X, return_std=True))


# One process for all: it takes a second to start. The order of the threads of BLAS
# decides about last digits, so both processes use one.
FRESH = """
import sys
import joblib, numpy as np, skops.io
from test_trust_outputs import outputs

folder = sys.argv[1]
for name in sys.argv[2:]:
    expected = np.load(f"{folder}/{name}.npz")
    types = skops.io.get_untrusted_types(file=f"{folder}/{name}.skops")
    assert all(t.split(".")[0] == "sklearn_gn" for t in types), types
    for model in (
        np.load(f"{folder}/{name}.pickle", allow_pickle=True),
        joblib.load(f"{folder}/{name}.joblib"),
        skops.io.load(f"{folder}/{name}.skops", trusted=types),
    ):
        for key, found in zip(sorted(expected), outputs(model), strict=True):
            np.testing.assert_array_equal(found, expected[key])
print("equal bits")
"""


@pytest.mark.slow
def test_a_fresh_process_predicts_the_same_bits(tmp_path):
    names = [
        "head",
        "pinn",
        "segmented",
        "shallow",
        "committee, two targets",
        "network",
        "classifiers",
    ]
    source = Path(__file__).read_text()
    first = source.index("def outputs(")
    function = source[first : source.index("\n\n\n", first)]
    (tmp_path / "test_trust_outputs.py").write_text(
        f"import numpy as np\nX = np.load({str(tmp_path / 'X.npy')!r})\n{function}\n"
    )
    np.save(tmp_path / "X.npy", X)
    for name, model in zip(names, map(fitted, names), strict=True):
        np.savez(tmp_path / f"{name}.npz", *outputs(model))
        joblib.dump(model, tmp_path / f"{name}.joblib")
        skops.io.dump(model, tmp_path / f"{name}.skops")
        (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(model))
    root = str(Path(sklearn_gn.__file__).parents[1])
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", FRESH, str(tmp_path), *names],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, str(tmp_path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout.strip() == "equal bits", process.stderr


@pytest.mark.parametrize("name", ["segmented", "shallow"])
def test_other_versions_are_named(name, monkeypatch):
    model = fitted(name)
    saved = pickle.dumps(model)
    then = sklearn_gn.base.versions()
    monkeypatch.setattr(
        sklearn_gn.base,
        "versions",
        lambda: {**then, "numpy": "9.9.9", "sklearn_gn": "7.0"},
    )
    kind = type(model).__name__
    with pytest.warns(UserWarning, match=rf"This {kind} .*, now 7.0; numpy .*9\.9\.9"):
        loaded = pickle.loads(saved)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert "_made_with" not in vars(loaded)


def test_a_patch_release_changes_nothing(monkeypatch):
    saved = pickle.dumps(fitted("head"))
    then = sklearn_gn.base.versions()
    major, minor = then["numpy"].split(".")[:2]
    later = {**then, "numpy": f"{major}.{minor}.999"}
    monkeypatch.setattr(sklearn_gn.base, "versions", lambda: later)
    pickle.loads(saved)


# -- as scikit-learn's own ------------------------------------------------------------


@pytest.mark.parametrize("name", EXPORTED)
def test_scikit_learn_and_onnx_predict_the_same(name):
    model = fitted(name)
    exported = model.to_sklearn()
    assert type(exported).__module__.startswith("sklearn.")
    assert exported.n_features_in_ == 3
    if name in ("network", "classifier"):
        assert exported[-1].hidden_layer_sizes == (3,)
    np.testing.assert_array_equal(
        exported.predict(X).shape, np.asarray(model.predict(X)).shape
    )
    options = None
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(exported.predict(X), model.predict(X))
        expected = model.predict_proba(X)
        np.testing.assert_allclose(
            exported.predict_proba(X), expected, rtol=0, atol=1e-10
        )
        last = exported[-1] if hasattr(exported, "steps") else exported
        options = {id(last): {"zipmap": False}}
    else:
        expected = model.predict(X)
        size = np.abs(expected).max()
        np.testing.assert_allclose(
            exported.predict(X), expected, rtol=0, atol=1e-10 * size
        )
    onnx = to_onnx(exported, X[:1], options=options).SerializeToString()
    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: X})[-1]
    np.testing.assert_allclose(
        found.reshape(expected.shape), expected, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("name", EXPORTED)
def test_models_and_pipelines_are_converted_to_onnx(name):
    model = fitted(name)
    same = MaxAbsScaler().fit(np.ones((1, 3)))
    pipeline = Pipeline([("same", same), ("model", model)])
    options = {"zipmap": False} if hasattr(model, "predict_proba") else None
    expected = model.predict_proba(X) if options else model.predict(X)
    for given in (model, pipeline):
        onnx = to_onnx(given, X[:1], options=options).SerializeToString()
        session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
        found = session.run(None, {session.get_inputs()[0].name: X})[-1]
        size = max(np.abs(expected).max(), 1)
        np.testing.assert_allclose(
            found.reshape(expected.shape), expected, rtol=1e-6, atol=1e-6 * size
        )


def test_names_of_features_are_kept_and_memory_is_not_shared():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["u", "v", "w"])
    head = FGNSoftmaxHead(max_iter=2).fit(frame, LABELS)
    exported = head.to_sklearn()
    assert list(exported.feature_names_in_) == ["u", "v", "w"]
    exported.coef_[:] = 0
    assert head.coef_.any()
    network = VarProNetRegressor(**ONE).fit(frame, Y1).to_sklearn()
    with pytest.raises(ValueError, match="feature names should match"):
        network.predict(frame.rename(columns={"u": "z"}))


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ({**ONE, "activation": "silu"}, "has \\['silu'\\]"),
        (
            {**ONE, "activation": ("tanh", "relu"), "hidden_layer_sizes": (2, 2)},
            "one activation",
        ),
        ({**ONE, "network": CNN((1, 3), channels=(2,))}, "fully connected networks"),
    ],
)
@pytest.mark.repeats
def test_networks_that_scikit_learn_does_not_have_are_named(words, cause):
    words.pop("hidden_layer_sizes") if "network" in words else None
    model = VarProNetRegressor(**words, **BY_ADAM).fit(X, Y1)
    with pytest.raises(ValueError, match=f"to_sklearn: .*{cause}"):
        model.to_sklearn()


# -- threads --------------------------------------------------------------------------


def test_fits_predictions_and_callbacks_in_threads_give_what_they_give_alone():
    rows = []
    writer = LogWriter(rows.append)
    cases = [ShallowReLURegressor(max_iter=4 + k, random_state=k) for k in range(4)]
    cases += [VarProNetRegressor(**{**ONE, "random_state": k}) for k in range(2)]

    def fit(model):
        model = clone(model).set_callbacks(writer).fit(X, Y1)
        return model.predict(X, return_std=True), model.convergence_log_["loss"]

    expected = [fit(model) for model in cases]
    n_rows = len(rows)
    with ThreadPoolExecutor(len(cases)) as pool:
        found = list(pool.map(fit, cases))
    for one, other in zip(found, expected, strict=True):
        # Threads of BLAS, if any, divide sums as others leave room.
        np.testing.assert_allclose(one[1], other[1], rtol=1e-6, atol=1e-10)
        np.testing.assert_allclose(one[0], other[0], rtol=1e-6, atol=1e-6)
    assert len(rows) == 2 * n_rows
    committee = fitted("committee, two targets")
    with ThreadPoolExecutor(4) as pool:
        many = list(pool.map(lambda _: outputs(committee), range(8)))
    for one in many:
        np.testing.assert_array_equal(one, outputs(committee))
