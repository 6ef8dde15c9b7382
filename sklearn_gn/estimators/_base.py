"""The fit loop and the words that all estimators share."""

import hashlib
import pickle
import time
import warnings
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, validate_data

from sklearn_gn import _jax
from sklearn_gn.callbacks import EarlyStopping, TimeBudget
from sklearn_gn.estimators._callback_support import CallbackSupportMixin, FitTasks

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

_LEXICOGRAPHIC_COLUMNS = 16
_BATCH_ROWS = 4096  # of predictions
_CHUNK_ROWS = 1024  # of wide tables, so that intermediate copies stay in cache

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
        return _jax.scope(self.estimator.dtype, self.estimator.device)

    def _numpy(self, tree):
        with self._scope():
            return _jax.to_numpy(tree)

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


class GaussNewtonEstimator(CallbackSupportMixin, BaseEstimator):
    """What the estimators share: common words, validation, and the run of a solver."""

    _parameter_constraints = {
        "solver": [str],
        "damping": [Interval(Real, 0, None, closed="left")],
        "rank": [Interval(Integral, 1, None, closed="left"), None],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_time": [Interval(Real, 0, None, closed="neither"), None],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "dtype": [StrOptions({"float32", "float64"})],
        "device": [str, None],
        "verbose": ["verbose"],
        "random_state": ["random_state"],
    }

    def _check_validation_data(self, X_val, y_val, n_targets):
        """Validate ``X_val`` and ``y_val``; None where they are not given."""
        if not check_validation_pair(X_val, y_val):
            return None
        X_val, y_val = validate_data(
            self, X_val, y_val, reset=False, multi_output=True, dtype=np.float64
        )
        y_val = y_val.astype(np.float64).reshape(X_val.shape[0], -1)
        if y_val.shape[1] != n_targets:
            raise ValueError(f"y_val has {y_val.shape[1]} targets, y has {n_targets}.")
        return X_val, y_val

    def _fit_callbacks(self):
        """The callbacks that parameters stand for."""
        callbacks = []
        if self.max_time is not None:
            callbacks.append(TimeBudget(self.max_time))
        if self.early_stopping:
            callbacks.append(EarlyStopping(n_iter_no_change=self.n_iter_no_change))
        return callbacks

    def _cast(self, value):
        return np.asarray(value, dtype=self.dtype)

    def _in_batches(self, function, x, batch_rows=_BATCH_ROWS):
        """A compiled function of rows, in float64, for few shapes of its argument."""
        parts = []
        with _jax.scope(self.dtype, self.device):
            for batch in gen_batches(len(x), batch_rows):
                part = self._cast(x[batch])
                # Padded by the last row: zeros may lie outside of a domain.
                n = _jax.row_bucket(len(part)) - len(part)
                padded = np.concatenate([part, np.repeat(part[-1:], n, axis=0)])
                parts.append(_jax.to_numpy(function(padded))[: len(part)])
        return np.concatenate(parts).astype(np.float64)

    def _run(self, run, *, max_steps, data, attributes):
        """Run a solver under the callbacks and set the common fitted attributes.

        Parameters
        ----------
        run : FitRun
        max_steps : int
            Most steps, accepted or not.
        data : dict
            ``X``, ``y`` and ``metadata`` for callbacks.
        attributes : callable
            Maps a network to the fitted attributes that predictions need.
        """
        self._fit_run = run
        try:
            tasks = FitTasks(self, self._fit_callbacks(), max_iter=max_steps, data=data)
            run.run(tasks, lambda: attributes(run.best_net))
        finally:
            del self._fit_run
        self.convergence_log_ = run.convergence_log()
        self.n_iter_ = len(run.log)
        self.converged_ = run.converged
        self.stop_reason_ = run.stop_reason
        run.warn_if_not_converged()


def check_validation_pair(X_val, y_val):
    """Whether validation data are given; a ValueError where only half of them is."""
    if (X_val is None) != (y_val is None):
        missing = "y_val" if y_val is None else "X_val"
        raise ValueError(f"X_val and y_val belong together: {missing} is missing.")
    return X_val is not None


def validation_split(n_rows, fraction, rng, labels=None):
    """Draw the rows to set aside for validation, stratified where that is possible.

    Parameters
    ----------
    n_rows : int
        Number of distinct rows.
    fraction : float
        Share of them to set aside.
    rng : RandomState
    labels : ndarray of int of shape (n_rows,), default=None
        Numbers of their classes.

    Returns
    -------
    train, val : ndarrays of int
        Numbers of the rows, in random order.
    """
    n_val = max(1, round(fraction * n_rows))
    if n_val >= n_rows:
        raise ValueError(
            f"validation_fraction={fraction} of {n_rows} distinct rows leaves none for "
            "training."
        )
    possible = False
    if labels is not None:
        counts = np.bincount(labels)
        counts = counts[counts > 0]
        possible = counts.min() > 1 and min(n_val, n_rows - n_val) >= len(counts)
    return train_test_split(
        np.arange(n_rows),
        test_size=n_val,
        random_state=rng,
        stratify=labels if possible else None,
    )


def canonical_rows(X, y, sample_weight):
    """Rows of a weighted data set in an order that only their content decides.

    Rows of weight zero are dropped and equal rows merged, so that a fit, with all its
    random draws, depends on neither the order nor the multiplicity of rows.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
    y : ndarray of shape (n_samples, n_targets)
    sample_weight : ndarray of shape (n_samples,)

    Returns
    -------
    rows : ndarray of int
        One row number for each distinct row.
    weight : ndarray
        Their weights, divided by the sum.
    """
    kept = np.flatnonzero(sample_weight > 0)
    order = kept[_content_order(X[kept] if len(kept) < len(X) else X, y[kept])]
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any(y[order[1:]] != y[order[:-1]], axis=1)
    for part in gen_batches(max(len(order) - 1, 1), _CHUNK_ROWS):
        here, before = order[1:][part], order[:-1][part]
        new[1:][part] |= np.any(X[here] != X[before], axis=1)
    first = np.flatnonzero(new)
    weight = sample_weight[order]
    # Weights near the largest float would overflow in the sum. A power of two as scale
    # keeps sums of whole-numbered weights exact, hence equal to those of repeated rows.
    _, exponent = np.frexp(weight.max())
    weight = np.add.reduceat(np.ldexp(weight, -exponent), first)
    # Copies of a row are equal, but for the sign of a zero, in any order.
    return order[first], weight / weight.sum()


def _content_order(X, y):
    """Order of rows by their content alone, with equal rows together.

    A lexicographic order takes one sort a column; wide tables are ordered by a hash of
    the rows instead.
    """
    n_columns = X.shape[1] + y.shape[1]
    if n_columns <= _LEXICOGRAPHIC_COLUMNS:
        return np.lexsort(np.concatenate([X, y], axis=1).T[::-1])
    factors = np.random.RandomState(0).randint(2**62, size=n_columns, dtype=np.int64)
    factors = 2 * factors.astype(np.uint64) + np.uint64(1)
    code = np.empty(len(X), dtype=np.uint64)
    for part in gen_batches(len(X), _CHUNK_ROWS):
        table = np.concatenate([X[part], y[part]], axis=1)
        bits = (table + 0.0).view(np.uint64)  # -0.0 becomes 0.0
        # Wrap-around is meant; the shift lets the high bits take part.
        code[part] = (bits ^ (bits >> np.uint64(29))) @ factors
    return np.argsort(code, kind="stable")


def check_sample_weight(sample_weight, X):
    """Non-negative float64 weights, not all of them zero."""
    return _check_sample_weight(
        sample_weight, X, dtype=np.float64, ensure_non_negative=True
    )
