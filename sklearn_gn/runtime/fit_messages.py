"""What a fit says to its user: how far it is, and why it stopped."""

import numpy as np

from sklearn_gn.findings import compilation, small_steps
from sklearn_gn.optim.stop import StopReason, counted


def progress_line(run):
    """Return the last row of the log of a :class:`FitRun` as a line of text."""
    row, val_loss, end = run.log[-1], "", ""
    if run.has_validation_data:
        val_loss = f"  val_loss {row['val_loss']:.4e}"
    if run.stop_reason is not None:
        end = f"  ({run.stop_reason.value})"
    return (
        f"[{type(run.estimator).__name__}] iteration {row['iteration']:4d}  "
        f"loss {row['loss']:.6e}{val_loss}  {run.elapsed:7.1f} s{end}"
    )


def why_not_converged(run):
    """Return the cause of a stop, and advice that fits it; None for no warning."""
    reason, estimator = run.stop_reason, run.estimator
    if not reason.is_warned_about:
        return None
    advice = estimator._advice(reason)
    if advice is None:
        return None
    if reason is StopReason.MAX_TIME:
        advice = estimator._naming_its_budget(advice)
        first = compilation(estimator)
        advice += "" if first is None else f" {first.text}"
    elif reason is StopReason.MAX_ITER:
        steps = small_steps(estimator)
        advice += "" if steps is None else f" {steps.text}"
    loss = run.log[-1]["loss"] if run.log else np.nan
    loss = getattr(estimator, "loss_", loss)  # that of the returned model
    return (
        f"{type(estimator).__name__}(solver={run.solver.name!r}) stopped "
        f"({reason.value}) after {counted(len(run.log), 'iteration')} and "
        f"{run.elapsed:.3g} s at loss {loss:.6g}. {advice} diagnose() says more."
    )
