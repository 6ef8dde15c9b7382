"""Callbacks for the fit loop, set by ``estimator.set_callbacks(...)``.

They follow scikit-learn's callback protocol. :class:`TimeBudget` works with any
estimator that supports callbacks. The others also read the run of the fit (log, state,
best iterate), which only the estimators of this package provide.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sklearn_gn._caller import warn_user
from sklearn_gn._typing import PathLike
from sklearn_gn.optim.stop import is_interrupt
from sklearn_gn.runtime import checkpoint
from sklearn_gn.runtime.fingerprint import BUDGETS, digest

__all__ = ["Checkpoint", "EarlyStopping", "LogWriter", "TimeBudget"]

_INTEGERS = (int, np.integer)
_NUMBERS = (*_INTEGERS, float, np.floating)


@dataclass(eq=False)
class _Callback:
    """Does nothing at every hook; one instance may serve several fits at a time.

    What belongs to one fit is kept under the identity of the estimator being fitted:
    inside a search, fits share the root of their task tree.
    """

    _fits: dict[int, Any] = field(default_factory=dict, init=False, repr=False)

    def setup(self, estimator: Any, context: Any) -> None:
        """Prepare for one fit."""

    def teardown(self, estimator: Any, context: Any) -> None:
        """Forget that fit."""
        self._fits.pop(id(estimator), None)

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Called when the fit, or an iteration of it, begins."""

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        """Called when the fit, or an iteration of it, ends; True asks to stop."""
        return False


def _run_of(callback, estimator):
    run = getattr(estimator, "_fit_run", None)
    if run is None:
        raise TypeError(
            f"{type(callback).__name__} works with the estimators of sklearn_gn, "
            f"got {type(estimator).__name__}."
        )
    return run


@dataclass(eq=False)
class TimeBudget(_Callback):
    """Stop a fit after a number of seconds.

    Parameters
    ----------
    seconds : float
        Wall-clock seconds from the beginning of the fit, including compilation. The
        iteration in progress is finished first. :class:`PINNSolver` and
        :class:`FGNSoftmaxHead` begin none that is not expected to end in time.

    Examples
    --------
    >>> from sklearn_gn import ShallowReLURegressor
    >>> from sklearn_gn.callbacks import TimeBudget
    >>> model = ShallowReLURegressor().set_callbacks(TimeBudget(seconds=60))
    """

    seconds: float

    def __post_init__(self):
        if not (isinstance(self.seconds, _NUMBERS) and self.seconds > 0):
            raise ValueError(f"seconds must be a number > 0, got {self.seconds!r}.")

    def setup(self, estimator: Any, context: Any) -> None:
        """Prepare for one fit."""
        began = getattr(getattr(estimator, "_fit_run", None), "began", None)
        self._fits[id(estimator)] = time.perf_counter() if began is None else began

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        """Called when the fit, or an iteration of it, ends; True asks to stop."""
        left = self.seconds - (time.perf_counter() - self._fits[id(estimator)])
        run = getattr(estimator, "_fit_run", None)
        if left > (0 if run is None else run.expected_seconds):
            return False
        if run is not None:
            run.request_stop("max_time")
            run.seconds_left = min(left, run.seconds_left)
        return True


@dataclass(eq=False)
class EarlyStopping(_Callback):
    """Stop a fit when a column of its convergence log no longer improves.

    Parameters
    ----------
    monitor : {"val_loss", "loss"}, default="val_loss"
        Column of ``convergence_log_`` that must fall.
    n_iter_no_change : int, default=10
        Number of iterations without improvement after which the fit stops, or continues
        with its next start if there are several. With batches of rows, only iterations
        that were evaluated on all rows count.
    min_delta : float, default=0.0
        Smallest relative decrease that counts as an improvement.
    restore_best : bool, default=True
        If True, return the iterate with the lowest monitored value; if False, the one
        with the lowest loss.

    Raises
    ------
    ValueError
        If a parameter has another value than these, and at ``fit``, if
        ``monitor="val_loss"`` and there are no validation data.
    """

    monitor: Literal["val_loss", "loss"] = "val_loss"
    _: KW_ONLY
    n_iter_no_change: int = 10
    min_delta: float = 0.0
    restore_best: bool = True

    def __post_init__(self):
        monitor, least, n = self.monitor, self.min_delta, self.n_iter_no_change
        if monitor not in ("val_loss", "loss"):
            raise ValueError(f"monitor must be 'val_loss' or 'loss', got {monitor!r}.")
        if not (isinstance(n, _INTEGERS) and n >= 1):
            raise ValueError(f"n_iter_no_change must be an integer >= 1, got {n!r}.")
        if not (isinstance(least, _NUMBERS) and least >= 0):
            raise ValueError(f"min_delta must be a number >= 0, got {least!r}.")

    def setup(self, estimator: Any, context: Any) -> None:
        """Prepare for one fit."""
        run = _run_of(self, estimator)
        if self.monitor == "val_loss" and run.val_loss is None:
            raise ValueError(
                "EarlyStopping(monitor='val_loss') needs validation data: give X_val "
                "and y_val to fit, or set early_stopping=True."
            )
        run.stopping_rules.append(repr(self))
        if self.restore_best:
            run.monitor = self.monitor
        # Rows that were counted, their start, the best value, and iterations since it.
        self._fits[id(estimator)] = 0, 0, float("inf"), 0

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        """Called when the fit, or an iteration of it, ends; True asks to stop."""
        if context.task_name != "iteration":
            return False
        run = _run_of(self, estimator)
        n_rows, start, best, since = self._fits[id(estimator)]
        for row in run.log[n_rows:]:  # that are new; a resumed fit has many
            if row["start"] != start:
                start, best, since = row["start"], float("inf"), 0
            if not row.get("evaluated_on_all_rows", True):  # an iteration on a batch
                continue
            if row[self.monitor] < best * (1 - self.min_delta):
                best, since = row[self.monitor], 0
            else:
                since += 1
        if start != run.progress.start:  # the current one has no row yet
            start, best, since = run.progress.start, float("inf"), 0
        self._fits[id(estimator)] = len(run.log), start, best, since
        return since >= self.n_iter_no_change and run.end_start("early_stopping")


@dataclass(eq=False)
class LogWriter(_Callback):
    """Hand every row of the convergence log to a function while the fit runs.

    The function may write to a file, to a logger, or to a service that tracks
    experiments.

    Parameters
    ----------
    write : callable
        Called as ``write(row)`` after each iteration. ``row`` is a dict with the
        columns of ``convergence_log_``, and ``"start"``, the number of the start if
        there are several. A fit that is resumed from a checkpoint continues with the
        next row. An exception from ``write`` aborts the fit.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import ShallowReLURegressor
    >>> from sklearn_gn.callbacks import LogWriter
    >>> x, losses = np.linspace(-1, 1, 50), []
    >>> writer = LogWriter(lambda row: losses.append(row["loss"]))
    >>> model = ShallowReLURegressor(3, random_state=0).set_callbacks(writer)
    >>> model.fit(x[:, None], abs(x)).n_iter_ == len(losses)
    True
    """

    write: Callable[[dict[str, Any]], object]

    def __post_init__(self):
        if not callable(self.write):
            text = f"write must be a function of the row, got {self.write!r}."
            raise ValueError(text)

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Called when the fit, or an iteration of it, begins."""
        if context.task_name == "iteration":
            self._fits[id(estimator)] = len(_run_of(self, estimator).log)

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        """Called when the fit, or an iteration of it, ends; True asks to stop."""
        if context.task_name == "iteration":
            for row in _run_of(self, estimator).log[self._fits[id(estimator)] :]:
                self.write(dict(row))
        return False


@dataclass(eq=False)
class Checkpoint(_Callback):
    """Save a fit while it runs, and resume it after it was killed.

    Parameters
    ----------
    path : str or path-like
        File of the checkpoint. It is replaced in one operation, so that a crash while
        it is written leaves the previous one intact. In a search or a pipeline each fit
        has a file of its own next to it: "fit.ckpt" becomes "fit-3f2a91c04b7d.ckpt",
        whose digits are a hash of the rows and the parameters of that fit.
    resume : bool, default=True
        If True, continue from ``path`` if it exists. The resumed fit gives the same
        result, bit for bit, as one that was never interrupted. If False, replace it.
    every : float, default=30.0
        Minimum number of seconds between two saves. The end of a fit is saved too, also
        after Ctrl-C.

    Raises
    ------
    OSError
        At ``fit``, if the file cannot be read or written: a FileNotFoundError if its
        folder does not exist, an IsADirectoryError if it is a folder. If the file
        cannot be written later, the fit warns and continues.
    ValueError
        At ``fit``, if ``path`` is damaged, is no checkpoint, or belongs to another fit;
        the message says what differs: training or validation data, sample weights, a
        parameter, the version of this package, or, with ``warm_start=True``, the
        network to start from. ``max_iter``, ``max_time`` and ``verbose`` may differ. A
        fit that sets validation rows aside at random needs a number as
        ``random_state``. Also if a parameter holds something without a comparable
        value, such as a generator or an open file, or if the parameters of a network of
        your own are neither arrays nor numbers in tuples, lists and dicts.

    Notes
    -----
    Parameters are compared by value: functions by their code and all that it refers to,
    objects of your own classes by the code of the class and by their state. Functions
    of installed packages are compared by their name.

    The file contains numbers, arrays and names, but no code, so a file from others can
    be opened without harm. :func:`numpy.load` opens it too.
    """

    path: PathLike
    _: KW_ONLY
    resume: bool = True
    every: float = 30.0

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Called when the fit, or an iteration of it, begins."""
        if context.task_name == "iteration":
            return
        run = _run_of(self, estimator)
        # What makes a checkpoint impossible is said before the fit, not after it.
        run.check_storable()
        path = Path(self.path)
        if context.parent is not None:  # one of several fits of a search
            budgets = [getattr(estimator, name) for name in BUDGETS]
            own = digest([run.signature(), budgets])[:12]
            path = path.with_name(f"{path.stem}-{own}{path.suffix}")
        checkpoint.check_place(path)
        snapshot = checkpoint.load(path) if self.resume else None
        if snapshot is not None:
            run.restore(snapshot, source=path)
        self._fits[id(estimator)] = path, time.perf_counter()

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        """Called when the fit, or an iteration of it, ends; True asks to stop."""
        path, saved_at = self._fits[id(estimator)]
        recent = time.perf_counter() - saved_at < self.every
        if recent and context.task_name == "iteration":
            return False
        try:
            checkpoint.save(path, _run_of(self, estimator).snapshot())
        except Exception as error:  # a full disk is no reason to lose the fit
            if is_interrupt(error):
                raise
            warn_user(
                f"The checkpoint {str(path)!r} could not be written ({error}); the fit "
                "continues."
            )
        self._fits[id(estimator)] = path, time.perf_counter()
        return False
