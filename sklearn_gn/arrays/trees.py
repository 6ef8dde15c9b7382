"""Trees of arrays as vectors, and how objects with arrays are stored."""

from functools import cached_property

from sklearn_gn.arrays.libraries import library_of


def add(a, factor, b):
    """``a + factor b``."""
    library = library_of((a, b, factor))
    asarray = library.xp.asarray
    return library.tree_map(lambda x, y: x + asarray(factor, y.dtype) * y, a, b)


def select(condition, a, b):
    """``a`` where the condition holds, else ``b``."""
    library = library_of((a, b))
    return library.tree_map(lambda x, y: library.xp.where(condition, x, y), a, b)


def dot(a, b):
    """Inner product, in full precision on every device."""
    library = library_of((a, b))
    return sum(map(library.vdot, library.leaves(a), library.leaves(b)))


def norm(a):
    """Euclidean norm."""
    library = library_of(a)
    return library.xp.sqrt(sum(library.xp.sum(x**2) for x in library.leaves(a)))


def dimension(a):
    """Number of components."""
    return sum(leaf.size for leaf in library_of(a).leaves(a))


class Record:
    """Base of classes that are made again from the values of ``fields()`` by name."""


class StoredWithoutCaches:
    """Base of classes whose cached properties are not pickled."""

    def __getstate__(self):
        return {
            name: value
            for name, value in self.__dict__.items()
            if not isinstance(getattr(type(self), name, None), cached_property)
        }
