"""Rows that an engine of distributed tables keeps: Dask, Ray, and Arrow's files.

A collection is a list of blocks, each ``(X, y)`` or ``(X, y, weight)``, read one at a
time here, or summed where they live: an engine with workers has ``call`` and
``result``, which make a task of a function and wait for what it returns.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from operator import itemgetter, methodcaller
from typing import Any, NamedTuple

import numpy as np

CHUNK_BYTES = 2**26  # of a memory-mapped array


@dataclass(eq=False, repr=False)
class Blocks:
    """Blocks of a collection, which are gone through again and again.

    ``handles()`` returns what stands for the blocks, and ``read`` makes a block of its
    handle here. ``engine()`` is what computes where the blocks live, None if nothing
    does. ``chunk_of`` makes a chunk ``(X, y)`` or ``(X, y, weight)`` of a block; if
    None, blocks are chunks.
    """

    handles: Callable[[], Any]
    read: Callable[[Any], Any]
    engine: Callable[[], Any] | None = None
    chunk_of: Callable[[Any], Any] | None = None

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the chunks."""
        blocks = map(self.read, self.handles())
        return blocks if self.chunk_of is None else map(self.chunk_of, blocks)


class MappedRows(Blocks):
    """Chunks of an array on disk: views of it, which are read where they are used."""

    def __init__(self, X, y, sample_weight=None, n_rows=None):
        arrays = arrays_of_one_length(X, y, sample_weight)
        size = n_rows or max(1, CHUNK_BYTES // max(X.itemsize * X.shape[1], 1))
        super().__init__(
            partial(range, 0, len(X), size),
            lambda start: tuple(array[start : start + size] for array in arrays),
        )


class TableChunks(Blocks):
    """Chunks of a table whose columns hold features, target and weights.

    For ``fit_chunks`` of the estimators. Blocks of a Ray Dataset, and of a Dask data
    frame where a ``distributed.Client`` runs, are summed by the workers that hold them,
    and only matrices of the size of the parameters travel. An Arrow dataset is read
    file by file.

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
        names, handles, read, engine = _blocks_of(table)
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
                        f"{parameter}: the table has no column {name!r}, but {names}."
                    )
        if not features:
            raise ValueError("features: the table has no column to predict from.")
        target = target if isinstance(target, str) else targets
        super().__init__(
            handles,
            read,
            engine,
            # A tuple of features, target and weights of a block; it is pickled.
            itemgetter(features, target, *weights),
        )


def arrays_of_one_length(X, y, sample_weight):
    """Return X, y and the weights, if there are any, in a list."""
    n_rows = X.shape[0]
    if isinstance(n_rows, float):  # NaN
        raise ValueError("X has an unknown length: call X.compute_chunk_sizes() first.")
    if isinstance(sample_weight, Real):  # the same for all rows
        sample_weight = np.full(n_rows, float(sample_weight))
    arrays = {"X": X, "y": y, "sample_weight": sample_weight}
    if sample_weight is None:
        del arrays["sample_weight"]
    for name, array in arrays.items():
        if np.shape(array)[:1] != (n_rows,):
            raise ValueError(
                f"{name} has the shape {np.shape(array)}, X has {n_rows} rows."
            )
    return list(arrays.values())


def dask_rows(X, y, sample_weight=None):
    """Return the blocks of rows of a dask array, y and the weights."""
    from dask import delayed

    X, *others = arrays_of_one_length(X, y, sample_weight)
    X, start, parts = X.rechunk({1: -1}), 0, []
    for block, size in zip(X.to_delayed().ravel(), X.chunks[0], strict=True):
        own = [array[start : start + size] for array in others]
        parts.append(delayed(tuple)([block, *own]))
        start += size
    return Blocks(lambda: parts, methodcaller("compute"), _dask_engine)


def rows_of_frame(X, y, sample_weight=None):
    """Return the partitions of a dask data frame, y and the weights."""
    for name, other in (("y", y), ("sample_weight", sample_weight)):
        frame = type(other).__module__.startswith("dask.dataframe")
        if other is not None and not frame:
            raise ValueError(
                f"{name} is of the type {type(other).__name__}, and X a dask data "
                f"frame: give {name} as a column of the same data frame."
            )
    from dask import delayed

    parts = [one.to_delayed() for one in (X, y, sample_weight) if one is not None]
    if len({len(one) for one in parts}) > 1:
        raise ValueError(
            "X, y and sample_weight must have the same partitions: take them from one "
            "dask data frame."
        )
    found = [delayed(tuple)(list(each)) for each in zip(*parts, strict=True)]
    return Blocks(lambda: found, methodcaller("compute"), _dask_engine)


def engine_of(chunks):
    """Return what sums chunks where they live; None if they are read here."""
    engine = getattr(chunks, "engine", None)
    return None if engine is None else engine()


def _blocks_of(table):
    """Return column names of a table, and handles, reader and engine of its blocks."""
    module = type(table).__module__
    if module.startswith("dask.dataframe") and getattr(table, "ndim", 0) == 2:
        names = list(table.columns)
        return names, table.to_delayed, methodcaller("compute"), _dask_engine
    if module.startswith("ray.data"):
        import ray

        # They stay in its object store, which spills to disk.
        handles = table.materialize().to_pandas_refs()
        return list(table.columns()), lambda: handles, ray.get, _ray_engine
    if module.startswith("pyarrow") and hasattr(table, "to_batches"):
        names = list(table.schema.names)
        return names, table.to_batches, methodcaller("to_pandas"), None
    raise TypeError(
        "table must be a Dask DataFrame, a Ray Dataset, or a Dataset or Table of "
        f"Arrow, got {type(table).__module__}.{type(table).__name__}."
    )


# --- engines --------------------------------------------------------------------------


class Engine(NamedTuple):
    """What computes where the blocks live."""

    call: Callable[..., Any]  # makes a task of a function and arguments, also tasks
    result: Callable[[Any], Any]  # waits for what a task returns


def _ray_engine():
    """Return Ray, whose tasks run where their block is, if there is room."""
    import ray

    def result(task):
        try:
            return ray.get(task)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    task = ray.remote(lambda function, *arguments: function(*arguments))
    return Engine(task.remote, result)


def _dask_engine():
    """Return Dask if a client runs here, outside of its workers, else None."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        distributed.default_client()
    except ValueError:
        return None
    try:
        distributed.get_worker()
    except ValueError:
        from dask import delayed

        call = lambda function, *given: delayed(function, pure=False)(*given)  # noqa: E731
        return Engine(call, methodcaller("compute"))
    return None  # a worker that waits for the others may keep them waiting
