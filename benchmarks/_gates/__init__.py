"""The rows of ``python -m benchmarks gates``, a module for each room.

A room has ``rows(data)``, a :class:`~benchmarks._gates.common.Row` by name; ``data`` is
the folder of ``--data`` or None. Rows whose data are not there are left out. A row is
fitted in a process of its own, :mod:`benchmarks._gates.worker`, so nothing here is
imported before it is needed.
"""

from importlib import import_module

ROOMS = ("tables", "lines", "heads", "equations", "surrogates", "first_answer")


def rows_of(room, data):
    """The rows of a room, by name."""
    return import_module(f"benchmarks._gates.{room}").rows(data)
