"""Reasons to stop, and what they mean."""

import pytest

from sklearn_gn.optim.stop import StopReason

CONVERGED = {"tol", "rounding"}
REQUESTED = {"early_stopping", "callback"}
BUDGETS = {"max_iter", "max_time", "interrupted", "callback"}


@pytest.mark.parametrize("reason", StopReason)
def test_every_reason_says_what_it_means(reason):
    assert reason.converged == (reason.value in CONVERGED)
    assert reason.requested == (reason.value in REQUESTED)
    assert reason.budget == (reason.value in BUDGETS)
    assert reason.is_warned_about == (reason.value not in CONVERGED | REQUESTED)
    assert bool(reason.advice) == reason.is_warned_about
