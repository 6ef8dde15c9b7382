"""Operations of JAX, as what it traces names them, by NumPy.

Each entry of :data:`OPERATIONS` is given the parameters of the operation, the shape and
dtype of its result and those of its arguments, and returns a function of arrays. Other
arguments than those that it takes are a TypeError, which means the same as an
:class:`UnknownOperation`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import special


class UnknownOperation(Exception):
    """An operation that is left to the compiler."""


def _if(holds, make):
    """The operation ``make``, known where a condition holds."""

    def operation(params, out, *given):
        if not holds(params, out, *given):
            raise UnknownOperation(out)
        return make(params, out, *given)

    return operation


def _same(function):
    """The operation that is a function of NumPy."""
    return lambda params, out, *given: function


def _along(function):
    """A reduction of some axes."""
    return lambda params, out, x: partial(function, axis=tuple(params["axes"]))


def _of_one_dtype(params, out, *given):
    """Whether arguments and result are floats or complex numbers of one precision."""
    one = {x.dtype for x in given} == {out.dtype}
    return one and np.issubdtype(out.dtype, np.inexact)


def _has_scipy(params, out, x):
    """Whether the functions of SciPy have the precision."""
    return out.dtype in (np.float32, np.float64)


def _converts(params, out, x):
    """NumPy leaves undefined what is out of the range of whole numbers."""
    to_whole = np.issubdtype(out.dtype, np.integer)
    return not (to_whole and np.issubdtype(x.dtype, np.inexact))


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


def _broadcast(params, out, x):
    sizes = [1] * len(out.shape)
    for length, place in zip(x.shape, params["broadcast_dimensions"], strict=True):
        sizes[place] = length
    return lambda x: np.broadcast_to(x.reshape(sizes), out.shape)


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


def _gathered(params, out, x, starts):
    where, sizes = params["dimension_numbers"], params["slice_sizes"]
    windows = _Windows(
        where.collapsed_slice_dims,
        where.start_index_map,
        where.operand_batching_dims,
        where.start_indices_batching_dims,
        where.offset_dims,
        params["mode"].name in ("CLIP", "PROMISE_IN_BOUNDS"),
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
        params["mode"].name in ("CLIP", "PROMISE_IN_BOUNDS"),
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


def _counted(params, out):
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


_ANY_DTYPE = {
    "neg": np.negative,
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
    "is_finite": np.isfinite,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    **{
        name: getattr(np, name)
        for name in ("sign", "abs", "real", "imag", "conj", "square")
    },
    **dict.fromkeys(("copy", "copy_p", "stop_gradient"), lambda x: x),
}
_ONE_DTYPE = {
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "one_minus_square": lambda x: (1 - x) * (1 + x),  # like log2, of JAX from 0.11 on
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "div": np.divide,
    "pow": np.power,
    "rem": np.fmod,
    **{
        name: getattr(np, name)
        for name in (
            *("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "exp2", "expm1"),
            *("log", "log1p", "log2", "sqrt", "cbrt", "floor", "ceil"),
        )
    },
}
OPERATIONS: dict[str, Callable[..., Callable[..., Any]]] = {
    **{name: _same(function) for name, function in _ANY_DTYPE.items()},
    **{name: _if(_of_one_dtype, _same(f)) for name, f in _ONE_DTYPE.items()},
    "logistic": _if(_has_scipy, _same(special.expit)),
    "erf": _if(_has_scipy, _same(special.erf)),
    "erfc": _if(_has_scipy, _same(special.erfc)),
    "integer_pow": _power,
    "round": _if(
        lambda params, *_: params["rounding_method"].name == "TO_NEAREST_EVEN",
        _same(np.rint),
    ),
    "convert_element_type": _if(
        _converts, lambda params, out, x: lambda x: x.astype(out.dtype)
    ),
    "broadcast_in_dim": _broadcast,
    **dict.fromkeys(
        ("reshape", "squeeze", "expand_dims"),
        lambda params, out, x: lambda x: x.reshape(out.shape),
    ),
    "transpose": lambda params, out, x: partial(
        np.transpose, axes=params["permutation"]
    ),
    "rev": lambda params, out, x: partial(np.flip, axis=params["dimensions"]),
    "slice": _sliced,
    "pad": _padded,
    "concatenate": lambda params, out, *given: (
        lambda *parts: np.concatenate(parts, axis=params["dimension"])
    ),
    "stack": lambda params, out, *given: (
        lambda *parts: np.stack(parts, axis=params["axis"])
    ),
    "gather": _gathered,
    "scatter": partial(_scattered, np.ndarray.__setitem__),
    "scatter-add": partial(_scattered, np.add.at),
    "select_n": lambda params, out, which, no, yes: (
        lambda which, no, yes: np.where(which, yes, no)
    ),
    "iota": _counted,
    "dot_general": _product,
    "complex": _complex,
    "reduce_sum": lambda params, out, x: partial(
        np.sum, axis=tuple(params["axes"]), dtype=out.dtype
    ),
    "reduce_prod": lambda params, out, x: partial(
        np.prod, axis=tuple(params["axes"]), dtype=out.dtype
    ),
    # Of nothing there is no largest entry; JAX's "and" of whole numbers is bit by bit.
    "reduce_max": _if(lambda params, out, x: 0 not in x.shape, _along(np.max)),
    "reduce_min": _if(lambda params, out, x: 0 not in x.shape, _along(np.min)),
    "reduce_and": _if(lambda params, out, x: x.dtype == np.bool_, _along(np.all)),
    "reduce_or": _if(lambda params, out, x: x.dtype == np.bool_, _along(np.any)),
}
