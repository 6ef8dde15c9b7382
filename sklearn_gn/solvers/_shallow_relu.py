"""The solvers of ShallowReLURegressor."""

from dataclasses import dataclass
from numbers import Integral, Real

from sklearn.utils._param_validation import Interval

from sklearn_gn.solvers._base import Solver


@dataclass(kw_only=True, eq=False, repr=False)
class _Search(Solver):
    """Parameters of the solvers with a global search around them."""

    _parameter_constraints = {
        "relocations": [Interval(Integral, 0, None, closed="left")],
        "active_tol": [Interval(Real, 0, 1, closed="left")],
        "rank_tol": [Interval(Real, 0, 1, closed="left")],
    }

    relocations: int = 20
    active_tol: float = 1e-10
    rank_tol: float = 1e-12


class SgGN(_Search):
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
    active_tol, rank_tol : float
        As for :class:`JointGN`.

    Notes
    -----
    ``damping`` of the estimator is added to the layer Gauss-Newton matrix; None adds
    nothing, as in [1]_. ``rank`` is the largest number of directions that the linear
    solves for the hidden and for the output layer keep.

    References
    ----------
    .. [1] Z. Cai, T. Ding, M. Liu, X. Liu and J. Xia, "A structure-guided Gauss-Newton
       method for shallow ReLU neural network", 2024, Algorithm 1.
    """

    name = "sggn"


class JointGN(_Search):
    """Gauss-Newton in both layers together, with a global search around it.

    The output layer is projected out, as in the variable projection method [1]_ with
    the approximation of Kaufman [2]_. With one feature, the steps and the search come
    from :class:`~sklearn_gn.SegmentedRegressor`, at a cost that hardly grows with the
    number of rows, unless ``alpha``, ``damping``, ``rank`` or float32 is set.

    Parameters
    ----------
    relocations : int, default=20
        Number of rounds of the global search. A round adds neurons where the error is,
        lets all of them move, deletes those that matter least, and is kept if the loss
        has fallen. With one feature there is one round. If 0, there is no search.
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


@dataclass(kw_only=True, eq=False, repr=False)
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

    hidden_only: bool = False
    rank_tol: float = 1e-12

    @property
    def name(self) -> str:  # type: ignore[override]
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
