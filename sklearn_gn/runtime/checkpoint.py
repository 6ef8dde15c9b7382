"""The file of a checkpoint.

The file is a ZIP archive that ``numpy.load`` opens: ``header.npy`` is a JSON text, and
the arrays that the text numbers are ``0.npy``, ``1.npy`` and so on. It holds no code.
Named tuples, records and members of enumerations are stored by the name of their class,
and made again where it belongs to this package, to optax, or to a module that is loaded
already. It is written next to its place and moved there: a reader never sees half of a
file, and a crash leaves the previous one.
"""

import fcntl
import glob
import importlib
import json
import os
import sys
import tempfile
import threading
from contextlib import suppress
from enum import Enum
from pathlib import Path

import numpy as np

from sklearn_gn.arrays.trees import Record

VERSION = 3  # of the format; pickles were the first
_FORMAT = "sklearn_gn checkpoint"
_TEMPORARY = ".partial"
# NumPy parses the headers of arrays by ``ast``, which fails now and then in several
# threads of Python 3.11: "AST constructor recursion depth mismatch".
_READING = threading.Lock()
_IMPORTED = ("sklearn_gn", "optax")  # packages whose named tuples are looked up by name


# --- the file ------------------------------------------------------------------------


def save(path, snapshot):
    """Write a snapshot, or leave the file as it was; unknown types are an error."""
    arrays = []
    header = {
        "format": _FORMAT,
        "version": VERSION,
        "snapshot": encoded(snapshot, arrays),
    }
    text = np.frombuffer(json.dumps(header, allow_nan=False).encode(), np.uint8)
    members = {str(number): array for number, array in enumerate(arrays)}
    path = Path(path)
    with _temporary(path) as file:
        try:
            np.savez(file, header=text, **members)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def load(path):
    """Return the snapshot of a file, None without one; a damaged one is an error."""
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise type(error)(
            f"The checkpoint {str(path)!r} cannot be read ({error.strerror}). Change "
            "its permissions, or give another path."
        ) from error
    with file, _READING:
        try:
            members = np.load(file, allow_pickle=False)
            header = json.loads(members["header"].tobytes())
            written, file_format = header["version"], header["format"]
            if (written, file_format) != (VERSION, _FORMAT):
                text = f"it is version {written} of the format, this is {VERSION}"
                raise ValueError(text)
            return _decoded(header["snapshot"], members)
        except Exception as error:  # of a foreign file it can be nearly anything
            raise ValueError(
                f"{str(path)!r} is not a checkpoint of this version, or it is damaged "
                f"({error}). Give another path, or resume=False to replace it."
            ) from error


def check_place(path):
    """Raise an OSError if no file can be written; remove what killed writers left."""
    path = Path(path).absolute()
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"The folder {str(path.parent)!r} of the checkpoint does not exist. Make "
            "it first, or give another path."
        )
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder: give the path of a file.")
    for name in path.parent.glob(f"{glob.escape(path.name)}.*{_TEMPORARY}"):
        # An OSError: its writer is alive, or another process has removed it.
        with suppress(OSError), open(name, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name)
    try:
        with _temporary(path) as file:
            os.unlink(file.name)
    except OSError as error:
        raise type(error)(
            f"The checkpoint {str(path)!r} cannot be written ({error.strerror}). "
            "Change the permissions of its folder, or give another path."
        ) from error


def _temporary(path):
    """Open a new file next to a path; its lock says that its writer is alive."""
    file = tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f"{path.name}.", suffix=_TEMPORARY, delete=False
    )
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


# --- the content ---------------------------------------------------------------------


def encoded(value, arrays):
    """Return a value in the terms of JSON, and append its arrays to a list."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biufcSU":
            raise TypeError(f"a checkpoint does not store arrays of {value.dtype}")
        arrays.append(value)
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {kind: len(arrays) - 1}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if np.isfinite(value) else {"float": str(value)}
    if type(value) is list:
        return [encoded(part, arrays) for part in value]
    if type(value) is tuple:
        return {"tuple": [encoded(part, arrays) for part in value]}
    if type(value) is dict:
        pairs = [[encoded(part, arrays) for part in pair] for pair in value.items()]
        return {"dict": pairs}
    name = [type(value).__module__, type(value).__qualname__]
    _plain_class(*name)
    if isinstance(value, Enum):
        return {"enum": [*name, value.name]}
    found = value.fields() if isinstance(value, Record) else value._asdict()
    return {"class": name, "fields": {k: encoded(v, arrays) for k, v in found.items()}}


def _decoded(node, members):
    """Return the value of a node of the JSON text."""
    if isinstance(node, list):
        return [_decoded(part, members) for part in node]
    if not isinstance(node, dict):
        return node
    if "class" in node:
        fields = {k: _decoded(v, members) for k, v in node["fields"].items()}
        return _plain_class(*node["class"])(**fields)
    ((kind, content),) = node.items()
    if kind == "array":
        return members[str(content)]
    if kind == "scalar":
        return members[str(content)][()]
    if kind == "enum":
        return _plain_class(*content[:2])[content[2]]
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(_decoded(part, members) for part in content)
    if kind == "dict":
        return {_decoded(k, members): _decoded(v, members) for k, v in content}
    raise ValueError(f"unknown kind of value: {kind!r}")


def _plain_class(module, name):
    """Return a named tuple, record or enumeration by its name, and no other class."""
    if module.partition(".")[0] in _IMPORTED:
        importlib.import_module(module)
    found = getattr(sys.modules.get(module), name, None)
    if isinstance(found, type) and (
        issubclass(found, Enum | Record)
        or (issubclass(found, tuple) and "_fields" in dir(found))
    ):
        return found
    raise TypeError(
        f"{name!r} is no named tuple, record or enumeration at the top of module "
        f"{module!r}"
    )
