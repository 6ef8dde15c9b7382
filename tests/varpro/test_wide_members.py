"""Wide members of classifiers: the step of a batch, the estimator, the shares."""

import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize_scalar
from scipy.special import expit
from scipy.stats import dirichlet_multinomial
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, make_gaussian_quantiles
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from sklearn_gn import VarProNetClassifier
from sklearn_gn.arrays import threads
from sklearn_gn.bayes.evidence_gn import RegularisedLayers
from sklearn_gn.bayes.low_rank import positive_precision
from sklearn_gn.callbacks import Checkpoint
from sklearn_gn.optim.multinomial import bounding_curvature
from sklearn_gn.optim.solver import Rows
from sklearn_gn.varpro import committee, members, wide_members
from tests.bayes.test_layers import problem, values_by_jax


@pytest.fixture
def always_batches(monkeypatch):
    monkeypatch.setattr(committee, "_MOST_WORK_OF_ALL_ROWS", 0)


def margin_by_jax(model, theta, rows):
    u = values_by_jax(model, theta, rows.x)
    if model.n_values == 1:
        u = jnp.concatenate([jnp.zeros_like(u), u], axis=1)
    true = jnp.sum(rows.y * u, axis=1)
    return true - jax.nn.logsumexp(jnp.where(rows.y > 0, -jnp.inf, u), axis=1)


@pytest.mark.parametrize(
    ("sizes", "activations", "n_values", "damping"),
    [
        ((4, 5), ("tanh",), 1, 0.3),
        ((4, 5), ("tanh",), 1, 0.0),
        ((3, 4, 3), ("relu", "silu"), 3, 0.3),
    ],
)
def test_the_step_is_that_of_a_dense_system(
    float64, sizes, activations, n_values, damping
):
    model, theta, rows = problem(sizes, activations, n_values, "cross_entropy")
    alpha = np.random.default_rng(1).uniform(1, 3, model.n_groups)
    groups = model.groups()
    n_effective = 40.0
    penalty = np.where(groups < 0, 0.0, alpha[groups]) / n_effective
    shift = positive_precision(penalty + damping, 1.0)
    # The normal matrix, from the derivatives of the margins.
    margin = partial(margin_by_jax, model)
    both = jax.jit(lambda *a: (margin(*a), jax.jacobian(margin)(*a)))
    f, Q = map(np.asarray, both(theta, rows))
    curvature = np.tanh(f / 2) / (2 * f)
    matrix = Q.T @ ((rows.weight * curvature)[:, None] * Q)
    right = Q.T @ (rows.weight * expit(-f)) - penalty * theta
    expected = theta + np.linalg.solve(matrix + np.diag(shift), right)
    net = RegularisedLayers(theta, alpha, 1.0, None, 0.0, model)
    settings = n_effective, damping, np.float64
    rng = np.random.RandomState(0)  # one batch, in another order
    member = members.Member(net)
    found, loss = wide_members.run_epoch(member, rows, *settings, rng)
    assert_allclose(found.net.theta, expected, rtol=1e-9, atol=1e-10)
    before = rows.weight @ np.logaddexp(0, -f)
    assert loss == pytest.approx(before + penalty @ expected**2 / 2, rel=1e-10)
    assert model.error(theta, rows) == pytest.approx(2 * before, rel=1e-10)


def test_the_parabola_bounds_the_loss():
    f, g = np.meshgrid(np.linspace(-30, 30, 121), np.linspace(-30, 30, 121))
    h = bounding_curvature(f)
    loss = np.logaddexp(0, -f)
    bound = loss - expit(-f) * (g - f) + h * (g - f) ** 2 / 2
    # It touches once more, at -f: no smaller curvature would do.
    assert np.all(bound >= np.logaddexp(0, -g) - 1e-6)
    other = loss + expit(-f) * 2 * f + h * (2 * f) ** 2 / 2
    assert_allclose(other, np.logaddexp(0, f), atol=1e-6)


def test_weights_equal_repetition(always_batches):
    X, y = load_iris(return_X_y=True)
    count = 1 + np.arange(150) % 3
    model = VarProNetClassifier(n_init=2, random_state=0).fit(X, y, count)
    index = np.random.default_rng(0).permutation(np.repeat(np.arange(150), count))
    again = VarProNetClassifier(n_init=2, random_state=0).fit(X[index], y[index])
    assert_allclose(again.predict_proba(X), model.predict_proba(X), rtol=1e-3)
    assert again.alpha_["coef"] == pytest.approx(1 / count.sum())


def test_an_ordinary_fit(always_batches, monkeypatch):
    X, y = load_iris(return_X_y=True)
    model = VarProNetClassifier(random_state=0).fit(X, y)
    assert model.converged_
    assert model.stop_reason_ == "tol"
    assert [m.activations_ for m in model.estimators_[:4]] == [("relu",)] * 4
    assert not hasattr(model, "log_evidence_")
    assert not hasattr(model.estimators_[0], "log_evidence_")
    assert model.alpha_method_ == "prior"
    assert model.gram_spectrum_.shape == (0,)
    assert model.transform(X).shape == (150, 400)
    assert_allclose(
        model.predict_proba(X),
        sum(m.share_ * m.predict_proba(X) for m in model.estimators_),
    )
    log = model.convergence_log_
    assert log["loss"][-1] < log["loss"][0]
    assert_allclose(log["loss"][-1], model.loss_, rtol=0.1)
    assert_allclose(log["damping"][[0, -1]], [0.1, 1])
    monkeypatch.setattr(threads, "in_threads", lambda tasks: [task() for task in tasks])
    again = VarProNetClassifier(random_state=0).fit(X, y)
    assert_allclose(again.predict_proba(X), model.predict_proba(X), rtol=1e-8)


def test_a_fit_goes_on_where_it_is_asked_to(always_batches):
    X, y = load_iris(return_X_y=True)
    model = VarProNetClassifier(n_init=1, random_state=0, max_iter=3)
    with pytest.warns(UserWarning, match="max_iter"):
        model.fit(X, y)
    loss = model.loss_
    model.set_params(warm_start=True, max_iter=30).fit(X, y)
    assert model.loss_ < loss
    assert_array_equal(model.convergence_log_["damping"], 1.0)
    model.set_params(damping=0.5, tol=0, max_iter=21)
    with pytest.warns(UserWarning, match="max_iter"):
        model.fit(X, y)
    assert_array_equal(model.convergence_log_["damping"], 0.5)
    assert model.n_iter_ == 21


def test_many_classes_and_rows_are_fitted_by_batches():
    X, y = load_digits(return_X_y=True)
    kept = X.std(axis=0) > 0
    train, test = slice(0, None, 2), slice(1, None, 2)
    model = VarProNetClassifier(n_init=2, random_state=0).fit(X[train], y[train])
    assert len(model.estimators_) == 2
    assert model.estimators_[0].coefs_[0].shape == (64, 100)
    linear = LogisticRegression(C=0.1, max_iter=1000)
    scale = X[train][:, kept].std(axis=0)
    linear.fit(X[train][:, kept] / scale, y[train])
    other = linear.predict_proba(X[test][:, kept] / scale)
    ours = log_loss(y[test], model.predict_proba(X[test]))
    assert ours < 0.8 * log_loss(y[test], other)


def test_layers_that_are_given_have_chosen_penalties():
    model = VarProNetClassifier(hidden_layer_sizes=(5,))
    X, y = np.ones((12000, 20)), np.ones((12000, 5))
    plan = committee.plan(model, X[:5000], y[:5000], None)
    assert plan[1] == len(plan[0])
    assert committee.plan(VarProNetClassifier(), X, y, None)[1] == 0
    plan = committee.plan(VarProNetClassifier(), X[:5000], y[:5000], None)
    assert [m.sizes[1] for m in plan[0]] == [4, 4, 100, 100, 100, 100]
    assert plan[1] == 2


def test_members_of_both_kinds_are_those_of_their_own_committees():
    X, y = load_iris(return_X_y=True)
    both = VarProNetClassifier(random_state=0).fit(X, y)
    networks = [e for e in both.estimators_ if e.coefs_]
    wide = [e for e in networks if e.coefs_[0].shape == (4, 100)]
    k = both.estimators_.index(wide[0])
    alone = VarProNetClassifier(random_state=0, n_init=k).fit(X, y)
    for a, b in zip(both.estimators_[:k], alone.estimators_[:k], strict=True):
        assert_allclose(a.coefs_[0], b.coefs_[0], rtol=1e-8)
    assert both.log_evidence_ == pytest.approx(alone.log_evidence_, rel=1e-8)
    assert len(wide) == 4
    assert not hasattr(wide[0], "log_evidence_")
    again = both.set_params(warm_start=True).fit(X, y)
    assert [e.coefs_[0].shape for e in again.estimators_[k : k + 4]] == 4 * [(4, 100)]


# Wide members lack a part of the rows up to the 16th iteration, none up to the 24th.
@pytest.mark.parametrize(("random_state", "n_iter"), [(0, 7), (0, 20), (None, 16)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_members_of_both_kinds_are_resumed_bit_for_bit(tmp_path, random_state, n_iter):
    X, y = load_iris(return_X_y=True)
    model, path = VarProNetClassifier(random_state=random_state), tmp_path / "fit.ckpt"
    clone(model).set_callbacks(Checkpoint(path)).set_params(max_iter=n_iter).fit(X, y)
    for name in ("a", "b"):
        shutil.copy(path, tmp_path / name)
    resumed, again = (
        clone(model).set_callbacks(Checkpoint(tmp_path / name)).fit(X, y)
        for name in ("a", "b")
    )
    assert_array_equal(resumed.predict_proba(X), again.predict_proba(X))
    if random_state is not None:
        whole = model.fit(X, y)
        assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))
        loss = whole.convergence_log_["loss"]
        assert_array_equal(resumed.convergence_log_["loss"], loss)


def test_a_committee_that_is_stopped_continues_with_all_members():
    X, y = load_iris(return_X_y=True)
    model = VarProNetClassifier(max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    widths = [e.coefs_[0].shape[1] for e in model.estimators_ if e.coefs_]
    assert widths == [4, 4, 100, 100, 100, 100]
    with pytest.warns(ConvergenceWarning):
        model.set_params(warm_start=True).fit(X, y)
    assert [e.coefs_[0].shape[1] for e in model.estimators_ if e.coefs_] == widths


def test_wide_members_that_tell_nothing_new_have_no_share():
    X = np.random.default_rng(0).uniform(-2, 2, (400, 2))
    y = np.sum(np.floor(X), axis=1).astype(int) % 2
    model = VarProNetClassifier(random_state=0).fit(X, y)  # the process knows all
    assert {e.share_ for e in model.estimators_ if e.coefs_} == {0}


# --- shares of the small and the wide members -----------------------------------------


def rows_of(count, label):
    """Rows that stand for as many as ``count`` says."""
    weight = np.asarray(count, np.float64)
    y = np.eye(1 + max(label))[label]
    return Rows(np.arange(len(y), dtype=np.float64)[:, None], y, weight / weight.sum())


def test_every_row_is_in_one_part_and_classes_are_in_all():
    label = np.random.RandomState(0).permutation(np.repeat([0, 1, 2], [30, 9, 4]))
    rows = rows_of(1 + np.arange(43), label)
    part = wide_members.left_out_part(rows)
    for number in range(3):
        count = np.bincount(part[label == number], minlength=4)
        assert len(count) == 4
        assert np.ptp(count) <= 1


def share_of_small_members(model):
    small = [e for e in model.estimators_ if hasattr(e, "log_evidence_")]
    return sum(member.share_ for member in small)


def test_labels_of_noise_have_the_frequencies_of_the_classes():
    rng = np.random.RandomState(0)
    X, y = rng.standard_normal((300, 6)), rng.randint(3, size=300)
    model = VarProNetClassifier(random_state=0).fit(X, y)
    X, y = rng.standard_normal((3000, 6)), rng.randint(3, size=3000)
    assert log_loss(y, model.predict_proba(X)) < np.log(3) + 0.02


def test_frequencies_of_classes_have_the_prior_of_highest_evidence():
    counts = np.array([30, 22, 20, 18, 10])
    X = np.random.default_rng(0).standard_normal((100, 2))
    model = VarProNetClassifier(random_state=0).fit(X, np.repeat(range(5), counts))

    def lack(prior):
        return -dirichlet_multinomial.logpmf(counts, np.full(5, prior), 100)

    prior = minimize_scalar(lack, bounds=(0.2, 1000), method="bounded").x
    p = model.estimators_[-1].predict_proba(X[:1])[0]
    assert_allclose(p, (counts + prior) / (100 + 5 * prior), rtol=0.005)


def test_wide_members_predict_classes_that_are_separable():
    X, y = make_gaussian_quantiles(
        n_samples=500, n_features=5, n_classes=3, random_state=0
    )
    model = VarProNetClassifier(random_state=0).fit(X, y)
    assert share_of_small_members(model) < 0.2
    assert_allclose(sum(member.share_ for member in model.estimators_), 1)
    probabilities = sum(m.share_ * m.predict_proba(X) for m in model.estimators_)
    assert_allclose(model.predict_proba(X), probabilities, rtol=1e-9)
    assert_allclose(model.to_sklearn().predict_proba(X), probabilities, rtol=1e-6)


def test_several_classes_of_many_rows():
    # Their last steps have a matrix of some rows, and the gradient of all.
    X = np.random.RandomState(0).uniform(-1, 1, (4500, 2))
    y = np.digitize(X[:, 0] + X[:, 1] ** 2, [0, 0.6])
    model = VarProNetClassifier(n_init=1, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.98
