"""The base classes of the estimators: parameters, validation, the run of a solver."""

from __future__ import annotations

import difflib
import sys
import warnings
from functools import wraps
from numbers import Integral, Real
from typing import Any, Literal, overload

import numpy as np
import sklearn
from scipy import sparse
from scipy.special import log_softmax, softmax
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MultiOutputMixin,
    RegressorMixin,
)
from sklearn.callback import CallbackSupportMixin
from sklearn.utils import compute_class_weight, gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from sklearn_gn import findings
from sklearn_gn._typing import Array, ArrayLike, MatrixLike
from sklearn_gn.arrays import backend, programs, threads
from sklearn_gn.bayes.laplace import PredictionIntervalMixin
from sklearn_gn.callbacks import EarlyStopping, TimeBudget
from sklearn_gn.data.chunks import class_numbers
from sklearn_gn.data.row_checks import checked_rows, target_spread
from sklearn_gn.data.rows import (
    check_no_label_is_missing,
    check_objects,
    check_sample_weight,
    validate_data,
    weights_of,
)
from sklearn_gn.optim.multinomial import all_classes
from sklearn_gn.runtime.onnx import ConvertedToONNX
from sklearn_gn.solvers import Solver
from sklearn_gn.solvers._base import ReferenceLinkMixin

_BATCH_ROWS = 4096  # of predictions


def unchanged_on_failure(fit):
    """Decorate a method ``fit``: one that fails leaves the estimator as it was.

    An error, or Ctrl-C before there is a model, would otherwise leave attributes of two
    fits side by side. BLAS has one thread meanwhile, so that no bit of a fit depends on
    the number of cores. Numbers that leave the range of floats are no news: what they
    make of results is checked there. Compiled programs are forgotten where they have
    become many.
    """

    @wraps(fit)
    def wrapper(self, *args, **kwargs):
        before = dict(vars(self))
        try:
            with threads.one_blas_thread(), np.errstate(all="ignore"):
                return fit(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise
        finally:
            programs.forget_if_many()

    return wrapper


class DiagnoseMixin:
    """Says what limited the last fit."""

    def diagnose(self) -> findings.Diagnosis:
        """Say what limited the fit, and which parameter to change.

        Returns
        -------
        diagnosis : Diagnosis
            Prints as text; ``diagnosis.findings`` is a list of ``(cause, text,
            parameter)``, the most serious first.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        """
        check_is_fitted(self)
        return self._diagnosis()

    _diagnosis = findings.diagnose


def versions() -> dict[str, str]:
    """Return the versions that decide what fitted attributes mean."""
    package = sys.modules["sklearn_gn"]  # which imports this module
    return {
        "sklearn_gn": package.__version__,
        "scikit-learn": sklearn.__version__,
        "numpy": np.__version__,
    }


class VersionStampMixin(BaseEstimator):
    """Write the versions into the state of an estimator, which loading compares."""

    def __getstate__(self) -> dict[str, Any]:
        return {**dict(super().__getstate__()), "_made_with": versions()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        then, now = state.pop("_made_with", {}), versions()
        super().__setstate__(state)
        changed = [
            f"{name} {then.get(name, 'unknown')}, now {now[name]}"
            for name in now
            # Patches keep the meaning of attributes.
            if then.get(name, "").split(".")[:2] != now[name].split(".")[:2]
        ]
        if changed:
            warnings.warn(
                f"This {type(self).__name__} was saved with {'; '.join(changed)}. Its "
                "predictions may differ or fail: fit it again, or load it with the "
                "versions that it was saved with.",
                UserWarning,
                stacklevel=2,
            )


class GaussNewtonEstimator(
    DiagnoseMixin,
    ReferenceLinkMixin,
    VersionStampMixin,
    CallbackSupportMixin,
    ConvertedToONNX,
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

    def _solver_object(self):
        """Return the solver object that ``solver`` stands for."""
        solver, known = self.solver, self._short_forms
        if isinstance(solver, str):
            if solver in known:
                return known[solver]
            near = difflib.get_close_matches(solver, list(known), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"solver={solver!r} is unknown; the solvers are {sorted(known)}." + hint
            )
        own = type(solver).algorithm is not Solver.algorithm
        if not own and type(solver) not in {type(s) for s in known.values()}:
            names = sorted({type(s).__name__ for s in known.values()})
            raise ValueError(
                f"solver={solver!r} does not fit {type(self).__name__}, but {names} do."
            )
        solver._validate_params()
        return solver

    def _most_iterations(self):
        """Number of iterations after which a fit ends; it may be infinite."""
        return self.max_iter

    def _checked_rows(
        self, X, y, sample_weight=None, y_std=None, X_val=None, y_val=None
    ):
        """Check the data of a regression, and set whether it has a single target.

        Returns what callbacks see of the rows, a dict of X, y and metadata; the targets
        of shape (m, n_targets); the weights; and the validation data.
        """
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64
        )
        weight, *_ = weights_of(sample_weight, y_std, X)
        self._single_target, targets = y.ndim == 1, y.reshape(len(y), -1)
        validation = None
        if X_val is not None or y_val is not None:
            validation = self._check_validation(X_val, y_val, targets.shape[1])
        unweighted = sample_weight is None and y_std is None
        metadata = None if unweighted else {"sample_weight": weight}
        return {"X": X, "y": y, "metadata": metadata}, targets, weight, validation

    def _check_validation(self, X_val, y_val, n_targets=None):
        """X, targets or class numbers, and weights of sum one; None without any."""
        if (X_val is None) != (y_val is None):
            missing = "y_val" if y_val is None else "X_val"
            raise ValueError(f"X_val and y_val belong together: {missing} is missing.")
        if X_val is None:
            return None
        X_val, y_val = self._validation_rows(X_val, y_val, n_targets)
        return X_val, y_val, np.full(len(y_val), 1 / len(y_val))

    def _validation_rows(self, X_val, y_val, n_targets):
        X_val, y_val = validate_data(
            self, X_val, y_val, reset=False, multi_output=True, dtype=np.float64
        )
        y_val = y_val.astype(np.float64).reshape(X_val.shape[0], -1)
        if y_val.shape[1] != n_targets:
            raise ValueError(f"y_val has {y_val.shape[1]} targets, y has {n_targets}.")
        return X_val, y_val

    def _advice(self, reason):
        """What a warning says about the reason of the stop; None for no warning."""
        return reason.advice

    def _limits_of_steps(self):
        """Parameters that make steps smaller by a number than by None."""
        return ("rank", "damping")

    def _limits(self):
        """(cause, text, parameter) of what limited a fit; None: as its log shows."""
        return None

    def _share_of_linear(self):
        """Share of a linear model in the predictions of networks that have neurons."""
        return 0.0

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

    def _cast(self, value):
        """In the precision of the fit, in which large numbers may be infinite."""
        return np.asarray(value, dtype=self.dtype)

    def _dtype_and_device(self):
        """Precision and device of this fit, or of the last one where it is here."""
        if hasattr(self, "_fit_run") or not hasattr(self, "_computed_in"):
            return self.dtype, self.device
        dtype, device = self._computed_in
        return dtype, backend.available(device)

    def _in_batches(self, function, x, batch_rows=_BATCH_ROWS, dtype=None):
        """A compiled function of rows, in float64, for few shapes of its argument."""
        parts = []
        own, device = self._dtype_and_device()
        dtype = dtype or own
        with backend.scope(dtype, device):
            for batch in gen_batches(len(x), batch_rows):
                # With room left for products with weights.
                largest = np.finfo(dtype).max / 1e8
                part = np.clip(x[batch], -largest, largest).astype(dtype, copy=False)
                # Padded by the last row: zeros may lie outside of a domain.
                n = backend.row_bucket(len(part)) - len(part)
                padded = np.concatenate([part, np.repeat(part[-1:], n, axis=0)])
                parts.append(backend.to_numpy(function(padded))[: len(part)])
        return np.concatenate(parts).astype(np.float64)

    def _run(self, run, *, max_steps, data, attributes, set_fitted):
        """Run a solver under the callbacks and set the fitted attributes.

        ``max_steps``, accepted or not, may be infinite. ``attributes`` maps a network
        to the fitted attributes that predictions need; ``set_fitted`` is called after
        the run to set all of them, once more where Ctrl-C falls into it.
        """
        for name in self._not_of_every_fit:
            vars(self).pop(name, None)
        computed_in = self.dtype, self.device if isinstance(self.device, str) else None
        callbacks = []
        if self.max_time is not None:
            callbacks.append(TimeBudget(self.max_time))
        if self.early_stopping:
            callbacks.append(EarlyStopping(n_iter_no_change=self.n_iter_no_change))
        self._n_rows = np.inf if data["X"] is None else data["X"].shape[0]
        self._fit_run = run
        try:
            run.run(
                data,
                callbacks,
                max_steps,
                lambda: {**attributes(run.best_net), "_computed_in": computed_in},
            )
        finally:
            del self._fit_run
        self._computed_in = computed_in
        self._is_compiled = run.solver.compiled
        try:
            self._set_results(run, set_fitted)
        except (KeyboardInterrupt, Exception) as error:
            run.interrupt(error)
            self._set_results(run, set_fitted)
        run.warn_if_not_converged()

    def _set_results(self, run, set_fitted):
        """Set the attributes that all estimators have, then the estimator's own."""
        self.convergence_log_ = run.convergence_log()
        self.n_iter_ = len(run.log)
        self.converged_ = run.stop_reason.converged
        self.stop_reason_ = run.stop_reason.value
        set_fitted()
        X, y = run.given["X"], run.given["y"]
        weight = (run.given["metadata"] or {}).get("sample_weight")
        # What the choice of penalties assumes of the rows, if it was made.
        by_left_out = getattr(self, "alpha_method_", None) == "left-out"
        chosen = by_left_out or findings.by_evidence(self)
        self._row_checks = self._target_spread = None
        if chosen and not sparse.issparse(X):
            predicted = getattr(self, "_predicted", None)
            self._row_checks = checked_rows(X, y, weight, predicted)
        if y is not None and hasattr(self, "noise_std_"):
            self._target_spread = target_spread(y, weight)


class NetworkRegressor(PredictionIntervalMixin, MultiOutputMixin, RegressorMixin):
    """A regression by networks: means and their standard deviations.

    ``_predicted`` and ``_deviation`` of a subclass map checked features to either, of
    shape (n_samples, n_targets).
    """

    _single_target: bool

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Array: ...

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[True]
    ) -> tuple[Array, Array]: ...

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> Array | tuple[Array, Array]:
        """Predict targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        return_std : bool, default=False
            Whether to return standard deviations of the predicted means too. They come
            from the Gauss-Newton matrix, and a weight of two counts as two rows.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Predicted values.
        std : ndarray of the same shape
            Their standard deviations, without the noise of a new observation, which
            :meth:`predict_interval` adds. Only if ``return_std`` is True.

        Warns
        -----
        UserWarning
            If ``return_std`` is True and the rows are too few to estimate the noise.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        y = self._predicted(X)
        y = y[:, 0] if self._single_target else y
        if not return_std:
            return y
        std = self._deviation(X)
        return y, std[:, 0] if self._single_target else std


class SoftmaxClassifier(ClassifierMixin):
    """A classifier with ``classes_`` and ``class_weight``.

    ``_values`` of a subclass maps checked features to the logits, of one column for two
    classes and one per class otherwise.
    """

    _accept_sparse: bool | str = False
    _input_dtypes: Any = np.float64  # to which X is converted unless it has one of them

    # -- labels -----------------------------------------------------------------------

    def _check_data(self, X, y, *, reset):
        try:
            X, y = validate_data(
                self,
                X,
                y,
                reset=reset,
                accept_sparse=self._accept_sparse,
                dtype=self._input_dtypes,
            )
        except (TypeError, ValueError) as error:
            if isinstance(error, TypeError) or "NaN" in str(error):
                check_no_label_is_missing(y)
            raise
        if y.dtype == object:
            check_objects(y)
        check_classification_targets(y)
        return X, y

    def _find_classes(self, y, weight, *, previous):
        """Set ``classes_``, which must be the same as before if ``previous``."""
        classes = np.unique(y[weight > 0])
        if len(classes) < 2:
            raise ValueError(
                "y must hold at least two classes of positive weight, got one class: "
                f"{classes.tolist()}."
            )
        if previous and not np.array_equal(classes, self.classes_):
            raise ValueError(
                "warm_start=True continues with the classes of the previous fit, "
                f"{self.classes_.tolist()}; y has {classes.tolist()}."
            )
        self.classes_ = classes

    def _encode_weighted(self, X, y, weight):
        """Rows of weight: X, class numbers, and weights times class weights."""
        if (weight == 0).any():
            counted = weight > 0
            X, y, weight = X[counted], y[counted], weight[counted]
        code = np.searchsorted(self.classes_, y)
        if self.class_weight is not None:
            by_class = self._factors_of_classes(y, weight)
            weight = check_sample_weight(weight * by_class[code], X)
        return X, code, weight

    def _factors_of_classes(self, y, weight):
        """The factors that ``class_weight`` stands for, by number of the class."""
        self._check_class_weight()
        factors = compute_class_weight(
            self.class_weight, classes=self.classes_, y=y, sample_weight=weight
        )
        with np.errstate(over="ignore"):  # partial_fit is no fit
            weight = weight * factors[np.searchsorted(self.classes_, y)]
        if not (np.isfinite(weight).all() and (weight > 0).any()):
            raise ValueError(
                "class_weight times sample_weight must be finite, and positive for at "
                f"least one row; class_weight={self.class_weight!r} gives weights from "
                f"{weight.min()} to {weight.max()}."
            )
        return factors

    def _check_class_weight(self):
        """Raise a ValueError that names the first weight that is no weight."""
        if not isinstance(self.class_weight, dict):
            return
        for label, factor in self.class_weight.items():
            if not (isinstance(factor, Real) and 0 <= factor < np.inf):
                raise ValueError(
                    "The values of class_weight must be finite numbers, zero or "
                    f"larger; class {label!r} has {factor!r}."
                )

    def _validation_rows(self, X_val, y_val, n_targets):
        X_val, y_val = self._check_data(X_val, y_val, reset=False)
        return X_val, class_numbers(self.classes_, y_val, "y_val")

    # -- predictions ------------------------------------------------------------------

    def decision_function(self, X: MatrixLike) -> Array:
        """Return the logits.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples, of any kind that ``fit`` takes.

        Returns
        -------
        logits : ndarray of shape (n_samples,) or (n_samples, n_classes)
            One column per class. For two classes, the logit of the second one only.
        """
        check_is_fitted(self)
        X = validate_data(
            self, X, reset=False, accept_sparse=self._accept_sparse, dtype=np.float64
        )
        logits = self._values(X)
        return logits[:, 0] if logits.shape[1] == 1 else logits

    def predict(self, X: ArrayLike) -> Array:
        """Predict the labels.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples, of any kind that ``fit`` takes.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            The most probable classes.
        """
        logits = self.decision_function(X)
        code = (logits > 0).astype(int) if logits.ndim == 1 else logits.argmax(axis=1)
        return self.classes_[code]

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities of the classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples, of any kind that ``fit`` takes.

        Returns
        -------
        p : ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``.
        """
        return softmax(self._class_logits(X), axis=1)

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Logarithms of the probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples, of any kind that ``fit`` takes.

        Returns
        -------
        log_p : ndarray of shape (n_samples, n_classes)
            In the order of ``classes_``; finite where the probability underflows.
        """
        return log_softmax(self._class_logits(X), axis=1)

    def _class_logits(self, X):
        logits = self.decision_function(X)
        return all_classes(logits[:, None] if logits.ndim == 1 else logits)


def cross_entropy(values, code, weight):
    """Weighted mean over the rows, for values of one column or one a class."""
    log_p = log_softmax(all_classes(values), axis=1)
    return -float(weight @ log_p[np.arange(len(code)), code])
