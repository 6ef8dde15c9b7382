"""The penalty chosen by rows that are left out, against refits and SciPy's minima."""

import warnings

import jax
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.callbacks import Checkpoint
from sklearn_gn.softmax_head.penalty import best_factor, folds_of

AUTO = FGNSoftmaxHead(tol=1e-9)


def data(n_classes=3, n=60, d=4):
    rng = np.random.RandomState(0)
    X = rng.randn(n, d)
    logits = X @ rng.randn(d, n_classes)
    return X, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


# --- the factor of the logits --------------------------------------------------------


def smoothed_loss(log_factor, logits, label, weight):
    """Cross-entropy, and half that of the mean row, of any class."""
    logits = np.exp(log_factor) * logits
    if logits.shape[1] == 1:
        logits = np.append(0 * logits, logits, axis=1)
    log_p = log_softmax(logits, axis=1)
    loss = -weight @ log_p[np.arange(len(label)), label]
    return loss - weight @ log_p.mean(axis=1) / weight.sum() / 2


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_the_factor_is_that_of_the_least_cross_entropy(library, n_classes, size):
    rng = np.random.RandomState(0)
    logits = rng.randn(400, n_classes)
    label = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)
    columns = logits if n_classes > 2 else logits[:, 1:] - logits[:, :1]
    given = size * columns, label, 1.0 + np.arange(400) % 3
    best = minimize_scalar(smoothed_loss, args=given, bounds=(-5, 5), method="bounded")
    if library == "numpy":
        loss, factor = best_factor(*given)
        unchanged, one = best_factor(*given, search=False)
        assert one == 1
        assert unchanged == pytest.approx(smoothed_loss(0.0, *given), rel=1e-11)
    else:
        with jax.enable_x64(True):
            loss, factor = jax.jit(best_factor)(*given)
    assert np.log(float(factor)) == pytest.approx(best.x, abs=2e-3)
    assert float(loss) == pytest.approx(best.fun, rel=1e-5)


def test_an_error_in_so_many_rows_is_never_excluded():
    for n in (30, 3000):
        label = np.arange(n, dtype=np.int32) % 3
        logits = 0.1 * np.eye(3)[label]
        _, factor = best_factor(logits, label, np.ones(n))
        p = np.exp(log_softmax(factor * logits, axis=1))[0]
        assert 1 - p[0] == pytest.approx(2 / 3 / (2 * n + 1), rel=0.01)


def test_probabilities_are_those_of_the_divided_logits():
    X, y = data()
    model = FGNSoftmaxHead().fit(X, y)
    assert model.temperature_ != 1
    expected = log_softmax(model.decision_function(X) / model.temperature_, axis=1)
    np.testing.assert_allclose(model.predict_log_proba(X), expected, atol=1e-12)


# --- the rows that are left out ------------------------------------------------------


def test_folds_spread_the_classes_whatever_their_names():
    label = np.random.RandomState(0).permutation(np.repeat([0, 1, 2, 3], [40, 9, 2, 1]))
    fold = folds_of(label)
    np.testing.assert_array_equal(folds_of(3 - label), fold)
    assert fold[label == 3] == -1  # no other row is of its class
    assert np.ptp(np.bincount(fold[label == 0])) == 0
    assert np.all(np.bincount(fold[label == 1]) >= 1)
    assert len(set(fold[label == 2])) == 2
    assert np.ptp(np.bincount(fold[label < 3])) <= 1


def test_once_enough_rows_are_left_out_no_further_folds_are():
    for n, n_folds in ((200, 8), (400, 5), (1000, 2), (4000, 1), (40_000, 1)):
        assert folds_of(np.arange(n) % 2).max() + 1 == n_folds


@pytest.mark.parametrize("shape", [(40, 4), (60, 80)])
def test_it_chooses_as_leave_one_out_does(shape):
    X, y = data(3, *shape)
    n, counts, losses = len(X), np.bincount(y), []
    x = StandardScaler().fit_transform(X)
    x /= (np.maximum(np.mean(x**4, axis=0), 1) / 3) ** 0.25
    path = FGNSoftmaxHead().fit(x, y).alpha_path_
    for alpha in path["alpha"]:
        peer, logits = LogisticRegression(C=1 / (alpha * n)), np.empty((n, 3))
        for i in range(n):
            peer.fit(np.delete(x, i, 0), np.delete(y, i))
            logits[i] = peer.decision_function(x[i : i + 1])[0]
        # Each row lacks one of its class.
        logits[np.arange(n), y] += np.log(counts / (counts - 1))[y]
        losses.append(best_factor(logits, y, np.ones(n))[0] / n)
    np.testing.assert_allclose(path["left_out"], losses, rtol=0.15)
    assert path["left_out"].min() == pytest.approx(min(losses), rel=0.1)
    assert abs(np.argmin(path["left_out"]) - np.argmin(losses)) <= 1


# --- the path ------------------------------------------------------------------------


def test_the_penalty_is_at_the_top_of_a_parabola():
    """Through the three highest points of criterion and prior, of all rows here."""
    rng, values = np.random.RandomState(0), np.linspace(-1, 1, 60)
    # One unit suits all features.
    X = np.stack([rng.permutation(values) for _ in range(4)], axis=1)
    logits = 2 * X @ rng.randn(4, 3)
    y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    model, n = FGNSoftmaxHead().fit(X, y), len(X)
    unit = (np.mean(values**4) / 3) ** 0.25
    path, likeliest = model.alpha_path_, 10**-1.5 * 4 * np.mean(values**2) / unit**2 / n
    steps = np.log10(path["alpha"] / likeliest)
    judged = -n * path["left_out"] - steps**2 / 2
    top = np.argsort(-judged)[:3]
    assert np.ptp(steps[top]) == pytest.approx(2)  # neighbours
    bend, slope, _ = np.polyfit(steps[top], judged[top], 2)
    assert np.log10(model.alpha_ / likeliest) == pytest.approx(
        -slope / (2 * bend), abs=0.02
    )


def test_a_criterion_without_a_maximum_ends_the_path():
    """Separable classes ask for no penalty, and noise for an infinite one."""
    y = np.arange(2000) % 2
    X = 1e3 * y[:, None] + np.random.RandomState(0).rand(2000, 1)
    for labels in (y, np.random.RandomState(1).permutation(y)):
        model = FGNSoftmaxHead().fit(X, labels)
        assert len(model.alpha_path_["alpha"]) <= 17
        assert 0 < model.alpha_ < np.inf


@pytest.mark.parametrize("n_classes", [2, 3])
def test_names_of_classes_change_no_digit(n_classes):
    X, y = data(n_classes)
    expected = FGNSoftmaxHead().fit(X, y).predict_proba(X)
    found = FGNSoftmaxHead().fit(X, -y).predict_proba(X)[:, ::-1]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_few_rows_are_predicted_about_as_well_as_by_the_best_penalty_of_a_peer():
    """The first images of digits, and features of heavy tails."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    z = np.tile(np.arange(30), 40)
    heavy = 0.5 * rng.standard_t(4, (30, 100))[z] + rng.standard_t(3, (1200, 100))
    for x, label, n in ((X / 16, y, 50), (heavy, z, 360)):
        head, losses = FGNSoftmaxHead().fit(x[:n], label[:n]), []
        for C in (0.01, 0.1, 1, 10, 100):
            peer = LogisticRegression(C=C, max_iter=500).fit(x[:n], label[:n])
            losses.append(log_loss(label[n:], peer.predict_proba(x[n:])))
        assert log_loss(label[n:], head.predict_proba(x[n:])) <= min(losses) + 0.02


def test_weights_equal_repetition():
    X, y = data()
    weight = 1 + np.arange(len(X)) % 2
    weighted = clone(AUTO).fit(X, y, sample_weight=weight)
    repeated = clone(AUTO).fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    none = np.append(weight, 0)
    padded = clone(AUTO).fit(np.append(X, X[:1], 0), np.append(y, y[0]), none)
    for model in (repeated, padded):
        assert model.alpha_ == pytest.approx(weighted.alpha_, rel=1e-6)
        assert model.temperature_ == pytest.approx(weighted.temperature_)
    head = clone(AUTO).fit(X, y)
    shares = clone(AUTO).fit(X, y, np.full(60, 1 / 60))
    assert shares.alpha_ == pytest.approx(head.alpha_)
    assert shares.temperature_ == pytest.approx(head.temperature_)


def test_units_of_the_features_change_no_probability():
    X, y = data()
    model = FGNSoftmaxHead().fit(X, y)
    Z = X * [1e-6, 1, 2**10, 1e12] + [1, 0, -5, 1e13]
    scaled = FGNSoftmaxHead().fit(Z, y)
    # The folds are others.
    assert abs(np.log10(scaled.alpha_ / model.alpha_)) <= 0.5
    difference = scaled.predict_proba(Z) - model.predict_proba(X)
    assert np.abs(difference).max() < 0.1


def test_a_common_factor_and_offsets_change_no_probability():
    X, y = load_digits(return_X_y=True)
    X, y = X[:400], y[:400]
    expected = FGNSoftmaxHead().fit(X, y).predict_proba(X)
    for Z in (X / 16, 1e9 * X, X + 1000, np.append(X, np.full((400, 1), 7.0), axis=1)):
        found = FGNSoftmaxHead().fit(Z, y).predict_proba(Z)
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sizes_of_features_count_where_they_tell_the_classes():
    """Four large features of 400 do; features of very different units do not."""
    rng = np.random.default_rng(0)
    y = np.arange(1000) % 5
    X = rng.normal(size=(1000, 400))
    X[:, :4] += 2 * rng.normal(size=(5, 4))[y]
    Z = X[:, :20] * np.logspace(-3, 3, 20)[rng.permutation(20)]
    for x in (X, Z):
        head = FGNSoftmaxHead().fit(x[:200], y[:200])
        loss = log_loss(y[200:], head.predict_proba(x[200:]))
        scaler = StandardScaler().fit(x[:200])
        for given in (x, scaler.transform(x)):
            for C in (0.001, 0.01, 0.1, 1):
                peer = LogisticRegression(C=C, max_iter=300).fit(given[:200], y[:200])
                assert loss <= log_loss(y[200:], peer.predict_proba(given[200:])) + 0.02


def test_one_row_of_each_class_says_nothing_about_the_units():
    """As many pixels of digits vary a little as vary much, and tell less."""
    X, y = load_digits(return_X_y=True)
    losses = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(y))
        train = np.array([order[y[order] == c][0] for c in range(10)])
        rest = np.setdiff1d(order, train)
        models = FGNSoftmaxHead(), LogisticRegression()
        found = [m.fit(X[train] / 16, y[train]) for m in models]
        losses.append([log_loss(y[rest], m.predict_proba(X[rest] / 16)) for m in found])
    head, peer = np.mean(losses, axis=0)
    assert head <= peer - 0.1


def test_a_resumed_search_ends_as_an_uninterrupted_one(tmp_path):
    X, y = data()
    whole = clone(AUTO).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k, max_iter in enumerate((4, 12)):
            short = clone(AUTO).set_params(max_iter=max_iter)
            short.set_callbacks(Checkpoint(tmp_path / f"{k}.ckpt")).fit(X, y)
    for k in range(2):
        resumed = clone(AUTO).set_callbacks(Checkpoint(tmp_path / f"{k}.ckpt"))
        np.testing.assert_array_equal(resumed.fit(X, y).coef_, whole.coef_)


@pytest.mark.parametrize("max_iter", [1, 9, 14])
def test_a_search_that_is_cut_short_leaves_the_best_head_so_far(max_iter):
    X, y = data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = clone(AUTO).set_params(max_iter=max_iter).fit(X, y)
    path = model.alpha_path_
    if len(path["alpha"]):
        assert model.alpha_ == path["alpha"][np.argmin(path["left_out"])]
    assert model.score(X, y) > 0.5
    assert np.isfinite(model.predict_proba(X)).all()


def test_validation_data_choose_along_the_path():
    X, y = data(n=120)
    model = clone(AUTO).set_params(early_stopping=True, n_iter_no_change=50)
    model.fit(X[:60], y[:60], X_val=X[60:], y_val=y[60:])
    log = model.convergence_log_
    assert model.alpha_ == log["alpha"][np.argmin(log["val_loss"])]


def test_many_rows_without_an_error_are_predicted_with_certainty():
    """An error in as many rows as are left out is never excluded, nor any likelier."""
    rng = np.random.default_rng(0)
    y = np.arange(10_000) % 4
    X = rng.normal(size=(10_000, 6)) + 9 * np.eye(6)[y]
    model = FGNSoftmaxHead().fit(X[:6000], y[:6000])
    p = model.predict_proba(X[6000:])
    assert -np.mean(np.log(p[np.arange(4000), y[6000:]])) < 2e-3
    few = FGNSoftmaxHead().fit(X[:300], y[:300]).predict_proba(X[6000:])
    assert -np.mean(np.log(few[np.arange(4000), y[6000:]])) < 2e-2


def hard_cases():
    X, y = data()
    iris = load_iris(return_X_y=True)
    sparse_ish = X * (np.random.RandomState(1).rand(*X.shape) < 0.1)
    return {
        "separable": (iris[0][:100], iris[1][:100]),
        "one row a class": (X[:5], np.arange(5)),
        "constant column": (X * [1.0, 0.0, 1.0, 1.0] + [0.0, 1e3, 0.0, 0.0], y),
        "only constant columns": (np.ones((60, 2)), y),
        "mostly zero": (sparse_ish, y),
        "equal columns": (np.repeat(X, 2, axis=1), y),
        "more features than rows": (data(2, n=20, d=64)[0], np.arange(20) % 2),
        "very large": (1e200 * X, y),
        "very small": (1e-200 * X, y),
    }


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", hard_cases())
def test_hard_data_give_finite_penalties(case, dtype):
    X, y = hard_cases()[case]
    if dtype == "float32" and case.startswith("very"):
        X = np.where(case == "very large", 1e-180, 1e180) * X
    model = FGNSoftmaxHead(dtype=dtype).fit(X, y)
    assert model.alpha_method_ == "left-out"
    assert 0 < model.alpha_ < np.inf
    assert 0 < model.temperature_ < np.inf
    assert np.isfinite(model.alpha_path_["left_out"][:-1]).all()
    assert np.isfinite(model.predict_log_proba(X)).all()


@pytest.mark.parametrize("solver", ["fgn", "sgn", "adam"])
def test_mini_batch_solvers_take_the_usual_number(solver):
    X, y = data()
    model = FGNSoftmaxHead(solver, alpha="auto", random_state=0)
    model.partial_fit(X, y, classes=[0, 1, 2])
    fixed = clone(model).set_params(alpha=1e-3).partial_fit(X, y, classes=[0, 1, 2])
    np.testing.assert_array_equal(model.coef_, fixed.coef_)
    assert model.alpha_ == 1e-3
