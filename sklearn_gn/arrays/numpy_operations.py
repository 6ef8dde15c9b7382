"""Operations of JAX, as what it traces names them, by NumPy.

Each entry of :data:`OPERATIONS` is given the parameters of the operation, the shape and
dtype of its result and those of its arguments, and returns a function of arrays.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import special


class UnknownOperation(Exception):
    """An operation that is left to the compiler."""


Operation = Callable[..., Callable[..., Any]]


def _same(function):
    """The operation that is a function of NumPy."""
    return lambda params, out, *given: function


def _of(function, kind):
    """The same for numbers of a kind, all of the dtype of the result."""

    def operation(params, out, *given):
        if {x.dtype for x in given} != {out.dtype} or not _is(out, kind):
            raise UnknownOperation(out)
        return function

    return operation


def _is(array, kind):
    return np.issubdtype(array.dtype, kind)


def _of_scipy(function):
    """A function of SciPy, which has none in half precision."""

    def operation(params, out, x):
        if out.dtype not in (np.float32, np.float64):
            raise UnknownOperation(out)
        return function

    return operation


def _with(function, **names):
    """A function of NumPy with parameters of the operation under other names."""

    def operation(params, out, *given):
        return partial(function, **{k: params[name] for k, name in names.items()})

    return operation


def _sums(function):
    """A reduction in the precision of its result."""
    return lambda params, out, x: partial(
        function, axis=tuple(params["axes"]), dtype=out.dtype
    )


def _extremes(function):
    """A reduction to the largest or smallest entry, of which there is one at least."""

    def operation(params, out, x):
        if 0 in x.shape:
            raise UnknownOperation(x)
        return partial(function, axis=params["axes"])

    return operation


def _of_truths(function):
    """A reduction of truth values; of whole numbers, JAX's is bit by bit."""

    def operation(params, out, x):
        if not _is(x, np.bool_):
            raise UnknownOperation(x)
        return partial(function, axis=params["axes"])

    return operation


def _converted(params, out, x):
    if _is(x, np.inexact) and _is(out, np.integer):
        raise UnknownOperation(out)  # NumPy leaves undefined what is out of range
    return lambda x: x.astype(out.dtype)


def _power(params, out, x):
    """Whole powers, by multiplication."""
    exponent = params["y"]

    def power(x):
        n, square, found = abs(exponent), x, None
        while n:
            if n % 2:
                found = square if found is None else found * square
            n //= 2
            if n:
                square = square * square
        found = np.ones_like(x) if found is None else found
        return 1 / found if exponent < 0 else found

    return power


def _broadcast(params, out, *given):
    if len(given) != 1:
        raise UnknownOperation(out)
    shape, places = out.shape, params["broadcast_dimensions"]
    sizes = [1] * len(shape)
    for axis, place in enumerate(places):
        sizes[place] = given[0].shape[axis]
    return lambda x: np.broadcast_to(x.reshape(sizes), shape)


def _rounded(params, out, x):
    if params["rounding_method"].name != "TO_NEAREST_EVEN":
        raise UnknownOperation(params["rounding_method"])
    return np.rint


def _reshaped(params, out, *given):
    if len(given) != 1:
        raise UnknownOperation(out)
    return lambda x: x.reshape(out.shape)


def _sliced(params, out, x):
    steps = params["strides"] or (1,) * len(x.shape)
    bounds = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    place = tuple(slice(*each) for each in bounds)
    return lambda x: x[place]


def _padded(params, out, x, value):
    config = params["padding_config"]
    if any(low < 0 or high < 0 for low, high, _ in config):
        raise UnknownOperation(out)
    place = tuple(
        slice(low, low + (n - 1) * (inside + 1) + 1 if n else low, inside + 1)
        for (low, _, inside), n in zip(config, x.shape, strict=True)
    )

    def padded(x, value):
        found = np.full(out.shape, value, out.dtype)
        found[place] = x
        return found

    return padded


def _joined(params, out, *given):
    axis = params["dimension"]
    return lambda *parts: np.concatenate(parts, axis=axis)


def _stacked(params, out, *given):
    axis = params["axis"]
    return lambda *parts: np.stack(parts, axis=axis)


class _Windows(NamedTuple):
    """Windows of an array, which begin at given places: what JAX says of them."""

    dropped: tuple  # axes of the array that windows do not have
    moved: tuple  # axes along which they begin at the given places
    batched: tuple  # axes of the array, of which each place has its own entry
    batched_places: tuple  # the same, as axes of the places
    own: tuple  # axes of the result that are those of a window
    clipped: bool  # whether windows that reach beyond the array are moved into it

    def numbers(self, shape, sizes, out, starts):
        """Numbers of the entries of all windows, axis by axis."""
        kept = [k for k in range(len(shape)) if k not in {*self.dropped, *self.batched}]
        axes = [k for k in range(len(out)) if k not in self.own]

        def along(values, places):
            """The values with their axes at these places of the result."""
            lengths = [1] * len(out)
            for place, length in zip(places, values.shape, strict=True):
                lengths[place] = length
            return values.reshape(lengths)

        found = [np.zeros((1,) * len(out), np.intp)] * len(shape)
        for axis, size in enumerate(sizes):
            if axis in self.moved:
                begun = starts[..., self.moved.index(axis)]
                first = begun.clip(0, shape[axis] - size)
                if not self.clipped and (first != begun).any():
                    raise UnknownOperation("windows beyond an array")
                found[axis] = along(first, axes)
            if axis in self.batched:
                place = axes[self.batched_places[self.batched.index(axis)]]
                found[axis] = along(np.arange(shape[axis]), [place])
            if axis in kept:
                place = self.own[kept.index(axis)]
                found[axis] = found[axis] + along(np.arange(size), [place])
        return tuple(found)


def _are_clipped(params):
    return params["mode"].name in ("CLIP", "PROMISE_IN_BOUNDS")


def _gathered(params, out, x, starts):
    where, sizes = params["dimension_numbers"], params["slice_sizes"]
    windows = _Windows(
        where.collapsed_slice_dims,
        where.start_index_map,
        where.operand_batching_dims,
        where.start_indices_batching_dims,
        where.offset_dims,
        _are_clipped(params),
    )

    def gathered(x, starts):
        numbers = windows.numbers(x.shape, sizes, out.shape, starts)
        return np.broadcast_to(x[numbers], out.shape)

    return gathered


def _scattered(write, params, out, x, starts, parts):
    """Windows that are written into an array."""
    where = params["dimension_numbers"]
    windows = _Windows(
        where.inserted_window_dims,
        where.scatter_dims_to_operand_dims,
        where.operand_batching_dims,
        where.scatter_indices_batching_dims,
        where.update_window_dims,
        _are_clipped(params),
    )
    inner = iter(where.update_window_dims)
    dropped = {*windows.dropped, *windows.batched}
    sizes = [
        1 if axis in dropped else parts.shape[next(inner)]
        for axis in range(len(x.shape))
    ]

    def scattered(x, starts, parts):
        found = x.copy()
        write(found, windows.numbers(x.shape, sizes, parts.shape, starts), parts)
        return found

    return scattered


def _chosen(params, out, which, *cases):
    if len(cases) != 2:
        raise UnknownOperation(out)
    return lambda which, no, yes: np.where(which, yes, no)


def _counted(params, out, *given):
    if given:
        raise UnknownOperation(out)
    axis = params["dimension"]
    sizes = [1] * len(out.shape)
    sizes[axis] = out.shape[axis]
    numbers = np.arange(out.shape[axis], dtype=out.dtype).reshape(sizes)
    return lambda: np.broadcast_to(numbers, out.shape)


def _product(params, out, a, b):
    """Products of matrices, of any axes."""
    (of_a, of_b), (batch_a, batch_b) = params["dimension_numbers"]
    if min(a.dtype.itemsize, b.dtype.itemsize) < out.dtype.itemsize:
        raise UnknownOperation(out)  # sums in higher precision
    if not batch_a:
        pairs = list(map(int, of_a)), list(map(int, of_b))
        return lambda a, b: np.tensordot(a, b, pairs).astype(out.dtype, copy=False)
    # Many small ones, for which a library of matrix products is no help.
    of_b = dict(zip((*of_b, *batch_b), (*of_a, *batch_a), strict=True))
    axes_a = list(range(len(a.shape)))
    axes_b = [of_b.get(k, len(axes_a) + k) for k in range(len(b.shape))]
    summed = set(map(int, of_a))
    batch = list(map(int, batch_a))
    axes = [k for k in axes_a if k not in summed and k not in batch]
    axes = batch + axes + [k for k in axes_b if k >= len(axes_a)]
    return lambda a, b: np.einsum(a, axes_a, b, list(map(int, axes_b)), axes)


def _complex(params, out, *given):
    def joined(real, imaginary):
        found = np.empty(out.shape, out.dtype)
        found.real, found.imag = real, imaginary
        return found

    return joined


def _logistic(x):
    size = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, size) / (1 + size)


OPERATIONS: dict[str, Operation] = {
    **{
        name: _same(function)
        for name, function in {
            "neg": np.negative,
            "sign": np.sign,
            "abs": np.abs,
            "real": np.real,
            "imag": np.imag,
            "conj": np.conj,
            "square": np.square,
            "is_finite": np.isfinite,
            "not": np.invert,
            "add": np.add,
            "add_any": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "max": np.maximum,
            "min": np.minimum,
            "eq": np.equal,
            "ne": np.not_equal,
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
            "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
            "copy": lambda x: x,
            "copy_p": lambda x: x,
            "stop_gradient": lambda x: x,
        }.items()
    },
    **{
        name: _of(function, np.inexact)
        for name, function in {
            "sin": np.sin,
            "cos": np.cos,
            "tan": np.tan,
            "asin": np.arcsin,
            "acos": np.arccos,
            "atan": np.arctan,
            "atan2": np.arctan2,
            "sinh": np.sinh,
            "cosh": np.cosh,
            "tanh": np.tanh,
            "asinh": np.arcsinh,
            "acosh": np.arccosh,
            "atanh": np.arctanh,
            "exp": np.exp,
            "exp2": np.exp2,
            "expm1": np.expm1,
            "log": np.log,
            "log1p": np.log1p,
            "log2": np.log2,  # like the next, of JAX from 0.11 on
            "one_minus_square": lambda x: (1 - x) * (1 + x),
            "sqrt": np.sqrt,
            "rsqrt": lambda x: 1 / np.sqrt(x),
            "cbrt": np.cbrt,
            "floor": np.floor,
            "ceil": np.ceil,
            "div": np.divide,
            "pow": np.power,
            "rem": np.fmod,
        }.items()
    },
    "logistic": _of(_logistic, np.floating),
    "erf": _of_scipy(special.erf),
    "erfc": _of_scipy(special.erfc),
    "integer_pow": _power,
    "round": _rounded,
    "convert_element_type": _converted,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshaped,
    "squeeze": _reshaped,
    "expand_dims": _reshaped,
    "transpose": _with(np.transpose, axes="permutation"),
    "rev": _with(np.flip, axis="dimensions"),
    "slice": _sliced,
    "pad": _padded,
    "concatenate": _joined,
    "stack": _stacked,
    "gather": _gathered,
    "scatter": partial(_scattered, np.ndarray.__setitem__),
    "scatter-add": partial(_scattered, np.add.at),
    "select_n": _chosen,
    "iota": _counted,
    "dot_general": _product,
    "complex": _complex,
    "reduce_sum": _sums(np.sum),
    "reduce_prod": _sums(np.prod),
    "reduce_max": _extremes(np.max),
    "reduce_min": _extremes(np.min),
    "reduce_and": _of_truths(np.all),
    "reduce_or": _of_truths(np.any),
}
