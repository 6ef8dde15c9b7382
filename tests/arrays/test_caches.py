"""Arrays that are kept with those that they are made of."""

import gc

import jax
import numpy as np

from sklearn_gn.arrays import caches
from sklearn_gn.arrays.caches import KeptWithArrays


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
