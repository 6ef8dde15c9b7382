"""The base class of the estimators: parameters, validation, the run of a solver."""

from functools import wraps
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import Interval, StrOptions

from sklearn_gn._reference_link import ReferenceLinkMixin
from sklearn_gn.callbacks import EarlyStopping, TimeBudget
from sklearn_gn.core import backend, extremes, live_programs
from sklearn_gn.core.callback_support import CallbackSupportMixin, FitTasks
from sklearn_gn.core.data import check_validation_pair, validate_data
from sklearn_gn.core.diagnose_method import DiagnoseMixin
from sklearn_gn.core.diagnosis import diagnose
from sklearn_gn.core.row_checks import checked_rows, target_spread
from sklearn_gn.core.stop import is_interrupt
from sklearn_gn.core.versions import VersionStampMixin
from sklearn_gn.solvers import Solver
from sklearn_gn.solvers._base import resolve

_BATCH_ROWS = 4096  # of predictions


def unchanged_on_failure(fit):
    """Decorate a method ``fit``: one that fails leaves the estimator as it was.

    An error, or Ctrl-C before there is a model, would otherwise leave attributes of two
    fits side by side. The settings of the thread, too, are what they were, and compiled
    programs are forgotten where they have become many.
    """

    @wraps(fit)
    def wrapper(self, *args, **kwargs):
        before, settings = dict(vars(self)), backend.settings_of_thread()
        try:
            return fit(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise
        finally:
            backend.restore_settings(settings)
            live_programs.forget_if_many()

    return wrapper


class GaussNewtonEstimator(
    DiagnoseMixin,
    ReferenceLinkMixin,
    VersionStampMixin,
    CallbackSupportMixin,
    BaseEstimator,
):
    """What the estimators share: parameters, validation, and the run of a solver."""

    _parameter_constraints: dict[str, Any] = {
        "solver": [str, Solver],
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
        "device": "no_validation",  # a mesh is known when JAX is loaded
        "verbose": ["verbose"],
        "random_state": ["random_state"],
    }

    _short_forms = {}
    _not_of_every_fit: tuple[str, ...] = ()  # fitted attributes that some fits lack
    _cure_of_overfitting = (  # cause, parameter, advice
        "overfitting",
        "alpha",
        "Raise alpha, or set early_stopping=True.",
    )

    def _diagnosis(self):
        return diagnose(self)

    def _solver_object(self):
        """The solver object that ``solver`` stands for."""
        return resolve(self.solver, self._short_forms, type(self).__name__)

    def _most_iterations(self):
        """Number of iterations after which a fit ends; it may be infinite."""
        return self.max_iter

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

    def _advice(self, reason):
        """What a warning says about the reason of the stop; None for no warning."""
        return reason.advice

    def _limits_of_steps(self):
        """Parameters of which a number makes steps smaller than None does."""
        return ("rank", "damping")

    def _limits(self):
        """(cause, text, parameter) of what limited a fit; None: as its log shows."""
        return None

    def _n_linear_networks(self):
        """Number of networks that are linear although they have neurons, and of all."""
        return 0, 1

    def _naming_its_budget(self, text):
        """A text in which ``max_time`` is the callback that bounds the fit instead."""
        bounds = [
            (callback.seconds, repr(callback))
            for callback in getattr(self, "_skl_callbacks", [])
            if isinstance(callback, TimeBudget)
        ]
        seconds, name = min(bounds, default=(np.inf, ""))
        limit = np.inf if self.max_time is None else self.max_time
        return text.replace("max_time", name) if seconds < limit else text

    def _arithmetic(self, X, y):
        """The context in which to compute with data, and with numbers as parameters."""
        numbers = np.array([*_numbers_in(self.get_params(deep=False).values()), 1.0])
        return extremes.arithmetic_of(X, y, numbers)

    def _cast(self, value):
        """In the precision of the fit, in which large numbers may be infinite."""
        with np.errstate(over="ignore"):
            return np.asarray(value, dtype=self.dtype)

    def _dtype_and_device(self):
        """Those of the fit that is being made, or else of the last one.

        If this machine lacks the device of the last one, the default takes its place.
        """
        if hasattr(self, "_fit_run") or not hasattr(self, "_computed_in"):
            return self.dtype, self.device
        dtype, device = self._computed_in
        return dtype, backend.available(device)

    def _in_batches(self, function, x, batch_rows=_BATCH_ROWS, dtype=None):
        """A compiled function of rows, in float64, for few shapes of its argument.

        It is computed in the precision of the fit, if ``dtype`` is not given.
        """
        parts = []
        own, device = self._dtype_and_device()
        dtype = dtype or own
        with backend.scope(dtype, device):
            for batch in gen_batches(len(x), batch_rows):
                part = extremes.cast_within_range(x[batch], dtype)
                # Padded by the last row: zeros may lie outside of a domain.
                n = backend.row_bucket(len(part)) - len(part)
                padded = np.concatenate([part, np.repeat(part[-1:], n, axis=0)])
                parts.append(backend.to_numpy(function(padded))[: len(part)])
        return np.concatenate(parts).astype(np.float64)

    def _run(self, run, *, max_steps, data, attributes, set_fitted):
        """Run a solver under the callbacks and set the fitted attributes.

        Parameters
        ----------
        run : FitRun
        max_steps : int
            Most steps, accepted or not. It may be infinite.
        data : dict
            ``X``, ``y`` and ``metadata`` for callbacks.
        attributes : callable
            Maps a network to the fitted attributes that predictions need.
        set_fitted : callable
            Called without arguments after the run to set the fitted attributes; once
            more where Ctrl-C falls into it.
        """
        self._forget_former_fit()
        with self._arithmetic(data["X"], data["y"]):
            self._run_quietly(run, max_steps, data, attributes, set_fitted)
        run.warn_if_not_converged()

    def _forget_former_fit(self):
        for name in self._not_of_every_fit:
            vars(self).pop(name, None)

    def _run_quietly(self, run, max_steps, data, attributes, set_fitted):
        named = isinstance(self.device, str)
        computed_in = self.dtype, self.device if named else None
        self._fit_run = run
        run.given = data
        self._n_rows = np.inf if data["X"] is None else data["X"].shape[0]
        try:
            most = None if np.isinf(max_steps) else max_steps
            tasks = FitTasks(self, self._fit_callbacks(), max_iter=most, data=data)
            run.run(
                tasks,
                lambda: {**attributes(run.best_net), "_computed_in": computed_in},
            )
        finally:
            del self._fit_run
        self._computed_in = computed_in
        self._is_compiled = run.solver.compiled
        try:
            self._set_results(run, set_fitted)
        except (KeyboardInterrupt, Exception) as error:
            if not is_interrupt(error):
                raise
            run.interrupt()
            self._set_results(run, set_fitted)

    def _set_results(self, run, set_fitted):
        """Set the attributes that all estimators have, then those of this one."""
        self.convergence_log_ = run.convergence_log()
        self.n_iter_ = len(run.log)
        self.converged_ = run.converged
        self.stop_reason_ = run.stop_reason.value
        with backend.one_blas_thread:  # its factorisations are as small as the fit's
            set_fitted()
            self._row_checks = self._checked_rows(run.given)
            self._target_spread = self._spread_of_targets(run.given)

    def _spread_of_targets(self, data):
        """Standard deviation of each target; None without noise that is known."""
        if data["y"] is None or not hasattr(self, "noise_std_"):
            return None
        weight = (data["metadata"] or {}).get("sample_weight")
        return target_spread(data["y"], weight)

    def _checked_rows(self, data):
        """What the evidence assumes of the rows and is not so; None without it."""
        if np.isnan(getattr(self, "n_effective_parameters_", np.nan)):
            return None
        X, y, metadata = data["X"], data["y"], data["metadata"] or {}
        if sparse.issparse(X):
            return None
        predicted = getattr(self, "_predicted", None)
        return checked_rows(X, y, metadata.get("sample_weight"), predicted)


def _numbers_in(values):
    """Yield the real numbers among values, and in the tuples and lists among them."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _numbers_in(value)
        elif isinstance(value, float) and np.isfinite(value):
            yield float(value)
