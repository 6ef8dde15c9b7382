"""What observations hold: outputs, or functions of the field such as derivatives."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from sklearn_gn.pde.calls import call, flat


@dataclass(frozen=True)
class Observed:
    """Residual of observations; of one that is missing, NaN, it is zero."""

    entries: tuple  # numbers of outputs, or functions of the field and a point

    def __call__(self, fields, points, data, coefficients):
        """Misfit at a point, of shape (k,)."""
        values = self.values(fields[0], points[0], coefficients)
        missing = jnp.isnan(data)
        return jnp.where(missing, 0, values - jnp.where(missing, 0, data))

    def values(self, field, x, coefficients):
        """What is observed at a point, without noise, of shape (k,)."""
        outputs = jnp.atleast_1d(field(x))
        if not any(map(callable, self.entries)):
            return outputs[np.array(self.entries)]
        values = [
            flat(call(entry, (field, x), coefficients), x)
            if callable(entry)
            else outputs[entry][None]
            for entry in self.entries
        ]
        return jnp.concatenate(values)
