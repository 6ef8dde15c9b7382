"""Loaders of data sets that users of the benchmarks have copies of."""

import os
import pickle
import struct

import numpy as np
import pytest
import scipy.io

from benchmarks import _own_copies
from benchmarks._own_copies import load_cifar10, load_indian_pines

# Indian Pines

COUNTS = [400, 50, 0, 11]  # pixels of the classes 1 to 4; the others have no label


@pytest.fixture
def pines(tmp_path):
    rng = np.random.RandomState(0)
    truth = np.repeat(np.arange(5), [625 - sum(COUNTS), *COUNTS])
    truth = rng.permutation(truth).reshape(25, 25).astype(np.uint8)
    image = rng.randint(1000, 9000, size=(25, 25, 6)).astype(np.uint16)
    image[0, 0] = 5000  # a spectrum without shape, of class 1
    other = tuple(np.argwhere(truth == 1)[-1])
    truth[other], truth[0, 0] = truth[0, 0], truth[other]
    files = tmp_path / "image.mat", tmp_path / "truth.mat"
    scipy.io.savemat(files[0], {"indian_pines": image, "note": "text"})
    scipy.io.savemat(files[1], {"indian_pines_gt": truth})
    return files, image, truth


def test_indian_pines(pines):
    files, image, truth = pines
    pines = load_indian_pines(*files)
    np.testing.assert_array_equal(truth[tuple(pines.pixels.T)], pines.target)
    assert len(pines.target) == sum(COUNTS)
    spectra = image[tuple(pines.pixels.T)].astype(float)
    spectra -= spectra.mean(axis=1, keepdims=True)
    spectra[1:] /= spectra[1:].std(axis=1, keepdims=True)
    np.testing.assert_allclose(pines.data, spectra, atol=1e-10)
    assert not pines.data[0].any()
    assert pines.target_names == ["Alfalfa", "Corn-notill", "Corn-mintill", "Corn"]
    assert "3 classes" in pines.DESCR
    raw = load_indian_pines(*files, standardize=False)
    np.testing.assert_array_equal(raw.data, image[tuple(pines.pixels.T)])


def test_indian_pines_split(pines):
    files, _, truth = pines
    pines = load_indian_pines(*files)
    parts = pines.train, pines.validation, pines.test
    together = np.sort(np.concatenate(parts))
    np.testing.assert_array_equal(together, range(len(pines.target)))
    for label, drawn in [(1, 312), (2, 40), (4, 1)]:
        counts = [(pines.target[part] == label).sum() for part in parts]
        rest = (truth == label).sum() - drawn
        assert counts == [drawn - drawn // 5, rest, drawn // 5]
    again = load_indian_pines(*files)
    other = load_indian_pines(*files, random_state=1)
    np.testing.assert_array_equal(again.train, pines.train)
    assert (other.train != pines.train).any()


def test_indian_pines_split_of_the_original():
    counts = [46, 1428, 830, 237, 483, 730, 28, 478, 20, 972, 2455, 593, 205, 1265]
    target = np.repeat(np.arange(1, 17), [*counts, 386, 93])
    parts = _own_copies.split_pixels(target, 0)
    assert [len(part) for part in parts] == [2957, 6560, 732]
    # Figure 5 of the paper: ten pixels of the small classes validate, and of the
    # others all but 312.
    np.testing.assert_array_equal(
        np.bincount(target[parts[1]])[1:],
        np.maximum(10, np.bincount(target)[1:] - 312),
    )


def test_indian_pines_refuses(pines, tmp_path):
    (image_file, truth_file), image, truth = pines
    other = tmp_path / "other.mat"

    def refused(message, first=image_file, second=truth_file):
        with pytest.raises(ValueError, match=message):
            load_indian_pines(first, second)

    refused(
        r"truth.mat must have one array .* 3 dimensions, the image; it has none",
        truth_file,
    )
    refused("2 dimensions, the ground truth", second=image_file)
    other.write_text("no MATLAB file, but a text that is longer than its header" * 9)
    refused("other.mat is not a readable MATLAB file", other)
    other.write_bytes(image_file.read_bytes()[:1000])
    refused("other.mat is not a readable MATLAB file", other)
    other.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(400))
    refused("version 7.3", other)
    scipy.io.savemat(other, {"a": image, "b": image})
    refused(r"it has a \(25, 25, 6\), b", other)
    scipy.io.savemat(other, {"a": np.where(image == 5000, np.nan, image)})
    refused("NaN", other)
    scipy.io.savemat(other, {"a": truth[1:]})
    refused("25 x 25 pixels, .* 24 x 25: they must agree", second=other)
    scipy.io.savemat(other, {"a": truth + 0.5})
    refused("class number", second=other)
    scipy.io.savemat(other, {"a": 0 * truth})
    refused("labels no pixel", second=other)
    few = truth.copy()
    few[tuple(np.argwhere(few == 4)[0])] = 0
    scipy.io.savemat(other, {"a": few})
    refused("Class 4 has 10 pixels: .* more than 10", second=other)
    with pytest.raises(FileNotFoundError):
        load_indian_pines(tmp_path / "missing.mat", truth_file)


# CIFAR-10


class Python2Pickler(pickle._Pickler):
    """Writes strings and flags as Python 2 did, so as the original files have them."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_string(self, text):
        content = text if isinstance(text, bytes) else text.encode("ascii")
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(text)

    def save_flag(self, flag):
        self.write(pickle.BININT1 + bytes([flag]))

    dispatch[bytes] = dispatch[str] = save_string
    dispatch[bool] = save_flag


def write_batch(path, content):
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(content)
    old = path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    path.write_bytes(old)


@pytest.fixture
def cifar(tmp_path):
    rng = np.random.RandomState(0)
    images = rng.randint(0, 256, size=(6, 4, 32, 32, 3)).astype(np.uint8)
    labels = rng.randint(0, 10, size=(6, 4))
    names = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
    for name, batch, of_batch in zip(names, images, labels, strict=True):
        planes = np.ascontiguousarray(batch.transpose(0, 3, 1, 2)).reshape(4, 3072)
        content = {
            "batch_label": name,
            "labels": of_batch.tolist(),
            "data": planes,
            "filenames": ["a.png"] * 4,
        }
        write_batch(tmp_path / name, content)
    return tmp_path, images, labels


def test_cifar10(cifar):
    folder, images, labels = cifar
    X_train, y_train, X_test, y_test = load_cifar10(folder)
    assert X_train.dtype == np.float32
    np.testing.assert_allclose(
        X_train.reshape(5, 4, 32, 32, 3), images[:5] / 255, rtol=1e-6
    )
    np.testing.assert_array_equal(y_train, labels[:5].ravel())
    np.testing.assert_allclose(X_test.reshape(4, 32, 32, 3), images[5] / 255, rtol=1e-6)
    np.testing.assert_array_equal(y_test, labels[5])
    assert load_cifar10(str(folder), dtype="float64")[0].dtype == float
    outer = folder / "outer"
    outer.mkdir()
    (outer / "cifar-10-batches-py").symlink_to(folder)
    np.testing.assert_array_equal(load_cifar10(outer)[0], X_train)


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_cifar10_runs_no_code(cifar, monkeypatch):
    folder = cifar[0]
    monkeypatch.chdir(folder)
    (folder / "data_batch_2").write_bytes(pickle.dumps({b"data": Harmful()}))
    with pytest.raises(
        ValueError, match=r"data_batch_2 .* refers to posix\.mkdir|nt\."
    ):
        load_cifar10(folder)
    assert not (folder / "harm").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "it must have data"),
        ({"labels": [1, 2]}, "it must have data"),
        (
            {"data": np.zeros((2, 3071), np.uint8), "labels": [1, 2]},
            "it must have data",
        ),
        ({"data": np.zeros((2, 3072)), "labels": [1, 2]}, "it must have data"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "a list of 2"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 10]}, "from 0 to 9"),
    ],
)
def test_cifar10_refuses_other_content(content, message, cifar):
    folder = cifar[0]
    write_batch(folder / "test_batch", content)
    with pytest.raises(ValueError, match=f"test_batch is not a CIFAR-10 .*{message}"):
        load_cifar10(folder)


def test_cifar10_refuses_other_files(cifar):
    folder = cifar[0]
    with pytest.raises(ValueError, match="dtype must be"):
        load_cifar10(folder, dtype=int)
    file = folder / "data_batch_5"
    for damaged in (file.read_bytes()[:500], b"", b"text"):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="data_batch_5 is not a CIFAR-10 batch"):
            load_cifar10(folder)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="data_batch_5"):
        load_cifar10(folder)
