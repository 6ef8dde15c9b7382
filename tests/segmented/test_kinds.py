"""Breakpoints each of which is a kink, a jump or both: ``jumps="auto"``."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from sklearn_gn import SegmentedRegressor, fit_groups

X = np.linspace(0, 10, 200)
N_SERIES = 40


def ramp(t):
    return np.maximum(X - t, 0)


def step(t):
    return (t <= X).astype(float)


def kinds_of(model):
    """A letter for each breakpoint: kink, jump, or both, by the public tables."""
    changes = np.diff(model.segments_["slope"]) != 0
    letters = {(True, False): "k", (False, True): "j", (True, True): "b"}
    pairs = zip(changes, model.jumps_ != 0, strict=True)
    return "".join(letters[bool(a), bool(b)] for a, b in pairs)


def fit(y, **parameters):
    return SegmentedRegressor(jumps="auto", **parameters).fit(X[:, None], y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("truth", "kinds", "least"),
    [
        (0.5 * X + 1.5 * ramp(3) - 2 * step(7), "kj", 34),
        (0.5 * X + 1.5 * ramp(3) - 2 * ramp(7), "kk", 34),
        (2 * step(3) - 2 * step(7), "jj", 38),
        (0.5 * X + ramp(5) - 2 * step(5), "b", 34),
        (0.5 * X, "", 38),
    ],
)
def test_kinds_are_found(truth, kinds, least):
    noise = [np.random.default_rng(s).normal(0, 0.3, 200) for s in range(N_SERIES)]
    found = [kinds_of(fit(truth + each)) for each in noise]
    assert found.count(kinds) >= least, found


def columns_of(model):
    """The columns that the kinds stand for, built from the public attributes."""
    columns = [np.ones_like(X)]
    if np.any(model.segments_["slope"] != 0):
        columns.append(X)
    for t, kind in zip(model.breakpoints_, kinds_of(model), strict=True):
        columns += [ramp(t)] * (kind in "kb") + [step(t)] * (kind in "jb")
    return np.column_stack(columns)


@pytest.mark.parametrize("seed", range(2))
def test_a_kink_and_a_jump_are_the_best_of_their_columns(seed):
    truth = 0.5 * X + 1.5 * ramp(3) - 2 * step(7)
    y = truth + np.random.default_rng(seed).normal(0, 0.2, 200)
    model = fit(y, autocorrelation=None)
    design = columns_of(model)
    coef, (rss,), rank, _ = np.linalg.lstsq(design, y, rcond=None)
    assert_allclose(model.statistics_["rss"], rss, rtol=1e-9)
    assert_allclose(model.parameters_["estimate"], coef, rtol=1e-6)
    assert_allclose(model.predict(X[:, None]), design @ coef, atol=1e-9)
    assert model.statistics_["n_parameters"] == rank + len(model.breakpoints_)
    # Given its kinds, neither place nor kind of a breakpoint is better elsewhere.
    for t in np.linspace(1, 9, 81):
        for column in (ramp(t), step(t)):
            other = np.column_stack([design[:, :2], column, design[:, -1]])
            left = y - other @ np.linalg.lstsq(other, y, rcond=None)[0]
            assert left @ left >= rss * (1 - 1e-9)
    # A position of a kink has a standard error; that of a jump has an interval alone.
    assert_allclose(
        np.isnan(model.breakpoint_std_), [k != "k" for k in kinds_of(model)]
    )
    low, high = model.breakpoint_interval_.T
    assert np.all((low <= model.breakpoints_) & (model.breakpoints_ <= high))


def test_errors_are_those_of_the_linear_model_with_a_step_at_the_kink():
    y = 0.5 * X + 1.5 * ramp(3) - 2 * step(7)
    y = y + np.random.default_rng(1).normal(0, 0.2, 200)
    model = fit(y, autocorrelation=None)
    assert kinds_of(model) == "kj"
    t, change = model.breakpoints_[0], model.parameters_["estimate"][2]
    tangent = np.column_stack([columns_of(model), -change * step(t)])
    variance = model.statistics_["rss"] / (200 - 5) * np.linalg.inv(tangent.T @ tangent)
    error = np.sqrt(np.diagonal(variance))
    assert_allclose(model.parameters_["std_error"], error[:-1], rtol=1e-6)
    assert_allclose(model.breakpoint_std_[0], error[-1], rtol=1e-6)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.filterwarnings("ignore:The criterion falls", "ignore:Neighbouring")
def test_the_criterion_is_never_worse_than_that_of_one_kind(seed):
    rng = np.random.default_rng(seed)
    x = np.linspace(0, 10, 2000)  # so many that no search costs more than "bic"
    y = np.sin(x) + (x >= 4) + 0.5 * np.maximum(x - 8, 0) + rng.normal(0, 0.5, 2000)
    words = {"autocorrelation": None, "max_breakpoints": 6}
    mixed, *others = (
        SegmentedRegressor(**words, **one).fit(x[:, None], y).statistics_["bic"]
        for one in ({"jumps": "auto"}, {}, {"jumps": True}, {"degree": 0})
    )
    assert mixed <= min(others) + 1e-6


def test_outliers_count_less_with_the_robust_loss():
    y = 1.5 * ramp(3) - 2 * step(7) + np.random.default_rng(0).normal(0, 0.2, 200)
    y[[20, 100, 180]] += 8
    model = fit(y, loss="huber")
    assert kinds_of(model) == "kj"
    assert_allclose(model.breakpoints_, [3, 7], atol=0.2)
    assert np.all(model.robust_weights_[[20, 100, 180]] < 0.1)


def test_a_number_may_be_given_and_groups_are_single_fits():
    rng = np.random.default_rng(0)
    truths = [1.5 * ramp(3) - 2 * step(7), 2 * step(3) - 2 * step(7)]
    series = [truth + rng.normal(0, 0.2, 200) for truth in truths]
    data = pd.DataFrame({"x": np.tile(X, 2), "y": np.concatenate(series)})
    data["group"] = np.repeat(["a", "b"], 200)
    estimator = SegmentedRegressor(2, jumps="auto")
    table = fit_groups(estimator, data, group="group", target="y")
    for name, y in zip("ab", series, strict=True):
        model, own = fit(y, n_breakpoints=2), table[table["group"] == name]
        assert len(model.breakpoints_) == 2
        for column in ("start", "slope", "jump", "slope_std_error"):
            assert_allclose(own[column], model.segments_[column], rtol=1e-8, atol=1e-12)


def test_chunks_and_summary():
    y = 1.5 * ramp(3) - 2 * step(7) + np.random.default_rng(2).normal(0, 0.2, 200)
    model = SegmentedRegressor(jumps="auto").fit_chunks(
        [(X[:90], y[:90]), (X[90:], y[90:])]
    )
    other = fit(y, autocorrelation=None)
    assert_allclose(model.breakpoints_, other.breakpoints_, rtol=1e-6)
    text = str(other.summary())
    assert "slope change 1" in text
    assert "jump 2" in text
    assert "jump 1" not in text


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ({"flat": "last"}, "flat="),
        ({"breakpoints": [3.0]}, "breakpoints="),
        ({"family": "poisson"}, "a family of counts"),
        ({"broken_features": [0]}, "several broken features"),
    ],
)
def test_what_is_refused(words, what):
    with pytest.raises(ValueError, match=f"jumps=.auto. cannot be combined.*{what}"):
        fit(np.abs(X), **words)


def test_several_columns_are_refused():
    with pytest.raises(ValueError, match=r"jumps='auto' cannot .* several columns"):
        fit(np.column_stack([X, X]))


def test_the_number_under_noise_that_grows():
    x, rng = np.linspace(0, 10, 80), np.random.default_rng(4)
    y = 2 * np.maximum(x - 3, 0) - 3 * np.maximum(x - 6, 0)
    y += (0.1 + 0.1 * x) * rng.standard_normal(80)
    model = SegmentedRegressor(jumps="auto").fit(x[:, None], y)
    assert_allclose(model.breakpoints_, [3, 6], atol=0.5)
    path = model.selection_path_
    total = path["bic"] + path["search_penalty"]
    assert path["n_breakpoints"][np.argmin(total)] == 2
