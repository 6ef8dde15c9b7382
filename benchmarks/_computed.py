"""What the problems share: parameters checked, references stored and compared."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path

import numpy as np
from joblib import Memory

_memory = {}


def stored(name, function, **arguments):
    """Return what a function (at the top of a module) returns, from memory or disk.

    The folder ``name``, which has the version of the numbers, is next to those of the
    generated data sets: in ``sklearn_gn`` in the data folder of scikit-learn, which the
    environment variable ``SCIKIT_LEARN_DATA`` moves. Not by the package's own function,
    as the gates also run these benchmarks with older trees of the package.
    """
    key = name, *arguments.items()
    if key not in _memory:
        try:
            memory = Memory(_folder() / name, compress=("gzip", 1), verbose=0)
            function = memory.cache(function)
        except OSError as error:
            warnings.warn(f"The folder of stored results: {error}", stacklevel=2)
        _memory[key] = function(**arguments)
    return _memory[key]


def _folder():
    home = os.environ.get("SCIKIT_LEARN_DATA", Path("~", "scikit_learn_data"))
    return Path(home, "sklearn_gn").expanduser()


class Computed:
    """A reference that is computed on a grid.

    It is a frozen dataclass of the numbers that determine it. ``points`` and ``values``
    are computed when they are first wanted and then kept, in memory and on disk.
    """

    def convergence(self, **resolutions: Sequence[int]) -> dict[str, dict[int, float]]:
        """Compare with references of other resolution.

        Parameters
        ----------
        **resolutions : sequence of int
            Values of a field of the class, by its name, such as ``n_modes=(32, 48)``.

        Returns
        -------
        dict of dict of float
            By name and by value: the Euclidean norm of the difference on the grid,
            relative to that of this reference. Components that are not known are left
            out.
        """
        return {
            name: {
                n: self._difference(replace(self, **{name: n}))  # type: ignore[type-var]
                for n in several
            }
            for name, several in resolutions.items()
        }

    def _difference(self, other):
        known = ~np.isnan(self.values)
        return relative_difference(other.values[known], self.values[known])


def relative_difference(values, others):
    """Return |values - others| / |others| in the Euclidean norm."""
    return float(np.linalg.norm(values - others) / np.linalg.norm(others))


def grid(*axes):
    """Return the points of a tensor grid, the last axis running fastest."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def check_positive(name, value):
    """Raise a ValueError where a parameter is not a positive number."""
    if not isinstance(value, Real) or not 0 < value < np.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}.")


def check_count(name, value, *, least=1, multiple=1):
    """Raise a ValueError where a parameter is not a large enough integer."""
    if not isinstance(value, Integral) or value < least or value % multiple:
        kind = "an integer" if multiple == 1 else f"a multiple of {multiple}"
        raise ValueError(f"{name} must be {kind}, at least {least}, got {value!r}.")
