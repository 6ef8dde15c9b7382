"""The solvers of PINNSolver."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

from sklearn.utils._param_validation import Interval, StrOptions

from sklearn_gn.solvers._base import Solver


@dataclass(kw_only=True, eq=False, repr=False)
class DNGD(Solver):
    """Dual natural gradient descent with geodesic acceleration.

    Levenberg-Marquardt steps in the space of the residuals or of the weights, whichever
    is smaller [1]_. The second derivative of the residuals along a step
    accelerates it [2]_. The estimator's ``damping`` and ``rank`` apply to it: a number
    as ``damping`` is that shift in every iteration, with a line search along the step,
    and ``rank`` is the number of columns of the Nystrom preconditioner with which
    conjugate gradients solve for the step. If ``rank`` is None, the Gramian is formed
    and factored up to 10,000 unknowns, and the preconditioner has 1000 columns beyond.

    Parameters
    ----------
    damping_rule : {"trust_region", "loss"}, default="trust_region"
        How the damping is chosen in each iteration, unless the estimator's ``damping``
        is a number.

        - "trust_region": tries several trust-region radii and takes the largest step
          whose predicted reduction is achieved.
        - "loss": the loss itself, at most 1e-5, with a line search along the step, as
          in [1]_.
    geodesic_acceleration : bool, default=True
        Whether half the geodesic acceleration is added to steps for which it is short.
        Its second derivative is a difference of residuals, as in [2]_. With
        "trust_region" the step is then corrected by how far the residuals after it are
        from the linear model, where that lowers the loss.
    single_precision_iter : int, default=0
        Number of iterations at the start that are computed in single precision.
    enrichment : "auto", list of str or None, default="auto"
        Known functions that the default network (``hidden_layer_sizes="auto"``) gets
        as further inputs where the statement of the problem shows them: "waves",
        "dispersion", "corners", "logarithms", "similarity" and "circles", see
        :ref:`the user guide <pinn_network>`. If "auto", all of them; if None, none. The
        estimator's ``enrichment_`` says which ones a fit used.

    References
    ----------
    .. [1] A. Jnini and F. Vella, "Dual natural gradient descent for scalable training
       of physics-informed neural networks".
    .. [2] M. Transtrum and J. Sethna, "Improvements to the Levenberg-Marquardt
       algorithm for nonlinear least-squares minimization".
    """

    name = "dngd"
    _parameter_constraints = {
        "damping_rule": [StrOptions({"trust_region", "loss"})],
        "geodesic_acceleration": ["boolean"],
        "single_precision_iter": [Interval(Integral, 0, None, closed="left")],
        "enrichment": [StrOptions({"auto"}), "array-like", None],
    }

    damping_rule: Literal["trust_region", "loss"] = "trust_region"
    geodesic_acceleration: bool = True
    single_precision_iter: int = 0
    enrichment: Literal["auto"] | Sequence[str] | None = "auto"


class LBFGS(Solver):
    """Limited-memory BFGS with a line search for the strong Wolfe conditions.

    An iteration of the log is 20 steps. When collocation points are redrawn, the memory
    is emptied, because gradients at different points do not determine the curvature.
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
