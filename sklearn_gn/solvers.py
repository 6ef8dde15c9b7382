"""Solver objects: the settings that only one solver needs.

``solver="adam"`` selects a solver with its default settings, ``solver=Adam(
learning_rate=0.01)`` one with others, which a search reaches as
``solver__learning_rate``. The objects hold parameters and import no JAX; the algorithm
that each stands for is found by its name in the ``algorithms`` module of a method.
"""

import difflib
from numbers import Integral, Real

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

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
    """Newton's method with conjugate gradients, on all rows, to the optimum.

    The full softmax Gauss-Newton matrix of an affine head is the exact Hessian. Each
    Newton system is solved inexactly [1]_ in whitened coordinates, with one block of
    the Hessian for each class as the preconditioner, and a line search sets the step
    length. A head of 32,768 or more coefficients that starts at zero is brought near
    the optimum by up to five epochs of FGN first. There are no settings.

    See Also
    --------
    FGN : For data that come in pieces, and for fits that need not be finished.

    Notes
    -----
    The estimator's ``damping`` is the shift added to the Hessian in the coefficients,
    and in the intercept at the mean of the features; None adds nothing. Steps become
    shorter and more of them are needed. Its ``rank`` is the most conjugate-gradient
    iterations of a step, the dimension of the Krylov space in which the system is
    solved; None is 100.

    References
    ----------
    .. [1] R. S. Dembo, S. C. Eisenstat and T. Steihaug, "Inexact Newton methods", SIAM
       Journal on Numerical Analysis 19 (1982).
    """

    name = "fgn_newton"


class _MiniBatchSolver(Solver):
    """What the solvers on mini-batches share."""

    _parameter_constraints = {
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "shuffle": ["boolean"],
    }

    def __init__(self, *, learning_rate=0.1, batch_size=256, shuffle=False):
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.shuffle = shuffle


class FGN(_MiniBatchSolver):
    """Fast Gauss-Newton on mini-batches, Algorithm 1 of [1]_.

    Keeps of the softmax curvature of each example the part of the true class against
    the rest, of rank one, and solves for the step in the space of the examples. Use it
    for data that come in pieces and for fits that need not be finished; features should
    have size one.

    Parameters
    ----------
    learning_rate : float, default=0.1
        Factor of the steps. Up to 1, a full step, is worth trying with a larger
        ``damping``.

    batch_size : int, default=256
        Rows of a mini-batch.

    shuffle : bool, default=False
        If True, draw new mini-batches in every epoch. If False, they are drawn once,
        and the Gram matrices of their features are kept.

    See Also
    --------
    FGNNewton : Converges to the optimum.

    Notes
    -----
    The estimator's ``damping`` is the shift added to the Gauss-Newton matrix of a
    mini-batch; None is 1. Its ``rank`` is the number of curvature directions kept for
    each example: 1 is the method of [1]_, each one more takes back the next competitor
    of the true class, and the number of classes less 1 is the full curvature. None
    is 1. For networks, ``rank`` is 1 and ``shuffle`` is True, whatever they are set to.

    References
    ----------
    .. [1] M. Korbit and M. Zanon, "Fast Gauss-Newton for multiclass cross-entropy".
    """

    name = "fgn"


class SGN(_MiniBatchSolver):
    """Gauss-Newton with the full softmax curvature on mini-batches [1]_.

    Conjugate gradients in the space of the parameters, each system started from the
    last step. A baseline for :class:`FGN`.

    Parameters
    ----------
    learning_rate : float, default=0.1
        Factor of the steps.

    batch_size : int, default=256
        Rows of a mini-batch.

    shuffle : bool, default=False
        If True, draw new mini-batches in every epoch. If False, they are drawn once.

    Notes
    -----
    The estimator's ``damping`` is the shift added to the Gauss-Newton matrix of a
    mini-batch; None is 1. Its ``rank`` is the most conjugate-gradient iterations of a
    step; None is 5.

    References
    ----------
    .. [1] M. Gargiani, A. Zanelli, M. Diehl and F. Hutter, "On the promise of the
       stochastic generalized Gauss-Newton method for training DNNs" (2020).
    """

    name = "sgn"


# --- VarProNetRegressor and VarProNetClassifier --------------------------------------


_BATCHES = {
    "batch_size": [
        StrOptions({"auto"}),
        Interval(Integral, 1, None, closed="left"),
        None,
    ],
    "iterations_per_batch": [Interval(Integral, 1, None, closed="left")],
}


class GNvpro(Solver):
    """Gauss-Newton-Krylov variable projection (GNvpro) [1]_.

    The output layer is solved for, to rounding, and a Gauss-Newton method with a trust
    region minimises what is left as a function of the hidden layers. Each step solves a
    system with the Gauss-Newton matrix of that reduced objective.

    Parameters
    ----------
    curvature : {"auto", "krylov", "dense"}, default="auto"
        How the Gauss-Newton system is solved.

        - "krylov": in a Krylov space, by ``rank`` products with the matrix; 20 if the
          estimator's ``rank`` is None.
        - "dense": the matrix is formed and diagonalised, or its dual if there are fewer
          rows than parameters. ``rank`` must be None.
        - "auto": in a Krylov space if ``rank`` is given; otherwise dense up to 1500
          parameters, or rows of the dual, and in a Krylov space of dimension 20 beyond.

    batch_size : int, "auto" or None, default="auto"
        Number of rows of a batch. If None, every iteration uses all rows. If "auto",
        batches have 2048 rows where more than 8192 different rows are fitted, and all
        rows otherwise.

    iterations_per_batch : int, default=3
        Number of iterations for which a batch is kept. The loss on all rows is
        evaluated, and the output layer solved for them, whenever 20 work units have
        been spent, more often at first, and at the end.

    See Also
    --------
    FullGN : The same without variable projection.

    Notes
    -----
    The estimator's ``damping`` is the shift added to the reduced Gauss-Newton matrix;
    if None, the trust region sets it.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro: efficient training of neural networks with variable projection", SIAM
       Journal on Mathematics of Data Science 3 (2021), Algorithm 1.
    """

    name = "gnvpro"
    _parameter_constraints = {
        "curvature": [StrOptions({"auto", "krylov", "dense"})],
        **_BATCHES,
    }

    def __init__(self, *, curvature="auto", batch_size="auto", iterations_per_batch=3):
        self.curvature = curvature
        self.batch_size = batch_size
        self.iterations_per_batch = iterations_per_batch


class LBFGSvpro(Solver):
    """L-BFGS on the reduced objective of variable projection [1]_.

    The output layer is solved for, and the gradient in the hidden layers is that at
    fixed output layer. A line search finds steps that satisfy the strong Wolfe
    conditions.

    Parameters
    ----------
    batch_size : int, "auto" or None, default=None
        Number of rows of a batch. If None, every iteration uses all rows. If "auto",
        batches have 2048 rows where more than 8192 different rows are fitted.

    iterations_per_batch : int, default=3
        Number of iterations for which a batch is kept; the memory of L-BFGS is emptied
        after them.

    Notes
    -----
    The estimator's ``damping`` and ``rank`` have no effect.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro: efficient training of neural networks with variable projection", SIAM
       Journal on Mathematics of Data Science 3 (2021), section 4.
    """

    name = "lbfgs_vpro"
    _parameter_constraints = _BATCHES

    def __init__(self, *, batch_size=None, iterations_per_batch=3):
        self.batch_size = batch_size
        self.iterations_per_batch = iterations_per_batch


class FullGN(Solver):
    """Gauss-Newton in all weights together, a baseline for :class:`GNvpro`.

    The output layer is one group of weights among others. Systems are solved in a
    Krylov space, and the trust region is that of GNvpro.

    Parameters
    ----------
    batch_size : int, "auto" or None, default="auto"
        Number of rows of a batch. If None, every iteration uses all rows. If "auto",
        batches have 2048 rows where more than 8192 different rows are fitted, and all
        rows otherwise.

    iterations_per_batch : int, default=3
        Number of iterations for which a batch is kept.

    Notes
    -----
    The estimator's ``rank`` is the dimension of the Krylov space; None is 20. Its
    ``damping`` is the shift added to the Gauss-Newton matrix; if None, the trust region
    sets it.

    References
    ----------
    .. [1] E. Newman, L. Ruthotto, J. Hart and B. van Bloemen Waanders, "Train like a
       (Var)Pro: efficient training of neural networks with variable projection", SIAM
       Journal on Mathematics of Data Science 3 (2021), section 4.
    """

    name = "gn"
    _parameter_constraints = _BATCHES

    def __init__(self, *, batch_size="auto", iterations_per_batch=3):
        self.batch_size = batch_size
        self.iterations_per_batch = iterations_per_batch


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
    """Adam.

    Parameters
    ----------
    learning_rate : float, default=0.001
        Factor of the steps.

    batch_size : int or None, default=None
        Rows of a mini-batch. If None, the estimator's usual size: 256 in
        FGNSoftmaxHead, 64 in networks, all rows in ShallowReLURegressor.

    shuffle : bool, default=False
        Of FGNSoftmaxHead. If True, draw new mini-batches in every epoch. If False, they
        are drawn once.

    References
    ----------
    .. [1] D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization" (2015).
    """

    name = "adam"
    _parameter_constraints = {
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "shuffle": ["boolean"],
    }

    def __init__(self, *, learning_rate=1e-3, batch_size=None, shuffle=False):
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.shuffle = shuffle


class SGD(Solver):
    """Stochastic gradient descent with Nesterov's momentum of 0.9.

    Parameters
    ----------
    learning_rate : float, default=0.01
        Factor of the steps.

    batch_size : int or None, default=None
        Rows of a mini-batch. If None, the estimator's usual size: 64 in networks.
    """

    name = "sgd"
    _parameter_constraints = {
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(self, *, learning_rate=1e-2, batch_size=None):
        self.learning_rate = learning_rate
        self.batch_size = batch_size


# --- Short forms ---------------------------------------------------------------------


def _by_name(*solvers):
    return {solver.name: solver for solver in solvers}


SHALLOW_RELU_SOLVERS = _by_name(
    JointGN(), SgGN(), LM(), LM(hidden_only=True), KFRA(), BFGS(), Adam()
)
SOFTMAX_HEAD_SOLVERS = _by_name(FGNNewton(), FGN(), SGN(), Adam())
NETWORK_REGRESSOR_SOLVERS = _by_name(GNvpro(), FullGN(), LBFGSvpro(), Adam(), SGD())
NETWORK_CLASSIFIER_SOLVERS = NETWORK_REGRESSOR_SOLVERS | _by_name(FGN(batch_size=64))
PINN_SOLVERS = _by_name(DNGD(), Adam(), SGD(), LBFGS(), SSBroyden())
