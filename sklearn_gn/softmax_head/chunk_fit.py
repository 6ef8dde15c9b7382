"""FGNSoftmaxHead on rows that come in chunks: the scikit-learn face."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
from scipy import sparse
from sklearn.base import _fit_context
from sklearn.utils import check_random_state

from sklearn_gn._typing import ArrayLike, MatrixLike
from sklearn_gn.base import unchanged_on_failure
from sklearn_gn.data.chunks import (
    check_class_weight,
    check_early_stopping,
    check_on_one_device,
    check_repeatable,
    first_of,
    labels_of,
    takes_only_chunks,
)
from sklearn_gn.data.rows_source import CheckedRows
from sklearn_gn.runtime.memory import check_fits
from sklearn_gn.softmax_head.fitting import _BATCH_SIZE, _HeadFit


class _ChunkFit(_HeadFit):
    """Base class of the softmax head, for data that do not fit into memory."""

    @unchanged_on_failure
    @takes_only_chunks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit_chunks(
        self,
        chunks: Iterable[tuple[ArrayLike, ...]],
        *,
        classes: ArrayLike | None = None,
        X_val: MatrixLike | None = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit rows that come in chunks and do not fit into memory.

        Takes a mini-batch solver, such as ``solver="fgn"``. Each epoch reads the chunks
        once, in their order, and takes the rows of a chunk in random order, so chunks
        should be samples of the data and not sorted by class. ``loss`` in
        ``convergence_log_`` is estimated during an epoch; ``loss_`` is computed from
        all rows. :meth:`fit` calls this method if X is a dask array, or a memory-mapped
        array of 1 GiB or more.

        Parameters
        ----------
        chunks : iterable of tuples (X, y) or (X, y, sample_weight)
            Arrays of any length. The object must be iterable several times, such as a
            list or an object with ``__iter__``, not a generator.

        classes : array-like, default=None
            All labels, in any order and number. If None, one more pass over the chunks
            finds them.

        X_val : {array-like, sparse matrix} of shape (n_val_samples, n_features), \
                default=None
            Validation features, which ``early_stopping`` needs here.

        y_val : array-like of shape (n_val_samples,), default=None
            Validation labels.

        Returns
        -------
        self : FGNSoftmaxHead
            The fitted estimator.

        Raises
        ------
        ValueError
            If the solver needs all rows at once, if the chunks can be iterated only
            once, if one is malformed or holds NaN or infinity, or if ``class_weight``
            is "balanced".
        """
        from sklearn_gn.softmax_head.algorithms import CHUNKED_ALGORITHMS
        from sklearn_gn.softmax_head.batches import ChunkedRows

        solver = self._solver_object()
        self._check_chunks_are_possible(solver, chunks, X_val)
        start = self._previous_head() if self.warm_start else None
        first = first_of(chunks)
        labels = labels_of(chunks) if classes is None else np.asarray(classes)
        self._find_classes(labels, np.ones(len(labels)), previous=start is not None)
        self._check_data(*(array[:1] for array in first[:2]), reset=True)
        validation = self._check_validation(X_val, y_val)
        rows = ChunkedRows(CheckedRows.of_classes(chunks, self), np.dtype(self.dtype))
        rng = check_random_state(self.random_state)
        options = self._options(solver, solver.batch_size or _BATCH_SIZE, rng)
        start = self._zero_head() if start is None else start
        algorithm = solver.algorithm(CHUNKED_ALGORITHMS)
        data = {"X": None, "y": None, "metadata": None}
        self._feature_spread = 1.0
        self._run_algorithm(algorithm, rows, options, start, validation, data)
        return self

    def _check_chunks_are_possible(self, solver, chunks, X_val):
        if not hasattr(solver, "batch_size"):
            raise ValueError(
                f"solver={self.solver!r} needs all rows at once; chunks need a "
                "mini-batch solver: 'fgn', 'sgn' or 'adam'."
            )
        check_on_one_device(self)
        check_repeatable(chunks)
        check_class_weight(self)
        check_early_stopping(self, X_val)

    def _check_memory(self, X, y, solver):
        """Raise a ValueError if a fit of X would not fit into memory."""
        shape = () if sparse.issparse(X) else getattr(X, "shape", ())
        if len(shape) != 2 or not hasattr(y, "__len__") or len(y) != shape[0]:
            return  # validation says what is wrong
        n, d = shape
        size, newton = np.dtype(self.dtype).itemsize, not hasattr(solver, "batch_size")
        # Rows in their order; whitened ones; logits, and what a step makes of them.
        needed = n * d * (size + 4 * newton)
        if getattr(X, "dtype", None) != self.dtype:
            needed += n * d * size
        if newton and needed > 2**28:  # counting classes takes time
            needed += 16 * n * len(np.unique(np.asarray(y)))
        single = "" if size == 4 else "dtype='float32' halves that. "
        check_fits(
            needed,
            f"{single}solver='fgn' reads a memory-mapped X, a dask array, or the "
            "chunks of fit_chunks piece by piece.",
        )
