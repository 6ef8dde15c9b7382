"""Values by content: their digests, the signature of a fit, functions compiled for.

joblib hashes what pickle would store, arrays by their numbers. Here functions and
classes count too by all that they consist of and refer to, unless an installed package
has them under their name: a function that is stated again in a notebook, or comes to
another process as a copy, has the same digest, and one whose global number has changed
has another. A checkpoint belongs to one signature and is resumed by the same one only.
"""

import dataclasses
import dis
import functools
import pickle
import sys
import sysconfig
import threading
import types
from enum import Enum
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from joblib.hashing import NumpyHasher

_FOLDERS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)
BUDGETS = ("max_iter", "max_time")  # parameters that may change
_MOST = 64  # known values; then all are forgotten
_PARTS = {  # of what pickle refuses to store
    types.CellType: ("cell_contents",),
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    functools.cached_property: ("func",),
    types.CodeType: (
        "co_code",
        "co_consts",
        "co_names",
        "co_argcount",
        "co_posonlyargcount",
        "co_kwonlyargcount",
        "co_flags",
    ),
}


def digest(value):
    """Return a digest of content, the same in every process, or a TypeError."""
    try:
        return _Hasher("sha256", coerce_mmap=True).hash(value)
    except RecursionError:
        raise TypeError(f"{type(value).__name__} is nested too deeply") from None
    except (AttributeError, NotImplementedError, pickle.PicklingError) as error:
        raise TypeError(str(error)) from error


class _Hasher(NumpyHasher):
    """Hashes functions and classes by content, too."""

    def save(self, obj):
        if isinstance(obj, np.generic) and obj.dtype.kind in "biufcSU":
            obj = obj.item()  # 3 and np.int64(3) are the same parameter
        elif isinstance(obj, np.ndarray):
            obj = np.asanyarray(obj, order="C")
        super().save(obj)

    def memoize(self, obj):
        # Equal tuples may be one constant, or several.
        if not isinstance(obj, tuple):
            super().memoize(obj)

    def _batch_setitems(self, items, *args):
        # In their order, which may have a meaning, as that of the axes of a domain.
        pickle._Pickler._batch_setitems(self, items, *args)

    def reducer_override(self, obj):
        """Return name and parts of what counts otherwise than in pickles."""
        kind = type(obj)
        if isinstance(obj, types.ModuleType):
            return str, (obj.__name__,)
        if kind in (set, frozenset):
            return kind, (sorted(map(digest, obj)),)
        if kind in _PARTS:
            return str, (kind.__name__,), _parts_of(obj, _PARTS[kind])
        if isinstance(obj, type | types.FunctionType):
            module = found = sys.modules.get(obj.__module__)
            for name in obj.__qualname__.split("."):
                found = getattr(found, name, None)
            if found is obj and _comes_installed(module):  # under its name
                return obj.__qualname__
            of = _class_parts if isinstance(obj, type) else _function_parts
            return str, (obj.__name__,), of(obj)
        if callable(getattr(obj, "__wrapped__", None)):  # of jit, lru_cache, custom_jvp
            names = "__wrapped__", "jvp", "fwd", "bwd"
            return str, (kind.__name__,), _parts_of(obj, names)
        hooks = ("__reduce_ex__", "__reduce__", "__getstate__")
        if dataclasses.is_dataclass(obj) and all(
            getattr(kind, name) is getattr(object, name) for name in hooks
        ):
            # What else it holds was made from these, or tells it from its equals.
            names = [field.name for field in dataclasses.fields(obj)]
            return kind, (), _parts_of(obj, names)
        return NotImplemented


def _parts_of(obj, names):
    """Return attributes of an object, None where it lacks one."""
    found = []
    for name in names:
        try:
            found.append(getattr(obj, name, None))
        except ValueError:  # an empty cell
            found.append(None)
    return found


def _class_parts(cls):
    """Return the bases of a class and its members, without what Python adds."""
    hidden = "_" if issubclass(cls, Enum) else "__"  # its own tables hold each other
    added = {"_abc_impl", "__annotate_func__"}
    members = {
        name: member
        for name, member in sorted(vars(cls).items())
        if name not in added and (callable(member) or not name.startswith(hidden))
    }
    return [cls.__module__, cls.__bases__, members]


def _function_parts(function):
    """Return the code of a function with all that it refers to."""
    own = [function.__code__, function.__defaults__, function.__kwdefaults__]
    own.append(function.__closure__)
    if function.__code__.co_filename.startswith(_FOLDERS):
        return [*own, function.__module__]
    codes = list(_nested(function.__code__))
    attributes = {name for code in codes for name in code.co_names}
    loaded = {
        instruction.argval
        for code in codes
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    values = {}
    for name in sorted(loaded & set(function.__globals__)):
        value = values[name] = function.__globals__[name]
        if isinstance(value, types.ModuleType) and not _comes_installed(value):
            used = sorted(attributes & set(vars(value)))
            values[f"{name}."] = {key: vars(value)[key] for key in used}
    return [*own, values]


def _nested(code):
    """Yield a code object and the code of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _comes_installed(module):
    root = module.__name__.partition(".")[0]
    if root == "__main__":  # also where an installed tool runs the user's code
        return False
    file = getattr(module, "__file__", None) or ""
    return root in sys.stdlib_module_names or file.startswith(_FOLDERS)


# --- the signature -------------------------------------------------------------------


def signature_of(estimator, given, *, validation, stopping, start):
    """Return digests of all that the result of a fit depends on, by name.

    ``given`` holds X, y and the metadata of the fit, ``start`` the networks of a former
    fit to go on with. What holds something whose value cannot be told is a ValueError.
    """
    package = sys.modules["sklearn_gn"]
    parameters = estimator.get_params(deep=False)
    parameters["solver"] = estimator._solver_object()
    # Only a number names the same draws again; the others are in the snapshot.
    if not isinstance(parameters["random_state"], Integral):
        parameters["random_state"] = None
    names = sorted(set(parameters) - {*BUDGETS, "verbose"})
    influences = {
        "the estimator": type(estimator).__name__,
        "the version of sklearn_gn": package.__version__.split(".")[:2],
        **{f"the parameter {name!r}": parameters[name] for name in names},
        "the training data": (given.get("X"), given.get("y")),
        "the sample weights": given.get("metadata"),
        "the validation data": validation,
        "the rules of early stopping": stopping,
        "the network to start from (warm_start=True)": start,
    }
    found = {}
    for name, value in influences.items():
        try:
            found[name] = digest(value)
        except TypeError as error:
            raise ValueError(
                "A checkpoint belongs to the values that a fit depends on, and "
                f"{name} holds something whose value is not known: {error}. Give it in "
                "another form, or fit without the checkpoint."
            ) from error
    return found


# --- what functions have been compiled for -------------------------------------------

_known: dict[str, Any] = {}  # by the digests of their content
_lock = threading.Lock()


def known(value):
    """Return the value of the same content that was known first.

    JAX keeps a compiled function by the identity of the user's functions that it calls.
    That is too narrow: functions that are stated again, or come to a worker of a search
    as copies, would be compiled again. And it is too wide: a function that reads a
    global number is the same one after the number has changed, but what was compiled
    from it is not. So all that is compiled is forgotten where content has changed. A
    value without a digest counts by its identity.
    """
    content = _content_of(value)
    if content is None:
        return value
    with _lock:
        first = _known.get(content)
        if first is value or (first is not None and _content_of(first) == content):
            return first
        outdated = [
            key
            for key, other in _known.items()
            if type(other) is type(value) and other == value
        ]
        if first is not None:  # what it refers to has changed since
            outdated.append(content)
        if len(_known) == _MOST:  # nobody would notice that one of these has changed
            outdated = list(_known)
        for key in outdated:
            _known.pop(key, None)
        _known[content] = value
    if outdated:
        import jax

        jax.clear_caches()
    return value


def _content_of(value):
    """Return the digest of a value, None where it has none."""
    try:
        return digest(value)
    except TypeError:
        return None
