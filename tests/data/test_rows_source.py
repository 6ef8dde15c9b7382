"""Sums over rows: in memory, in chunks of any length, and where dask keeps them."""

import numpy as np
import pytest

from sklearn_gn import (
    FGNSoftmaxHead,
    SegmentedRegressor,
    ShallowReLURegressor,
    VarProNetClassifier,
    VarProNetRegressor,
)
from sklearn_gn.data.rows_source import CheckedRows, RowSource, reduce
from sklearn_gn.data.tables import dask_rows, engine_of
from sklearn_gn.optim.solver import Rows
from sklearn_gn.solvers import FGN

N, D, Q = 500, 3, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D))
Y = RNG.normal(size=(N, Q)) + X[:, :Q] ** 2
WEIGHT = np.arange(N) % 3.0


class Units:
    def x(self, X):
        return (X - 1) / 2

    def y(self, y):
        return 3 * y


def moments(theta, rows):
    products = (theta * rows.x).T @ (rows.weight[:, None] * rows.y)
    return products, rows.weight.sum(), len(rows.x)


def pieces(size):
    starts = range(0, N, size)
    return [tuple(a[k : k + size] for a in (X, Y, WEIGHT)) for k in starts]


def source_of(chunks):
    rows = CheckedRows(chunks, D, Q)
    return RowSource(rows, Units(), rows.survey(), None)


IN_MEMORY = Rows(Units().x(X), Units().y(Y), WEIGHT / WEIGHT.sum())
EXPECTED = moments(2.0, IN_MEMORY)


@pytest.mark.parametrize("size", [2, 37, N])
def test_sums_of_chunks_are_those_of_all_rows(size, chunk_limits):
    chunk_limits(part=64)
    source = source_of(pieces(size))
    found = source.reduce(moments, 2.0)
    whole = source_of(pieces(N)).reduce(moments, 2.0)
    for a, b, expected in zip(found, whole, EXPECTED, strict=True):
        np.testing.assert_array_equal(a, b)  # bit for bit, wherever they are cut
        np.testing.assert_allclose(a, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [7, 100, 2 * N])
def test_blocks_may_have_any_length(size):
    for rows in (IN_MEMORY, source_of(pieces(90))):
        for found, expected in zip(
            reduce(moments, 2.0, rows, size), EXPECTED, strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


# -- dask ------------------------------------------------------------------------------


def blocks(y, weight=WEIGHT):
    da = pytest.importorskip("dask.array")
    return da.from_array(X, chunks=(130, 2)), da.from_array(y, chunks=77), weight


def test_broken_lines_take_dask_arrays():
    da = pytest.importorskip("dask.array")
    x, y = X[:, :1], np.abs(X[:, 0] - 0.2) + 0.01 * Y[:, 1]
    expected = SegmentedRegressor(1).fit_chunks([(x, y)])
    model = SegmentedRegressor(1).fit(da.from_array(x, 130), da.from_array(y, 77))
    # A sum of squares tells places to the root of rounding errors.
    np.testing.assert_allclose(model.breakpoints_, expected.breakpoints_, rtol=1e-6)
    np.testing.assert_allclose(model.predict(x), expected.predict(x), atol=1e-7)


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    words = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**words) as found, distributed.Client(found) as one:
        yield one


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")  # of the cluster's own
def test_sums_are_computed_on_the_workers(cluster):
    def process(theta, rows):
        import os

        return (np.eye(2)[int(os.getpid() != theta)], *moments(2.0, rows))

    import os

    chunks = dask_rows(*blocks(Y))
    assert engine_of(chunks) is not None
    here_or_there, *found = source_of(chunks).reduce(process, os.getpid())
    np.testing.assert_array_equal(here_or_there, [0, 4])  # of four blocks
    for one, expected in zip(found, EXPECTED, strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-12, atol=1e-14)
    sample = CheckedRows(chunks, D, Q).survey(50).sample
    expected = CheckedRows(pieces(N), D, Q).survey(50).sample
    for one, other in zip(sample, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "model",
    [
        ShallowReLURegressor(4, n_init=1, max_iter=3, random_state=0),
        VarProNetRegressor(max_iter=5, random_state=0),
        VarProNetClassifier(max_iter=5, random_state=0),
        FGNSoftmaxHead(FGN(batch_size=64), max_iter=2, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_fits_on_a_cluster_are_those_in_memory(model, cluster, chunk_limits):
    chunk_limits(sample=200)
    y = Y[:, 0]
    if hasattr(model, "predict_proba"):
        y = np.digitize(y, [0.0, 1.0])
    chunks = [(X[k : k + 130], y[k : k + 130]) for k in range(0, N, 130)]
    here = model.fit_chunks(chunks)
    output = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    expected = getattr(here, output)(X)
    found = getattr(model.fit(*blocks(y, None)), output)(X)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_what_is_wrong_with_a_block_is_named(cluster):
    bad = Y.copy()
    bad[200] = np.nan
    with pytest.raises(ValueError, match="Chunk 1: y holds NaN"):
        VarProNetRegressor().fit(*blocks(bad))
