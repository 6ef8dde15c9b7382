"""The loop around the step of a solver: log, best iterate, stopping, checkpoints.

All that a fit has reached stands in one immutable :class:`Progress`, which every
iteration replaces in a single assignment. An interrupt at any moment therefore leaves
the last complete iteration.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.extremes import largest_size
from sklearn_gn.findings import compilation, small_steps
from sklearn_gn.optim.solver import Algorithm, Continued
from sklearn_gn.optim.stop import StopReason, counted, is_interrupt, is_one_of_many
from sklearn_gn.runtime import checkpoint
from sklearn_gn.runtime.fingerprint import signature_of

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


class BestNetwork(NamedTuple):
    """The network with the lowest value of what is monitored."""

    net: Any  # numpy
    value: float  # in the units of the solver; those of the user may under- or overflow
    start: int


class Progress(NamedTuple):
    """What a fit has reached."""

    state: Any  # of the solver
    best: BestNetwork
    log: tuple = ()  # rows
    start: int = 0  # number of the current start
    ended: str | None = None  # why the current start has ended, if it has
    reasons: tuple = ()  # why the earlier ones ended
    elapsed: float = 0.0


@dataclass(eq=False)
class FitRun:
    """One run of a solver: its log, its best iterate and why it stopped."""

    estimator: Any  # that is fitted, for its parameters and callbacks
    solver: Algorithm
    rows: Any  # what the solver is given besides its state, with the options
    options: Any
    starts: list  # networks, one after the other; the best iterate of all is kept
    loss_scale: float  # from the solver's loss to that of the user's units
    val_loss: Callable | None  # of a network, on the validation data, as the solver's
    validation: Any = None
    began: float | None = None  # when the fit did, if it prepares much before the run
    # X, y and metadata of the fit. Like the parameters and the validation data they
    # are a part of the signature of a fit.
    given: dict = field(default_factory=dict)
    data: Any = None  # what the solver has prepared of the rows
    monitor: str = "loss"  # of which the best network has the lowest value
    stopping_rules: list = field(default_factory=list)  # texts of callbacks that end it
    stop_reason: StopReason | None = None
    seconds_left: float = np.inf  # of the time budget, when it ended the fit
    progress: Progress | None = None
    _resumable: Progress | None = None  # that before the last evaluation
    _signature: dict | None = None
    _preparation: float = 0.0  # seconds from the beginning of the fit to the run
    _seconds: float = 0.0  # of the last iteration
    _last_printed: float = -np.inf

    # -- the loop ---------------------------------------------------------------------

    def run(self, given, callbacks, max_steps, attributes):
        """Iterate until there is a reason to stop; Ctrl-C is one.

        It is raised before there is a network, and within a search. ``given`` is the
        dict of X, y and metadata, and ``callbacks`` come besides the estimator's. The
        most iterations that may begin, ``max_steps``, may be infinite. ``attributes``
        makes the fitted attributes of the best network, for callbacks.
        """
        self.given, estimator, solver = given, self.estimator, self.solver
        self._continues = estimator.warm_start and hasattr(estimator, "n_iter_")
        # Without JAX nothing has a scope; a device that is given must exist.
        computing = partial(backend.scope, estimator.dtype, estimator.device)
        without_jax = not solver.compiled and estimator.device is None
        self._computing = nullcontext if without_jax else computing
        own = vars(estimator).get("_skl_callbacks")
        # The context takes its callbacks from this attribute when it is made. Where
        # that fails, the decorator of fit puts back what was there.
        estimator._skl_callbacks = [*(own or []), *callbacks]
        root = estimator._init_callback_context(
            max_subtasks=None if np.isinf(max_steps) else max_steps
        )
        del estimator._skl_callbacks
        if own is not None:
            estimator._skl_callbacks = own
        words = {"estimator": estimator, **given}
        end = {**words, "reconstruction_attributes": attributes}
        try:
            root.call_on_fit_task_begin(**words)  # where a checkpoint is resumed
            now = time.perf_counter()
            self._preparation = 0.0 if self.began is None else now - self.began
            self._clock = now - (self.progress.elapsed if self.progress else 0.0)
            with self._computing():
                self.data = solver.prepare(self.rows, self.options)
            if self.progress is None:
                state, best = self._initial_state(0, None)
                self.progress = Progress(state, best)
            elif self.progress.ended is not None and self.stop_reason is None:
                self._begin_next_start()
            while self.stop_reason is None:
                task = root.subcontext(task_name="iteration")
                task.call_on_fit_task_begin(**words)
                with self._computing():
                    state = self.progress.state
                    state, report = solver.step(self.data, state, self.options)
                self.progress = self._recorded(state, report)
                if report.stop is not None:
                    self.end_start(report.stop)
                if len(self.log) >= estimator._most_iterations():
                    self.request_stop("max_iter")
                if task.call_on_fit_task_end(**end):
                    self.request_stop("callback")
                self._print_progress()
        except (KeyboardInterrupt, Exception) as error:
            self.interrupt(error)
        finish = partial(root.call_on_fit_task_end, **end)
        for call in (self._evaluate_last_network, finish):
            try:
                call()
            except (KeyboardInterrupt, Exception) as error:
                self.interrupt(error)

    def interrupt(self, error):
        """Stop because of Ctrl-C, if there is a network to keep and no search."""
        if not is_interrupt(error):
            raise error
        if self.progress is None or self.data is None or is_one_of_many():
            raise KeyboardInterrupt
        self.stop_reason = StopReason.INTERRUPTED
        elapsed = time.perf_counter() - self._clock  # also before the first iteration
        self.progress = self.progress._replace(elapsed=elapsed)

    def _recorded(self, state, report):
        """Return the progress after a step."""
        progress, extra = self.progress, report.extra or {}
        elapsed = time.perf_counter() - self._clock
        self._seconds = elapsed - progress.elapsed
        progress = progress._replace(state=state, elapsed=elapsed)
        if not report.accepted:
            return progress
        best, val_loss = progress.best, np.nan
        if extra.get("evaluated_on_all_rows", True):
            best, val_loss = self._compared(
                getattr(state, "answer", state.net),
                getattr(state, "criterion", report.loss),
                best,
                val_loss=extra.get("val_loss"),
            )
            val_loss = val_loss * self.loss_scale
        elif progress.log:  # like the loss, that of the last one
            val_loss = progress.log[-1]["val_loss"]
        row = {
            "start": progress.start,
            "iteration": len(progress.log) + 1,
            "time": elapsed,
            "loss": report.loss * self.loss_scale,
            "val_loss": val_loss,
            "grad_norm": report.grad_norm * self.loss_scale,
            "step_size": report.step_size,
            "damping": report.damping,
            "gain_ratio": report.gain_ratio,
            "inner_iterations": report.inner_iterations,
            **extra,
        }
        return progress._replace(best=best, log=(*progress.log, row))

    def _initial_state(self, start, best):
        """Return the solver's first state of a start, and the best network so far."""
        with self._computing():
            net = self.starts[start]
            if isinstance(net, Continued):
                net = Continued(best.net)
            state = self.solver.init(self.data, net, self.options)
        if np.isnan(float(state.loss)):
            y = np.asarray(self.given.get("y"))
            # Squares of huge targets overflow in a fit that can still predict.
            huge = np.sqrt(np.finfo(np.float64).max) / 1e4
            if not (y.dtype.kind == "f" and largest_size(y) > huge):
                raise ValueError(
                    "The loss of the network to start from is NaN. A network of your "
                    "own gives NaN at the training rows, or the numbers in X and y are "
                    f"too large for dtype={self.estimator.dtype!r}."
                )
        loss = getattr(state, "criterion", float(state.loss))
        answer = getattr(state, "answer", state.net)  # of several networks
        best, _ = self._compared(answer, loss, best, start)
        return state, best

    def _compared(self, net, loss, best, start=None, val_loss=None):
        """Return the better one of a network and the best, and its validation loss."""
        if val_loss is None and self.val_loss is not None:
            net = self._numpy(net)
            val_loss = self.val_loss(net)
        elif val_loss is None:
            val_loss = np.nan
        value = loss if self.monitor == "loss" else val_loss
        if best is None or value < best.value:
            start = self.progress.start if start is None else start
            value = value if np.isfinite(value) else np.inf
            best = BestNetwork(self._numpy(net), value, start)
        return best, val_loss

    def _evaluate_last_network(self):
        """Evaluate the last network on all rows, unless its step has done that."""
        progress = self._resumable = self.progress
        if self.solver.evaluate_last is None:
            return
        with self._computing():
            found = self.solver.evaluate_last(self.data, progress.state, self.options)
        if found is None:
            return
        net, loss = found
        best, val_loss = self._compared(net, loss, progress.best)
        known = {
            "loss": loss * self.loss_scale,
            "val_loss": val_loss * self.loss_scale,
            "evaluated_on_all_rows": True,
        }
        last = [row | known for row in progress.log[-1:]]
        self.progress = progress._replace(best=best, log=(*progress.log[:-1], *last))

    def _begin_next_start(self):
        """Go on with the next start, or stop if that was the last one."""
        progress = self.progress
        reasons = (*progress.reasons, progress.ended)
        if len(reasons) == len(self.starts):
            self.request_stop(reasons[progress.best.start])
        elif len(progress.log) < self.estimator._most_iterations():
            start = progress.start + 1
            state, best = self._initial_state(start, progress.best)
            self.progress = progress._replace(
                state=state, best=best, start=start, ended=None, reasons=reasons
            )

    def _numpy(self, tree):
        if not self.solver.compiled:
            return tree
        with self._computing():
            return backend.to_numpy(tree)

    # -- what callbacks use -----------------------------------------------------------

    @property
    def log(self):
        """Rows of the log: one dict an accepted iteration."""
        return () if self.progress is None else self.progress.log

    @property
    def best_net(self):
        """The best network so far, as numpy."""
        return None if self.progress is None else self.progress.best.net

    @property
    def best_row(self):
        """The row of the log of the best network, None where it is not in the log."""
        if self.monitor != "loss":
            return None
        value = self.progress.best.value * self.loss_scale
        return next((row for row in reversed(self.log) if row["loss"] == value), None)

    @property
    def final_state(self):
        """The solver's state at the end."""
        return self.progress.state

    @property
    def expected_seconds(self):
        """Seconds that one more iteration and the end of the fit are expected to take.

        A solver may say it. Otherwise the next iteration is as long as the last one,
        and the end, which looks at all rows, as the preparation; what is compiled has
        taken longer than it will.
        """
        known = 0.0 if self.solver.compiled else self._seconds + self._preparation
        return getattr(self.progress and self.progress.state, "next_seconds", known)

    @property
    def elapsed(self):
        """Seconds since the fit began; ``time`` of the log begins with the run."""
        return self._preparation + self.progress.elapsed

    def request_stop(self, reason):
        """Stop after this iteration; the first reason given stays."""
        if self.stop_reason is None:
            self.stop_reason = StopReason(reason)

    def end_start(self, reason):
        """End the current start; True if it was the last."""
        if self.stop_reason is None:  # the solver and a callback may both end it
            self.progress = self.progress._replace(ended=StopReason(reason).value)
            self._begin_next_start()
        return self.stop_reason is not None

    # -- checkpoints ------------------------------------------------------------------

    def snapshot(self):
        """Everything that :meth:`restore` needs, as numpy and plain Python."""
        progress = self.progress if self._resumable is None else self._resumable
        reason = self.stop_reason
        # A stop by a budget is lifted by a larger budget, an end is an end.
        ended = reason is not None and not reason.budget
        return {
            "signature": self.signature(),
            "progress": progress._replace(
                state=self._numpy(progress.state), best=tuple(progress.best)
            )._asdict(),
            "starts": self.starts,
            "seed": self.options.seed,
            "stop_reason": reason.value if ended else None,
        }

    def restore(self, snapshot, source):
        """Continue from a snapshot of the same fit; one of another is a ValueError."""
        before, now = snapshot["signature"], self.signature()
        names = dict.fromkeys([*now, *before])
        changed = [name for name in names if before.get(name) != now.get(name)]
        if changed:
            raise ValueError(
                f"The checkpoint {str(source)!r} belongs to another fit. What has "
                f"changed: {', '.join(changed)}. Give another path, or resume=False to "
                "replace it."
            )
        self.starts = snapshot["starts"]
        self.options = self.options._replace(seed=snapshot["seed"])
        progress = Progress(**snapshot["progress"])
        self.progress = progress._replace(best=BestNetwork(*progress.best))
        if snapshot["stop_reason"] is not None:
            self.stop_reason = StopReason(snapshot["stop_reason"])
        if len(self.log) >= self.estimator._most_iterations():
            self.request_stop("max_iter")

    def signature(self):
        """Return digests of all that the result depends on, but for the budgets."""
        if self._signature is None:
            self._signature = signature_of(
                self.estimator,
                self.given,
                validation=self.validation,
                stopping=[self.monitor, self.stopping_rules],
                # The start is a part of it where the draws do not decide it.
                start=self.starts if self._continues else None,
            )
        return self._signature

    def check_storable(self):
        """Raise a ValueError if a checkpoint cannot store what the fit starts from."""
        self.signature()
        try:
            checkpoint.encoded(self.starts, [])
        except TypeError as error:
            raise ValueError(
                f"The network to start from cannot be saved: {error}. Let its "
                "parameters be arrays and numbers in tuples, lists, dicts and named "
                "tuples, or fit without the checkpoint."
            ) from error

    # -- results ----------------------------------------------------------------------

    def convergence_log(self):
        """The log as a dict of equal-length arrays."""
        _, *names = self.log[0] if self.log else ("start", *LOG_COLUMNS)
        return {name: np.array([row[name] for row in self.log]) for name in names}

    def warn_if_not_converged(self):
        """Warn with the cause, and with advice that fits it."""
        reason, estimator = self.stop_reason, self.estimator
        advice = estimator._advice(reason) if reason.is_warned_about else None
        if advice is None:
            return
        more = None
        if reason is StopReason.MAX_TIME:
            advice = estimator._naming_its_budget(advice)
            more = compilation(estimator)
        elif reason is StopReason.MAX_ITER:
            more = small_steps(estimator)
        advice += "" if more is None else f" {more.text}"
        loss = self.log[-1]["loss"] if self.log else np.nan
        loss = getattr(estimator, "loss_", loss)  # that of the returned model
        warn_user(
            f"{type(estimator).__name__}(solver={self.solver.name!r}) stopped "
            f"({reason.value}) after {counted(len(self.log), 'iteration')} and "
            f"{self.elapsed:.3g} s at loss {loss:.6g}. {advice} diagnose() says more.",
            ConvergenceWarning,
        )

    def _print_progress(self):
        verbose, elapsed = self.estimator.verbose, self.elapsed
        if not verbose or not self.log:
            return
        last, waited = self.stop_reason is not None, elapsed - self._last_printed
        if not (last or verbose > 1 or waited > 1):
            return
        self._last_printed = elapsed
        row, val_loss = self.log[-1], ""
        if self.val_loss is not None:
            val_loss = f"  val_loss {row['val_loss']:.4e}"
        end = f"  ({self.stop_reason.value})" if last else ""
        print(
            f"[{type(self.estimator).__name__}] iteration {row['iteration']:4d}  "
            f"loss {row['loss']:.6e}{val_loss}  {elapsed:7.1f} s{end}",
            flush=True,
        )
