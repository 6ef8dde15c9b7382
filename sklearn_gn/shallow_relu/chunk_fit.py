"""ShallowReLURegressor on rows that come in chunks: the scikit-learn face."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
from sklearn.base import _fit_context

from sklearn_gn._typing import ArrayLike
from sklearn_gn.arrays import backend, extremes
from sklearn_gn.base import unchanged_on_failure
from sklearn_gn.data.chunks import (
    check_early_stopping,
    check_repeatable,
    chunks_of,
    first_of,
    takes_only_chunks,
)
from sklearn_gn.data.rows import check_sample_weight
from sklearn_gn.data.rows_source import CheckedRows
from sklearn_gn.runtime.memory import check_table_fits
from sklearn_gn.shallow_relu.chunked import on_all_rows, reason_against_chunks
from sklearn_gn.shallow_relu.fitting import _NetworkFit


class _ChunkFit(_NetworkFit):
    """Base class of the regressor, for data that do not fit into memory."""

    @unchanged_on_failure
    @takes_only_chunks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit_chunks(
        self,
        chunks: Iterable[tuple[ArrayLike, ...]],
        *,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit rows that come in chunks and do not fit into memory.

        Each of ``n_init`` networks is first fitted to a sample of the rows, which is
        one iteration of the log if the evidence chooses the penalties. The best one is
        then fitted to all rows; every iteration reads the chunks a few times. The
        result does not depend on how the rows are divided into chunks; up to 65,536
        distinct rows, which all fit into the sample, give that of :meth:`fit`. Takes
        the solvers "vpgn" and "sggn" with the squared loss; with one feature, ``alpha``
        must be a dict. Then :meth:`fit` calls this method if X is a dask array, or a
        memory-mapped array of 1 GiB or more.

        Parameters
        ----------
        chunks : iterable of tuples (X, y) or (X, y, sample_weight)
            Arrays of any length. The object must be iterable several times, such as a
            list or an object with ``__iter__``, not a generator.

        X_val : array-like of shape (n_val_samples, n_features), default=None
            Validation samples, which ``early_stopping`` needs here.

        y_val : array-like of shape (n_val_samples,) or (n_val_samples, n_targets), \
                default=None
            Validation targets.

        Returns
        -------
        self : ShallowReLURegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If a parameter needs all rows at once, if the chunks can be iterated only
            once, or if one is malformed or holds NaN or infinity.
        """
        check_repeatable(chunks)
        first = first_of(chunks)
        X, y, _ = self._check_data(first[0][:1], first[1][:1], None)
        reason = reason_against_chunks(self, X.shape[1])
        if reason is not None:
            raise ValueError(f"fit_chunks never has all rows in memory. {reason}")
        n_targets = 1 if self._single_target else y.shape[1]
        validation = self._check_validation_data(X_val, y_val, n_targets)
        check_early_stopping(self, X_val)
        rows = CheckedRows.of_targets(chunks, X.shape[1], n_targets)
        with backend.one_blas_thread:
            found = rows.survey()
            with extremes.arithmetic_of(np.array([found.largest])):
                self._fit_survey(rows, found, validation)
        return self

    def _large_rows(self, X, y, sample_weight, X_val):
        """Return the chunks of rows on disk; None for those that fit into memory."""
        shape = getattr(X, "shape", ())
        n_features = shape[1] if len(shape) == 2 else 1
        needs_all = self.early_stopping and X_val is None
        if needs_all or reason_against_chunks(self, n_features) is not None:
            check_table_fits(X, "Fit a random sample of the rows.")
            return None
        chunks = chunks_of(X, y, sample_weight)
        if chunks is None:
            check_table_fits(X, "fit_chunks reads rows piece by piece.")
        return chunks

    def _fit_survey(self, chunks, found, validation):
        """Fit the sample, and all rows if there are more."""
        number, weight, X, y, is_complete = found.sample
        check_table_fits(X, "Give chunks of fewer features.")
        y = y[:, 0] if self._single_target else y
        metadata = {"sample_weight": weight}
        if not is_complete:
            metadata["all_rows"] = (found.n_rows, found.total)
        self._fit(
            X,
            y,
            check_sample_weight(weight, X),
            validation,
            {"X": X, "y": y, "metadata": metadata},
            None if is_complete else lambda one: on_all_rows(one, chunks, found),
        )
        self._n_rows = found.n_rows
        checks = self._row_checks
        if checks is not None:  # it numbers the rows of the sample
            self._row_checks = checks.renumbered(number)
