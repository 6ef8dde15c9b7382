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

    Keyword arguments of :meth:`plot` go to ``ax.plot`` for the eigenvalues.

    Use :meth:`from_estimator` to create it.

    Parameters
    ----------
    gram_spectrum, mass_spectrum : ndarrays of shape (n_eigenvalues,)
        Eigenvalues of the Gauss-Newton matrix, descending, and of the mass matrix; None
        if there is none.

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
    [6, 4]
    """

    gram_spectrum: Array
    mass_spectrum: Array | None = None
    truncation: float | None = None

    def _draw(self, ax, kwargs):
        """Draw the eigenvalues."""
        ax = self._axes(ax)
        self.lines_, self.truncation_lines_ = [], []
        if len(self.gram_spectrum) == 0:
            linear = self.mass_spectrum is not None
            reason = "the model is linear" if linear else "the solver forms none"
            text = f"No Gauss-Newton matrix:\n{reason}"
            ax.set_axis_off()
            ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes)
            return ax
        for label, marker, spectrum in (
            ("Gauss-Newton matrix", "o", self.gram_spectrum),
            ("Mass matrix", "s", self.mass_spectrum),
        ):
            if spectrum is None:
                continue
            spectrum = np.asarray(spectrum)
            positive = spectrum[spectrum > 0]
            n_zeros = len(spectrum) - len(positive)
            if n_zeros:
                label = f"{label} ({n_zeros} of {len(spectrum)} are zero)"
            if len(positive):
                ax.set_yscale("log", nonpositive="mask")
            style = {"marker": marker, "markersize": 4, "label": label, **kwargs}
            (line,) = ax.plot(np.arange(1, len(spectrum) + 1), spectrum, **style)
            self.lines_.append(line)
            level = (self.truncation or 0) * positive.max(initial=0)
            if np.any(positive < level):  # else far below the eigenvalues
                style = {"color": line.get_color(), "linestyle": ":", "linewidth": 1}
                line = ax.axhline(level, label="Truncation level", **style)
                self.truncation_lines_.append(line)
        ax.set(xlabel="Number of the eigenvalue", ylabel="Eigenvalue")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend()
        return ax

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the spectra of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator with the attribute ``gram_spectrum_`` and perhaps
            ``mass_spectrum_``.

        ax, **kwargs : optional
            See :meth:`plot`.

        Returns
        -------
        display : GramSpectrumDisplay
            What is drawn.
        """
        cls._needs_matplotlib("from_estimator")
        spectrum, truncation = fitted_attribute(estimator, "gram_spectrum_"), None
        solver = estimator._solver_object()
        if hasattr(solver, "rank_tol"):
            # The tolerance is one of singular values, and never below rounding.
            truncation = max(solver.rank_tol, np.finfo(estimator.dtype).eps) ** 2
        return cls(
            gram_spectrum=spectrum,
            mass_spectrum=getattr(estimator, "mass_spectrum_", None),
            truncation=truncation,
        ).plot(ax, **kwargs)
