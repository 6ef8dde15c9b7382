"""Classes in the plane."""

from numbers import Integral, Real

import numpy as np
from sklearn.utils import check_random_state, check_scalar

from sklearn_gn._typing import Array, RandomState

_LOWEST, _HIGHEST = -6.5511333328, 8.1062135894  # of peaks, over the plane


def make_peaks_classification(
    n_samples: int = 5000, *, n_classes: int = 5, random_state: RandomState = None
) -> tuple[Array, Array]:
    """Generate points in the level sets of the peaks function (classification).

    Peaks, a common test surface, is a sum of three humps and hollows over the square
    [-3, 3]^2. Its range is cut into intervals of equal length; the points where it
    lies in one of them are a class.

    Parameters
    ----------
    n_samples : int, default=5000
        Number of points.
    n_classes : int, default=5
        Number of classes.
    random_state : int, RandomState instance or None, default=None
        Determines the points.

    Returns
    -------
    X : ndarray of shape (n_samples, 2)
        Points, uniform in the region of each class.
    y : ndarray of shape (n_samples,)
        Classes 0, ..., n_classes - 1, from the lowest level to the highest. Each has
        the same number of points, up to one.

    References
    ----------
    E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train Like a (Var)Pro:
    Efficient Training of Neural Networks with Variable Projection", SIAM Journal on
    Mathematics of Data Science 3 (2021), 1041-1066. Appendix A.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn.datasets import make_peaks_classification
    >>> X, y = make_peaks_classification(1000, random_state=0)
    >>> np.bincount(y)
    array([200, 200, 200, 200, 200])
    """
    check_scalar(n_classes, "n_classes", Integral, min_val=2)
    levels = np.linspace(_LOWEST, _HIGHEST, n_classes + 1)[1:-1]
    given = n_classes, n_samples, 3.0, random_state
    return _sample(lambda X: np.searchsorted(levels, peaks(*X.T), "right"), *given)


def make_ellipse(
    n_samples: int = 5000,
    *,
    semi_axes: tuple[float, float] = (0.8, 0.4),
    angle: float = np.pi / 6,
    random_state: RandomState = None,
) -> tuple[Array, Array]:
    """Generate points inside and outside an ellipse (binary classification).

    Parameters
    ----------
    n_samples : int, default=5000
        Number of points.
    semi_axes : tuple of 2 floats, default=(0.8, 0.4)
        Half the lengths of the axes; equal ones are a circle. The centre is the origin.
    angle : float, default=pi / 6
        Angle between the first axes of the ellipse and of the plane, in radians.
    random_state : int, RandomState instance or None, default=None
        Determines the points.

    Returns
    -------
    X : ndarray of shape (n_samples, 2)
        Points of the square [-1, 1]^2, uniform inside and uniform outside.
    y : ndarray of shape (n_samples,)
        0 inside, 1 outside; half of the points each, up to one.

    References
    ----------
    E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train Like a (Var)Pro:
    Efficient Training of Neural Networks with Variable Projection", SIAM Journal on
    Mathematics of Data Science 3 (2021), 1041-1066. Figure 1, without the numbers of
    its ellipse.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn.datasets import make_ellipse
    >>> X, y = make_ellipse(random_state=0)
    >>> X.shape, np.bincount(y)
    ((5000, 2), array([2500, 2500]))
    """
    if np.shape(semi_axes) != (2,):
        raise ValueError(f"semi_axes must be two numbers, got {semi_axes!r}.")
    for a in semi_axes:
        check_scalar(a, "semi_axes", Real, min_val=0, include_boundaries="neither")
    check_scalar(angle, "angle", Real)
    axes = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    given = 2, n_samples, 1.0, random_state
    return _sample(lambda X: np.linalg.norm(X @ axes / semi_axes, axis=1) > 1, *given)


def peaks(a, b):
    """The peaks function."""
    return (
        3 * (1 - a) ** 2 * np.exp(-(a**2) - (b + 1) ** 2)
        - 10 * (a / 5 - a**3 - b**5) * np.exp(-(a**2) - b**2)
        - np.exp(-((a + 1) ** 2) - b**2) / 3
    )


def _sample(classify, n_classes, n_samples, half_width, random_state):
    """Draw points of the square until each class has its share, then shuffle them."""
    check_scalar(n_samples, "n_samples", Integral, min_val=n_classes)
    rng = check_random_state(random_state)
    share, more = divmod(n_samples, n_classes)
    wanted = share + (np.arange(n_classes) < more)
    found, counts = [np.empty((0, 2))] * n_classes, np.zeros(n_classes, dtype=int)
    for _ in range(1000):
        points = rng.uniform(-half_width, half_width, size=(max(2000, n_samples), 2))
        classes = classify(points)
        for k in np.flatnonzero(counts < wanted):
            both = np.concatenate([found[k], points[classes == k]])
            found[k], counts[k] = both[: wanted[k]], min(len(both), wanted[k])
        if (counts == wanted).all():
            break
    else:
        rare = int(np.flatnonzero(counts < wanted)[0])
        raise ValueError(
            f"Class {rare} fills too little of the square: {counts[rare]} of "
            f"{wanted[rare]} points found."
        )
    order = rng.permutation(n_samples)
    y = np.repeat(np.arange(n_classes), wanted)
    return np.concatenate(found)[order], y[order]
