"""The test for a breakpoint, as a method of the estimator."""

from __future__ import annotations

from collections.abc import Callable

from sklearn.base import clone
from sklearn.utils import check_random_state

from sklearn_gn import _switches as switches
from sklearn_gn._typing import ArrayLike, RandomState
from sklearn_gn.arrays.backend import one_blas_thread
from sklearn_gn.data import dates
from sklearn_gn.segmented import bootstrap, existence, selection
from sklearn_gn.segmented.preparation import check_inside, problem_of


class BreakpointTestMixin:
    """Tests whether there is a breakpoint; needs no fitted state and leaves none."""

    _validate_params: Callable[[], None]

    def breakpoint_test(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        n_draws: int = 1999,
        random_state: RandomState = 0,
    ) -> existence.BreakpointTest:
        """Test whether there is a breakpoint besides those in ``breakpoints``.

        The statistic is the largest F statistic over all positions that the parameters
        allow; its distribution without a breakpoint is simulated. ``covariance`` states
        what is assumed of the noise: that it is normal with one variance ("nonrobust"),
        independent with any variance (HC, by a wild bootstrap of score statistics), or
        also correlated along the feature (both HAC, by a bootstrap of its
        autoregression). The estimator need not be fitted.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.

        y : array-like of shape (n_samples,)
            Target values.

        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative weights; a row of weight two counts as two rows. If None, all
            weights are one.

        n_draws : int, default=1999
            Number of draws; the smallest p-value is ``1 / (1 + n_draws)``.

        random_state : int, RandomState instance or None, default=0
            Seed of the draws.

        Returns
        -------
        BreakpointTest
            Named tuple of ``statistic``, ``p_value``, and the ``breakpoint`` that
            lowers the sum of squares most.
        """
        self._validate_params()
        model, words = clone(self), (X, y, sample_weight, n_draws, random_state)
        with one_blas_thread:
            return model._breakpoint_test(*words)

    def _breakpoint_test(self, X, y, sample_weight, n_draws, random_state):
        prepared, kind, _ = self._prepare(X, y, sample_weight)
        options = self._options(kind)
        check_inside(prepared, options.known, kind)
        problem = problem_of([prepared], options)
        rng = check_random_state(random_state)
        robust = self.covariance != "nonrobust"
        if not (robust and switches.on("segmented.bootstrap")):
            found = existence.breakpoint_test(
                problem,
                float(prepared.rows.weight.sum()),
                selection.n_parameters(problem, 0),
                n_draws,
                rng,
            )
        else:
            found = bootstrap.breakpoint_test(
                problem, prepared.rows, self._covariance_kind(), n_draws, rng
            )
        t = prepared.scaling.to_user(found.breakpoint)[0]
        return found._replace(breakpoint=t if kind is None else dates.from_days(t))
