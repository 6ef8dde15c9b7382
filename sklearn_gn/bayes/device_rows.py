"""Rows on the devices of JAX, and what a fit by the evidence computes of them there.

The rows and the Gauss-Newton matrix stay on the device: an iteration brings back
vectors of the length of the parameters, and numbers. Of several devices each sums over
its share of the rows. A network whose first layer has lost features is computed with
all of them, at weights of zero, and the others' rows and columns of the matrix are left
out: shapes stay the same during a fit, and nothing is compiled again.
"""

import operator
import threading
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from sklearn_gn._caller import warn_user
from sklearn_gn.arrays import backend
from sklearn_gn.arrays.libraries import in_either_library
from sklearn_gn.arrays.trees import Record
from sklearn_gn.optim.solver import Rows

_LOCK = threading.RLock()


def warn_of_cpu(device, part):
    """Warn that a part of a fit does not use the device that was asked for."""
    if device is not None and device != "cpu":
        backend.mesh_of(device)  # one that there is not is an error
        with backend.scope("float64", device):
            pass
        warn_user(f"device={device!r}: NumPy fits {part} on the CPU.")


class DeviceRows(Rows):
    """Rows in the memory of the host, with copies on the ``device`` that computes."""

    device = None
    _copies: Mapping[str, Any] = MappingProxyType({})  # on the device, by field

    @classmethod
    def on(cls, device, rows):
        """Return rows for a device."""
        found = cls(*rows)
        found.device = device
        return found

    def _replace(self, **changes):
        found = self.on(self.device, super()._replace(**changes))
        found._copies = {k: a for k, a in self._copies.items() if k not in changes}
        return found

    def sums(self, model, theta):
        """Return matrix, which stays on the device, negative gradient and error."""
        whole, places = model.with_all_features(), model.places()
        size = whole.n_parameters
        theta, kept = _spread(theta, places, size), _spread(np.ones(1), places, size)
        with self._computing():
            gram, *others = _sums.compiled(whole, theta, kept, self.copies())
            negative_gradient, diagonal, error = map(np.asarray, others)
        gram = DeviceGram(gram, diagonal[places], places, self.device)
        return gram, negative_gradient[places], float(error)

    def error(self, model, theta):
        """Return twice the mean loss at some parameters."""
        whole = model.with_all_features()
        theta = _spread(theta, model.places(), whole.n_parameters)
        with self._computing():
            return float(_error.compiled(whole, theta, self.copies()))

    def copies(self):
        """The rows on the devices, padded by weights of zero."""
        import jax

        with _LOCK:
            missing = {k: a for k, a in self._asdict().items() if k not in self._copies}
            mesh = backend.mesh_of(self.device) if missing else None
            n_devices = 1 if mesh is None else mesh.size
            size = n_devices * backend.row_bucket(-(-len(self.x) // n_devices))
            padded = [
                backend.pad_rows(np.asarray(a, np.float64), size)
                for a in missing.values()
            ]
            if mesh is None:
                placed = map(jax.device_put, padded)
            else:
                from sklearn_gn.arrays.devices import put_rows

                placed = put_rows(padded, mesh)
            self._copies = {**self._copies, **dict(zip(missing, placed, strict=True))}
            return Rows(**self._copies)

    @contextmanager
    def _computing(self):
        """Double precision on the device; on several, one sum after the other."""
        one = self.device is None or isinstance(self.device, str)
        with nullcontext() if one else _LOCK, backend.scope("float64", self.device):
            yield


class DeviceGram(Record):
    """A Gauss-Newton matrix on a device without some of its rows and columns."""

    def __init__(self, matrix, diagonal, places, device):
        self.matrix, self._diagonal = matrix, diagonal
        self.places, self.device = places, device

    def fields(self):
        """Return what a checkpoint stores."""
        return {
            "matrix": np.asarray(self.matrix),
            "diagonal": self._diagonal,
            "places": self.places,
            "device": self.device,
        }

    def __len__(self):
        return len(self.places)

    def trace(self):
        """Return the sum of the diagonal."""
        return float(self._diagonal.sum())

    def diagonal(self):
        """Return the diagonal."""
        return self._diagonal

    def numpy(self):
        """Return the matrix as NumPy's."""
        return np.array(np.asarray(self.matrix)[np.ix_(self.places, self.places)])

    def __matmul__(self, vectors):
        return self.computed(operator.matmul, vectors)

    def computed(self, function, *arguments, diagonal=None):
        """Return what a compiled function of the matrix gives.

        Arrays have an entry a parameter.
        """
        import jax

        arguments = [
            _spread(a, self.places, len(self.matrix)) if np.ndim(a) else float(a)
            for a in arguments
        ]
        if diagonal is not None:
            arguments.append(_spread(diagonal, self.places, len(self.matrix), 1.0))
        with backend.scope("float64", self.device):
            found = _in_either_library(function).compiled(self.matrix, *arguments)
            return jax.tree.map(
                lambda a: np.asarray(a)[self.places] if a.ndim else float(a), found
            )


def _spread(values, places, size, others=0.0):
    """Return values at some places of an array, between others."""
    found = np.full((size, *values.shape[1:]), others)
    found[places] = values
    return found


# --- functions of NumPy, which JAX compiles ------------------------------------------


_of_network = partial(in_either_library, static=("model",), static_argnames="model")


@_of_network
def _sums(model, theta, kept, rows):
    gram, negative_gradient, error = model.dense_sums(theta, rows)
    gram = kept[:, None] * gram * kept[None]
    return gram, negative_gradient, gram.diagonal(), error


_error = _of_network(lambda model, theta, rows: model.error(theta, rows))
_in_either_library = cache(in_either_library)
