"""Arrays that are kept with those that they are made of, and memory that is."""

import gc

import jax
import numpy as np

from sklearn_gn.arrays import caches
from sklearn_gn.arrays.caches import KeptWithArrays, ReusedMemory


def test_an_array_is_made_once_and_forgotten_with_its_origin(monkeypatch):
    kept, calls = KeptWithArrays(), []

    def doubled(array, key):
        def make():
            calls.append(key)
            return 2 * np.asarray(array)

        return kept.get(array, key, make)

    arrays = [np.arange(3.0), jax.device_put(np.arange(3.0, dtype=np.float32))]
    for array in arrays:
        for key in ("a", "b", "a"):
            np.testing.assert_array_equal(doubled(array, key), 2 * np.arange(3.0))
    assert calls == ["a", "b"] * 2
    assert len(kept._made) == 4
    del array, arrays[0]
    gc.collect()
    assert len(kept._made) == 2
    arrays.clear()
    gc.collect()
    assert not kept._made
    monkeypatch.setattr(caches, "_LARGEST", 2)
    assert len(doubled(np.ones(3), "a")) == 3
    assert not kept._made


def test_memory_is_reused_when_nothing_refers_to_it(monkeypatch):
    memory = ReusedMemory()

    def place(array):
        return array.__array_interface__["data"][0]

    first = memory.empty((4, 3), np.float64)
    second = memory.empty((4, 3), np.float64)
    assert place(second) != place(first)
    view = second[1:]
    del second
    third = memory.empty((4, 3), np.float64)
    assert not np.shares_memory(third, view)
    where = place(third)
    del third
    assert place(memory.empty((4, 3), np.float64)) == where
    assert memory.empty((3, 3), np.float32).shape == (3, 3)
    monkeypatch.setattr(caches, "_LARGEST", 2)
    assert memory.empty((2, 2), np.float64).dtype == np.float64
    assert memory._last is None
