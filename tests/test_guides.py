"""The snippets of the user guide run, page by page, with small data and few iterations.

Those of differential equations are in ``pde/test_guides.py``.
"""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, KFold

from sklearn_gn import ShallowReLURegressor

GUIDE = Path(__file__).parents[1] / "doc" / "user_guide"
pytestmark = [
    pytest.mark.skipif(not GUIDE.exists(), reason="needs the source tree"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

X = np.linspace(-1, 1, 60)[:, None]
Y = np.abs(X[:, 0] - 0.2)
POINTS = np.random.default_rng(0).uniform(-1, 1, (60, 2))

# What a page takes for given.
GIVEN = {
    "devices": {"features": load_iris().data, "labels": load_iris().target},
    "troubleshooting": {"model": None},
}
# What would take long, or change the settings of the process.
SHORTER = {
    "callbacks": [("[10, 20]}, n_jobs=2", "[1]}, cv=2")],
    "computing": [("enable_compilation_cache()", "enable_compilation_cache")],
    "deployment": [("(random_state=0)", "(max_iter=2, random_state=0)")],
    "devices": [
        ("jax.distributed.initialize()", ""),
        ('np.load("features.npy", mmap_mode="r")', "features"),
        ('np.load("labels.npy")', "labels"),
        ("FGNSoftmaxHead(device", "FGNSoftmaxHead(alpha=1, max_iter=1, device"),
    ],
    "extending": [("tol=0.05, max_iter=50", "max_iter=3"), ("tol=1e-2", "max_iter=2")],
    "quadrature": [  # without a penalty it would be compiled for every size
        ("n=100", "n=12"),
        ("n=40", "n=4"),
        ("n_neurons=20, alpha=0", "n_neurons=2"),
    ],
    "segmented": [("100_000_000", "100"), ("n_jobs=2", "n_jobs=1")],
    "softmax_head": [
        ('"fgn", tol=0.01', '"fgn", max_iter=1'),
        ("[0.3, 1, 3]", "[1]"),
        ("[1, 5]", "[1]"),
        ("cv=3", "cv=2"),
        ("2**18", "2**6"),
        ("load_digits", "load_iris"),
        ("[:1000]", "[:100]"),
    ],
    "shallow_relu": [("random_state=0", "max_iter=2, random_state=0")],
    "varpro": [
        (
            "VarProNetRegressor(random_state=0).fit",
            "VarProNetRegressor(max_iter=2).fit",
        ),
        ("make_cdr(400, n_nodes=11)", "make_cdr(30, n_nodes=5)"),
        ("X[:300], Y[:300]", "X[:20], Y[:20]"),
        ("X[300:], Y[300:]", "X[20:], Y[20:]"),
        ("tol=0.05", "max_iter=1"),
        ("make_ellipse(1000", "make_ellipse(60"),
        ("(0, 2, 5, 10)", "(0, 1)"),
        ("[1e-6, 1e-4, 1e-2]", "[1e-2]"),
        ("(16, 16), rank=20", "(4,)"),
        ("(64, 64)", "(4,)"),  # of the same shape: compiled once
        ("(4, 4, 2)", '(2,), solver="adam"'),
    ],
}
PAGES = sorted(path.stem for path in GUIDE.glob("*.rst") if "pinn" not in path.stem)


def small_model():
    return ShallowReLURegressor(2, random_state=0).fit(POINTS, POINTS[:, 0])


def snippets(path):
    """The blocks of Python code of a page."""
    block = r"^( *)\.\. code-block:: python\n\n((?:\1 +.*\n|\n)+)"
    found = re.findall(block, path.read_text(), re.M)
    return [textwrap.dedent(code) for _, code in found]


def run(page):
    """Run the snippets of a page one after the other; return the names they define."""
    code = "\n".join(snippets(GUIDE / f"{page}.rst"))
    for long, short in SHORTER.get(page, ()):
        assert long in code, long
        code = code.replace(long, short)
    names = {
        name: small_model() if name == "model" else value
        for name, value in GIVEN.get(page, {}).items()
    }
    exec(compile(code, page, "exec"), names)
    return names


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.tile(X[:50, 0], 4).tofile("points.bin")
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if p not in ("data", "extending")])
def test_snippets(page, in_a_folder):
    run(page)


def test_data_and_pipelines(in_a_folder):
    names = run("data")
    assert names["model"].score(names["houses"][200:], names["price"][200:]) > 0.98
    assert list(names["model"].feature_names_in_) == ["area", "age", "town"]
    skewed = names["skewed"][200:]
    inside = (names["lower"] <= skewed) & (skewed <= names["upper"])
    assert 0.85 < inside.mean() < 1  # the limits are those of the skewed target
    log = names["pipeline"][-1].convergence_log_
    assert np.isfinite(log["val_loss"]).all()  # X_val came through the transformers
    assert names["line"].feature_names_in_ == ["x"]
    np.testing.assert_allclose(names["line"].breakpoints_, [0.4])


def test_coming_from_other_packages():
    codes = snippets(GUIDE.parent / "coming_from.rst")
    others = re.compile("(import|from) (pwlf|pyearth)")
    installed = [code for code in codes if not others.search(code)]
    assert (len(codes), len(installed)) == (8, 6)
    x = X[:, 0]
    noise = 0.02 * np.random.default_rng(0).standard_normal(len(x))
    y = np.abs(np.abs(x) - 0.5) + noise
    names = {"X": X, "x": x, "y": y, "n_samples": len(X)}
    for code in installed:
        exec(code, names)
    assert names["breaks"].shape == (3,)
    assert names["slopes"].shape == (4,)


@pytest.fixture(scope="module")
def own():
    return run("extending")


@pytest.mark.slow
def test_own_network_and_condition(own):
    assert own["model"].solver.learning_rate == 0.05
    assert own["RadialFeatures"](8) == own["RadialFeatures"](8)
    assert hash(own["RadialFeatures"](8)) == hash(own["RadialFeatures"](8))
    assert len(own["plate"].residual_classes()) == 3
    assert own["solver"].n_iter_ == 2


def test_own_solver_descends(own):
    loss = clone(own["model"]).fit(own["X"], own["y"]).convergence_log_["loss"]
    assert len(loss) == 50
    assert (np.diff(loss) < 0).all()


def test_a_grid_reaches_the_parameter_of_an_own_solver(own):
    grid = {"solver__learning_rate": [1e-4, 0.05]}
    # Unshuffled halves would be lines, on which there is nothing to descend.
    cv = KFold(2, shuffle=True, random_state=0)
    search = GridSearchCV(own["model"], grid, cv=cv, return_train_score=True)
    search.fit(own["X"], own["y"])
    rates = [p["solver__learning_rate"] for p in search.cv_results_["params"]]
    assert rates == [1e-4, 0.05]
    slow, fast = search.cv_results_["mean_train_score"]
    assert slow < fast - 1e-3  # as many steps lead further
