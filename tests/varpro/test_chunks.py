"""Networks of rows that come in chunks, from memory, from a file and from dask."""

import pickle
import tracemalloc

import numpy as np
import pytest
from sklearn.base import clone

from sklearn_gn import VarProNetClassifier, VarProNetRegressor
from sklearn_gn.callbacks import Checkpoint
from sklearn_gn.data import rows_source
from sklearn_gn.data.rows_source import CheckedRows
from sklearn_gn.solvers import Adam, FullGN, GNvpro, LBFGSvpro
from sklearn_gn.varpro import estimator

N, D = 240, 2
SAMPLE, BATCH = 60, 30  # a sample is two batches, the rows are four samples
PART = 64  # rows that are summed at a time

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(autouse=True, scope="module")
def _few_rows_are_many():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimator, "SAMPLE_NUMBERS", 4 * SAMPLE)
        patch.setattr(rows_source, "_PART_ROWS", PART)
        yield


def data(seed=0, n_classes=None):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (N, D))
    y = np.stack([np.sin(3 * X[:, 0]) * X[:, 1], 1e-3 * np.exp(X[:, 0])], axis=1)
    if n_classes is None:
        return X, y + 1e-5 * rng.normal(size=y.shape), rng.integers(3, size=N) / 2
    cuts = np.quantile(y[:, 0], np.linspace(0, 1, n_classes + 1)[1:-1])
    noisy = y[:, 0] + 0.1 * rng.normal(size=N)
    return X, np.array(["a", "b", "c"])[np.digitize(noisy, cuts)], rng.random(N) + 0.5


def pieces(*arrays, size=100):
    n = len(arrays[0])
    return [tuple(a[k : k + size] for a in arrays) for k in range(0, n, size)]


def batches(solver=GNvpro, **words):
    return solver(batch_size=BATCH, iterations_per_batch=2, **words)


def regressor(**words):
    settings = {"hidden_layer_sizes": (4,), "solver": batches(), "tol": 0.0}
    settings |= {"max_iter": 10, "random_state": 0, "alpha": (1e-6, 1e-4)}
    return VarProNetRegressor(**settings | words)


def classifier(**words):
    settings = {"hidden_layer_sizes": (4,), "solver": batches(), "tol": 0.0}
    settings |= {"max_iter": 10, "random_state": 0, "alpha": 1e-3}
    return VarProNetClassifier(**settings | words)


def with_one(Z):
    return np.concatenate([Z, np.ones((len(Z), 1))], axis=1)


def output_of(model):
    """The output layer, with a row for each feature and a column for each value."""
    return np.vstack([model.output_coef_.T, model.output_intercept_])


def penalty_of(model):
    """That of a network without units of its own."""
    hidden, output = model.alpha_
    theta = [*model.coefs_, *model.intercepts_]
    squares = sum(np.sum(a**2) for a in theta)
    return 0.5 * (hidden * squares + output * np.sum(output_of(model) ** 2))


# --- what a fit in chunks promises ----------------------------------------------------


@pytest.mark.slow
def test_few_rows_are_fitted_as_by_fit():
    X, y, weight = (a[:SAMPLE] for a in data())
    model = regressor(max_iter=3)
    whole = clone(model).fit(X, y, weight)
    again = clone(model).fit_chunks(pieces(X, y, weight, size=25))
    np.testing.assert_allclose(again.output_coef_, whole.output_coef_, rtol=1e-6)
    found, expected = (m.predict(X, return_std=True) for m in (again, whole))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_names_of_features_and_numbers_of_far_rows_are_those_of_the_chunks():
    pd = pytest.importorskip("pandas")
    X, y, _ = (a[:SAMPLE] for a in data())
    y = 5 + y[:, 0] + 0.1 * np.random.default_rng(0).normal(size=SAMPLE)
    y[41] += 100
    chunks = pieces(pd.DataFrame(X, columns=["a", "b"]), y, size=25)
    model = VarProNetRegressor(n_init=2, max_iter=20, random_state=0)
    model.fit_chunks(chunks)
    assert list(model.feature_names_in_) == ["a", "b"]
    for fit in (model, clone(model).fit(X, y)):
        texts = [finding.text for finding in fit.diagnose().findings]
        assert any("row" in text and " 41" in text for text in texts)


@pytest.mark.slow
def test_few_rows_of_classes_are_fitted_as_by_fit():
    X, y, weight = (a[:SAMPLE] for a in data(n_classes=3))
    y, weight = y.copy(), weight.copy()
    y[0], weight[0] = "z", 0.0  # a label without weight is no class
    model = classifier(class_weight={"a": 2.0}, max_iter=3)
    whole = clone(model).fit(X, y, weight)
    again = clone(model).fit_chunks(pieces(X, y, weight, size=25))
    np.testing.assert_allclose(
        again.predict_proba(X), whole.predict_proba(X), rtol=1e-6
    )


def test_the_output_layer_is_that_of_ridge_regression_on_all_rows():
    X, y, weight = data()
    model = regressor(alpha=(1e-6, 1e-4), scale=False)
    model.fit_chunks(pieces(X, y, weight))
    Z, share = with_one(model.transform(X)), weight / weight.sum()
    matrix = Z.T @ (share[:, None] * Z) + model.alpha_[1] * np.eye(len(Z.T))
    output = np.linalg.solve(matrix, Z.T @ (share[:, None] * y))
    np.testing.assert_allclose(output_of(model), output, rtol=1e-7, atol=1e-10)
    loss = 0.5 * share @ np.sum((Z @ output - y) ** 2, axis=1) + penalty_of(model)
    assert model.loss_ == pytest.approx(loss, rel=1e-9)
    assert model.convergence_log_["loss"][-1] == pytest.approx(model.loss_, rel=1e-9)


def test_error_bars_are_those_of_the_output_layer_on_all_rows():
    X, y, weight = data()
    model = regressor(scale=False).fit_chunks(pieces(X, y, weight))
    Z, share = with_one(model.transform(X)), weight / weight.sum()
    matrix = Z.T @ (share[:, None] * Z) + model.alpha_[1] * np.eye(len(Z.T))
    unit = np.sqrt(np.sum(Z * np.linalg.solve(matrix, Z.T).T, axis=1))
    _, std = model.predict(X, return_std=True)
    squares = share @ (y - model.predict(X)) ** 2
    n_parameters = np.trace(np.linalg.solve(matrix, Z.T @ (share[:, None] * Z)))
    bars = np.sqrt(squares / (weight.sum() - n_parameters))
    np.testing.assert_allclose(std, unit[:, None] * bars, rtol=1e-6)
    lower, upper = model.predict_interval(X)
    assert np.all(lower < upper)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_output_layer_is_that_of_logistic_regression_on_all_rows(n_classes):
    X, y, weight = data(n_classes=n_classes)
    model = classifier(class_weight={"a": 2.0})
    model.fit_chunks(pieces(X, y, weight, size=77))
    share = np.where(y == "a", 2.0, 1.0) * weight
    share /= share.sum()
    Z, output = with_one(model.transform(X)), output_of(model)
    error = model.predict_proba(X) - (y[:, None] == model.classes_)
    gradient = Z.T @ (share[:, None] * error[:, -output.shape[1] :])
    np.testing.assert_allclose(gradient + 1e-3 * output, 0, atol=5e-9)
    losses = -model.predict_log_proba(X)[y[:, None] == model.classes_]
    expected = share @ losses + penalty_of(model)
    assert model.loss_ == pytest.approx(expected, rel=1e-9)
    assert model.score(X, y) > 0.6


def test_cuts_change_nothing_and_neither_do_rows_of_weight_zero():
    X, y, weight = data()
    whole, cut = (
        regressor().fit_chunks(pieces(X, y, weight, size=size)) for size in (N, 7)
    )
    np.testing.assert_allclose(cut.predict(X), whole.predict(X), rtol=1e-7)
    kept, order = weight > 0, np.random.default_rng(0).permutation(N)
    for rows in (kept, order):  # the same batches; sums over all rows round otherwise
        model = regressor().fit_chunks(pieces(X[rows], y[rows], weight[rows]))
        np.testing.assert_allclose(model.predict(X), whole.predict(X), rtol=1e-7)


@pytest.mark.parametrize(
    "solver",
    [
        batches(FullGN),
        pytest.param(Adam(batch_size=BATCH), marks=pytest.mark.slow),
        Adam(),
    ],
)
@pytest.mark.repeats
def test_other_solvers_train_on_chunks(solver):
    X, y, weight = data(n_classes=3)
    first = classifier(solver=solver, max_iter=1).fit_chunks(pieces(X, y, weight))
    model = classifier(solver=solver).fit_chunks(pieces(X, y, weight))
    losses = -model.predict_log_proba(X)[y[:, None] == model.classes_]
    expected = weight / weight.sum() @ losses + penalty_of(model)
    assert model.loss_ == pytest.approx(expected, rel=1e-9)
    assert model.loss_ < first.loss_


# --- where the chunks come from -------------------------------------------------------


@pytest.mark.slow
def test_a_mapped_file_and_dask_arrays_are_read_in_chunks(tmp_path, monkeypatch):
    X, y, weight = data(n_classes=3)
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    mapped[:] = X
    in_memory = classifier().fit(mapped, y, weight)
    monkeypatch.setattr("sklearn_gn.data.rows.MAPPED_BYTES", 0)
    monkeypatch.setattr("sklearn_gn.data.tables.CHUNK_BYTES", 100 * D * 4)
    model = classifier().fit(mapped, y, weight)
    same = classifier().fit_chunks(pieces(np.asarray(mapped), y, weight))
    np.testing.assert_allclose(model.output_coef_, same.output_coef_, rtol=1e-6)
    assert not np.allclose(model.output_coef_, in_memory.output_coef_, rtol=1e-3)
    # A solver of all rows, a split of them and weights by class need the whole array.
    for words in (
        {"solver": LBFGSvpro()},
        {"early_stopping": True},
        {"class_weight": "balanced"},
        {"device": [0]},
    ):
        assert classifier(**words)._chunks_of(mapped, y, None, None) is None


def test_dask_arrays_are_read_by_their_blocks():
    da = pytest.importorskip("dask.array")
    X, y, _ = data()
    model = regressor().fit(
        da.from_array(X, chunks=(100, 1)), da.from_array(y, chunks=(50, 2))
    )
    same = regressor().fit_chunks(pieces(X, y))
    np.testing.assert_allclose(model.output_coef_, same.output_coef_, rtol=1e-6)


@pytest.mark.slow
def test_memory_is_that_of_a_sample_and_a_few_parts(chunk_limits):
    # So many rows that what Python itself allocates is little beside them.
    n_chunks = 30
    chunk_limits(part=2**11)
    X = np.random.default_rng(0).normal(size=(4_000, 40))

    class Chunks:
        def __init__(self, number):
            self.number = number

        def __iter__(self):
            return (((1 + 1e-3 * k) * X, X[:, 0] + k) for k in range(self.number))

    regressor(max_iter=1).fit_chunks(Chunks(2))  # compiles, for which tracing is slow
    tracemalloc.start()
    regressor(max_iter=1).fit_chunks(Chunks(n_chunks))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Also where computations lag behind, and if something is compiled once more.
    assert peak < n_chunks / 2 * X.nbytes


# --- stopping, resuming ---------------------------------------------------------------


class StopAfter:
    """A callback that ends a fit after some iterations."""

    def __init__(self, iterations):
        self.iterations = iterations

    def setup(self, estimator, context):
        pass

    teardown = on_fit_task_begin = setup

    def on_fit_task_end(self, estimator, context, **_):
        return context.max_subtasks == 0 and context.task_id == self.iterations - 1


@pytest.mark.parametrize("make", [regressor, classifier])
@pytest.mark.repeats
def test_a_resumed_fit_ends_as_an_uninterrupted_one(make, tmp_path):
    X, y, weight = data(n_classes=None if make is regressor else 3)
    chunks, model = pieces(X, y, weight), make(random_state=None)
    whole = clone(model).set_params(random_state=3).fit_chunks(chunks)
    path = tmp_path / "fit.ckpt"
    model.set_params(random_state=3)
    half = clone(model).set_callbacks(Checkpoint(path), StopAfter(7))
    assert half.fit_chunks(chunks).n_iter_ == 7  # in the second sample
    resumed = clone(model).set_callbacks(Checkpoint(path)).fit_chunks(chunks)
    assert resumed.n_iter_ == whole.n_iter_ == 10
    np.testing.assert_array_equal(resumed.output_coef_, whole.output_coef_)
    again = pickle.loads(pickle.dumps(resumed))
    np.testing.assert_array_equal(again.predict(X), resumed.predict(X))


def test_an_interrupt_while_chunks_are_read_leaves_a_model():
    X, y, _ = data()

    class Interrupted:
        passes = 0

        def __iter__(self):
            self.passes += 1
            if self.passes == 5:
                raise KeyboardInterrupt
            return iter(pieces(X, y))

    model = regressor().fit_chunks(Interrupted())
    assert model.stop_reason_ == "interrupted"
    assert model.score(X, y) > 0


def test_validation_data_stop_a_fit():
    X, y, _ = data()
    model = regressor(early_stopping=True, n_iter_no_change=1, max_iter=60)
    with pytest.raises(ValueError, match="needs X_val"):
        model.fit_chunks(pieces(X, y))
    model.fit_chunks(pieces(X, y), X_val=X[:20], y_val=-y[:20])
    assert model.stop_reason_ == "early_stopping"
    assert np.isfinite(model.convergence_log_["val_loss"]).all()


def test_warm_start_goes_on():
    X, y, _ = data()
    model = regressor(warm_start=True, max_iter=8).fit_chunks(pieces(X, y))
    first = model.loss_
    assert model.fit_chunks(pieces(X, y)).loss_ < first
    labels = data(n_classes=3)[1]
    model = classifier(warm_start=True).fit_chunks(pieces(X, labels))
    with pytest.raises(ValueError, match="warm_start=True continues with the classes"):
        model.fit_chunks(pieces(X, labels), classes=["a", "b"])


# --- chunks that are none -------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "change", "message"),
    [
        ({"solver": LBFGSvpro()}, None, "needs all rows at once"),
        ({"class_weight": "balanced"}, None, "Give a dict"),
        ({"device": [0]}, None, "one device"),
        ({}, iter, "only once"),
        ({}, lambda c: [c[0], [1]], "Chunk 1 must be a tuple"),
        ({}, lambda c: [c[0], (c[1][0], c[1][1][:3])], "Chunk 1: X, y and weights"),
        ({}, lambda c: [c[0], (c[1][0][:, :1], c[1][1])], "Chunk 1: X has the shape"),
        ({}, lambda c: [c[0], (c[1][0] * np.inf, c[1][1])], "Chunk 1: X holds NaN"),
        ({}, lambda c: [(*c[0], -np.ones(100))], "Chunk 0: weights must be finite"),
        ({}, lambda c: [(*c[0], np.zeros(100))], "class|weight"),
        ({}, lambda c: [(*c[0], c[0][0])], "Chunk 0: weights must have one column"),
        ({}, lambda c: [c[0], (c[1][0], c[1][0])], "Chunk 1: y must have one column"),
        ({}, lambda c: [], "hold no rows"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_chunks_that_are_none_are_named(words, change, message):
    X, y, _ = data(n_classes=3)
    chunks = pieces(X, y)
    chunks = change(chunks) if change else chunks
    with pytest.raises(ValueError, match=message):
        classifier(**words).fit_chunks(chunks, classes=["a", "b", "c"])


def test_chunks_of_targets_have_one_number_of_them():
    X, y, _ = data()
    chunks = [(X[:100], y[:100]), (X[100:], y[100:, 0])]
    with pytest.raises(ValueError, match="Chunk 1: y has 1 targets"):
        regressor().fit_chunks(chunks)
    with pytest.raises(ValueError, match="loss='huber'"):
        regressor(solver=batches(loss="huber")).fit_chunks(pieces(X, y))


# --- samples --------------------------------------------------------------------------


def test_samples_are_drawn_anew_whatever_the_order_of_the_rows():
    X, y, weight = data()
    rows = CheckedRows(pieces(X, y, weight + 1), D, 2)
    first = rows.survey(SAMPLE).sample
    again = rows.survey(SAMPLE, 0).sample
    np.testing.assert_array_equal(again.X, first.X)
    one = rows.survey(SAMPLE, 1).sample
    backwards = CheckedRows([(X[::-1], y[::-1], weight[::-1] + 1)], D, 2)
    other = backwards.survey(SAMPLE, 1).sample
    np.testing.assert_array_equal(other.X, one.X)
    common = {tuple(x) for x in one.X} & {tuple(x) for x in first.X}
    assert 0 < len(common) < SAMPLE / 2  # a quarter of the rows are in a sample
