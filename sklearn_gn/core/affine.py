"""For varpro, until it imports from multinomial."""

from sklearn_gn.core.multinomial import all_classes, to_columns  # noqa: F401
