"""Objects that are stored without what they have computed of the rest."""

from functools import cached_property


class StoredWithoutCaches:
    """Base of classes whose cached properties are not pickled."""

    def __getstate__(self):
        return {
            name: value
            for name, value in self.__dict__.items()
            if not isinstance(getattr(type(self), name, None), cached_property)
        }
