"""Tables of Dask, Ray and Arrow: fits are those of the same chunks in memory."""

import os

import numpy as np
import pandas as pd
import pytest

from sklearn_gn import (
    FGNSoftmaxHead,
    SegmentedRegressor,
    ShallowReLURegressor,
    TableChunks,
    VarProNetClassifier,
    VarProNetRegressor,
)
from sklearn_gn.data.rows_source import fold_chunks
from sklearn_gn.solvers import FGN

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(0)
N, PART = 600, 150
FRAME = pd.DataFrame(RNG.normal(size=(N, 3)), columns=["a", "b", "c"])
FRAME["y"] = np.abs(FRAME.a) + 0.5 * FRAME.b + 0.1 * RNG.normal(size=N)
FRAME["label"] = np.where(FRAME.y > 0.5, "high", "low")
FRAME["weight"] = 1.0 + np.arange(N) % 3
FEATURES = ["a", "b", "c"]
MODELS = [
    (ShallowReLURegressor(4, n_init=1, max_iter=3, random_state=0), "y"),
    (VarProNetRegressor(max_iter=5, random_state=0), "y"),
    (VarProNetClassifier(max_iter=5, random_state=0), "label"),
    (FGNSoftmaxHead(FGN(batch_size=64), max_iter=2, random_state=0), "label"),
    (SegmentedRegressor(1), "y"),
]
BY_MODEL = pytest.mark.parametrize(
    ("model", "target"), MODELS, ids=lambda given: type(given).__name__
)


def parts_of_frame():
    return [FRAME.iloc[k : k + PART] for k in range(0, N, PART)]


def features_of(model):
    return FEATURES[:1] if isinstance(model, SegmentedRegressor) else FEATURES


def pieces(columns, target):
    parts = parts_of_frame()
    return [(p[columns], p[target].to_numpy(), p.weight.to_numpy()) for p in parts]


def check_fit(model, target, table, chunk_limits):
    """Compare a fit of the table with one of the same rows in memory."""
    chunk_limits(sample=200)
    columns = features_of(model)
    output = "predict_proba" if target == "label" else "predict"
    X = FRAME[columns]
    expected = getattr(model.fit_chunks(pieces(columns, target)), output)(X)
    chunks = TableChunks(table, target, features=columns, sample_weight="weight")
    found = getattr(model.fit_chunks(chunks), output)(X)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def arrow_table():
    return pa.concat_tables(map(pa.Table.from_pandas, parts_of_frame()))


@BY_MODEL
def test_fits_of_arrow_tables_are_those_in_memory(model, target, chunk_limits):
    check_fit(model, target, arrow_table(), chunk_limits)


def test_datasets_on_disk_are_read_file_by_file(tmp_path):
    dataset = pytest.importorskip("pyarrow.dataset")
    for number, part in enumerate(parts_of_frame()):
        part.to_parquet(tmp_path / f"{number}.parquet")
    chunks = TableChunks(
        dataset.dataset(tmp_path), "y", features=["b", "a"], sample_weight="weight"
    )
    read = pd.concat([X for X, _, _ in chunks])
    pd.testing.assert_frame_equal(
        read.reset_index(drop=True), FRAME[["b", "a"]], check_dtype=False
    )


def test_features_are_all_other_columns():
    table = arrow_table().drop_columns(["label"])
    X, y, weight = next(iter(TableChunks(table, "y", sample_weight="weight")))
    assert list(X) == FEATURES
    np.testing.assert_array_equal(y, FRAME.y[:PART])
    np.testing.assert_array_equal(weight, FRAME.weight[:PART])
    X, y = next(iter(TableChunks(table, ["y", "a"])))
    assert (list(X), list(y)) == (["b", "c", "weight"], ["y", "a"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"target": "z"}, "target: the table has no column 'z'"),
        ({"target": "y", "features": ["a", "q"]}, "features: .* no column 'q'"),
        ({"target": "y", "sample_weight": "w"}, "sample_weight: .* no column 'w'"),
        ({"target": "y", "features": []}, "features: the table has no column to"),
    ],
)
def test_columns_that_there_are_not_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        TableChunks(arrow_table(), **words)


def test_other_tables_are_a_type_error():
    with pytest.raises(TypeError, match=r"table must be a Dask.*DataFrame"):
        TableChunks(FRAME, "y")


# -- Dask ------------------------------------------------------------------------------


def dask_table():
    dd = pytest.importorskip("dask.dataframe")
    return dd.from_pandas(FRAME, npartitions=N // PART, sort=False)


def test_fit_takes_columns_of_a_dask_data_frame(chunk_limits):
    chunk_limits(sample=200)
    table, model = dask_table(), MODELS[0][0]
    expected = model.fit_chunks(pieces(FEATURES, "y")).predict(FRAME[FEATURES])
    model.fit(table[FEATURES], table["y"], sample_weight=table["weight"])
    found = model.predict(FRAME[FEATURES])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
    assert list(model.feature_names_in_) == FEATURES
    with pytest.raises(ValueError, match="y is of the type ndarray, and X a dask"):
        model.fit(table[FEATURES], FRAME.y.to_numpy())
    with pytest.raises(ValueError, match="must have the same partitions"):
        model.fit(table[FEATURES], table["y"].repartition(npartitions=1))


def process_and_sum(number, chunk):
    return {os.getpid()}, float(chunk[1].sum())


def joined(a, b):
    return a[0] | b[0], a[1] + b[1]


def check_workers(table):
    """Sums of all blocks are computed, and in other processes."""
    processes, total = fold_chunks(TableChunks(table, "y"), process_and_sum, joined)
    assert os.getpid() not in processes
    assert total == pytest.approx(FRAME.y.sum(), abs=1e-10)


@pytest.fixture(scope="module")
def dask_cluster():
    distributed = pytest.importorskip("distributed")
    words = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**words) as found, distributed.Client(found) as one:
        yield one


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")  # of the cluster's own
@BY_MODEL
def test_fits_of_dask_frames_are_those_in_memory(
    model, target, dask_cluster, chunk_limits
):
    check_fit(model, target, dask_table(), chunk_limits)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_sums_of_frames_are_computed_on_the_workers(dask_cluster):
    check_workers(dask_table())


# -- Ray -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray_table():
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else they wait for all others
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=2**27,
            log_to_driver=False,
        )
        yield ray.data.from_pandas(parts_of_frame())
        ray.shutdown()


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
@BY_MODEL
def test_fits_of_ray_datasets_are_those_in_memory(
    model, target, ray_table, chunk_limits
):
    check_fit(model, target, ray_table, chunk_limits)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_sums_of_ray_datasets_are_computed_by_its_workers(ray_table):
    check_workers(ray_table)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_what_is_wrong_with_a_block_of_ray_is_named(ray_table):
    import ray

    bad = parts_of_frame()
    bad[1] = bad[1].assign(a=np.nan)
    chunks = TableChunks(ray.data.from_pandas(bad), "y", features=FEATURES)
    with pytest.raises(ValueError, match="Chunk 1: X holds NaN"):
        MODELS[0][0].fit_chunks(chunks)
