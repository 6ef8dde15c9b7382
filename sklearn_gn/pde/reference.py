"""Solutions that are known at some points only."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Reference:
    """A solution known at some points only, such as one computed on a grid.

    Any object with these attributes can be used instead, and may compute them when they
    are first needed.

    Parameters
    ----------
    points : ndarray of shape (N, d)
        Points at which the solution is known.

    values : ndarray of shape (N, q)
        Values at these points, NaN for components that are not known.

    name : str, default=None
        Source of the values.
    """

    points: np.ndarray
    values: np.ndarray
    name: str | None = None

    def __post_init__(self):
        shapes = np.shape(self.points), np.shape(self.values)
        if [len(shape) for shape in shapes] != [2, 2] or shapes[0][0] != shapes[1][0]:
            raise ValueError(
                f"points and values must be (N, d) and (N, q), got {shapes}."
            )

    def __eq__(self, other):
        return isinstance(other, Reference) and (
            self.name == other.name
            and np.array_equal(self.points, other.points)
            and np.array_equal(self.values, other.values, equal_nan=True)
        )

    def __hash__(self):
        return hash((self.name, np.shape(self.values)))


def is_reference(exact):
    """Whether it has points, without computing them."""
    return hasattr(type(exact), "points") or "points" in getattr(exact, "__dict__", {})
