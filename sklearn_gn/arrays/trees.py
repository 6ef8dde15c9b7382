"""Vectors that are trees of arrays: sum, choice, inner product, norm, dimension."""

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
    """Base of classes that are stored like named tuples.

    They are made again by their constructor, from the fields by keyword.
    """

    def fields(self):
        """Return the values to store, by name."""
        raise NotImplementedError
