"""Why a fit stops, what that means, and what to do about it."""

import sys
from enum import Enum


class StopReason(Enum):
    """Reason for which a fit stops; the value is what ``stop_reason_`` shows.

    Attributes
    ----------
    converged : bool
        Whether the solver ended by its own criterion.
    requested : bool
        Whether the user asked for the stop.
    budget : bool
        Whether a larger budget, or another attempt, takes the fit further.
    is_warned_about : bool
        Whether the user hears of it in a ConvergenceWarning.
    advice : str
        What happened, and what to do about it.
    """

    # fmt: off
    TOL = "tol", "converged"
    ROUNDING = "rounding", "converged"
    EARLY_STOPPING = "early_stopping", "requested"
    CALLBACK = "callback", "requested budget"
    MAX_ITER = "max_iter", "budget", (
        "The loss had not settled to tol. Raise max_iter, or raise tol if the model is "
        "good enough."
    )
    MAX_TIME = "max_time", "budget", "No time is left for another step. Raise max_time."
    INTERRUPTED = "interrupted", "budget", (
        "It was interrupted; the best model so far is kept. To continue from it, set "
        "warm_start=True and call fit again."
    )
    LINE_SEARCH = "line_search", "", (
        "No step along the search direction lowers the loss, and more iterations do "
        "not help. Give the features similar scales, or try another solver."
    )
    STALLED = "stalled", "", (
        "The loss no longer falls, but the equation does not hold."
    )
    SINGULAR = "singular", "", (
        "The Gauss-Newton system is singular: some parameters have no influence on the "
        "data. Raise damping or lower rank."
    )
    SEPARABLE = "separable", "", (
        "A head separates the classes and alpha is 0: the loss has no minimum, but "
        "falls to zero as the coefficients grow. Set alpha > 0."
    )
    NON_FINITE = "non_finite", "", (
        "The loss is not a finite number. Check the scale of X and y; raise damping, "
        "or lower the learning rate of the solver if it has one."
    )
    DIVERGED = "diverged", "", (
        "The loss rose and stayed above its best. Lower the learning rate of the "
        "solver, or raise damping."
    )
    # fmt: on

    def __new__(cls, value, kinds, advice=""):
        """Make a member of its value, the names of its kinds, and advice."""
        reason = object.__new__(cls)
        reason._value_ = value
        reason.converged = "converged" in kinds
        reason.requested = "requested" in kinds
        reason.budget = "budget" in kinds
        reason.is_warned_about = not (reason.converged or reason.requested)
        reason.advice = advice
        return reason

    @classmethod
    def _missing_(cls, value):
        known = [reason.value for reason in cls]
        raise ValueError(f"A solver stops for one of {known}, got {value!r}.")


def is_interrupt(error):
    """Whether an error is a KeyboardInterrupt, or was one in compiled code."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt) or "KeyboardInterrupt" in str(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def is_one_of_many():
    """Whether a search or a cross-validation of scikit-learn runs this fit."""
    frame = sys._getframe()
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module.startswith("sklearn.model_selection") and name.startswith("_fit_and"):
            return True
        frame = frame.f_back
    return False


def counted(number, noun):
    """Return a number with its noun, such as "1 row" and "2 rows"."""
    return f"{number:.0f} {noun}" + "s" * (f"{number:.0f}" != "1")
