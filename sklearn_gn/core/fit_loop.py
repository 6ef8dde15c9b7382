"""The fit loop of all estimators: log, best iterate, stopping, checkpoints."""

import hashlib
import pickle
import time
import warnings
from numbers import Integral

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn.core import backend

LOG_COLUMNS = (
    "iteration",
    "time",
    "loss",
    "val_loss",
    "grad_norm",
    "step_size",
    "damping",
    "gain_ratio",
    "inner_iterations",
)

# Reasons that count as convergence, or as a stop that was asked for.
_CONVERGED = {"tol", "rounding"}
_REQUESTED = {"early_stopping", "callback"}
# Reasons that a resumed fit lifts.
_BUDGETS = {"max_iter", "max_time", "interrupted", "callback"}

_ADVICE = {
    "max_iter": "The loss was still falling. Raise max_iter, or tol if the model is "
    "good enough.",
    "max_time": "The time budget was used up. Raise max_time.",
    "interrupted": "It was interrupted; the best model so far is kept.",
    "line_search": "No step along the search direction lowers the loss. Rescale the "
    "features, or try another solver.",
    "non_finite": "The loss is not a finite number. Check the scale of X and y, or "
    "raise damping.",
    "diverged": "The loss rose and stayed above its best. Lower learning_rate or raise "
    "damping.",
    "separable": "A head separates the classes and alpha is 0: the loss has no "
    "minimum, it falls to zero as the coefficients grow. Set alpha > 0.",
    "singular": "The Gauss-Newton system is singular. Raise damping or lower rank.",
}


class FitRun:
    """One run of a solver: its log, its best iterate and why it stopped.

    Parameters
    ----------
    estimator : estimator
        The estimator being fitted, for its parameters and callbacks.
    solver : Solver
        Pair of ``init`` and ``step``.
    problem : tuple
        What the solver is given beside its state: ``(rows, options)``.
    starts : list
        Initial networks, run one after the other; the best iterate of all is kept.
    loss_scale : float
        Factor from the solver's loss to that of the user's units.
    val_loss : callable or None
        Maps a network to its loss on the validation data, in the solver's units.
    """

    def __init__(self, estimator, solver, problem, starts, *, loss_scale, val_loss):
        self.estimator = estimator
        self.solver = solver
        self.rows, self.options = problem
        self.starts = starts
        self.loss_scale = loss_scale
        self.val_loss = val_loss
        self.has_validation_data = val_loss is not None
        self.monitor = "loss"
        self.log = []
        self.stop_reason = None
        self.best_net = None
        self._best_value = np.inf
        self._best_start = 0
        self._start = 0
        self._reasons = []
        self._state = None
        self._data = None
        self._elapsed = 0.0

    # -- the loop ---------------------------------------------------------------------

    def run(self, tasks, attributes):
        """Step until something says stop, then end the tasks."""
        tasks.begin()
        self._clock = time.perf_counter() - self._elapsed
        try:
            with self._scope():
                self._data = self.solver.prepare(self.rows, self.options)
            if self._state is None:
                self._state = self._init(0)
            while self.stop_reason is None:
                self._iterate(tasks, attributes)
        except KeyboardInterrupt:
            if self.best_net is None:
                raise
            self.stop_reason = "interrupted"
        self._judge_last()
        tasks.end(attributes)

    def _iterate(self, tasks, attributes):
        task = tasks.begin_iteration()
        with self._scope():
            state, report = self.solver.step(self._data, self._state, self.options)
        self._state = state
        if report.accepted:
            self._record(report)
        self._elapsed = time.perf_counter() - self._clock
        if report.stop is not None:
            self.end_start(report.stop)
        if self.stop_reason is None and len(self.log) >= self.estimator.max_iter:
            self.stop_reason = "max_iter"
        if tasks.end_iteration(task, attributes) and self.stop_reason is None:
            self.request_stop("callback")
        self._print_progress()

    def _init(self, start):
        with self._scope():
            state = self.solver.init(self._data, self.starts[start], self.options)
        self._consider(state.net, float(state.loss), start)
        return state

    def _consider(self, net, loss, start):
        """Keep a network if it is the best so far; return its validation loss."""
        net = self._numpy(net) if self.has_validation_data else net
        val_loss = self.val_loss(net) if self.has_validation_data else np.nan
        # In the solver's units: those of the user may under- or overflow.
        value = loss if self.monitor == "loss" else val_loss
        if self.best_net is None or value < self._best_value:
            self.best_net = self._numpy(net)
            self._best_value = value if np.isfinite(value) else np.inf
            self._best_start = start
        return val_loss

    def _judge_last(self):
        """Consider an iterate that no row of the log has judged."""
        if self._state is None:
            return
        with self._scope():
            found = self.solver.look(self._data, self._state, self.options)
        if found is None:
            return
        net, loss = found
        val_loss = self._consider(net, loss, self._start)
        if self.log:
            self.log[-1].update(
                loss=loss * self.loss_scale,
                val_loss=val_loss * self.loss_scale,
                judged=True,
            )

    def _record(self, report):
        if (report.extra or {}).get("judged", True):
            val_loss = self._consider(self._state.net, report.loss, self._start)
            val_loss = val_loss * self.loss_scale
        else:  # like the loss, that of the last one
            val_loss = self.log[-1]["val_loss"]
        self.log.append(
            {
                "start": self._start,
                "iteration": len(self.log) + 1,
                "time": time.perf_counter() - self._clock,
                "loss": report.loss * self.loss_scale,
                "val_loss": val_loss,
                "grad_norm": report.grad_norm * self.loss_scale,
                "step_size": report.step_size,
                "damping": report.damping,
                "gain_ratio": report.gain_ratio,
                "inner_iterations": report.inner_iterations,
                **(report.extra or {}),
            }
        )

    def _scope(self):
        return backend.scope(self.estimator.dtype, self.estimator.device)

    def _numpy(self, tree):
        with self._scope():
            return backend.to_numpy(tree)

    # -- what callbacks use -----------------------------------------------------------

    def current_log(self):
        """Rows of the log that belong to the current start."""
        return [row for row in self.log if row["start"] == self._start]

    def request_stop(self, reason):
        """Stop after this iteration; the first reason given stays."""
        if self.stop_reason is None:
            self.stop_reason = reason

    def end_start(self, reason):
        """End the current start; True if it was the last.

        The run then stops for the reason of the start whose network is returned.
        """
        if self.stop_reason is not None:  # the solver and a callback may both end it
            return True
        self._reasons.append(reason)
        if len(self._reasons) == len(self.starts):
            self.request_stop(self._reasons[self._best_start])
            return True
        if len(self.log) < self.estimator.max_iter:
            self._state = self._init(self._start + 1)
            self._start += 1
        return False

    def snapshot(self):
        """Everything that :meth:`restore` needs, as numpy and plain Python."""
        return {
            "fingerprint": self._fingerprint(),
            "state": self._numpy(self._state),
            "start": self._start,
            "starts": self.starts,
            "seed": self.options.seed,
            "reasons": list(self._reasons),
            "log": list(self.log),
            "best_net": self.best_net,
            "best_value": self._best_value,
            "best_start": self._best_start,
            "elapsed": self._elapsed,
            # A stop by a budget is lifted by a larger budget, an end is an end.
            "stop_reason": None if self.stop_reason in _BUDGETS else self.stop_reason,
        }

    def restore(self, snapshot, source):
        """Continue from a snapshot of the same problem."""
        if snapshot["fingerprint"] != self._fingerprint():
            raise ValueError(
                f"The checkpoint {str(source)!r} belongs to other data or other "
                "parameters. Give another path, or resume=False to replace it."
            )
        self._state = snapshot["state"]
        self._start = snapshot["start"]
        self.starts = snapshot["starts"]
        self.options = self.options._replace(seed=snapshot["seed"])
        self._reasons = list(snapshot["reasons"])
        self.log = list(snapshot["log"])
        self.best_net = snapshot["best_net"]
        self._best_value = snapshot["best_value"]
        self._best_start = snapshot["best_start"]
        self._elapsed = snapshot["elapsed"]
        self.stop_reason = snapshot["stop_reason"]
        if self.stop_reason is None and len(self.log) >= self.estimator.max_iter:
            self.stop_reason = "max_iter"

    def _fingerprint(self):
        parameters = self.estimator.get_params(deep=False)
        for name in ("max_iter", "max_time", "verbose"):
            parameters.pop(name, None)
        # Only a number names the same draws again; the others are in the snapshot.
        if not isinstance(parameters["random_state"], Integral):
            parameters["random_state"] = None
        try:
            content = pickle.dumps((sorted(parameters.items()), tuple(self.rows)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"a checkpoint stores the parameters, one of which cannot be: {error}. "
                "Use functions defined at the top of a module."
            ) from error
        return hashlib.sha256(content).hexdigest()

    # -- results ----------------------------------------------------------------------

    @property
    def data(self):
        """What the solver prepared of the rows."""
        return self._data

    @property
    def final_state(self):
        """The solver's state at the end."""
        return self._state

    @property
    def converged(self):
        """Whether the solver ended by its own criterion."""
        return self.stop_reason in _CONVERGED

    def convergence_log(self):
        """The log as a dict of equal-length arrays."""
        extra = [name for name in (self.log or [{}])[0] if name not in LOG_COLUMNS]
        return {
            name: np.array([row[name] for row in self.log])
            for name in (*LOG_COLUMNS, *extra)
            if name != "start"
        }

    def warn_if_not_converged(self):
        """Warn with the cause, and with advice that fits it."""
        if self.converged or self.stop_reason in _REQUESTED:
            return
        loss = self.log[-1]["loss"] if self.log else np.nan
        warnings.warn(
            f"{type(self.estimator).__name__}(solver={self.solver.name!r}) stopped "
            f"({self.stop_reason}) after {len(self.log)} iterations and "
            f"{self._elapsed:.3g} s at loss {loss:.6g}. {_ADVICE[self.stop_reason]}",
            ConvergenceWarning,
            stacklevel=5,
        )

    def _print_progress(self):
        verbose = self.estimator.verbose
        last = self.stop_reason is not None
        if not verbose or not self.log:
            return
        if last or verbose > 1 or self._elapsed - getattr(self, "_printed", -1) > 1:
            self._printed = self._elapsed
            row = self.log[-1]
            val = (
                f"  val_loss {row['val_loss']:.4e}" if self.has_validation_data else ""
            )
            end = f"  ({self.stop_reason})" if last else ""
            print(
                f"[{type(self.estimator).__name__}] iteration {row['iteration']:4d}  "
                f"loss {row['loss']:.6e}{val}  {self._elapsed:7.1f} s{end}",
                flush=True,
            )
