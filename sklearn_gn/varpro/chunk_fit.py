"""The networks on rows that come in chunks: the scikit-learn face."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import _fit_context, is_classifier
from sklearn.utils import check_random_state

from sklearn_gn._typing import ArrayLike
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.extremes import total_weight
from sklearn_gn.base import unchanged_on_failure
from sklearn_gn.data.chunks import (
    check_class_weight,
    check_early_stopping,
    check_on_one_device,
    check_repeatable,
    chunks_of,
    first_of,
    labels_of,
    takes_only_chunks,
)
from sklearn_gn.data.rows import (
    canonical_rows,
    check_sample_weight,
    feature_spread,
    validate_data,
)
from sklearn_gn.data.rows_source import CheckedRows
from sklearn_gn.varpro.estimator import _MOST_STEPS, _VarProNet

_SAMPLE_ROWS, _SAMPLE_NUMBERS = 2**20, 2**24  # from which batches are drawn
_UNITS_NUMBERS = 2**22  # of the rows that set the units
_FEW_ROWS = 8192  # fitted at once by solvers without a batch size
ADVICE_ON_MEMORY = (
    "fit_chunks reads rows piece by piece, and so does fit a dask array or a large "
    "memory-mapped one."
)


class _ChunkFit(_VarProNet):
    """What the fits in chunks of both estimators share."""

    def _chunks_of(self, X, y, sample_weight, X_val):
        """Chunks of arrays on disk; None of arrays that are fitted as a whole."""
        needs_all = getattr(self._solver_object(), "batch_size", "auto") is None
        needs_all &= not self._has_mini_batches()
        needs_all |= self.early_stopping and X_val is None
        needs_all |= getattr(self, "class_weight", None) == "balanced"
        if needs_all or backend.mesh_of(self.device) is not None:
            return None
        return chunks_of(X, y, sample_weight)

    def _has_mini_batches(self):
        return not hasattr(self._solver_object(), "iterations_per_batch")

    def _check_chunks_are_possible(self, chunks, X_val):
        check_repeatable(chunks)
        check_on_one_device(self)
        check_early_stopping(self, X_val)

    def _fit_distinct(self, X, y, weight, data, validation):
        """Fit to the distinct ones of checked rows in memory.

        Parameters
        ----------
        X : ndarray of shape (n, n_features)
        y : ndarray of shape (n, n_targets) or (n,)
            Targets, or numbers of the classes.
        weight : ndarray of shape (n,)
        data : dict
            X and y as given, and the metadata of the fit.
        validation : tuple or None
            X, y and weights; the last ones sum to one.
        """
        rng = check_random_state(self.random_state)
        n_effective = total_weight(weight)
        columns = y.reshape(len(y), -1).astype(np.float64)
        kept, weight = canonical_rows(X, columns, weight)
        X, y = X[kept], y[kept]
        if self.early_stopping and validation is None:
            labels = y if is_classifier(self) else None
            (X, y, weight), validation, share = self._split_rows(
                (X, y), weight, rng, labels
            )
            n_effective *= share
        with backend.one_blas_thread, self._arithmetic(data["X"], data["y"]):
            self._fit(
                X,
                self._targets(y),
                weight,
                n_samples=len(X) if is_classifier(self) else n_effective,
                n_effective=n_effective,
                validation=validation,
                solver=self._solver_object(),
                data=data,
                rng=rng,
            )

    def _fit_surveyed(self, chunks, n_columns, fit_in_memory, validation, n_samples):
        """Fit checked chunks: as a whole where they are few, or else in batches.

        Parameters
        ----------
        chunks : CheckedRows
        n_columns : int
            Of X and y.
        fit_in_memory : callable
            Takes X, targets and weights of distinct rows.
        validation : tuple or None
        n_samples : callable
            Number of rows, from the Survey.
        """
        solver = self._solver_object()
        size = getattr(solver, "batch_size", None)
        least = size if isinstance(size, Integral) else _FEW_ROWS
        most = min(_SAMPLE_ROWS, _SAMPLE_NUMBERS // n_columns)
        found = chunks.survey(max(most, least))
        if found.sample.is_complete:
            fit_in_memory(found.sample.X, found.sample.y, found.sample.weight)
            checks = self._row_checks
            if checks is not None:  # it numbers the rows of the sample
                self._row_checks = checks.renumbered(found.sample.number)
            return
        if size is None and not self._has_mini_batches():
            raise ValueError(
                f"solver={self.solver!r} needs all rows at once, and "
                f"{found.n_rows:,} are too many. Chunks need a solver with batches, "
                "such as 'gnvpro', or a batch_size."
            )
        self._fit_in_batches(chunks, found, n_samples(found), validation, solver)

    def _fit_in_batches(self, chunks, found, n_samples, validation, solver):
        from sklearn_gn.varpro.chunked import ChunkedRows

        self._refuse_huber()
        self._iterations = _MOST_STEPS
        _, weight, X, y, _ = found.sample
        some = slice(0, max(1, _UNITS_NUMBERS // X.shape[1]))
        X, y, weight = X[some], y[some], weight[some]
        scaling = self._units(X, self._targets(y), weight / weight.sum())
        self._feature_spread = 1.0 if self.scale else feature_spread(X)

        def scaled(X, y):
            return scaling.x(X), self._scaled_targets(self._targets(y), scaling)

        draw = partial(chunks.survey, len(found.sample.X))
        rows = ChunkedRows(chunks, scaled, found, draw, self.dtype)
        self._fit_network(
            rows,
            scaling,
            example=rows.large_batch,
            n_rows=found.n_rows,
            n_samples=n_samples,
            validation=validation,
            solver=solver,
            data={"X": None, "y": None, "metadata": None},
            rng=check_random_state(self.random_state),
        )
        self._n_rows = found.n_rows

    def _targets(self, y):
        """Targets, or probabilities of the classes, from what a chunk has of them."""
        return y


class _RegressorOnChunks(_ChunkFit):
    """How VarProNetRegressor fits checked rows, and rows in chunks."""

    _single_target: bool

    @unchanged_on_failure
    @takes_only_chunks
    @_fit_context(prefer_skip_nested_validation=False)
    def fit_chunks(
        self,
        chunks: Iterable[tuple[ArrayLike, ...]],
        *,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit the network to rows that come in chunks and need not fit into memory.

        Up to 2**20 distinct rows, with up to 2**24 numbers, are collected and fitted as
        by :meth:`fit`. For more rows one network is fitted, with default penalties if
        ``alpha="auto"``: the solver takes batches of a random sample, and draws another
        sample, in one pass over the chunks, when all of it is used. Loss and output
        layer are computed from all rows. The result does not depend on how the rows are
        divided into chunks. :meth:`fit` calls this method if X is a dask array, or a
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
        self : VarProNetRegressor
            The fitted estimator.

        Raises
        ------
        ValueError
            If the chunks can be iterated only once, if one is malformed or holds NaN or
            infinity, if the solver needs all rows at once and they are too many, or if
            ``device`` names several devices.
        """
        self._check_chunks_are_possible(chunks, X_val)
        _, y = self._validated(*(array[:1] for array in first_of(chunks)[:2]))
        n_targets = 1 if y.ndim == 1 else y.shape[1]
        validation = self._check_validation(X_val, y_val, n_targets)

        def fit_in_memory(X, y, weight):
            y = y[:, 0] if self._single_target else y
            weight = check_sample_weight(weight, X)
            self._fit_rows(X, y, weight, {"sample_weight": weight}, validation)

        self._fit_surveyed(
            CheckedRows.of_targets(chunks, self.n_features_in_, n_targets),
            self.n_features_in_ + n_targets,
            fit_in_memory,
            validation,
            n_samples=lambda found: found.total,
        )
        return self

    def _validated(self, X, y):
        """Validate training rows, and set what they say of the data."""
        X, y = validate_data(
            self, X, y, multi_output=True, y_numeric=True, dtype=np.float64
        )
        self._single_target = y.ndim == 1
        return X, y

    def _check_validation(self, X_val, y_val, n_targets):
        """X, targets and weights; None where they are not given."""
        validation = self._check_validation_data(X_val, y_val, n_targets)
        if validation is None:
            return None
        X_val, y_val = validation
        return X_val, y_val, np.full(len(X_val), 1 / len(X_val))

    def _fit_rows(self, X, y, weight, metadata, validation):
        """Fit to checked rows in memory."""
        data = {"X": X, "y": y, "metadata": metadata}
        y = y.reshape(len(y), -1).astype(np.float64)
        self._fit_distinct(X, y, weight, data, validation)


class _ClassifierOnChunks(_ChunkFit):
    """How VarProNetClassifier fits checked rows, and rows in chunks."""

    class_weight: Any
    classes_: Any
    _check_class_weight: Any
    _check_data: Any
    _check_validation: Any
    _encode_weighted: Any
    _find_classes: Any

    @unchanged_on_failure
    @takes_only_chunks
    @_fit_context(prefer_skip_nested_validation=False)
    def fit_chunks(
        self,
        chunks: Iterable[tuple[ArrayLike, ...]],
        *,
        classes: ArrayLike | None = None,
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
    ) -> Self:
        """Fit the network to rows that come in chunks and need not fit into memory.

        Up to 2**20 distinct rows, with up to 2**24 numbers, are collected and fitted as
        by :meth:`fit`. For more rows one network is fitted, with default penalties if
        ``alpha="auto"``: the solver takes batches of a random sample, and draws another
        sample, in one pass over the chunks, when all of it is used. Loss and output
        layer are computed from all rows. The result does not depend on how the rows are
        divided into chunks. :meth:`fit` calls this method if X is a dask array, or a
        memory-mapped array of 1 GiB or more.

        Parameters
        ----------
        chunks : iterable of tuples (X, y) or (X, y, sample_weight)
            Arrays of any length. The object must be iterable several times, such as a
            list or an object with ``__iter__``, not a generator.

        classes : array-like, default=None
            All labels, in any order and number. If None, one more pass over the chunks
            finds them.

        X_val : array-like of shape (n_val_samples, n_features), default=None
            Validation samples, which ``early_stopping`` needs here.

        y_val : array-like of shape (n_val_samples,), default=None
            Validation labels.

        Returns
        -------
        self : VarProNetClassifier
            The fitted estimator.

        Raises
        ------
        ValueError
            If the chunks can be iterated only once, if one is malformed or holds NaN or
            infinity, if the solver needs all rows at once and they are too many, if
            ``class_weight`` is "balanced", or if ``device`` names several devices.
        """
        self._check_chunks_are_possible(chunks, X_val)
        check_class_weight(self)
        self._check_class_weight()
        first = first_of(chunks)
        labels = labels_of(chunks) if classes is None else np.asarray(classes)
        previous = self.warm_start and hasattr(self, "_fitted")
        self._find_classes(labels, np.ones(len(labels)), previous=previous)
        self._check_data(*(array[:1] for array in first[:2]), reset=True)
        validation = self._check_validation(X_val, y_val)

        def fit_in_memory(X, y, weight):
            code = y[:, 0].astype(int)
            metadata = {"sample_weight": weight}
            data = {"X": X, "y": self.classes_[code], "metadata": metadata}
            self._fit_distinct(X, code, weight, data, validation)

        self._fit_surveyed(
            CheckedRows.of_classes(chunks, self, as_column=True),
            self.n_features_in_ + 1,
            fit_in_memory,
            validation,
            n_samples=lambda found: found.n_rows,
        )
        return self

    def _targets(self, y):
        return np.eye(len(self.classes_))[y.ravel().astype(int)]
