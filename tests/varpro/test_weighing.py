"""Shares of the small and the wide members of a classifier."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.datasets import make_gaussian_quantiles

from sklearn_gn import VarProNetClassifier
from sklearn_gn.optim.solver import Rows
from sklearn_gn.varpro import wide_members


def rows_of(count, label):
    """Rows that stand for as many as ``count`` says."""
    weight = np.asarray(count, np.float64)
    y = np.eye(1 + max(label))[label]
    return Rows(np.arange(len(y), dtype=np.float64)[:, None], y, weight / weight.sum())


def test_every_row_is_in_one_part_and_classes_are_in_all():
    label = np.random.RandomState(0).permutation(np.repeat([0, 1, 2], [30, 9, 4]))
    rows = rows_of(np.ones(43), label)
    shares = wide_members.left_out_shares(rows, 43.0)
    assert_array_equal(np.sum(shares, axis=0), np.ones(43))
    assert set(np.unique(shares)) == {0.0, 1.0}
    assert_array_equal(shares @ (label == 2), [1, 1, 1, 1])
    for number in range(3):
        assert np.ptp(shares @ (label == number)) <= 1


def test_a_weight_is_divided_like_copies_of_its_row():
    count, label = [1, 6, 2, 5], [0, 0, 1, 1]
    one = wide_members.left_out_shares(rows_of(count, label), 14.0)
    copies = rows_of(np.ones(14), np.repeat(label, count))
    each = wide_members.left_out_shares(copies, 14.0)
    summed = np.add.reduceat(each, np.cumsum([0, *count[:-1]]), axis=1)
    assert_allclose(one * count, summed, atol=1e-10)


def test_rows_without_a_part_are_the_others():
    rows = rows_of(np.arange(1, 9), [0, 1] * 4)
    share = wide_members.left_out_shares(rows, 36.0)[1]
    rest = wide_members.rows_without(rows, 36.0, 5)  # modulo the number of parts
    kept = share < 1
    assert_array_equal(rest.x, rows.x[kept])
    assert_allclose(rest.weight.sum(), 1)
    ratio = rest.weight / (rows.weight * (1 - share))[kept]
    assert_allclose(ratio, ratio[0], rtol=1e-9)


def test_share_and_factor_minimise_the_loss_of_left_out_rows():
    rng = np.random.RandomState(0)
    label = rng.randint(2, size=80)
    rows, sign = rows_of(rng.randint(1, 4, 80), label), 2 * label - 1
    n = 160.0
    small = [0.6 * (sign + rng.standard_normal(80))[:, None] for _ in range(2)]
    wide = [2 * (sign + rng.standard_normal(80))[:, None] for _ in range(4)]
    lacking = n * rows.weight * wide_members.left_out_shares(rows, n)
    p = np.mean([expit(sign * values[:, 0]) for values in small], axis=0)

    def objective(parameters):
        share, log_factor = expit(parameters[0]), parameters[1]
        factor = np.exp(log_factor)
        q = [expit(factor * sign * values[:, 0]) for values in wide]
        loss = -np.sum(lacking * np.log(share * p + (1 - share) * np.array(q)))
        return loss - np.log(share * (1 - share)) + 2 * log_factor**2

    best = minimize(objective, [0.0, 0.0], method="BFGS", tol=1e-9).x
    share, factor = wide_members.share_and_factor(small, wide, rows, n)
    assert 0.1 < share < 0.9
    assert_allclose([share, factor], [expit(best[0]), np.exp(best[1])], rtol=1e-3)


def share_of_small_members(model):
    small = [e for e in model.estimators_ if hasattr(e, "log_evidence_")]
    return sum(member.share_ for member in small)


def test_small_members_predict_classes_that_overlap():
    rng = np.random.RandomState(0)
    X, y = rng.standard_normal((300, 6)), rng.randint(3, size=300)  # nothing but noise
    model = VarProNetClassifier(random_state=0).fit(X, y)
    assert share_of_small_members(model) > 0.8


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


def test_few_rows_do_not_weigh_the_members():
    X = np.random.RandomState(0).standard_normal((24, 2))
    model = VarProNetClassifier(random_state=0).fit(X, X[:, 0] > 0)
    shares = [member.share_ for member in model.estimators_]
    assert_allclose(shares, 1 / len(shares), rtol=1e-12)
