"""Short names of the types that public signatures use."""

import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

Array = NDArray[Any]
MatrixLike = ArrayLike | sparse.sparray | sparse.spmatrix
PathLike = str | os.PathLike[str]
RandomState = int | np.random.RandomState | None
