"""What the cases share: fits with their warnings, least squares, fresh processes."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np


def fit_with_warnings(model, *data, **weights):
    """Fit a model; return it and the texts of all warnings, joined."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*data, **weights)
    return model, " | ".join(str(warning.message) for warning in caught)


def squared_residuals(A, y):
    """Return the least sum of squared residuals of A c = y, for each matrix of a stack.

    The columns of every matrix must be independent.
    """
    Q = np.linalg.qr(A)[0]
    residuals = y - np.einsum("...ij,...kj,k->...i", Q, Q, y, optimize=True)
    return np.sum(residuals**2, axis=-1)


def in_fresh_process(code, folder, **variables):
    """Run Python code from a script in a folder; return the finished process.

    It compiles as it does for users: the tests' own settings are not inherited.
    """
    script = folder / "script.py"
    script.write_text(code)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_", "XLA_", "SKLEARN_GN_"))
    }
    here = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(script)],
        env=inherited | here | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )
