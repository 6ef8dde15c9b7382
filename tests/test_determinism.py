"""Same seed, same bytes: what the page on determinism promises.

As a script, ``python tests/test_determinism.py`` prints the digests of the fits.
"""

import hashlib
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import sklearn_gn
from sklearn_gn import (
    FGNSoftmaxHead,
    PINNSolver,
    SegmentedRegressor,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)
from sklearn_gn.pde import Box, Initial, Problem, d

rng = np.random.RandomState(0)
X = rng.randn(300, 3)
Y = np.abs(X[:, 0]) + X[:, 1] + 0.1 * rng.randn(300)
LABELS = np.digitize(Y, [0.0, 1.0])
SHORT = {"max_iter": 3, "random_state": 0}
# Their fits are NumPy under one thread of BLAS, whatever the machine offers.
ANY_THREADS = {
    "SegmentedRegressor": lambda: SegmentedRegressor("auto").fit(X[:, :1], Y),
    "ShallowReLURegressor": lambda: ShallowReLURegressor(**SHORT).fit(X, Y),
    "VarProNetRegressor": lambda: VarProNetRegressor(**SHORT).fit(X, Y),
    "VarProNetClassifier": lambda: VarProNetClassifier(**SHORT).fit(X, LABELS),
}
# XLA divides the sums of large products by the number of its threads.
SAME_THREADS = {
    "FGNSoftmaxHead": lambda: FGNSoftmaxHead(**SHORT).fit(X, LABELS),
    "PINNSolver": lambda: PINNSolver(
        Problem(_decay, Box(t=(0, 1)), (Initial(_one),)),
        hidden_layer_sizes=(5,),
        n_interior=20,
        **SHORT,
    ).fit(),
}
CASES = {**ANY_THREADS, **SAME_THREADS}


def _decay(u, t):
    return d(u, "t") + u


def _one(x):
    return 1.0


def digest(name):
    """SHA-256 of the predictions of a fit and of its log without the times."""
    model = CASES[name]()
    points = np.linspace(-1, 1, 50)[:, None] * np.ones(model.n_features_in_)
    sha = hashlib.sha256(np.asarray(model.predict(points)).tobytes())
    log = getattr(model, "convergence_log_", {})
    for column in sorted(set(log) - {"time"}):
        sha.update(np.asarray(log[column], float).tobytes())
    return sha.hexdigest()


def digests():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: digest(name) for name in CASES}


def in_another_process(one_core=False, **variables):
    code = "import os, sys\n"
    if one_core:
        code += "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    process = subprocess.run(
        [sys.executable, "-c", code, __file__],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def expected():
    return digests()


def test_a_repeated_fit_gives_the_same_bytes(expected):
    assert digests() == expected
    assert len(set(expected.values())) == len(CASES)


@pytest.mark.slow
def test_another_process_with_more_threads_of_blas_gives_the_same_bytes(expected):
    threads = {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    assert in_another_process(**threads, PYTHONHASHSEED="1") == expected


@pytest.mark.parametrize("name", ["SegmentedRegressor", "VarProNetRegressor"])
def test_products_of_many_rows_do_not_depend_on_the_threads_of_blas(name):
    rng = np.random.RandomState(0)
    size = (12_000, 1) if name == "SegmentedRegressor" else (3_000, 30)
    rows = rng.randn(*size)
    y = np.abs(rows[:, 0]) + 0.3 * rng.randn(len(rows))
    found = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads, "blas"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = getattr(sklearn_gn, name)()
            if name != "SegmentedRegressor":
                model.set_params(**SHORT)
            found.append(model.fit(rows, y).predict(rows))
    np.testing.assert_array_equal(*found)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="of Linux")
@pytest.mark.slow
def test_one_core_gives_the_same_bytes_where_it_is_promised(expected):
    found = in_another_process(one_core=True)
    assert {k: found[k] for k in ANY_THREADS} == {k: expected[k] for k in ANY_THREADS}


def test_another_seed_gives_other_bytes(expected, monkeypatch):
    monkeypatch.setitem(SHORT, "random_state", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert digest("VarProNetRegressor") != expected["VarProNetRegressor"]


if __name__ == "__main__":
    print(json.dumps(digests()))
