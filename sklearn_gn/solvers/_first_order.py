"""First-order solvers, which several estimators take."""

from dataclasses import dataclass
from numbers import Integral, Real

from sklearn.utils._param_validation import Interval

from sklearn_gn.solvers._base import Solver


@dataclass(kw_only=True, eq=False, repr=False)
class Adam(Solver):
    """Adam, a first-order method that adapts the step of each parameter.

    Parameters
    ----------
    learning_rate : float, default=0.001
        Learning rate.
    batch_size : int or None, default=None
        Rows of a mini-batch. If None, the estimator's usual size: 256 in
        FGNSoftmaxHead, 64 in networks, all rows in ShallowReLURegressor.
    shuffle : bool, default=False
        Used by FGNSoftmaxHead only. If True, draw new mini-batches in every epoch. If
        False, they are drawn once.

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

    learning_rate: float = 1e-3
    batch_size: int | None = None
    shuffle: bool = False


@dataclass(kw_only=True, eq=False, repr=False)
class SGD(Solver):
    """Stochastic gradient descent with Nesterov's momentum of 0.9.

    Parameters
    ----------
    learning_rate : float, default=0.01
        Learning rate; the largest one where a schedule varies it.
    batch_size : int or None, default=None
        Rows of a mini-batch. If None, the estimator's usual size: 64 in networks.
    """

    name = "sgd"
    _parameter_constraints = {
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    }

    learning_rate: float = 1e-2
    batch_size: int | None = None
