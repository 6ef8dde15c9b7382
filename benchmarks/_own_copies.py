"""Data sets of the papers that whoever runs the benchmarks has copies of."""

import pickle
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat
from sklearn.utils import Bunch, check_random_state

from sklearn_gn._typing import Array, PathLike, RandomState

_CROPS = (
    *("Alfalfa", "Corn-notill", "Corn-mintill", "Corn", "Grass-pasture"),
    *("Grass-trees", "Grass-pasture-mowed", "Hay-windrowed", "Oats"),
    *("Soybean-notill", "Soybean-mintill", "Soybean-clean", "Wheat", "Woods"),
    *("Buildings-Grass-Trees-Drives", "Stone-Steel-Towers"),
)

_INDIAN_PINES = """\
Indian Pines
------------

:Number of samples: {n_samples} labelled pixels
:Features: {n_features} spectral bands{standardized}
:Targets: {n_classes} classes of crops and other cover

An image that the AVIRIS sensor took over north-western Indiana in June 1992, and what
grew there. ``help(load_indian_pines)`` says how it is split.

M. F. Baumgardner, L. L. Biehl and D. A. Landgrebe, "220 Band AVIRIS Hyperspectral Image
Data Set: June 12, 1992 Indian Pine Test Site 3", Purdue University Research Repository
(2015), doi:10.4231/R7RX991C.
"""


def load_indian_pines(
    data_file: PathLike,
    ground_truth_file: PathLike,
    *,
    standardize: bool = True,
    random_state: RandomState = 0,
) -> Bunch:
    """Load your copy of the Indian Pines image, a row per pixel (classification).

    Nothing is downloaded.

    Parameters
    ----------
    data_file : str or path-like
        The image, such as ``Indian_pines.mat`` (220 bands) or
        ``Indian_pines_corrected.mat`` (200 bands): a MATLAB file, up to version 7, with
        one array of three dimensions.
    ground_truth_file : str or path-like
        The classes, such as ``Indian_pines_gt.mat``: a MATLAB file with one array of
        two dimensions, 0 where a pixel has no label.
    standardize : bool, default=True
        Bring the spectrum of each pixel to mean 0 and standard deviation 1, as the
        paper does.
    random_state : int, RandomState instance or None, default=0
        Determines the split.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        ``data`` of shape (n_samples, n_bands), the spectra of the labelled pixels, row
        by row of the image; ``target``, their classes as in the file, from 1 on, and
        ``target_names``; ``pixels`` of shape (n_samples, 2), row and column in the
        image; ``DESCR``; and the split into the rows ``train``, ``validation`` and
        ``test``. Of the n rows of a class, b = min(n - 10, 312) are drawn at random; a
        fifth of them, rounded down, are for the test, the others to train. The rest of
        the class is for validation. Of the 10,249 pixels of the original that makes
        2,957, 6,560 and 732 rows.

    Notes
    -----
    The split is random by pixel, and neighbours are alike: the error on the test rows
    says little about another field.

    References
    ----------
    E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train Like a (Var)Pro:
    Efficient Training of Neural Networks with Variable Projection", SIAM Journal on
    Mathematics of Data Science 3 (2021), 1041-1066. Section 3.3.
    """
    image = _mat_array(data_file, 3, "the image").astype(float)
    truth = _mat_array(ground_truth_file, 2, "the ground truth")
    if image.shape[:2] != truth.shape:
        raise ValueError(
            f"The image in {data_file} has {image.shape[0]} x {image.shape[1]} pixels, "
            f"the ground truth in {ground_truth_file} {truth.shape[0]} x "
            f"{truth.shape[1]}: they must agree."
        )
    if not np.isfinite(image).all():
        raise ValueError(f"The image in {data_file} has NaN or infinite values.")
    if (truth < 0).any() or (truth != np.rint(truth)).any():
        raise ValueError(
            f"The ground truth in {ground_truth_file} must be 0 or a class number."
        )
    pixels = np.argwhere(truth > 0)
    data, target = image[tuple(pixels.T)], truth[tuple(pixels.T)].astype(int)
    if not len(target):
        raise ValueError(f"The ground truth in {ground_truth_file} labels no pixel.")
    train, validation, test = split_pixels(target, random_state)
    if standardize:
        data -= data.mean(axis=1, keepdims=True)
        deviation = data.std(axis=1, keepdims=True)
        data /= np.where(deviation > 0, deviation, 1)
    n_classes = int(target.max())
    known = _CROPS if n_classes <= len(_CROPS) else []
    description = _INDIAN_PINES.format(
        n_samples=len(data),
        n_features=data.shape[1],
        n_classes=len(np.unique(target)),
        standardized=", standardised per pixel" if standardize else "",
    )
    names = [*known, *map(str, range(1, n_classes + 1))][:n_classes]
    parts = {"train": train, "validation": validation, "test": test}
    rows = {"data": data, "target": target, "pixels": pixels, **parts}
    return Bunch(**rows, target_names=names, DESCR=description)


def _mat_array(path, ndim, role):
    """Return the one array of that many dimensions in a MATLAB file."""
    with Path(path).expanduser().open("rb") as file:
        try:
            variables = loadmat(file)
        except NotImplementedError as error:  # how SciPy refuses HDF5 files
            raise ValueError(
                f"{path} is a MATLAB file of version 7.3, which SciPy cannot read. "
                f"Store it with save(..., '-v7')."
            ) from error
        except Exception as error:  # a damaged file can raise nearly anything
            raise ValueError(
                f"{path} is not a readable MATLAB file: {error}"
            ) from error
    found = {
        name: value
        for name, value in variables.items()
        if not name.startswith("__")
        and isinstance(value, np.ndarray)
        and value.ndim == ndim
        and value.dtype.kind in "biuf"
        and min(value.shape) > 1
    }
    if len(found) != 1:
        names = ", ".join(f"{name} {value.shape}" for name, value in found.items())
        raise ValueError(
            f"{path} must have one array of numbers with {ndim} dimensions, {role}; "
            f"it has {names or 'none'}."
        )
    return next(iter(found.values()))


def split_pixels(target, random_state):
    """Return the rows to train, to validate and to test, each sorted."""
    rng = check_random_state(random_state)
    train, validation, test = [], [], []
    for label in np.unique(target):
        rows = rng.permutation(np.flatnonzero(target == label))
        # To train and test, 5000 over 16 classes; at least 10 are kept to validate.
        drawn = min(len(rows) - 10, 312)
        if drawn < 1:
            raise ValueError(
                f"Class {label} has {len(rows)} pixels: the split needs more than 10 "
                "of each class."
            )
        test.append(rows[: drawn // 5])
        train.append(rows[drawn // 5 : drawn])
        validation.append(rows[drawn:])
    return [np.sort(np.concatenate(rows)) for rows in (train, validation, test)]


def load_cifar10(
    folder: PathLike, *, dtype: Any = np.float32
) -> tuple[Array, Array, Array, Array]:
    """Load your copy of CIFAR-10, a row per image (classification).

    Nothing is downloaded.

    Parameters
    ----------
    folder : str or path-like
        Folder of the "python version" with the files ``data_batch_1``, ...,
        ``data_batch_5`` and ``test_batch``, or the folder that has it as
        ``cifar-10-batches-py``.
    dtype : dtype, default=numpy.float32
        Type of the images. All of them take 0.7 GB in float32.

    Returns
    -------
    X_train : ndarray of shape (50000, 3072)
        Images to train, in [0, 1]. ``X.reshape(-1, 32, 32, 3)`` has height, width and
        the colours red, green, blue.
    y_train : ndarray of shape (50000,)
        Classes from 0 to 9: airplane, automobile, bird, cat, deer, dog, frog, horse,
        ship, truck.
    X_test : ndarray of shape (10000, 3072)
        Images to test.
    y_test : ndarray of shape (10000,)
        Their classes.

    Notes
    -----
    The files are pickles, which can run any code when they are read. This reader
    accepts arrays and plain containers only and refuses the rest.

    References
    ----------
    A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", University
    of Toronto (2009).
    """
    dtype = np.dtype(dtype)
    if dtype.kind != "f":
        raise ValueError(f"dtype must be a type of real numbers, got {dtype}.")
    folder = Path(folder).expanduser()
    inside = folder / "cifar-10-batches-py"
    folder = inside if inside.is_dir() else folder
    batches = [_read_batch(folder / f"data_batch_{k}", dtype) for k in range(1, 6)]
    X_train = np.concatenate([images for images, _ in batches])
    y_train = np.concatenate([labels for _, labels in batches])
    X_test, y_test = _read_batch(folder / "test_batch", dtype)
    return X_train, y_train, X_test, y_test


def _read_batch(path, dtype):
    """Return the images and labels of one file."""
    with path.open("rb") as file:
        try:
            content = _BatchUnpickler(file, encoding="bytes").load()
        except Exception as error:  # a damaged pickle can raise nearly anything
            raise ValueError(f"{path} is not a CIFAR-10 batch: {error}") from error
    images = labels = None
    if isinstance(content, dict):
        images, labels = content.get(b"data"), content.get(b"labels")
    numbers = isinstance(images, np.ndarray) and images.dtype == np.uint8
    if not numbers or images.ndim != 2 or images.shape[1] != 3072:
        raise ValueError(
            f"{path} is not a CIFAR-10 batch: it must have data, bytes of shape "
            f"(n_images, 3072)."
        )
    one_each = isinstance(labels, list) and len(labels) == len(images)
    if not one_each or not all(isinstance(k, Integral) and 0 <= k <= 9 for k in labels):
        raise ValueError(
            f"{path} is not a CIFAR-10 batch: it must have labels, a list of "
            f"{len(images)} integers from 0 to 9."
        )
    images = images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).reshape(-1, 3072)
    images = images.astype(dtype)
    images /= 255
    return images, np.array(labels)


def _dtype(name, align=0, copy=1):
    """Return a dtype as Python 2 stored it: by bytes, with numbers for flags."""
    return np.dtype(name.decode("ascii"), copy=True)


class _BatchUnpickler(pickle.Unpickler):
    """Reads arrays and plain containers of Python 2 and calls nothing else."""

    _allowed = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): _dtype,
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    }

    def find_class(self, module, name):
        """Return what the file names if it is on the list."""
        try:
            return self._allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it refers to {module}.{name}, which no batch does"
            ) from None
