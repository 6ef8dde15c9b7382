"""SelectionPathDisplay: how a criterion chose the size of a model."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.plotting._common import Display, fitted_attribute

_LABELS = {
    "bic": "BIC",
    "aic": "AIC",
    "gcv": "GCV",
    "n_breakpoints": "Breakpoints",
    "n_neurons": "Neurons",
}


@dataclass(kw_only=True, eq=False, repr=False)
class SelectionPathDisplay(Display):
    """The criterion over the sizes that were tried, the chosen one marked.

    Keyword arguments of :meth:`plot` go to ``ax.plot`` for the criterion.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    size, value : ndarrays of shape (n_sizes,)
        Sizes that were tried, and the criterion.
    chosen : int
        The size that was chosen.
    size_name, value_name : str, default=None
        Labels of the axes.

    Attributes
    ----------
    line_, chosen_ : matplotlib Line2D
        The criterion, and the mark of the chosen size.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import SegmentedRegressor
    >>> from sklearn_gn.plotting import SelectionPathDisplay
    >>> X = np.linspace(0, 1, 61)[:, None]
    >>> model = SegmentedRegressor().fit(X, np.abs(X[:, 0] - 0.25))
    >>> SelectionPathDisplay.from_estimator(model).chosen
    1
    """

    size: Array
    value: Array
    chosen: int
    size_name: str | None = None
    value_name: str | None = None

    def _draw(self, ax, kwargs):
        """Draw the criterion over the sizes."""
        from matplotlib.ticker import MaxNLocator

        ax = self._axes(ax)
        (self.line_,) = ax.plot(self.size, self.value, **{"marker": "o", **kwargs})
        at = np.flatnonzero(self.size == self.chosen)
        ring = {"markersize": 11, "markerfacecolor": "none", "color": "tab:orange"}
        ring |= {"marker": "o", "linestyle": "none", "label": "Chosen"}
        (self.chosen_,) = ax.plot(self.size[at], self.value[at], **ring)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(xlabel=self.size_name, ylabel=self.value_name)
        ax.legend()
        return ax

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the path of a fitted estimator.

        Parameters
        ----------
        estimator : SegmentedRegressor or ShallowReLURegressor
            A fitted estimator with the attribute ``selection_path_``.
        ax, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : SelectionPathDisplay
            What is drawn.

        Raises
        ------
        ValueError
            If the estimator has no path.
        """
        path = fitted_attribute(estimator, "selection_path_")
        given = [name for name in _LABELS if name in path]
        criterion, size = given[0], given[-1]
        total = path[criterion] + path.get("search_penalty", 0)
        chosen = int(path[size][np.argmin(total)])
        if size == "n_breakpoints":
            chosen = int(estimator._fit.free.sum())
        return cls(
            size=path[size],
            value=path[criterion],
            chosen=chosen,
            size_name=_LABELS[size],
            value_name=_LABELS[criterion],
        ).plot(ax, **kwargs)
