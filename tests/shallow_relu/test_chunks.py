"""ShallowReLURegressor on rows that come in chunks, from a file and from dask."""

import pickle
import tracemalloc

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn import ShallowReLURegressor
from sklearn_gn.bayes.evidence_gn import RegularisedLayers, error_at, sums_of
from sklearn_gn.bayes.laplace import value_variances
from sklearn_gn.bayes.layers import Layers
from sklearn_gn.bayes.linear_evidence import linear_model
from sklearn_gn.callbacks import Checkpoint, LogWriter
from sklearn_gn.data.rows_source import CheckedRows, RowSource
from sklearn_gn.optim.solver import Rows
from sklearn_gn.shallow_relu.evidence_gn import network_of
from sklearn_gn.shallow_relu.fitted import evidence_attributes

N, D, SAMPLE = 900, 3, 200


@pytest.fixture
def small_sample(chunk_limits):
    """A sample that is smaller than the table, and parts that are smaller yet."""
    chunk_limits(sample=SAMPLE, part=64)


def data(n_targets=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D))
    y = np.abs(X[:, 0] - 0.3) + np.maximum(X[:, 1], 0) + 0.2 * rng.normal(size=N)
    if n_targets == 1:
        return X, y
    return X, np.stack([y, 5 * X[:, 2] + rng.normal(size=N)], axis=1)


def pieces(*arrays, size=250):
    starts = range(0, len(arrays[0]), size)
    return [tuple(a[k : k + size] for a in arrays) for k in starts]


def make(**changes):
    settings = {"n_neurons": 6, "n_init": 1, "random_state": 0}
    return ShallowReLURegressor(**{**settings, **changes})


def fitted(chunks, **changes):
    return make(**changes).fit_chunks(chunks)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_few_rows_are_fitted_as_in_memory(n_targets):
    X, y = data(n_targets)
    weight = np.arange(N) % 3.0
    whole = make().fit(X, y, weight)
    model = fitted(pieces(X, y, weight))
    np.testing.assert_allclose(model.predict(X), whole.predict(X), atol=1e-6)
    assert model.log_evidence_ == pytest.approx(whole.log_evidence_, abs=1e-4)
    assert "n_rows" not in model.convergence_log_


def test_chunks_may_be_cut_anywhere(small_sample):
    X, y = data()
    model = fitted(pieces(X, y), n_init=2)
    log = model.convergence_log_
    assert set(log["n_rows"]) == {SAMPLE, N}
    assert np.all(np.diff(log["n_rows"]) >= 0)
    assert model.stop_reason_ == "tol"
    for size in (37, N):
        other = fitted(pieces(np.asfortranarray(X), y, size=size), n_init=2)
        np.testing.assert_allclose(other.predict(X), model.predict(X), atol=1e-6)
        assert other.log_evidence_ == pytest.approx(model.log_evidence_, abs=1e-4)


def test_networks_grow_on_the_sample(chunk_limits):
    chunk_limits(sample=700, part=200)
    X = np.random.default_rng(0).uniform(-1, 1, (N, D))
    y = np.exp(X[:, 0]) * np.sin(3 * X[:, 1]) + X[:, 2] ** 2
    model = fitted(pieces(X, y), n_neurons="auto")
    of_20 = fitted(pieces(X, y), n_neurons=20)
    assert len(model.hyperplanes_) > 20
    assert 1 - model.score(X, y) < (1 - of_20.score(X, y)) / 2


@pytest.mark.parametrize("n_targets", [1, 2])
def test_attributes_are_those_of_all_rows(small_sample, n_targets):
    X, y = data(n_targets)
    weight = 1.0 + np.arange(N) % 2
    model = fitted(pieces(X, y, weight))
    net, scaling = model._network
    share = weight / weight.sum()
    rows = Rows(scaling.x(X), scaling.y(y.reshape(N, -1)), share)
    options = type("Options", (), {"n_effective": weight.sum(), "alpha": None})
    expected = evidence_attributes(net.found, rows, scaling, options)
    for name in (
        "loss_",
        "log_evidence_",
        "n_effective_parameters_",
        "noise_std_",
    ):
        np.testing.assert_allclose(getattr(model, name), expected[name], rtol=1e-9)
    spectrum = expected["_spectrum"].get()
    np.testing.assert_allclose(model.gram_spectrum_, spectrum, rtol=1e-9)
    std = model.predict(X, return_std=True)[1].reshape(N, -1)
    known = expected["_posterior"]
    found = np.sqrt(known.noise_ratio * value_variances(*known[:3], rows.x))
    np.testing.assert_allclose(std, found * scaling.y_scale, rtol=1e-8)
    residual = model.predict(X) - y
    loss = share @ np.sum(residual.reshape(N, -1) ** 2, axis=1) / 2
    assert n_targets > 1 or 0 < model.loss_ - loss < 0.1 * loss


def test_sums_over_chunks_are_those_over_rows(small_sample):
    X, y = data(2)
    weight = np.arange(N) % 3.0
    model = fitted(pieces(X, y, weight))
    scaling = model._network[1]
    chunks = CheckedRows(pieces(X, y, weight), D, 2)
    found = chunks.survey()
    rows = Rows(scaling.x(X), scaling.y(y), weight / weight.sum())
    numbers = found.sample.number
    sample = Rows(*(a[numbers] for a in rows))
    chunked = RowSource(chunks, scaling, found, sample)
    shape = Layers((D, 4), ("relu",), 2, "squared", tuple(range(D)))
    theta = np.random.default_rng(1).normal(size=len(shape.groups()))
    for a, b in zip(
        sums_of(shape, theta, chunked), shape.sums(theta, rows), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)
    error = error_at(shape, theta, rows)
    assert error_at(shape, theta, chunked) == pytest.approx(error, rel=1e-10)
    net = RegularisedLayers(theta, np.ones(6), 1.0, np.ones(6), 0.0, shape)
    one, other = (network_of(net, r) for r in (chunked, rows))
    for name in ("hyperplanes", "coef", "intercept", "slope"):
        a, b = getattr(one, name), getattr(other, name)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)
    one, other = (linear_model(r, weight.sum()) for r in (chunked, rows))
    np.testing.assert_allclose(one.coef, other.coef, atol=1e-9)
    assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-8)
    some = sample.x[:9]
    np.testing.assert_allclose(one.leverage(some), other.leverage(some), rtol=1e-9)


def test_with_fixed_penalties_it_ends_at_a_minimum_over_all_rows(small_sample):
    X, y = data()
    alpha = make().fit(X, y).alpha_
    model = fitted(pieces(X, y), alpha=alpha, tol=1e-8)
    net, scaling = model._network
    rows = Rows(scaling.x(X), scaling.y(y[:, None]), np.full(N, 1 / N))
    penalties = np.concatenate([np.atleast_1d(a) for a in alpha.values()])
    net = net.found
    groups = net.model.groups()
    slope = np.where(groups < 0, 0, penalties[groups]) * net.theta
    slope = slope - net.model.sums(net.theta, rows).negative_gradient
    # The slope jumps where a hyperplane passes a row, by up to the share of the row.
    assert np.linalg.norm(slope) < 0.1 / N
    assert model.alpha_method_ == "fixed"


def test_noise_is_left_to_the_linear_model(small_sample):
    X, _ = data()
    y = np.random.default_rng(3).normal(size=N)
    model = fitted(pieces(X, y))
    assert not model.active_.any()
    assert model.n_effective_parameters_ < 2 + D


def test_weights_are_repetitions(small_sample):
    X, y = data()
    count = 1 + np.arange(N) % 3
    weighted = fitted(pieces(X, y, count.astype(float)))
    repeated = fitted(pieces(np.repeat(X, count, axis=0), np.repeat(y, count)))
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), atol=1e-6)
    found = weighted.log_evidence_
    assert found == pytest.approx(repeated.log_evidence_, abs=1e-4)


def test_the_sample_does_not_depend_on_order_or_copies(chunk_limits):
    X, y = data()
    chunk_limits(sample=50)
    found = CheckedRows([(X, y)], D, 1).survey()
    assert (found.n_rows, found.total, len(found.sample.X)) == (N, N, 50)
    np.testing.assert_array_equal(found.sample.X, X[found.sample.number])
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(N), 2))
    chunks = pieces(X[order], y[order][:, None], np.full(2 * N, 0.5), size=7)
    other = CheckedRows(chunks, D, 1).survey()
    assert (other.n_rows, other.total) == (2 * N, N)
    np.testing.assert_array_equal(other.sample.X, found.sample.X)
    np.testing.assert_array_equal(other.sample.weight, np.ones(50))
    # Any row is as likely as another, wherever it lies.
    ranks = np.argsort(np.argsort(X[:, 0]))[found.sample.number]
    assert abs(ranks.mean() - N / 2) < 4 * N / np.sqrt(12 * 50)


@pytest.mark.slow
def test_mapped_files_and_dask_arrays_are_read_in_chunks(
    tmp_path, monkeypatch, small_sample
):
    da = pytest.importorskip("dask.array")
    X, y = data()
    X = X.astype(np.float32)
    model = make(tol=1e-3)
    same = clone(model).fit_chunks(pieces(X, y))
    blocks = da.from_array(X, chunks=(300, 2)), da.from_array(y, chunks=200)
    blocks = clone(model).fit(*blocks)
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    mapped[:] = X
    in_memory = clone(model).fit(mapped, y)
    monkeypatch.setattr("sklearn_gn.data.rows.MAPPED_BYTES", 0)
    monkeypatch.setattr("sklearn_gn.data.tables.CHUNK_BYTES", 100 * D * 4)
    for found in (blocks, model.fit(mapped, y)):
        np.testing.assert_allclose(found.predict(X), same.predict(X), atol=1e-6)
        assert "n_rows" in found.convergence_log_
    assert "n_rows" not in in_memory.convergence_log_
    # What needs all rows has them.
    with pytest.warns(ConvergenceWarning):
        model = make(early_stopping=True, max_iter=1).fit(mapped, y)
    assert "n_rows" not in model.convergence_log_


def test_memory_is_that_of_a_sample_and_a_few_parts(chunk_limits):
    chunk_limits(sample=SAMPLE, part=1024)
    X = np.random.default_rng(0).normal(size=(2048, 20))
    y = np.abs(X[:, 0])

    class Chunks:
        def __iter__(self):
            return (((1 + 1e-3 * k) * X, y + 1e-2 * X[:, k]) for k in range(20))

    model = make(n_neurons=2, max_iter=2)
    tracemalloc.start()
    with pytest.warns(ConvergenceWarning):
        model.fit_chunks(Chunks())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * X.nbytes < 20 * X.nbytes


@pytest.mark.parametrize(
    ("changes", "change", "message"),
    [
        ({"loss": "huber"}, None, "loss='huber' ranks .* Set loss='squared_error'"),
        ({"solver": "lm"}, None, "solver='lm' keeps all rows"),
        ({}, lambda c: [(X[:, :1], y) for X, y in c], "SegmentedRegressor.fit_chunks"),
        ({"alpha": 0}, None, "alpha=0 .* keeps all rows. Set alpha='auto'"),
        ({"early_stopping": True}, None, "needs X_val"),
        ({}, iter, "only once"),
        ({}, lambda c: [c[0], (c[1][0], c[1][1][:3])], "Chunk 1: X, y and weights"),
        ({}, lambda c: [c[0], (c[1][0][:, :2], c[1][1])], "Chunk 1: X has the shape"),
        ({}, lambda c: [c[0], (c[1][0] * np.inf, c[1][1])], "Chunk 1: X holds NaN"),
        ({}, lambda c: [c[0], (c[1][0], c[1][1] * np.nan)], "Chunk 1: y holds NaN"),
        ({}, lambda c: [c[0], (c[1][0], c[0][0])], "Chunk 1: y has 3 targets"),
        ({}, lambda c: [c[0], (c[1][0], c[1][1] * 1e303)], "y holds a number of size"),
        ({}, lambda c: [(*c[0], -np.ones(250))], "Chunk 0: weights must be finite"),
        ({}, lambda c: [(*c[0], np.zeros(250))], "no rows of positive weight"),
        ({}, lambda c: [(*c[0], c[0][0])], "Chunk 0: weights must have one column"),
        ({}, lambda c: [], "hold no rows"),
    ],
)
def test_what_is_not_possible_is_named(changes, change, message):
    chunks = pieces(*data())
    chunks = change(chunks) if change else chunks
    with pytest.raises(ValueError, match=message):
        fitted(chunks, **changes)


def test_a_fit_that_would_not_fit_into_memory_names_chunks(monkeypatch):
    X, y = data()
    monkeypatch.setattr("sklearn_gn.data.tables.CHUNK_BYTES", 0)
    monkeypatch.setattr("sklearn_gn.arrays.memory.available_bytes", lambda: X.nbytes)
    with pytest.raises(ValueError, match=r"GiB are available.*fit_chunks"):
        make().fit(X, y)


def test_early_stopping_looks_at_both_starts(small_sample):
    X, y = data()
    X_val, y_val = data(seed=1)
    model = make(early_stopping=True, n_iter_no_change=2)
    model.fit_chunks(pieces(X, y), X_val=X_val, y_val=y_val)
    log = model.convergence_log_
    assert set(log["n_rows"]) == {SAMPLE, N}
    unit = np.mean((model.predict(X_val) - y_val) ** 2) / 2
    assert unit <= log["val_loss"].min() * (1 + 1e-9)


def test_a_fit_that_ends_on_the_sample_has_attributes_of_all_rows(small_sample):
    X, y = data()
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model = fitted(pieces(X, y), max_iter=2, n_init=5)
    assert set(model.convergence_log_["n_rows"]) == {SAMPLE}
    loss = np.mean((model.predict(X) - y) ** 2) / 2
    assert 0 < model.loss_ - loss < 0.1 * loss
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    # A warm start goes on from there.
    model.set_params(warm_start=True, max_iter=200).fit_chunks(pieces(X, y))
    assert model.stop_reason_ == "tol"
    assert model.loss_ < loss


@pytest.mark.slow
def test_an_interrupted_fit_goes_on_from_its_checkpoint(small_sample, tmp_path):
    X, y = data()
    whole = fitted(pieces(X, y), n_init=5)
    n_rows = whole.convergence_log_["n_rows"]
    assert (n_rows[2], n_rows[8]) == (SAMPLE, N)

    def interrupt(row):
        if row["iteration"] in (2, 8):
            raise KeyboardInterrupt

    path = tmp_path / "fit.ckpt"
    model = make(n_init=5).set_callbacks(Checkpoint(path), LogWriter(interrupt))
    for _ in range(2):  # on the sample, and on all rows
        with pytest.warns(ConvergenceWarning, match="interrupted"):
            model.fit_chunks(pieces(X, y))
        assert np.isfinite(model.predict(X)).all()
    model.set_callbacks(Checkpoint(path)).fit_chunks(pieces(X, y))
    np.testing.assert_array_equal(model.predict(X), whole.predict(X))
    assert model.n_iter_ == whole.n_iter_
    with pytest.raises(ValueError, match="the training data"):
        model.fit_chunks(pieces(X, 2 * y))


def test_the_matrix_of_all_rows_is_formed(small_sample, largest_dense):
    largest_dense(10)
    X, y = data()
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model = fitted(pieces(X, y), max_iter=2)
    assert model.alpha_method_ == "dense"
    assert model.score(X, y) > 0.9


def test_columns_of_weights_and_targets_are_vectors():
    X, y = data()
    weight = np.arange(N) % 3.0
    flat = fitted(pieces(X, y, weight))
    columns = fitted(pieces(X, y, weight[:, None]))
    np.testing.assert_array_equal(columns.predict(X), flat.predict(X))
