"""Solver objects: the settings that only one solver needs.

``solver="adam"`` selects a solver with its default settings, ``solver=Adam(
learning_rate=0.01)`` one with others, which a search reaches as
``solver__learning_rate``. The objects hold parameters and import no JAX; the algorithm
that each stands for is found by its name in the ``algorithms`` module of a method.
"""

import difflib
from numbers import Integral, Real

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval

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

_SEARCH_CONSTRAINTS = {
    "relocations": [Interval(Integral, 0, None, closed="left")],
    "active_tol": [Interval(Real, 0, 1, closed="left")],
    "rank_tol": [Interval(Real, 0, 1, closed="left")],
}


class SgGN(Solver):
    """Structure-guided Gauss-Newton (SgGN), with a global search around it.

    The hidden layer takes Gauss-Newton steps in turn with the output layer, which is
    solved by linear least squares; this is Algorithm 1 of [1]_. Inactive neurons are
    left out of the step. Take :class:`JointGN`, the default of
    :class:`~sklearn_gn.ShallowReLURegressor`, unless you want the paper's method: it is
    more accurate on most tables, and faster.

    Parameters
    ----------
    relocations : int, default=20
        Number of rounds of the global search. A round adds neurons where the error is,
        lets all of them move, deletes those that matter least, and is kept if the loss
        has fallen. If 0, the iteration of [1]_ runs alone, in which the intercept does
        not move in the hidden-layer step.

    active_tol : float, default=1e-10
        Neurons whose coefficient is below ``active_tol`` times the largest one are
        inactive: they do not move, and are left out of the fitted attributes.

    rank_tol : float, default=1e-12
        Singular values below ``rank_tol`` times the largest one are dropped in each
        linear solve.

    Notes
    -----
    ``damping`` of the estimator is added to the layer Gauss-Newton matrix; None adds
    nothing, as in [1]_. ``rank`` is the largest number of directions that a linear
    solve keeps, that of the hidden layer and that of the output layer alike.

    References
    ----------
    .. [1] Z. Cai, T. Ding, M. Liu, X. Liu and J. Xia, "A structure-guided Gauss-Newton
       method for shallow ReLU neural network", 2024, Algorithm 1.
    """

    name = "sggn"
    _parameter_constraints = _SEARCH_CONSTRAINTS

    def __init__(self, *, relocations=20, active_tol=1e-10, rank_tol=1e-12):
        self.relocations = relocations
        self.active_tol = active_tol
        self.rank_tol = rank_tol


class JointGN(Solver):
    """Gauss-Newton in both layers together, with a global search around it.

    The output layer is projected out, as in the variable projection method [1]_ with
    the approximation of Kaufman [2]_. With one feature, the step is computed from
    straight-line fits between the breakpoints, at a cost of O(n_neurons log n_samples)
    an iteration, unless ``alpha``, ``damping``, ``rank`` or float32 is asked for.

    Parameters
    ----------
    relocations : int, default=20
        Number of rounds of the global search. A round adds neurons where the error is,
        lets all of them move, deletes those that matter least, and is kept if the loss
        has fallen. If 0, there is no search.

    active_tol : float, default=1e-10
        Neurons whose coefficient is below ``active_tol`` times the largest one are
        inactive: they do not move, and are left out of the fitted attributes.

    rank_tol : float, default=1e-12
        Singular values below ``rank_tol`` times the largest one are dropped in each
        linear solve.

    Notes
    -----
    ``damping`` of the estimator is added to the reduced Gauss-Newton matrix. If None, a
    shift relative to its largest eigenvalue follows the gain ratio by Nielsen's rule,
    and each step has its full length. A number is used in all iterations, and the step
    is halved until the loss falls. ``rank`` is the largest number of eigenvectors of
    that matrix along which a step goes; the solve for the output layer keeps as many
    directions.

    References
    ----------
    .. [1] G. Golub and V. Pereyra, "Separable nonlinear least squares: the variable
       projection method and its applications", Inverse Problems 19, 2003.
    .. [2] L. Kaufman, "A variable projection method for solving separable nonlinear
       least squares problems", BIT 15, 1975.
    """

    name = "vpgn"
    _parameter_constraints = _SEARCH_CONSTRAINTS

    def __init__(self, *, relocations=20, active_tol=1e-10, rank_tol=1e-12):
        self.relocations = relocations
        self.active_tol = active_tol
        self.rank_tol = rank_tol


class LM(Solver):
    """Levenberg-Marquardt, a baseline without global search.

    Parameters
    ----------
    hidden_only : bool, default=False
        Whether the step moves the hidden layer only, after which the output layer is
        solved by linear least squares. If False, it moves all parameters together.

    rank_tol : float, default=1e-12
        Singular values below ``rank_tol`` times the largest one are dropped in each
        linear solve.

    Notes
    -----
    ``damping`` of the estimator is added to the Gauss-Newton matrix. If None, the shift
    follows the gain ratio by Nielsen's rule [1]_. A number is used in all iterations,
    and the step is halved until the loss falls. ``rank`` is the largest number of
    singular directions of the Jacobian along which a step goes.

    References
    ----------
    .. [1] H. B. Nielsen, "Damping parameter in Marquardt's method", IMM-REP-1999-05.
    """

    _parameter_constraints = {
        "hidden_only": ["boolean"],
        "rank_tol": [Interval(Real, 0, 1, closed="left")],
    }

    def __init__(self, *, hidden_only=False, rank_tol=1e-12):
        self.hidden_only = hidden_only
        self.rank_tol = rank_tol

    @property
    def name(self):
        """Short form of the solver."""
        return "lm_hidden" if self.hidden_only else "lm"


class BFGS(Solver):
    """BFGS with a line search for the strong Wolfe conditions, a baseline.

    The estimator's ``damping`` and ``rank`` have no effect on its steps.
    """

    name = "bfgs"


class KFRA(Solver):
    """Gauss-Newton with Kronecker-factored diagonal blocks, a baseline.

    One block for each layer [1]_, and a line search along the step.

    Notes
    -----
    ``damping`` of the estimator is split between the two factors of a block; None
    stands for 1e-4. ``rank`` has no effect on the steps.

    References
    ----------
    .. [1] A. Botev, H. Ritter and D. Barber, "Practical Gauss-Newton optimisation for
       deep learning", ICML 2017.
    """

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
    """Adam, a first-order method.

    Parameters
    ----------
    learning_rate : float, default=1e-3
        Initial learning rate.
    """

    name = "adam"
    _parameter_constraints = {
        "learning_rate": [Interval(Real, 0, None, closed="neither")]
    }

    def __init__(self, *, learning_rate=1e-3):
        self.learning_rate = learning_rate


class SGD(Solver):
    """Stochastic gradient descent with Nesterov's momentum."""

    name = "sgd"


# --- Short forms ---------------------------------------------------------------------


def _by_name(*solvers):
    return {solver.name: solver for solver in solvers}


SHALLOW_RELU_SOLVERS = _by_name(
    JointGN(),
    SgGN(),
    LM(),
    LM(hidden_only=True),
    KFRA(),
    BFGS(),
    Adam(learning_rate=0.01),
)
SOFTMAX_HEAD_SOLVERS = _by_name(FGNNewton(), FGN(), SGN(), Adam())
NETWORK_REGRESSOR_SOLVERS = _by_name(GNvpro(), FullGN(), LBFGSvpro(), Adam(), SGD())
NETWORK_CLASSIFIER_SOLVERS = NETWORK_REGRESSOR_SOLVERS | _by_name(FGN())
PINN_SOLVERS = _by_name(DNGD(), Adam(), SGD(), LBFGS(), SSBroyden())
