"""For varpro, until it imports from multinomial."""

from sklearn_gn.core.multinomial import covariance_product  # noqa: F401
