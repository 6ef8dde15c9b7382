"""Solver objects: the settings that only one solver needs.

``solver="adam"`` selects a solver with its default settings, ``solver=Adam(
learning_rate=0.01)`` one with others, which a search reaches as
``solver__learning_rate``. The objects hold parameters and import no JAX; the algorithm
that each stands for is found by its name in the ``algorithms`` module of a method.
"""

import difflib

from sklearn.base import BaseEstimator

__all__ = [
    "BFGS",
    "DNGD",
    "FGN",
    "KFRA",
    "LBFGS",
    "LM",
    "SGD",
    "SGN",
    "Adam",
    "FGNNewton",
    "FullGN",
    "GNvpro",
    "JointGN",
    "LBFGSvpro",
    "SSBroyden",
    "SgGN",
    "Solver",
]


class Solver(BaseEstimator):
    """Base class of the solver objects.

    A solver of your own derives from it, holds its settings as constructor parameters,
    and overrides :meth:`algorithm`.

    Attributes
    ----------
    name : str
        Short form of the solver, and the key of its algorithm.
    """

    name = None
    _parameter_constraints = {}

    def algorithm(self, algorithms):
        """Return the functions that carry out the iteration.

        Parameters
        ----------
        algorithms : dict of str to Algorithm
            Those of the estimator that is being fitted.

        Returns
        -------
        Algorithm
        """
        return algorithms[self.name]

    def validate(self):
        """Raise a ValueError that names a parameter out of its range."""
        self._validate_params()


def resolve(solver, short_forms, estimator_name):
    """Return the solver object that a constructor parameter stands for.

    Parameters
    ----------
    solver : str or Solver
        What the user gave.
    short_forms : dict of str to Solver
        The solvers of the estimator.
    estimator_name : str
        Its name, for messages.

    Raises
    ------
    ValueError
        If there is no such solver, if it belongs to another estimator, or if one of its
        parameters is out of range.
    """
    if isinstance(solver, str):
        if solver in short_forms:
            return short_forms[solver]
        near = difflib.get_close_matches(solver, list(short_forms), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"solver={solver!r} is unknown; the solvers are {sorted(short_forms)}."
            + hint
        )
    own = type(solver).algorithm is not Solver.algorithm
    if not own and type(solver) not in {type(s) for s in short_forms.values()}:
        names = sorted({type(s).__name__ for s in short_forms.values()})
        raise ValueError(
            f"solver={solver!r} does not fit {estimator_name}; it takes one of {names}."
        )
    solver.validate()
    return solver


# --- ShallowReLURegressor ------------------------------------------------------------


class SgGN(Solver):
    """Structure-guided Gauss-Newton."""

    name = "sggn"


class JointGN(Solver):
    """Gauss-Newton in all parameters together, the output layer projected out."""

    name = "vpgn"


class LM(Solver):
    """Levenberg-Marquardt."""

    _parameter_constraints = {"hidden_only": ["boolean"]}

    def __init__(self, *, hidden_only=False):
        self.hidden_only = hidden_only

    @property
    def name(self):
        """Short form of the solver."""
        return "lm_hidden" if self.hidden_only else "lm"


class BFGS(Solver):
    """BFGS."""

    name = "bfgs"


class KFRA(Solver):
    """Gauss-Newton with Kronecker-factored diagonal blocks."""

    name = "kfra"


# --- FGNSoftmaxHead ------------------------------------------------------------------


class FGNNewton(Solver):
    """Newton-CG with class blocks."""

    name = "fgn_newton"


class FGN(Solver):
    """Fast Gauss-Newton on mini-batches."""

    name = "fgn"


class SGN(Solver):
    """Gauss-Newton with the full softmax curvature, on mini-batches."""

    name = "sgn"


# --- VarProNetRegressor and VarProNetClassifier --------------------------------------


class GNvpro(Solver):
    """Gauss-Newton variable projection."""

    name = "gnvpro"


class LBFGSvpro(Solver):
    """L-BFGS on the reduced objective."""

    name = "lbfgs_vpro"


class FullGN(Solver):
    """Gauss-Newton in all weights."""

    name = "gn"


# --- PINNSolver ----------------------------------------------------------------------


class DNGD(Solver):
    """Dual natural gradient descent."""

    name = "dngd"


class LBFGS(Solver):
    """Limited-memory BFGS."""

    name = "lbfgs"


class SSBroyden(Solver):
    """Self-scaled Broyden."""

    name = "ssbroyden"


# --- First-order methods -------------------------------------------------------------


class Adam(Solver):
    """Adam."""

    name = "adam"


class SGD(Solver):
    """Stochastic gradient descent with Nesterov's momentum."""

    name = "sgd"


# --- Short forms ---------------------------------------------------------------------


def _by_name(*solvers):
    return {solver.name: solver for solver in solvers}


SHALLOW_RELU_SOLVERS = _by_name(
    JointGN(), SgGN(), LM(), LM(hidden_only=True), KFRA(), BFGS(), Adam()
)
SOFTMAX_HEAD_SOLVERS = _by_name(FGNNewton(), FGN(), SGN(), Adam())
NETWORK_REGRESSOR_SOLVERS = _by_name(GNvpro(), FullGN(), LBFGSvpro(), Adam(), SGD())
NETWORK_CLASSIFIER_SOLVERS = NETWORK_REGRESSOR_SOLVERS | _by_name(FGN())
PINN_SOLVERS = _by_name(DNGD(), Adam(), SGD(), LBFGS(), SSBroyden())
