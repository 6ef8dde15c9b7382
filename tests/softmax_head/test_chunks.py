"""Heads of rows that come in chunks, from memory, from a file and from dask."""

import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning

from sklearn_gn import FGNSoftmaxHead
from sklearn_gn.solvers import FGN, Adam

N, D, C = 240, 6, 4


def data(dtype=np.float64):
    rng = np.random.default_rng(0)
    y = rng.integers(C, size=N)
    X = rng.normal(size=(N, D))
    X[np.arange(N), y] += 2
    return X.astype(dtype), y


def pieces(*arrays, size=100):
    return [tuple(a[k : k + size] for a in arrays) for k in range(0, N, size)]


def fitted(solver, chunks, **words):
    words = {"max_iter": 1, "random_state": 0, **words}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return FGNSoftmaxHead(solver, **words).fit_chunks(chunks)


@pytest.mark.parametrize("solver", [FGN, Adam])
def test_an_epoch_is_a_partial_fit_of_each_chunk(solver):
    X, y = data()
    solver = solver(batch_size=128)  # a chunk is one batch, in whatever order
    model = fitted(solver, pieces(X, y))
    steps = FGNSoftmaxHead(solver)
    for part in pieces(X, y):
        steps.partial_fit(*part, classes=range(C))
    np.testing.assert_allclose(model.coef_, steps.coef_, atol=1e-10)
    np.testing.assert_allclose(model.intercept_, steps.intercept_, atol=1e-10)
    log_p = model.predict_log_proba(X)
    loss = -log_p[np.arange(N), y].mean() + 0.0005 * np.sum(model.coef_**2)
    assert model.loss_ == pytest.approx(loss, rel=1e-10)
    # The first chunk was evaluated at zero, before it was swept.
    assert model.convergence_log_["loss"][0] < np.log(C)


def test_full_steps_on_one_chunk_end_at_the_optimum_of_fit():
    X, y = data()
    weight = np.arange(N) % 3.0
    whole = FGNSoftmaxHead(alpha=1e-3, tol=1e-10, class_weight={1: 2.0})
    whole.fit(X, y, weight)
    solver = FGN(learning_rate=1.0, batch_size=1024)
    model = fitted(
        solver,
        [(X, y, weight)],
        max_iter=40,
        damping=0.0,
        rank=C - 1,
        tol=0,
        class_weight={1: 2.0},
    )
    # Of heads with the same loss to rounding the first one is kept.
    np.testing.assert_allclose(model.coef_, whole.coef_, atol=1e-6)
    assert model.loss_ == pytest.approx(whole.loss_, rel=1e-10)


def test_a_mapped_file_is_read_in_chunks(tmp_path, monkeypatch):
    X, y = data(np.float32)
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    mapped[:] = X
    words = {"max_iter": 2, "random_state": 0}
    with pytest.warns(ConvergenceWarning):
        in_memory = FGNSoftmaxHead("fgn", **words).fit(mapped, y)
    monkeypatch.setattr("sklearn_gn.data.rows.MAPPED_BYTES", 0)
    monkeypatch.setattr("sklearn_gn.data.tables.CHUNK_BYTES", 100 * D * 4)
    with pytest.warns(ConvergenceWarning):
        model = FGNSoftmaxHead("fgn", **words).fit(mapped, y)
    same = fitted("fgn", pieces(X, y), **words)
    np.testing.assert_allclose(model.coef_, same.coef_, rtol=1e-8)
    assert np.abs(model.coef_ - in_memory.coef_).max() > 1e-3


def test_classes_without_weight_are_none_in_a_mapped_file(tmp_path, monkeypatch):
    X, y = data()
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=X.shape)
    mapped[:] = X
    monkeypatch.setattr("sklearn_gn.data.rows.MAPPED_BYTES", 0)
    model = FGNSoftmaxHead("adam", max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(mapped, y, sample_weight=(y != 1).astype(float))
    assert model.classes_.tolist() == [label for label in range(C) if label != 1]


def test_chunks_after_a_search_for_the_penalty():
    X, y = data()
    whole = FGNSoftmaxHead(random_state=0).fit(X, y)
    assert len(whole.alpha_path_["alpha"]) > 2
    with pytest.warns(ConvergenceWarning):
        whole.set_params(solver="fgn", max_iter=1).fit_chunks(pieces(X, y))
    same = fitted("fgn", pieces(X, y), max_iter=1, random_state=0)
    np.testing.assert_array_equal(whole.coef_, same.coef_)
    assert set(vars(whole)) == set(vars(same))


def test_memory_is_that_of_a_few_chunks(monkeypatch):
    rows, d = 2_000, 50
    X = np.random.default_rng(0).normal(size=(rows, d)).astype(np.float32)
    y = np.arange(rows) % 2

    class Chunks:
        def __iter__(self):
            return (((1 + 1e-3 * k) * X, y) for k in range(40))

    fitted("adam", [(X, y)], dtype="float32")  # compiles
    tracemalloc.start()
    fitted("adam", Chunks(), dtype="float32")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 15 * X.nbytes < 40 * X.nbytes


def frames(chunks, *orders):
    """The first chunks with data frames whose columns are in these orders."""
    names = np.array([f"column {k}" for k in range(D)])
    several = zip(chunks, orders, strict=False)
    return [(pd.DataFrame(X, columns=names[::k]), y) for (X, y), k in several]


def test_dask_arrays_are_read_by_their_blocks():
    da = pytest.importorskip("dask.array")
    X, y = data()
    with pytest.warns(ConvergenceWarning):
        model = FGNSoftmaxHead("fgn", max_iter=1, random_state=0).fit(
            da.from_array(X, chunks=(100, 4)), da.from_array(y, chunks=50)
        )
    same = fitted("fgn", pieces(X, y))
    np.testing.assert_allclose(model.coef_, same.coef_, rtol=1e-8)
    newton = FGNSoftmaxHead(random_state=0)
    newton.fit(da.from_array(X, chunks=(100, 4)), y)
    whole = FGNSoftmaxHead(random_state=0).fit(X, y)
    np.testing.assert_allclose(newton.coef_, whole.coef_, rtol=1e-6)


@pytest.mark.parametrize(
    ("words", "change", "message"),
    [
        ({"solver": "fgn_newton"}, None, "needs all rows at once"),
        ({"class_weight": "balanced"}, None, "Give a dict"),
        ({"early_stopping": True}, None, "needs X_val"),
        ({}, iter, "only once"),
        ({}, lambda c: [c[0], [1]], "Chunk 1 must be a tuple"),
        ({}, lambda c: [c[0], (c[1][0], c[1][1][:3])], "Chunk 1: X, y and weights"),
        ({}, lambda c: [c[0], (c[1][0][:, :2], c[1][1])], "Chunk 1: X has the shape"),
        ({}, lambda c: frames(c, 1, -1), "Chunk 1: the columns of X are"),
        ({}, lambda c: [c[0], (c[1][0] * np.inf, c[1][1])], "Chunk 1: X holds NaN"),
        ({}, lambda c: [(*c[0], -np.ones(100))], "Chunk 0: weights must be finite"),
        ({}, lambda c: [(*c[0], c[0][0])], "Chunk 0: weights must have one column"),
        ({}, lambda c: [c[0], (c[1][0], c[1][0])], "Chunk 1: y must have one column"),
        ({}, lambda c: [c[0], (c[0][0][:0], []), c[0][::-1]], "Chunk 2: X has the"),
        ({}, lambda c: [], "hold no rows"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_chunks_that_are_none_are_named(words, change, message):
    chunks = pieces(*data())
    chunks = change(chunks) if change else chunks
    with pytest.raises(ValueError, match=message):
        FGNSoftmaxHead(**{"solver": "fgn", **words}).fit_chunks(chunks)


def test_a_fit_that_would_not_fit_into_memory_says_what_would(monkeypatch):
    X, y = data()
    monkeypatch.setattr("sklearn_gn.data.tables.CHUNK_BYTES", 0)
    monkeypatch.setattr(
        "sklearn_gn.arrays.memory.available_bytes", lambda: 12 * X.size - 1
    )
    with pytest.raises(ValueError, match=r"GiB are available.*'float32'.*fit_chunks"):
        FGNSoftmaxHead().fit(X, y)
    FGNSoftmaxHead(dtype="float32").fit(X.astype(np.float32), y)


def test_lengths_of_dask_arrays_are_checked():
    da = pytest.importorskip("dask.array")
    X, y = data()
    blocks, model = da.from_array(X, chunks=(100, 2)), FGNSoftmaxHead("fgn")
    with pytest.raises(ValueError, match=r"call X\.compute_chunk_sizes\(\)"):
        model.fit(blocks[blocks[:, 0] > 0], y)
    with pytest.raises(ValueError, match=f"y has the shape .* X has {N} rows"):
        model.fit(blocks, np.append(y, 0))
    with pytest.raises(ValueError, match="sample_weight has the shape"):
        model.fit(blocks, y, sample_weight=np.ones(N + 1))


def test_one_weight_is_that_of_all_rows():
    da = pytest.importorskip("dask.array")
    X, y = data()
    blocks = da.from_array(X, chunks=(100, 2))
    model = FGNSoftmaxHead("fgn", max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning):
        same = model.fit(blocks, y, sample_weight=2.0).coef_
    with pytest.warns(ConvergenceWarning):
        np.testing.assert_allclose(same, model.fit(blocks, y).coef_, rtol=1e-8)


def test_a_column_of_labels_is_a_vector():
    X, y = data()
    flat, columns = (
        FGNSoftmaxHead("fgn", max_iter=2, random_state=0) for _ in range(2)
    )
    with pytest.warns(ConvergenceWarning):
        flat.fit_chunks(pieces(X, y))
    with pytest.warns(ConvergenceWarning), pytest.warns(DataConversionWarning):
        columns.fit_chunks(pieces(X, y[:, None]))
    np.testing.assert_array_equal(columns.coef_, flat.coef_)
