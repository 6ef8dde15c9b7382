"""Rows that an engine of distributed tables keeps: Dask, Ray, and Arrow's files.

A collection is a list of blocks, each ``(X, y)`` or ``(X, y, weight)``, read one at a
time here, or summed where they live: an engine with workers has ``call`` and
``result``, which make a task of a function and wait for what it returns.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sklearn_gn.data.chunks import DaskRows, MappedRows, is_dask

MAPPED_BYTES = 2**30  # from which on a memory-mapped array is read in chunks


class TableChunks:
    """Chunks of a table whose columns hold features, target and weights.

    For ``fit_chunks`` of the estimators. Blocks of a Dask data frame, where a
    ``distributed.Client`` runs, and those of a Ray Dataset are summed by the workers
    that hold them, and only matrices of the size of the parameters travel. An Arrow
    dataset is read file by file.

    Parameters
    ----------
    table : Dask DataFrame, Ray Dataset, or Dataset or Table of Arrow
        Its columns must be numbers, except the target of a classifier.

    target : str or list of str
        Column, or columns, to predict.

    features : list of str, default=None
        Columns to predict from. If None, all others.

    sample_weight : str, default=None
        Column of weights. If None, all rows count alike.

    Raises
    ------
    TypeError
        If the table is none of these.
    ValueError
        If a column is not in the table.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn_gn import ShallowReLURegressor, TableChunks
    >>> frame = load_diabetes(as_frame=True).frame[["bmi", "bp", "target"]]
    >>> rows = TableChunks(pa.Table.from_pandas(frame), "target")
    >>> ShallowReLURegressor(random_state=0).fit_chunks(rows).feature_names_in_
    array(['bmi', 'bp'], dtype=object)
    """

    def __init__(
        self,
        table: Any,
        target: str | Sequence[str],
        *,
        features: Sequence[str] | None = None,
        sample_weight: str | None = None,
    ) -> None:
        self._blocks = _blocks_of(table)
        names = list(self._blocks.names)
        targets = [target] if isinstance(target, str) else list(target)
        weights = [] if sample_weight is None else [sample_weight]
        if features is None:
            features = [name for name in names if name not in (*targets, *weights)]
        for parameter, given in (
            ("target", targets),
            ("features", features := list(features)),
            ("sample_weight", weights),
        ):
            for name in given:
                if name not in names:
                    raise ValueError(
                        f"{parameter}: the table has no column {name!r}; its columns "
                        f"are {names}."
                    )
        if not features:
            raise ValueError("features: the table has no column to predict from.")
        self._take = _Columns(
            features, target if isinstance(target, str) else targets, weights
        )

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the chunks as pandas' data frames and series."""
        return map(self._take, self._blocks)

    def engine(self) -> Any:
        """Return what computes where the blocks live, None if nothing does."""
        return self._blocks.engine()

    def handles(self) -> tuple[list[Any], Any]:
        """Return the blocks, and the function that makes a chunk of one there."""
        return self._blocks.handles(), self._take


class DaskFrames:
    """Chunks of data frames or series of dask, given as X, y and weights."""

    def __init__(self, *collections):
        parts = [one.to_delayed() for one in collections if one is not None]
        if len({len(one) for one in parts}) > 1:
            raise ValueError(
                "X, y and sample_weight must have the same partitions: take them from "
                "one dask data frame."
            )
        self._parts = list(zip(*parts, strict=True))

    def __iter__(self):
        """Yield one chunk after the other."""
        import dask

        return (dask.compute(*parts) for parts in self._parts)

    def engine(self):
        """Return Dask where a client runs, None elsewhere."""
        return _Dask if _has_client() else None

    def handles(self):
        """Return the chunks as dask's delayed tuples."""
        from dask import delayed

        return [delayed(tuple)(list(parts)) for parts in self._parts], None


def chunks_of(X, y, sample_weight=None):
    """Return the chunks of an array on disk or of dask; None for one in memory."""
    if is_dask(X) and X.ndim == 2:
        return DaskRows(X, y, sample_weight)
    if isinstance(X, np.memmap) and X.ndim == 2 and X.nbytes >= MAPPED_BYTES:
        return MappedRows(X, y, sample_weight)
    if not _is_dask_frame(X):
        return None
    for name, other in (("y", y), ("sample_weight", sample_weight)):
        if other is not None and not _is_dask_frame(other):
            raise ValueError(
                f"{name} is of the type {type(other).__name__}, and X a dask data "
                f"frame: give {name} as a column of the same data frame."
            )
    return DaskFrames(X, y, sample_weight)


def engine_of(chunks):
    """Return what sums chunks where they live; None if they are read here."""
    if isinstance(chunks, DaskRows):
        return _Dask if _has_client() else None
    return chunks.engine() if hasattr(chunks, "engine") else None


def handles_of(chunks):
    """Return handles of the blocks, and what makes chunks of them; None: they are."""
    if isinstance(chunks, DaskRows):
        return chunks.delayed(), None
    return chunks.handles()


class _Columns:
    """Features, target and weights of a block of the table."""

    def __init__(self, features, target, weights):
        self.features, self.target, self.weights = features, target, weights

    def __call__(self, block):
        frame = block.to_pandas() if hasattr(block, "to_pandas") else block
        arrays = [frame[self.features], frame[self.target]]
        return (*arrays, *(frame[name] for name in self.weights))


# --- blocks of tables -----------------------------------------------------------------


class _DaskTable:
    def __init__(self, table):
        self.names, self.table = table.columns, table

    def __iter__(self):
        return (part.compute() for part in self.handles())

    def engine(self):
        return _Dask if _has_client() else None

    def handles(self):
        return self.table.to_delayed()


class _RayTable:
    """Blocks of a Ray Dataset; they stay in its object store, which spills to disk."""

    def __init__(self, table):
        self._handles = table.materialize().to_pandas_refs()
        self.names = table.columns()

    def __iter__(self):
        import ray

        return map(ray.get, self._handles)

    def engine(self):
        return _Ray

    def handles(self):
        return self._handles


class _ArrowTable:
    def __init__(self, table):
        self.names, self.table = table.schema.names, table

    def __iter__(self):
        return iter(self.table.to_batches())

    def engine(self):
        return None


def _blocks_of(table):
    if _is_dask_frame(table) and table.ndim == 2:
        return _DaskTable(table)
    module = type(table).__module__
    if module.startswith("ray.data"):
        return _RayTable(table)
    if module.startswith("pyarrow") and hasattr(table, "to_batches"):
        return _ArrowTable(table)
    raise TypeError(
        "table must be a Dask DataFrame, a Ray Dataset, or a Dataset or Table of "
        f"Arrow, got {type(table).__module__}.{type(table).__name__}."
    )


def _is_dask_frame(array):
    module = type(array).__module__
    return module.startswith("dask.dataframe") and hasattr(array, "to_delayed")


# --- engines --------------------------------------------------------------------------


class _Dask:
    """Tasks of the cluster of Dask whose client runs here."""

    @staticmethod
    def call(function, *arguments):
        from dask import delayed

        return delayed(function, pure=False)(*arguments)

    @staticmethod
    def result(task):
        return task.compute()


class _Ray:
    """Tasks of Ray; they run where their block is, if there is room."""

    @staticmethod
    def call(function, *arguments):
        import ray

        return ray.remote(_called).remote(function, *arguments)

    @staticmethod
    def result(task):
        import ray

        try:
            return ray.get(task)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None


def _called(function, *arguments):
    return function(*arguments)


def _has_client():
    """Return whether a client of Dask runs here, outside of its workers."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return False
    try:
        distributed.default_client()
    except ValueError:
        return False
    try:
        distributed.get_worker()
    except ValueError:
        return True
    return False  # a worker that waits for the others may keep them waiting
