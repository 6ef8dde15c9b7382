"""GramSpectrumDisplay: eigenvalues of the Gauss-Newton matrices."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from sklearn_gn._typing import Array
from sklearn_gn.plotting._common import Display, fitted_attribute


@dataclass(kw_only=True, eq=False, repr=False)
class GramSpectrumDisplay(Display):
    """Eigenvalues of the Gauss-Newton matrix, and of the mass matrix if there is one.

    They tell how well the data determine the parameters: a gap, or a tail at rounding
    level, means directions that hardly change the predictions.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    gram_spectrum : ndarray of shape (n_eigenvalues,)
        Eigenvalues of the Gauss-Newton matrix, descending.

    mass_spectrum : ndarray of shape (n_mass_eigenvalues,), default=None
        Eigenvalues of the mass matrix, descending.

    truncation : float, default=None
        Eigenvalues below this share of the largest are dropped in the solves.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
        The eigenvalues of each matrix over their numbers, from 1. Zeros have no place
        on a logarithmic axis; the legend counts them. Without a Gauss-Newton matrix,
        as of a model that came out linear, there are no lines, and a text says so.

    truncation_lines_ : list of matplotlib Line2D
        The level of truncation of each matrix, if any positive eigenvalue is below it.

    ax_ : matplotlib Axes
        Axes with the eigenvalues.

    figure_ : matplotlib Figure
        Figure that holds the axes.

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
    [6, 4]
    """

    gram_spectrum: Array
    mass_spectrum: Array | None = None
    truncation: float | None = None

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the eigenvalues.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on. If None, a new figure is made.

        **kwargs : dict
            Passed to ``ax.plot`` for the eigenvalues.

        Returns
        -------
        display : GramSpectrumDisplay
            The object itself.
        """
        ax = self._axes(ax)
        self.lines_, self.truncation_lines_ = [], []
        if len(self.gram_spectrum) == 0:
            return self._without_matrix(ax)
        self._draw(ax, self.gram_spectrum, "Gauss-Newton matrix", "o", kwargs)
        if self.mass_spectrum is not None:
            self._draw(ax, self.mass_spectrum, "Mass matrix", "s", kwargs)
        ax.set(xlabel="Number of the eigenvalue", ylabel="Eigenvalue")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend()
        return self._drawn_on(ax)

    def _without_matrix(self, ax):
        """Say on the axes why there is nothing to draw."""
        reason = "the solver forms none"
        if self.mass_spectrum is not None:
            reason = "the model is linear"
        ax.set_axis_off()
        text = f"No Gauss-Newton matrix:\n{reason}"
        ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes)
        return self._drawn_on(ax)

    def _draw(self, ax, spectrum, label, marker, kwargs):
        spectrum = np.asarray(spectrum)
        n_zeros = np.count_nonzero(spectrum <= 0)
        if n_zeros:
            label = f"{label} ({n_zeros} of {len(spectrum)} are zero)"
        if n_zeros < len(spectrum):
            ax.set_yscale("log", nonpositive="mask")
        (line,) = ax.plot(
            np.arange(1, len(spectrum) + 1),
            spectrum,
            **{"marker": marker, "markersize": 4, "label": label, **kwargs},
        )
        self.lines_.append(line)
        self._draw_truncation(ax, spectrum, line.get_color())

    def _draw_truncation(self, ax, spectrum, color):
        positive = spectrum[spectrum > 0]
        if self.truncation is None or len(positive) == 0:
            return
        level = self.truncation * positive.max()
        if positive.min() < level:  # else far below the eigenvalues
            line = ax.axhline(
                level, color=color, linestyle=":", linewidth=1, label="Truncation level"
            )
            self.truncation_lines_.append(line)

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the spectra of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator with the attribute ``gram_spectrum_`` and perhaps
            ``mass_spectrum_``.

        ax : matplotlib Axes, default=None
            Axes to draw on. If None, a new figure is made.

        **kwargs : dict
            Passed to ``ax.plot`` for the eigenvalues.

        Returns
        -------
        display : GramSpectrumDisplay
            Display that holds the spectra and the drawn lines.
        """
        cls._needs_matplotlib("from_estimator")
        return cls(
            gram_spectrum=fitted_attribute(estimator, "gram_spectrum_"),
            mass_spectrum=getattr(estimator, "mass_spectrum_", None),
            truncation=_truncation(estimator),
        ).plot(ax, **kwargs)


def _truncation(estimator):
    """Share of the largest eigenvalue below which the solves drop directions."""
    solver = estimator._solver_object()
    if not hasattr(solver, "rank_tol"):
        return None
    # The tolerance is one of singular values, and never below rounding.
    return max(solver.rank_tol, np.finfo(estimator.dtype).eps) ** 2
