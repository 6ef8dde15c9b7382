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
        If True, draw new mini-batches in every epoch, as networks always do. If False,
        they are drawn once, and the Gram matrices of their features are kept.

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
    """Dual natural gradient descent with geodesic acceleration.

    Levenberg-Marquardt steps in the smaller of two spaces, that of the residuals or
    that of the weights [1]_. The second derivative of the residuals along a step
    accelerates it [2]_. The estimator's ``damping`` and ``rank`` apply to it: a number
    as ``damping`` is that shift in every iteration, with a line search along the step,
    and ``rank`` is the number of columns of the Nystrom preconditioner with which
    conjugate gradients solve for the step. If ``rank`` is None, the Gramian is formed
    and factored up to 10,000 unknowns, and the preconditioner has 1000 columns beyond.

    Parameters
    ----------
    damping_rule : {"trust_region", "gain_ratio", "loss"}, default="trust_region"
        How the damping is chosen in each iteration, unless the estimator's ``damping``
        is a number.

        - "trust_region": tries several trust-region radii and takes the largest step
          whose predicted reduction is achieved.
        - "gain_ratio": tries one step and adapts the damping to its gain ratio, as in
          Nielsen's rule.
        - "loss": the loss itself, at most 1e-5, with a line search along the step, as
          in [1]_.

    geodesic_acceleration : bool, default=True
        Whether half the geodesic acceleration is added to steps for which it is short.

    momentum : float, default=0.0
        Share of the previous step from which the next one starts [3]_.

    jacobi_scaling : bool, default=False
        Whether the Gramian is scaled to a diagonal of ones.

    single_precision_iter : int, default=0
        Number of iterations at the start that are computed in single precision.

    References
    ----------
    .. [1] A. Jnini and F. Vella, "Dual natural gradient descent for scalable training
       of physics-informed neural networks".
    .. [2] M. Transtrum and J. Sethna, "Improvements to the Levenberg-Marquardt
       algorithm for nonlinear least-squares minimization".
    .. [3] G. Goldshlager, N. Abrahamsen and L. Lin, "A Kaczmarz-inspired approach to
       accelerate the optimization of neural network wavefunctions", Journal of
       Computational Physics.
    """

    name = "dngd"
    _parameter_constraints = {
        "damping_rule": [StrOptions({"trust_region", "gain_ratio", "loss"})],
        "geodesic_acceleration": ["boolean"],
        "momentum": [Interval(Real, 0, 1, closed="left")],
        "jacobi_scaling": ["boolean"],
        "single_precision_iter": [Interval(Integral, 0, None, closed="left")],
    }

    def __init__(
        self,
        *,
        damping_rule="trust_region",
        geodesic_acceleration=True,
        momentum=0.0,
        jacobi_scaling=False,
        single_precision_iter=0,
    ):
        self.damping_rule = damping_rule
        self.geodesic_acceleration = geodesic_acceleration
        self.momentum = momentum
        self.jacobi_scaling = jacobi_scaling
        self.single_precision_iter = single_precision_iter


class LBFGS(Solver):
    """Limited-memory BFGS with a line search for the strong Wolfe conditions.

    An iteration of the log is 20 steps. When collocation points are drawn anew, the
    memory is emptied: gradients at different points do not tell the curvature.
    """

    name = "lbfgs"


class SSBroyden(Solver):
    """Self-scaled Broyden method.

    The update of Al-Baali [1]_, which Urban, Stefanou and Pons brought to
    physics-informed networks [2]_. It keeps a dense approximation of the inverse
    Hessian, so that networks may have at most 20,000 weights. An iteration of the log
    is 20 steps.

    References
    ----------
    .. [1] M. Al-Baali, "Numerical experience with a class of self-scaling quasi-Newton
       algorithms", Journal of Optimization Theory and Applications.
    .. [2] J. F. Urban, P. Stefanou and J. A. Pons, "Unveiling the optimization process
       of physics informed neural networks: How accurate and competitive can PINNs be?",
       Journal of Computational Physics.
    """

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
        Factor of the steps; the largest one where a schedule varies it.

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
NETWORK_CLASSIFIER_SOLVERS = NETWORK_REGRESSOR_SOLVERS | _by_name(FGN(batch_size=64))
PINN_SOLVERS = _by_name(DNGD(), Adam(), SGD(), LBFGS(), SSBroyden())
