"""Count the functions and modules that a default fit passes, for ``house.py --hops``.

``python tools/hops.py FIT`` prints two numbers: the functions of the package that are
called before the first matrix is factorised, and the modules they are in. The loops of
comprehensions, which Python 3.11 calls as functions and Python 3.12 does not, count as
the lines that they are.
"""

import re
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from scipy.linalg import lapack

FACTORISATIONS = re.compile(
    r"(cholesky|cho_factor|cho_solve|solve|solve_triangular|eigh|eigvalsh|svd|svdvals"
    r"|lstsq|qr|inv|lu_factor|factorise)"
)
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
COMPILED = re.compile(
    r"[sd](potrf|posv|pstrf|pftrf|syev|syevd|syevr|gesv|gesvd|gesdd|geqrf|getrf|sytrf)"
)


def visible(routine):
    """A compiled routine of LAPACK called from Python, where a profiler sees it."""

    def factorise(*args, **options):
        return routine(*args, **options)

    return factorise


def problem(fit):
    """The fit of a small problem by default settings."""
    from sklearn_gn import (
        FGNSoftmaxHead,
        PINNSolver,
        SegmentedRegressor,
        ShallowReLURegressor,
        VarProNetClassifier,
        VarProNetRegressor,
    )
    from sklearn_gn.pde import Box, Dirichlet, Problem, laplacian

    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 4))
    y = np.abs(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.standard_normal(120)
    t = np.linspace(0, 1, 100)[:, None]
    line = np.abs(t[:, 0] - 0.4) + 0.05 * rng.standard_normal(100)
    labels = (3 * rng.random(120)).astype(int)
    square = Box(x=(-1, 1), y=(-1, 1))
    torsion = Problem(lambda u, x: -laplacian(u)(x) - 1, square, [Dirichlet(0.0)])
    return {
        "shallow_relu": partial(ShallowReLURegressor(random_state=0).fit, X, y),
        "varpro": partial(VarProNetRegressor(random_state=0).fit, X, y),
        "classifier": partial(VarProNetClassifier(random_state=0).fit, X, y > 1),
        "segmented": partial(SegmentedRegressor().fit, t, line),
        "head": partial(FGNSoftmaxHead().fit, X, labels),
        "pinn": PINNSolver(torsion, max_iter=2, random_state=0).fit,
    }[fit]


def main(fit):
    """Print how many functions, in how many modules, come before a factorisation."""
    for name in dir(lapack):
        if COMPILED.fullmatch(name):
            setattr(lapack, name, visible(getattr(lapack, name)))
    import sklearn_gn

    package, passed = str(Path(sklearn_gn.__file__).parent), []
    start = problem(fit)
    found = False

    def profile(frame, event, argument):
        nonlocal found
        del argument
        if event != "call" or found:
            return
        code = frame.f_code
        if code.co_filename.startswith(package):
            if code.co_name not in COMPREHENSIONS:
                passed.append((code.co_filename, code.co_qualname))
            found = code.co_qualname == "factor"  # calls LAPACK, which no profiler sees
        elif passed and FACTORISATIONS.fullmatch(code.co_name):
            found = any(
                word in code.co_filename
                for word in ("linalg", "lax", Path(__file__).name)
            )

    warnings.simplefilter("ignore")
    sys.setprofile(profile)
    try:
        start()
    finally:
        sys.setprofile(None)
    print(len(set(passed)), len({path for path, _ in passed}))


if __name__ == "__main__":
    main(sys.argv[1])
