"""Digests of values: equal for equal content, in every process.

Numbers, arrays and containers count by their content; functions by their code with all
that it refers to; objects by their class and their state, as a pickle would store them.
What belongs to an installed package counts by its name. Neither the identity of an
object nor its place in memory matters, so content that was copied, read from a file or
made again has the same digest.
"""

import builtins
import dataclasses
import dis
import functools
import hashlib
import inspect
import os
import pickle
import struct
import sys
import sysconfig
import types
from enum import Enum
from pathlib import PurePath

import numpy as np

_LIBRARIES = {"jax", "jaxlib", "numpy", "scipy", "sklearn", __name__.split(".")[0]}
_HEAP_TYPE = 1 << 9  # flag of classes that are made at run time
_FOLDERS = tuple(
    sysconfig.get_path(name) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
# Attributes of classes that Python makes, or that say nothing about what a class does.
_IGNORED = {
    "__annotate__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__classcell__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__qualname__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
}


def digest(value):
    """Return the SHA-256 digest of a value's content, in hexadecimal.

    Parameters
    ----------
    value : object
        Numbers, strings, arrays, containers, functions, and objects that pickle could
        store. Functions may be local ones and lambdas.

    Raises
    ------
    TypeError
        If the content of an object is not known: generators, open files, locks.
    """
    try:
        return _Digests().of(value)[0].hex()
    except RecursionError:
        raise TypeError(f"{type(value).__name__} is nested too deeply") from None
    except (AttributeError, NotImplementedError, pickle.PicklingError) as error:
        raise TypeError(str(error)) from error


class _Digests:
    """One traversal, in which values may contain themselves.

    A value that is met again inside itself counts by its distance. What refers to a
    value further out is not remembered, since its digest depends on where it stands.
    """

    def __init__(self):
        self._inside = {}  # depth of the values that are being looked at, by identity
        self._known = {}  # digests, with the values so that no identity is used again

    def of(self, value):
        """Return the digest in bytes, and the depth of the outermost value it names."""
        depth = len(self._inside)
        if id(value) in self._known:
            return self._known[id(value)][0], depth
        if id(value) in self._inside:
            before = self._inside[id(value)]
            return _hash(b"cycle", [str(depth - before).encode()]), before
        self._inside[id(value)] = depth
        try:
            tag, parts = _content(value)
            outermost, found = depth, []
            for part in parts:
                if isinstance(part, _Raw):
                    found.append(part.content)
                    continue
                part, reach = self.of(part)
                found.append(part)
                outermost = min(outermost, reach)
        finally:
            del self._inside[id(value)]
        result = _hash(tag, found)
        if outermost >= depth:
            self._known[id(value)] = result, value
        return result, outermost


class _Raw:
    """Bytes that go into the digest as they are."""

    def __init__(self, content):
        self.content = content


def _hash(tag, parts):
    sha = hashlib.sha256(tag)
    for part in parts:
        sha.update(struct.pack("<q", memoryview(part).nbytes))
        sha.update(part)
    return sha.digest()


# --- content by type -----------------------------------------------------------------


def _content(value):
    """Return a tag and the parts that a value consists of."""
    if isinstance(value, np.generic) and value.dtype.kind in "biufcSU":
        value = value.item()
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return type(value).__name__.encode(), [_Raw(plain(value))]
    if type(value) in (tuple, list):
        return type(value).__name__.encode(), list(value)
    if type(value) in (dict, types.MappingProxyType):
        # In their order, which may have a meaning.
        return b"dict", [part for item in value.items() for part in item]
    if type(value) in (set, frozenset):
        return b"set", [_Raw(d) for d in sorted(map(_alone, value))]
    if isinstance(value, np.ndarray):
        return _array_content(value)
    if isinstance(value, PurePath | np.dtype):
        return b"named", [type(value).__name__, str(value)]
    for kind, content in _BY_KIND:
        if isinstance(value, kind):
            return content(value)
    return _object_content(value)


_PLAIN = {
    type(None): lambda value: b"",
    type(Ellipsis): lambda value: b"",
    type(NotImplemented): lambda value: b"",
    bool: lambda value: b"%d" % value,
    int: lambda value: str(value).encode(),
    float: lambda value: struct.pack("<d", value),
    complex: lambda value: struct.pack("<dd", value.real, value.imag),
    str: lambda value: value.encode("utf-8", "surrogatepass"),
    bytes: bytes,
    bytearray: bytes,
}


def _alone(value):
    return _Digests().of(value)[0]


def _array_content(array):
    head = [type(array).__name__, array.dtype.str, array.dtype.name, array.shape]
    if array.dtype.hasobject:
        return b"array", [*head, array.tolist()]
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return b"array", [*head, _Raw(flat)]


def _module_content(module):
    return b"module", [module.__name__]


def _class_content(cls):
    name = f"{cls.__module__}.{cls.__qualname__}"
    if _is_installed(cls):
        return b"class", [name]
    members = sorted(item for item in vars(cls).items() if item[0] not in _IGNORED)
    if issubclass(cls, Enum):  # the members that Enum itself adds hold each other
        members = [(k, v) for k, v in members if not k.startswith("_")]
    return b"class", [name, list(cls.__bases__), members]


def _function_content(function):
    name = function.__name__
    inside = [_cell_content(cell) for cell in function.__closure__ or ()]
    settings = [function.__defaults__, function.__kwdefaults__, inside]
    if not _is_installed(function):
        return b"function", [name, function.__code__, settings, _referenced(function)]
    place = [function.__module__, function.__qualname__]
    # A local function or a lambda shares its name with others.
    code = None if _is_found_by_name(function) else function.__code__
    return b"function", [*place, code, settings]


def _is_found_by_name(function):
    """Whether the module of a function has it under its name."""
    found = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _cell_content(cell):
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return "an empty cell"


def _code_content(code):
    n_arguments = code.co_argcount + code.co_kwonlyargcount
    return b"code", [
        code.co_code,
        list(code.co_consts),
        list(code.co_names),
        list(code.co_varnames[:n_arguments]),
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount],
        code.co_flags,
    ]


def _referenced(function):
    """Return the global values that a function uses, by name."""
    codes = list(_nested(function.__code__))
    names = sorted({name for code in codes for name in _global_names(code)})
    namespace, values = function.__globals__, []
    for name in names:
        if name not in namespace:  # a builtin, or an error of the user's
            continue
        value = namespace[name]
        values.append((name, value))
        if isinstance(value, types.ModuleType) and not _is_installed(value):
            attributes = {name for code in codes for name in code.co_names}
            found = {a: v for a, v in vars(value).items() if a in attributes}
            values.append((f"{name}.", sorted(found.items())))
    return values


def _nested(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _global_names(code):
    loads = ("LOAD_GLOBAL", "LOAD_NAME")
    return [i.argval for i in dis.get_instructions(code) if i.opname in loads]


def _method_content(method):
    return b"method", [method.__func__, method.__self__]


def _builtin_content(function):
    owner = function.__self__
    if owner is None or isinstance(owner, types.ModuleType):
        return b"builtin", [function.__module__, function.__qualname__]
    return b"builtin", [owner, function.__name__]


def _descriptor_content(descriptor):
    return b"descriptor", [descriptor.__objclass__, descriptor.__name__]


def _property_content(value):
    return b"property", [value.fget, value.fset, value.fdel]


def _wrapped_content(value):
    return b"wrapped", [type(value).__name__, value.__func__]


def _partial_content(value):
    return b"partial", [value.func, value.args, value.keywords]


def _cached_property_content(value):
    return b"cached_property", [value.func]


_BY_KIND = (
    (types.ModuleType, _module_content),
    (type, _class_content),
    (types.FunctionType, _function_content),
    (types.CodeType, _code_content),
    (types.MethodType, _method_content),
    (types.BuiltinFunctionType, _builtin_content),
    (
        (
            types.GetSetDescriptorType,
            types.MemberDescriptorType,
            types.MethodDescriptorType,
            types.WrapperDescriptorType,
            types.ClassMethodDescriptorType,
        ),
        _descriptor_content,
    ),
    (property, _property_content),
    ((staticmethod, classmethod), _wrapped_content),
    (functools.partial, _partial_content),
    (functools.cached_property, _cached_property_content),
)


def _object_content(value):
    """Content of an object of any other class, as a pickle would store it."""
    if not isinstance(value, type) and callable(getattr(value, "__wrapped__", None)):
        # Of jit, lru_cache, custom_jvp and custom_vjp.
        rules = [getattr(value, name, None) for name in ("jvp", "fwd", "bwd")]
        return b"wrapper", [type(value), value.__wrapped__, rules]
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib") and hasattr(
        value, "__array__"
    ):
        return _array_content(np.asarray(value))
    if isinstance(value, np.ufunc):
        return b"ufunc", [value.__name__]
    if dataclasses.is_dataclass(value) and _pickles_by_default(type(value)):
        # What else it holds was made from these, or tells it from its equals.
        names = [field.name for field in dataclasses.fields(value)]
        return b"object", [type(value), [(n, getattr(value, n, None)) for n in names]]
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):  # the name of a global
        return b"global", [type(value), reduced]
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    return b"object", [
        type(value),
        make,
        arguments,
        _state_content(type(value), state),
        None if items is None else list(items),
        None if pairs is None else list(pairs),
    ]


def _pickles_by_default(cls):
    names = ("__reduce_ex__", "__reduce__", "__getstate__")
    return all(getattr(cls, name) is getattr(object, name) for name in names)


def _state_content(cls, state):
    """A state in the order of names, without what was computed from the rest."""
    if isinstance(state, tuple) and len(state) == 2:  # of a class with slots
        return [_state_content(cls, part) for part in state]
    if type(state) is not dict:
        return state
    cached = functools.cached_property
    return sorted(
        (
            (name, part)
            for name, part in state.items()
            if not isinstance(inspect.getattr_static(cls, str(name), None), cached)
        ),
        key=lambda item: str(item[0]),
    )


def _is_installed(value):
    """Whether a function, class or module belongs to an installed package."""
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    root = str(name).partition(".")[0]
    if root in _LIBRARIES:
        return True
    if root == "__main__":  # also where an installed tool runs the user's code
        return False
    if isinstance(value, types.FunctionType):  # wrappers bear the name of another
        return value.__code__.co_filename.startswith(_FOLDERS)
    if isinstance(value, type) and root == "builtins":  # also where nothing has a name
        made_in_python = bool(value.__flags__ & _HEAP_TYPE)
        return not made_in_python or vars(builtins).get(value.__name__) is value
    if root in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and file.startswith(_FOLDERS)
