"""GramSpectrumDisplay: eigenvalues of the Gauss-Newton matrix."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.plotting._common import Display, fitted_attribute


@dataclass(kw_only=True, eq=False, repr=False)
class GramSpectrumDisplay(Display):
    """Eigenvalues of the Gauss-Newton matrix.

    They tell how well the data determine the parameters: a gap, or a tail at rounding
    level, means directions that hardly change the predictions.

    Keyword arguments of :meth:`plot` go to ``ax.plot`` for the eigenvalues.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    gram_spectrum : ndarray of shape (n_eigenvalues,)
        Eigenvalues of the Gauss-Newton matrix, descending.
    truncation : float, default=None
        Eigenvalues below this share of the largest are dropped in the solves.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
        The eigenvalues over their numbers, from 1. Zeros have no place on a logarithmic
        axis; the legend counts them. Without a Gauss-Newton matrix, as of a model that
        came out linear, there is no line, and a text says so.
    truncation_lines_ : list of matplotlib Line2D
        The level of truncation, if any positive eigenvalue is below it.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.

    See Also
    --------
    ConvergenceDisplay : The loss over the iterations of a fit.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_gn import ShallowReLURegressor
    >>> from sklearn_gn.plotting import GramSpectrumDisplay
    >>> X = np.linspace(0, 1, 50)[:, None]
    >>> model = ShallowReLURegressor(n_neurons=3, random_state=0)
    >>> display = GramSpectrumDisplay.from_estimator(model.fit(X, np.exp(X[:, 0])))
    >>> [len(line.get_ydata()) for line in display.lines_]
    [6]
    """

    gram_spectrum: Array
    truncation: float | None = None

    def _draw(self, ax, kwargs):
        """Draw the eigenvalues."""
        ax = self._axes(ax)
        self.lines_, self.truncation_lines_ = [], []
        if len(self.gram_spectrum) == 0:
            text = (
                "No Gauss-Newton matrix:\nthe model is linear, or the solver forms none"
            )
            ax.set_axis_off()
            ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes)
            return ax
        spectrum, label = np.asarray(self.gram_spectrum), "Gauss-Newton matrix"
        positive = spectrum[spectrum > 0]
        n_zeros = len(spectrum) - len(positive)
        if n_zeros:
            label = f"{label} ({n_zeros} of {len(spectrum)} are zero)"
        if len(positive):
            ax.set_yscale("log", nonpositive="mask")
        style = {"marker": "o", "markersize": 4, "label": label, **kwargs}
        self.lines_ = ax.plot(np.arange(1, len(spectrum) + 1), spectrum, **style)
        level = (self.truncation or 0) * positive.max(initial=0)
        if np.any(positive < level):  # else far below the eigenvalues
            style = {"color": self.lines_[0].get_color(), "linestyle": ":"}
            line = ax.axhline(level, label="Truncation level", linewidth=1, **style)
            self.truncation_lines_.append(line)
        ax.set(xlabel="Number of the eigenvalue", ylabel="Eigenvalue")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend()
        return ax

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the spectrum of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator with the attribute ``gram_spectrum_``.
        ax, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : GramSpectrumDisplay
            What is drawn.
        """
        spectrum, truncation = fitted_attribute(estimator, "gram_spectrum_"), None
        solver = estimator._solver_object()
        if hasattr(solver, "rank_tol"):
            # The tolerance is one of singular values, and never below rounding.
            truncation = max(solver.rank_tol, np.finfo(estimator.dtype).eps) ** 2
        display = cls(gram_spectrum=spectrum, truncation=truncation)
        return display.plot(ax, **kwargs)
