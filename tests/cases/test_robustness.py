"""Processes, caches, extreme but legal input, and luck of random starts.

An expected failure says what goes wrong today.
"""

import os
import re
import stat
import warnings

import numpy as np
import pytest
from sklearn.metrics import r2_score

from sklearn_gn import (
    FGNSoftmaxHead,
    SegmentedRegressor,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)
from tests.cases.common import in_fresh_process

CACHE = "SKLEARN_GN_COMPILATION_CACHE"
NETWORKS = [
    VarProNetRegressor,
    ShallowReLURegressor,
    VarProNetClassifier,
    FGNSoftmaxHead,
]


# -- Processes, and the cache of compiled programs


@pytest.mark.slow
def test_no_warnings_in_a_spawned_process(tmp_path):
    # Servers and loaders of data fit in such processes.
    run = in_fresh_process(
        """
import multiprocessing
import warnings

def fit(name):
    warnings.simplefilter("error")
    import numpy as np
    import sklearn_gn
    estimator = getattr(sklearn_gn, name)()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 1 if name == "SegmentedRegressor" else 4))
    y = X[:, 0] + np.abs(X[:, -1]) + 0.1 * rng.normal(size=150)
    if estimator.__sklearn_tags__().estimator_type == "classifier":
        y = (y > 0.5).astype(int)
    try:
        estimator.fit(X, y).predict(X)
    except Warning as warning:
        return f"{name} warns: {warning!r}"
    return f"{name} is silent"

if __name__ == "__main__":
    names = ["VarProNetRegressor", "ShallowReLURegressor", "SegmentedRegressor",
             "VarProNetClassifier", "FGNSoftmaxHead"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(*pool.map(fit, names), sep="\\n")
""",
        tmp_path,
    )
    if run.returncode:
        raise RuntimeError(run.stderr[-2000:])
    assert run.stdout.count("silent") == 5, run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("variable", [CACHE, "HOME"])
def test_a_cache_that_cannot_be_written_does_not_stop_the_import(tmp_path, variable):
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "below")
    variables = {CACHE: "1", "HOME": folder, "XDG_CACHE_HOME": folder}
    if variable == CACHE:
        variables = {CACHE: folder}
    run = in_fresh_process("import sklearn_gn", tmp_path, **variables)
    assert not re.search("(NotADirectory|FileNotFound)Error", run.stderr)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("deep", [False, True], ids=["given", "of the processor"])
def test_a_cache_that_everybody_may_write_to(tmp_path, deep):
    def enable():
        """Enable the cache; return the folder in it, and what the user is told."""
        run = in_fresh_process(
            """
import warnings
import sklearn_gn
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        print(sklearn_gn.enable_compilation_cache("cache"))
    except (OSError, ValueError, RuntimeError) as error:
        print("refused:", error)
print(*[warning.message for warning in caught])
""",
            tmp_path,
        )
        if run.returncode:
            raise RuntimeError(run.stderr[-2000:])
        return run.stdout.strip().split("\n")

    folder = tmp_path / "cache"
    folder.mkdir()
    if deep:
        folder = tmp_path / enable()[0]
    folder.chmod(0o777)
    answer = enable()
    refused_or_warned = answer[0].startswith("refused") or len(answer) > 1
    mended = not stat.S_IMODE(folder.stat().st_mode) & 0o022
    assert refused_or_warned or mended


# -- Extreme but legal input


@pytest.mark.parametrize(
    ("estimator", "unit", "seed"),
    [
        (VarProNetRegressor, 1e300, 1),
        (VarProNetRegressor, 1e300, 4),
        (VarProNetRegressor, 1e300, 12),
        (ShallowReLURegressor, 1e300, 1),
    ],
)
def test_intervals_with_huge_weights(estimator, unit, seed):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(2, 3)), rng.normal(size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = estimator(random_state=0)
        model.fit(X, y, sample_weight=unit * rng.random(len(X)))
        low, high = model.predict_interval(X)
    # Infinite limits are right where nothing is known of the noise.
    assert not np.isnan(model.noise_std_)
    assert (low <= high).all()


@pytest.mark.parametrize("estimator", [*NETWORKS, SegmentedRegressor])
def test_a_target_without_columns(estimator):
    X = np.arange(20.0)[:, None]
    with pytest.raises(ValueError) as error:  # noqa: PT011, what it says comes next
        estimator().fit(X, np.empty((20, 0)))
    assert re.search(r"\by\b|target", str(error.value))


def test_no_minus_zero_in_summaries():
    x = np.linspace(-5, 5, 80)
    ramp, noise = np.maximum(x, 0), np.random.default_rng(0).normal(size=80)
    for y in (ramp, -ramp, ramp[::-1], -ramp[::-1], 3 - np.abs(x)):
        for std in (0, 1e-13, 0.01):
            model = SegmentedRegressor().fit(x[:, None], y + std * noise)
            text = str(model.summary())
            assert not re.search(r"(?<![\w.])-0(\.0*)?(?![\w.])", text), text


@pytest.mark.parametrize("estimator", NETWORKS)
def test_minus_zero_is_zero(estimator):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    X[:40, 1] = 0
    y = X[:, 0] + np.abs(X[:, 1])
    if not estimator.__name__.endswith("Regressor"):
        y = (y > 0.5).astype(int)
    signed = X.copy()
    signed[:40:2, 1] = -0.0
    model = estimator(random_state=0).fit(X, y)
    other = estimator(random_state=0).fit(signed, y)
    np.testing.assert_array_equal(model.predict(X), other.predict(X))
    np.testing.assert_array_equal(model.predict(X), model.predict(signed))


# -- Luck


@pytest.mark.slow
def test_spread_over_random_states():
    def draw(n, seed):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, 20))
        y = 10 * np.sin(X[:, 0] * X[:, 1]) + 5 * np.abs(X[:, 2]) + 3 * X[:, 3]
        y += 2 * (X[:, 4] > 0) + X[:, 5] ** 2
        return X, y + rng.normal(size=n)

    Z, t = draw(10_000, 99)
    for n, rows in ((8_000, 0), (10_000, 0), (8_000, 1)):
        X, y = draw(n, rows)
        models = [VarProNetRegressor(random_state=seed).fit(X, y) for seed in range(3)]
        scores = [r2_score(t, model.predict(Z)) for model in models]
        assert np.ptp(scores) < 0.01, scores


def test_rounding_of_the_features():
    rng = np.random.default_rng(1)
    X, Z = rng.normal(size=(300, 5)), rng.normal(size=(400, 5))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=300)

    def predictions(seed, dtype=np.float64):
        model = ShallowReLURegressor(random_state=seed).fit(X.astype(dtype), y)
        return model.predict(Z.astype(dtype)).astype(np.float64)

    def distance(others):
        return np.sqrt(np.mean((others - plain) ** 2))

    plain = predictions(0)
    starts = [distance(predictions(seed)) for seed in (1, 2, 3)]
    assert distance(predictions(0, np.float32)) < np.mean(starts) / 4
