"""The annual flow of the Nile."""

from importlib.resources import files
from typing import Literal, overload

import numpy as np
from sklearn.utils import Bunch

from sklearn_gn._typing import Array

_DESCRIPTION = """\
Annual flow of the Nile at Aswan
--------------------------------

:Number of samples: 100, one a year from 1871 to 1970
:Feature: year
:Target: volume that passed Aswan in that year, in 1e8 cubic metres

From 1899 on the flow is lower by 23 % on average. Work on the first dam at Aswan began
in those years, and rainfall in the tropics fell; the year and the size of the drop are
a classic test for methods that find changes.

The numbers are in the public domain.

G. W. Cobb, "The problem of the Nile: conditional solution to a change-point problem",
Biometrika 65 (1978), 243-251.
"""


@overload
def load_nile(*, return_X_y: Literal[False] = False) -> Bunch: ...


@overload
def load_nile(*, return_X_y: Literal[True]) -> tuple[Array, Array]: ...


def load_nile(*, return_X_y: bool = False) -> Bunch | tuple[Array, Array]:
    """Load the annual flow of the Nile at Aswan from 1871 to 1970 (regression).

    Parameters
    ----------
    return_X_y : bool, default=False
        Return ``(data, target)`` in place of a Bunch.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        Dictionary-like object with these attributes:

        data : ndarray of shape (100, 1)
            The year.
        target : ndarray of shape (100,)
            The flow, in 1e8 cubic metres a year.
        feature_names : list of str
            ``["year"]``.
        target_names : list of str
            ``["volume"]``.
        DESCR : str
            Description and source.

    (data, target) : tuple of ndarrays
        If ``return_X_y`` is True.

    Examples
    --------
    >>> from sklearn_gn.datasets import load_nile
    >>> X, y = load_nile(return_X_y=True)
    >>> X.shape, y.shape
    ((100, 1), (100,))

    The drop after 1898:

    >>> before = X[:, 0] <= 1898
    >>> float(y[before].mean().round()), float(y[~before].mean().round())
    (1098.0, 850.0)
    """
    with files(__package__).joinpath("data", "nile.csv").open(encoding="utf-8") as file:
        year, volume = np.loadtxt(file, delimiter=",").T
    data, target = year[:, None].copy(), volume.copy()  # not views of one table
    if return_X_y:
        return data, target
    return Bunch(
        data=data,
        target=target,
        feature_names=["year"],
        target_names=["volume"],
        DESCR=_DESCRIPTION,
    )
