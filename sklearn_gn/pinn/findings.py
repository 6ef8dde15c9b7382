"""What limited a fit: a table of rules, for warnings and for ``diagnose()``.

Each rule looks at one cause and returns a finding or None; the first finding counts.
Beside them, what a fit warns of when it has converged. All of it is about the network
that is returned, which is the best one on fresh points.
"""

import math
import time
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn._caller import warn_user
from sklearn_gn.findings import Finding
from sklearn_gn.optim.stop import StopReason
from sklearn_gn.pde.given_values import MANY_POINTS
from sklearn_gn.pde.jumps import MOST_AXES, flux_that_jumps, jumps
from sklearn_gn.pinn import eigenvalues
from sklearn_gn.pinn.control import EXHAUSTED_LOSS, FAR, OVERFITTED
from sklearn_gn.pinn.enrichment import PosedProblem
from sklearn_gn.pinn.statement import (
    IN_SPITE_OF_IT,
    LARGEST_ERROR,
    VANISHED,
    fault_of_statement,
    kinks_left_open,
)
from sklearn_gn.pinn.windows import (
    FALL,
    FEW_ITERATIONS,
    SOLVED_LOSS,
    WELL_SOLVED_LOSS,
    Pieces,
    time_of,
)

_MOST = 0.5  # of a loss, an axis or a predicted reduction
_EARLY = 0.1  # of a time budget, which a fit leaves unspent
# Part of the domain, and of that part at both ends along an axis; of normal residuals,
# 0.12 has half of the squares.
_SMALL = 0.05


_CAUSES = {"max_iter": "iterations", "max_time": "time"}  # of fits that were not done


class Case(NamedTuple):
    """A fit that has ended, as the rules see it."""

    solver: object
    log: dict
    best: int  # row of the log that the network returned belongs to
    reason: StopReason
    budget: str | None  # the parameter that ended the fit, if one did
    is_solved: bool  # whether the equation holds on fresh points

    @classmethod
    def of(cls, solver, reason):
        """The case of a solver, and of the reason of its stop."""
        log = solver.convergence_log_
        there = np.isfinite(log["val_loss"]).any()
        best = int(np.nanargmin(log["val_loss"])) if there else -1
        budget = reason.value if reason.value in _CAUSES else None
        is_solved = solver._share <= SOLVED_LOSS
        return cls(solver, log, best, reason, budget, is_solved)


def advice(solver, reason):
    """What a warning says about the reason of the stop; None if it is said already."""
    if solver._fitted.problem is None:  # plain regression
        return reason.advice
    undetermined = set(solver._undetermined)
    if undetermined and undetermined <= set(solver._said_undetermined):
        return None
    found = limit(solver, reason)
    if found is None:
        return reason.advice
    return None if found.text == solver._unidentified else found.text


def limit(solver, reason):
    """What limited a fit, and what to change; None where nothing did."""
    case = Case.of(solver, reason)
    rules = _RULES if reason.is_warned_about else _RULES_OF_THE_CONVERGED
    found = next((f for rule in rules if (f := rule(case)) and f.text), None)
    if found is None or reason is not StopReason.MAX_TIME:
        return found
    # What has another cause says nothing of time.
    if reason.value not in found.text or solver._why_early in found.text:
        return found
    return found._replace(text=f"{found.text} {solver._why_early}")


# --- the rules, in the order in which they are asked: no text, no finding ------------


def _unidentified(case):
    """Conditions and observations that leave the solution open: more would not help."""
    asked = case.is_solved or not case.reason.is_warned_about
    return asked and Finding("stopped", case.solver._unidentified, "problem")


def _other_solution(case):
    """A solution beside which there may be others."""
    text, _ = eigenvalues.other_solutions(case.solver)
    return Finding("branch", text, "problem")


def _between_points(case):
    """A fit that has ended well, but solves the equation at its points alone."""
    fresh, losses = case.solver.fresh_loss_, case.log["loss"]
    loss = losses[case.best] if len(losses) else math.inf
    # Windows of time are judged one by one.
    in_windows = isinstance(case.solver._fitted.net, Pieces)
    is_judged = case.is_solved or case.reason.is_warned_about or in_windows
    if is_judged or not fresh > OVERFITTED * loss:
        return None
    return Finding(
        "points",
        f"The loss of the network is {fresh:.3g} on fresh points, versus {loss:.3g} on "
        "its training points: do not trust the solution between these. Raise "
        "n_interior and n_boundary, or lower resample.",
        "n_interior",
    )


def _vague(case):
    """Coefficients whose standard deviations exceed their values."""
    solver = case.solver
    vague = [
        name
        for name, value in solver.coefficients_.items()
        if name not in solver._undetermined
        and np.any(solver.coefficients_std_[name] > np.abs(value))
    ]
    if not vague or _vanished(case):
        return None
    why = "the equation is not solved well enough to determine them."
    if "loss_data" in case.log:
        why = (
            "the observations do not determine them. Give more observations, or other "
            "places."
        )
    text = f"The standard deviations of the coefficients {vague} exceed their values: "
    return Finding("stopped", text + why, "problem")


def _vanished(case):
    """Positive coefficients that have gone to zero, in a fit that is done."""
    solver = case.solver
    if "loss_data" not in case.log or _may_go_on(case):
        return None
    found = [
        name
        for name, known in solver._fitted.model.problem.unknown.items()
        if known.positive
        and np.any(solver.coefficients_[name] < VANISHED * np.asarray(known.initial))
        and np.any(solver.coefficients_std_[name] > solver.coefficients_[name])
    ]
    return found and Finding(
        "branch",
        f"The positive coefficients {found} have fallen from their start to nearly "
        "zero: either they are zero, or the fit is in a minimum of its own, and all "
        "else is wrong. Fit again with another random_state and other starts, "
        "Unknown(initial, positive=True), and take the fit of the smallest noise_std_.",
        "problem",
    )


def _flux(case):
    """A coefficient of the equation that jumps in the solution."""
    if not (case.is_solved or case.reason is StopReason.STALLED):
        return None
    text = flux_that_jumps(case.solver.problem_, case.solver._evaluated)
    return Finding("stopped", text, "problem")


def _undetermined(case):
    """Coefficients that may have any value."""
    names = case.solver._undetermined
    text = (
        f"Equation and observations do not determine the coefficients {names}: other "
        "values fit as well. State one of them as a number, or observe other places "
        "or outputs."
    )
    if "loss_data" not in case.log:
        text = (
            f"Nothing determines the coefficients {names}: give observations, "
            "fit(X, y), or a Condition that they have to meet."
        )
    return names and Finding("stopped", text, "problem")


def _windows_that_end_early(case):
    """Windows of time that do not reach the end of it."""
    solver, budget = case.solver, case.budget
    if not math.isfinite(solver._solved_until):
        return None
    *_, low, high = time_of(solver.problem_)
    axis, until = solver.problem_.domain.time, solver._solved_until
    so_far = f"The equation is solved up to {axis} = {until:.4g} of {high:.4g}"
    if until <= low:
        so_far = "No window of time is solved yet"
    if fault := fault_of_statement(solver, stuck=False):
        said = f"{budget} is reached" if budget else "the next window is not solved"
        return Finding("stopped", f"{so_far}; {said}. {fault}", "problem")
    if budget is None:
        return Finding(
            "stopped",
            f"{so_far}; after that not even short windows are: the solution may end "
            "there, or change too fast. Try another activation or random_state.",
            "random_state",
        )
    return Finding(
        _CAUSES[budget],
        f"{so_far}, window by window (window_ends_), and {budget} is reached: raise "
        f"{budget}, or set warm_start=True and fit again. Predictions beyond are not "
        "to be trusted.",
        budget,
    )


def _statement(case):
    """What in problem and observations keeps an equation from being solved."""
    if case.is_solved:
        return None
    solver, log, best = case.solver, case.log, case.best
    stuck = case.reason is StopReason.STALLED or (case.budget and not _may_go_on(case))
    fault = fault_of_statement(solver, stuck)
    has_functions = isinstance(solver._fitted.model.problem, PosedProblem)
    if stuck and not fault and (found := jumps(solver.problem_, has_functions)):
        fault = f"{found[0]} {IN_SPITE_OF_IT}"
    said = f"{case.budget} is reached." if case.budget else case.reason.advice
    if fault:
        return Finding("stopped", f"{said} {fault}", "problem")
    # Noise may hold a fit up before the weight of the observations has settled.
    waits = stuck and solver._has_settled_weight is False
    share = log["loss_data"][best] / log["loss"][best] if waits else 0.0
    return share > _MOST and Finding(
        "stopped",
        f"{said} The misfit of the observations is {share:.0%} of the loss, and "
        "their weight (observation_weight='auto') had not settled: solution and "
        "coefficients may follow the noise. If the equation is right, set "
        "observation_weight to a number well below the last one, "
        f"{log['observation_weight'][best]:.1g}, and compare the coefficients.",
        "observation_weight",
    )


def _stall(case):
    """A fit that no longer falls."""
    solver = case.solver
    if case.reason is not StopReason.STALLED:
        return None
    estimate = solver._estimated_at_end
    larger = "or give larger layers (hidden_layer_sizes)."
    if not estimate > LARGEST_ERROR:
        found = _limit_of_the_network(case)
    else:
        text = (
            "Its residuals are small, but the estimated relative error of the solution "
            f"is {estimate:.2g} (error_estimate_), as of stiff equations. State axes "
            "and outputs in units in which they are of size one, divide each equation "
            f"by its largest coefficient, solve a part of the domain, {larger}"
        )
        if solver.window_ends_.size:
            text = (
                "The equation holds in every window of time (window_ends_), but its "
                "errors grow from window to window: the estimated relative error is "
                f"{estimate:.2g} (error_estimate_). Solve a shorter time, {larger}"
            )
        found = Finding("stopped", text, "hidden_layer_sizes")
    place = "" if case.is_solved else concentration(solver)
    return found._replace(text=f"{case.reason.advice} {found.text}{place}")


def _more_digits(case):
    """A budget that ended a fit after the equation was solved, or another reason."""
    solver, budget = case.solver, case.budget
    if not budget:  # which says enough
        return Finding("stopped", case.reason.advice)
    if not case.is_solved:
        return None
    text = (
        "The equation is solved: the loss on fresh points is "
        f"{solver._share:.1g} times that of an untrained network."
    )
    if solver._has_settled_weight is False:
        text += (
            " But the weight of the observations (observation_weight='auto') had not "
            "settled: solution and coefficients may still follow the noise. "
            f"Raise {budget}."
        )
        return Finding(_CAUSES[budget], text, budget)
    if solver._has_settled_weight:
        text += " The weight of the observations had settled."
    text += f" If you need more digits than error_estimate_ says, raise {budget}."
    return Finding(_CAUSES[budget], text, budget)


def _budget(case):
    """A budget that was used up before the equation was solved."""
    solver, budget = case.solver, case.budget
    text = case.reason.advice
    if budget == "max_time" and solver._why_early:
        text = f"{solver._why_early} Raise max_time."
    if _may_go_on(case):
        return Finding(_CAUSES[budget], text, budget)
    if solver._may_grow:
        text += " The network was still growing: with more time it gets more neurons."
        return Finding(_CAUSES[budget], text + concentration(solver), budget)
    spent = "iterations" if budget == "max_iter" else "seconds"
    found = _limit_of_the_network(case)
    text = (
        f"{budget} is reached, but more {spent} alone would not help: the loss on "
        "fresh points has not halved lately, and the equation does not hold. "
        f"{found.text}{concentration(solver)}"
    )
    return found._replace(text=text)


_NOT_SOLVED = (_between_points, _vague)  # of which a fit warns at its end
_RULES_OF_THE_CONVERGED = (_unidentified, *_NOT_SOLVED, _other_solution)
_RULES = (
    *(_unidentified, _vanished, _flux, _undetermined, _windows_that_end_early),
    *(_statement, _stall, _more_digits, _budget),
)


# --- what the rules say --------------------------------------------------------------


def why_early(run):
    """Why a fit ended well before its time budget did; "" if it did not."""
    left, needed = run.seconds_left, run.expected_seconds
    if not _EARLY * (run.elapsed + left) < left < math.inf:
        return ""
    return (
        f"It ended {left:.2g} s before the time was up, because another iteration was "
        f"expected to take {needed:.2g} s."
    )


def _may_go_on(case):
    """Whether a fit ran out of budget while its loss was falling, or may yet fall."""
    losses = case.log["val_loss"]
    if case.budget is None:
        return False
    if len(losses) < FEW_ITERATIONS or not np.isfinite(losses).any():
        return True
    before = losses[: 3 * len(losses) // 4]
    lowest = np.nanmin(before) if np.isfinite(before).any() else math.inf
    return np.nanmin(losses) <= FALL * lowest


def _limit_of_the_network(case):
    """What limits the network that is returned, and what to change."""
    solver, log, best = case.solver, case.log, case.best
    loss = log["loss"][best]
    # Where later networks overfit, the best one is an early one.
    overfitted = log["val_loss"][-1] > FAR * log["loss"][-1]
    if overfitted or solver.fresh_loss_ > FAR * loss:
        n_weights, n_residuals = solver._sizes
        if n_weights > n_residuals:
            return Finding(
                "points",
                f"It holds better at the training points: the network is too large for "
                f"them, with {n_weights} weights for {n_residuals} residuals. Take a "
                "smaller one (hidden_layer_sizes), or more points (n_interior, "
                "n_boundary).",
                "hidden_layer_sizes",
            )
        cause, parameter, cure = solver._cure_of_overfitting
        text = f"It holds better at the training points. {cure}"
        return Finding(cause, text, parameter)
    shares = {
        name.removeprefix("loss_"): values[best] / loss
        for name, values in log.items()
        if name.startswith("loss_")
    }
    worst = max(shares, key=shares.get)
    if worst not in ("interior", "data") and shares[worst] > _MOST:
        return Finding(
            "stopped",
            f"The condition {worst!r} contributes {shares[worst]:.0%} of the loss: "
            "check its values, raise its weight, or state it by transform.",
            "problem",
        )
    gains = log["gain_ratio"][: best + 1]
    gains = gains[gains != 0][-FEW_ITERATIONS:]  # of the steps that were taken
    if len(gains) and np.median(gains) > _MOST:
        return Finding(
            "stopped",
            "The network is in a minimum, too small for this solution: take a larger "
            "one (hidden_layer_sizes), or activation='sin' for a solution that "
            "oscillates.",
            "hidden_layer_sizes",
        )
    return Finding(
        "steps",
        "The fit is stuck: state the problem in units in which axes and solution are "
        "of size one, try another random_state, or begin with easier problems, in a "
        "sequence (problem=[(easier, 50), problem]).",
        "random_state",
    )


def take_back_convergence(solver, run):
    """Let a fit be stalled that ended by its loss, though it may be far from right.

    That is where the statement leaves something open, where a positive coefficient has
    gone to zero, where a flux jumps, or where the estimated error is large, as of stiff
    equations. If there is no time for the estimate, the fit has run out of time, unless
    the loss is tiny.
    """
    if not run.stop_reason.converged:
        return
    reason = StopReason.STALLED
    case, rules = Case.of(solver, reason), (_undetermined, _vanished, _flux)
    wrong = solver._unidentified or any(f.text for rule in rules if (f := rule(case)))
    wrong = wrong or (not case.is_solved and kinks_left_open(solver.problem_))
    if not wrong:
        posterior = solver._posterior
        is_inverse = solver.problem_.unknown or (posterior and posterior.n_observations)
        judged = posterior is not None or solver._window_points is not None
        exhausted = solver._share <= EXHAUSTED_LOSS
        if is_inverse or not judged or solver._is_accurate or exhausted:
            return
        if solver.max_time is None or (  # it compiles, like the first iteration
            run.final_state.control.clock.first
            < solver.max_time - (time.perf_counter() - run.began)
        ):
            solver._estimated_at_end = solver.error_estimate_
            if not solver._estimated_at_end > LARGEST_ERROR:
                return
        elif solver._share <= WELL_SOLVED_LOSS:
            return
        else:
            reason = StopReason.MAX_TIME
            solver._why_early = (
                "The loss had settled, but there was no time left to estimate the "
                "error."
            )
    run.stop_reason = reason
    solver.converged_, solver.stop_reason_ = False, reason.value


def warn_of_doubts(solver):
    """Warn of what is not to be trusted, is left open, or may not be what was meant."""
    case = Case.of(solver, StopReason(solver.stop_reason_))
    texts = [finding.text for rule in _NOT_SOLVED if (finding := rule(case))]
    if case.is_solved:
        text, is_doubtful = eigenvalues.other_solutions(solver)
        texts.append(is_doubtful and text)
    for text in filter(None, (*texts, solver._unidentified)):
        warn_user(text, ConvergenceWarning)


def concentration(solver):
    """Where half of the squared residuals are; "" if that is no small part."""
    domain = solver.problem_.domain
    if domain.dim > MOST_AXES:
        return ""
    X = domain.sample(MANY_POINTS, np.random.RandomState(0), "sobol")
    squares = np.sum(np.reshape(solver.residual(X), (len(X), -1)) ** 2, axis=1)
    order = np.argsort(-squares, kind="stable")
    if not (np.isfinite(squares).all() and squares.any()):
        return ""
    count = 1 + int(np.searchsorted(np.cumsum(squares[order]), squares.sum() / 2))
    if count > _SMALL * len(X):
        return ""
    # The narrow ranges of these points along the axes, or the first of them.
    low, high = np.quantile(X[order[:count]], (_SMALL, 1 - _SMALL), axis=0)
    narrow = high - low < _MOST * np.ptp(domain.bounds, axis=1)
    ranges = zip(domain.axes, low, high, narrow, strict=True)
    place = "at " + ", ".join(
        f"{axis} = {a:.3g} to {b:.3g}" for axis, a, b, small in ranges if small
    )
    if not narrow.any():
        first = zip(domain.axes, X[order[0]], strict=True)
        place = "most at " + ", ".join(f"{axis} = {c:.3g}" for axis, c in first)
    return (
        f" Half of the remaining residual is on {100 * count / len(X):.2g} % of "
        f"the domain, {place}: the solution is steep or "
        "singular there, or jumps. What is steep needs more neurons "
        "(hidden_layer_sizes); a jump needs a little diffusion, or a domain that ends "
        "before it."
    )
