"""What a fitted PINNSolver answers. All of it comes from the fitted state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from sklearn_gn._caller import warn_user
from sklearn_gn._typing import Array, ArrayLike
from sklearn_gn.arrays import backend, extremes
from sklearn_gn.arrays.trees import dimension
from sklearn_gn.bayes.laplace import PredictionIntervalMixin
from sklearn_gn.data.rows import validate_data
from sklearn_gn.data.units import Units


class Fitted(NamedTuple):
    """What predictions need."""

    model: Any
    net: Any
    problem: Any  # Problem or None
    observed: tuple
    single_target: bool
    scaling: Units | None


class SolutionMixin(PredictionIntervalMixin):
    """Predictions of a fitted solver."""

    _error_estimate: float | None  # None until it is computed
    _share: float  # loss on fresh points but for noise, over that of no solution
    _window_points: tuple | None  # fresh ones, of a fit in windows
    _draw_fresh: Callable[..., tuple]  # draws fresh points of the conditions

    def __sklearn_is_fitted__(self):
        return hasattr(self, "_fitted")

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Array: ...

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[True]
    ) -> tuple[Array, Array]: ...

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> Array | tuple[Array, Array]:
        """Values of the solution.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes)
            Points. Columns named like the axes may come in any order.
        return_std : bool, default=False
            Whether to also return standard deviations, from the Gauss-Newton matrix,
            the noise of the observations, and the residuals of the equation on fresh
            points. For unknown functions they come from a Gaussian process whose
            smoothness the evidence chooses, and include the bias of the fit.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Values of the outputs; one-dimensional if there is one output.
        std : ndarray of the same shape
            Their standard deviations. Only with ``return_std``.

        Raises
        ------
        ValueError
            If ``return_std`` is True and the fit is too large, is divided into windows
            of time, or has unknown functions of more than three axes.
        """
        from sklearn_gn.pinn import solution

        X, net, scaling = self._points(X), self._fitted.net, self._fitted.scaling
        y = self._evaluated(X)
        y = extremes.numbers(y, self._fitted.model.features)
        if scaling is not None:
            y = extremes.scaled_back(y, scaling.y_scale, scaling.y_center)
        if not return_std:
            return self._shaped(y)
        if self._posterior is None:
            why = "the fit has too many residuals and weights for standard deviations."
            if self.window_ends_.size:
                why = "a fit in windows of time has no standard deviations. Solve a "
                why += "shorter time, or give hidden_layer_sizes."
            raise ValueError(f"return_std=True: {why}")
        if getattr(self._posterior, "waves", ()) is None:
            raise ValueError(
                "return_std=True: a solution with unknown functions of more than three "
                "axes has no standard deviations."
            )
        n = max(32, solution.AT_ONCE // (dimension(net) * y.shape[1]))
        std = self._in_batches(self._posterior.output_deviations, X, n, "float64")
        if scaling is not None:
            std = extremes.scaled_back(std, scaling.y_scale)
        return self._shaped(y), self._shaped(std)

    def _noise(self):
        """Standard deviation of the noise of the observations, and its freedom."""
        if np.isnan(self.noise_std_).any():
            raise ValueError(
                "predict_interval: noise_std_ is NaN, as without observations X and y, "
                "and in regressions whose penalties the evidence has not chosen "
                "(alpha_ is empty). predict(X, return_std=True) has the errors of the "
                "solution itself."
            )
        with backend.scope("float64", self.device):
            freedom = self._posterior.noise_freedom
        noise_std = self._for_outputs(self.noise_std_, 0.0)
        return noise_std, self._for_outputs(freedom, np.sum(freedom))

    def _for_outputs(self, values, otherwise):
        """Turn numbers for the columns of y into numbers for the outputs."""
        fitted = self._fitted
        if fitted.problem is None:
            return values
        found = np.full(len(fitted.problem.outputs), otherwise)
        for entry, value in zip(fitted.observed, np.ravel(values), strict=True):
            if not callable(entry):
                found[entry] = value
        return found[0] if fitted.single_target else found

    def _predicted(self, X):
        """Values of a regression by the evidence at rows, of shape (n, n_outputs)."""
        scaling, known = self._fitted.scaling, self._posterior
        y = known.layers.values(known.theta, scaling.x(X))
        return extremes.scaled_back(y, scaling.y_scale, scaling.y_center)

    def _shaped(self, y):
        return y[:, 0] if self._fitted.single_target else y

    def _points(self, X):
        """Points in the units of the network."""
        from sklearn_gn.pinn.data import in_order_of_axes

        check_is_fitted(self)
        if self._fitted.problem is not None:
            X = in_order_of_axes(X, self._fitted.problem)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        scaling, problem = self._fitted.scaling, self._fitted.problem
        X = X if scaling is None else scaling.x(X)
        if hasattr(self, "_fit_run") or problem is None:
            return X
        beyond = np.zeros(len(X), bool)
        if self.window_ends_.size:
            time = X[:, problem.domain.axes.index(problem.domain.time)]
            beyond = time > self._solved_until
        if beyond.any():
            warn_user(
                f"{beyond.sum()} of {len(X)} points lie beyond {problem.domain.time} = "
                f"{self._solved_until:.4g}, where the solved part ends: what "
                "is returned there is extrapolated. Fit with a larger max_time.",
                ConvergenceWarning,
            )
        outside = problem.domain._is_outside(X)
        if outside.any():
            warn_user(
                f"{outside.sum()} of {len(X)} points lie outside of the domain, such "
                f"as {X[outside][0].tolist()}: what is returned there is extrapolated, "
                "and need not satisfy the equation."
            )
        return X

    def _evaluated(self, X, *function):
        """Values of the outputs, or of a function, at points, each of its window."""
        from sklearn_gn.pinn import solution, windows

        def at(model, net, x):
            return solution.values(model, net, x, *function)

        model, net = self._fitted.model, self._fitted.net
        return self._in_batches(lambda x: windows.at_points(at, model, net, x), X)

    def residual(self, X: ArrayLike) -> Array:
        """Residuals of the equation, which an exact solution makes zero.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes)
            Points.

        Returns
        -------
        r : ndarray of shape (n_samples, n_residuals)
            In the order in which ``problem.residual`` returns them.

        Raises
        ------
        ValueError
            If ``problem`` is None.
        """
        equation = self._fitted_problem("residual").residual_classes()[0].function
        return self._evaluated(self._points(X), equation)

    def derivative(self, X: ArrayLike, *axes: str) -> Array:
        """Partial derivatives of the solution.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes)
            Points.
        *axes : str
            Names of the axes to differentiate along, one after the other: "x" for the
            first derivative along x, "x", "x" for the second.

        Returns
        -------
        dy : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            As from ``predict``.

        Raises
        ------
        ValueError
            If ``problem`` is None, no axis is given, or ``problem`` has none of such a
            name.
        """
        from sklearn_gn.pinn.solution import Outputs

        known = self._fitted_problem("derivative").domain.axes
        if not axes:
            raise ValueError(
                f"derivative() needs at least one axis, such as derivative(X, "
                f"{known[0]!r}); the axes are {known}."
            )
        for axis in axes:
            if axis not in known:
                raise ValueError(
                    f"derivative: axis {axis!r} is unknown; the axes are {known}."
                )
        return self._shaped(self._evaluated(self._points(X), Outputs(axes)))

    def _fitted_problem(self, name):
        check_is_fitted(self)
        if self._fitted.problem is None:
            raise ValueError(
                f"{name}() needs a differential equation: pass problem=Problem(...)."
            )
        return self._fitted.problem

    def score(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Coefficient of determination; without data, digits of the loss.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes), default=None
            Points.
        y : array-like of shape (n_samples,) or (n_samples, n_observed), default=None
            True values of the observed outputs there; NaN where they are not known.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights. If None, all are one.

        Returns
        -------
        float
            R2 of the observed outputs; without data, minus the decimal logarithm of the
            loss on fresh points.
        """
        check_is_fitted(self)
        if X is None and y is None:
            return -math.log10(max(self.fresh_loss_, np.finfo(float).tiny))
        if X is None or y is None:
            missing = "y" if y is None else "X"
            raise ValueError(f"score: X and y belong together: {missing} is missing.")
        from sklearn_gn.pinn.residuals import Observed

        observed = self._fitted.observed  # without noise, (n, n_observed)
        if any(map(callable, observed)):
            predicted = self._evaluated(self._points(X), Observed(observed))
        else:
            predicted = self.predict(X)
            predicted = predicted.reshape(len(predicted), -1)[:, list(observed)]
        y = np.reshape(np.asarray(y, np.float64), (len(predicted), -1))
        weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        there = ~np.isnan(y)
        columns = zip(y.T, predicted.T, there.T, strict=True)
        scores = [r2_score(a[k], b[k], sample_weight=weight[k]) for a, b, k in columns]
        return float(np.mean(scores))

    @property
    def error_estimate_(self) -> float:
        """Estimate of the relative L2 error of the solution, from its residuals."""
        from sklearn_gn.pinn import error_estimate as estimates
        from sklearn_gn.pinn.statement import kinks_left_open
        from sklearn_gn.pinn.windows import SOLVED_LOSS

        check_is_fitted(self)
        if self._error_estimate is None:
            fitted, known, found = self._fitted, self._posterior, math.nan
            is_known = fitted.problem is not None and (
                self._share <= SOLVED_LOSS or not kinks_left_open(fitted.problem)
            )
            with backend.scope("float64", self._dtype_and_device()[1]):
                if is_known and known is not None:
                    given = known.model, known.net, known.batches, known.fresh
                    found = estimates.relative_error_estimate(*given, self._draw_fresh)
                elif is_known and self._window_points is not None:
                    given = fitted.model, fitted.net, self._window_points
                    found = estimates.relative_error_in_windows(*given)
            self._error_estimate = found
        return self._error_estimate

    def relative_error(
        self,
        X: ArrayLike | None = None,
        *,
        multioutput: Literal["joint", "raw_values"] = "joint",
    ) -> float | Array:
        """Relative L2 error versus the exact solution of the problem.

        Outputs that are determined up to a constant are compared without their means.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_axes), default=None
            Points. If None, 4,096 points of the domain, or all those at which a
            computed solution is known.
        multioutput : {"joint", "raw_values"}, default="joint"
            Whether to return one number, for all known outputs together, or one each.

        Returns
        -------
        float or ndarray of shape (n_outputs,)
            NaN for outputs that are not known.

        Raises
        ------
        ValueError
            If the problem has no exact solution.
        """
        from sklearn_gn.pinn import solution

        check_is_fitted(self)
        problem = self._fitted.problem
        if problem is None or problem.exact is None:
            raise ValueError("relative_error: the problem has no exact solution.")
        if multioutput not in ("joint", "raw_values"):
            raise ValueError(
                f"multioutput must be 'joint' or 'raw_values', got {multioutput!r}."
            )
        if X is None:
            _, X, exact = solution.reference(problem, np.random.RandomState(0))
        else:
            X = self._points(X)
            exact = problem.exact_values(X)
        values = self._evaluated(X)
        joint, each = solution.relative_errors(problem, values, exact)
        return float(joint) if multioutput == "joint" else each
