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


@pytest.mark.parametrize("reason", StopReason)
def test_exactly_what_is_warned_about_has_advice(reason):
    assert bool(reason.advice) == reason.is_warned_about


def test_reasons_are_found_by_their_text():
    assert StopReason("tol") is StopReason.TOL
    with pytest.raises(ValueError, match=r"one of \['tol', .*got 'boredom'"):
        StopReason("boredom")
