"""What the displays share."""

from sklearn.utils.validation import check_is_fitted


def fitted_attribute(estimator, name):
    """Return a fitted attribute, or say clearly why there is none."""
    check_is_fitted(estimator)
    if not hasattr(estimator, name):
        hint = (
            " Give the last step of the pipeline."
            if hasattr(estimator, "steps")
            else ""
        )
        raise ValueError(f"{type(estimator).__name__} has no attribute {name}.{hint}")
    return getattr(estimator, name)


def axes_or_new(ax):
    """Return ``ax``, or the axes of a new figure where it is None."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots()[1]
