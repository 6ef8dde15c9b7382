r"""Solutions of the heat equation from initial values that jump, or have a kink.

With the rate a of diffusion and s the distance to the break,

    F_0 = erf(s / sqrt(4 a t)),     F_1 = s F_0 + sqrt(4 a t / pi) exp(-s^2 / (4 a t)),
    F_k = s F_(k-1) + 2 (k - 1) a t F_(k-2)

begin as ``|s|^k sign(s)^(k+1)`` and are integrals of each other, ``F_k' = k F_(k-1)``.
A rate is complex where the equation disperses: Schrodinger's equation turns a kink into
Fresnel's integrals. The error function of complex arguments is that of Weideman [1]_.

References
----------
.. [1] J. A. C. Weideman, "Computation of the complex error function", SIAM Journal on
   Numerical Analysis 31 (1994).
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

_HIGHEST, _MOST_DERIVATIVES = 3, 8  # of F_k, and of F_0
_TERMS = 32  # of the complex error function
_REAL = 1e-6  # imaginary part of a rate that is real, relative


def similarity_functions(breaks, domain, x):
    """The functions of all breaks at a point."""
    return jnp.stack([f for b in breaks for f in _of_break(b, domain, x)])


def _of_break(entry, domain, x):
    (low, high), (start, end) = (domain.bounds[k] for k in (entry.axis, 1 - entry.axis))
    size, dtype = float(high - low) / 2, np.dtype(x.dtype)
    s, t = (x[entry.axis] - entry.place) / size, x[1 - entry.axis] - start
    # At the start the functions are those of a very short time.
    t = jnp.maximum(t, float(np.finfo(dtype).eps ** 1.5 * (end - start)))
    period = float(entry.period / size)
    if not math.isinf(period):
        s = s - period * jnp.floor(s / period)
    for rate in entry.rates:
        is_complex = abs(rate.imag) > _REAL * abs(rate)
        kind = np.result_type(dtype, np.complex64) if is_complex else dtype
        rate = complex(rate) if is_complex else float(rate.real)
        z, at = s.astype(kind), rate / size**2 * t.astype(kind)
        ladder = _ladder(*jax.lax.stop_gradient((z, at)), period)
        for k in (entry.order, entry.order + 1):
            function = _member(k, z, at, ladder)
            yield jnp.real(function)
            if is_complex:
                yield jnp.imag(function)


def _ladder(s, at, period):
    """F_k by k, and for negative k the derivatives of F_0 of the orders -k.

    With a period, sums over the places on both sides, without polynomials that grow.
    """
    if math.isinf(period):
        return _aperiodic_ladder(s, at)
    m = s - period / 2
    mean = 11 / 12 * period
    polynomials = {
        -1: 2 / period,
        0: 2 * m / period,
        1: (m**2 + 2 * at) / period + mean,
        2: 2 * (m**3 / 3 + 2 * at * m) / period + 2 * mean * m,
    }
    both = _aperiodic_ladder(s, at), _aperiodic_ladder(s - period, at)
    return {k: f + both[1][k] - polynomials.get(k, 0) for k, f in both[0].items()}


def _aperiodic_ladder(s, at):
    width = jnp.sqrt(4 * at)
    if jnp.iscomplexobj(at):
        error, bell = complex_erf_and_bell(s / width)
    else:
        error, bell = jax.scipy.special.erf(s / width), jnp.exp(-((s / width) ** 2))
    slope = 2 / math.sqrt(math.pi) * bell / width
    found = {0: error, 1: s * error + 2 * at * slope, -1: slope}
    found[-2] = -s / (2 * at) * slope
    for k in range(2, _HIGHEST + 1):
        found[k] = s * found[k - 1] + 2 * (k - 1) * at * found[k - 2]
    for k in range(2, _MOST_DERIVATIVES):
        found[-k - 1] = -(s * found[-k] + (k - 1) * found[1 - k]) / (2 * at)
    return found


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _member(k, s, at, ladder):
    """F_k, of which the ladder has the derivatives, for quick compilation."""
    del s, at
    return ladder[k]


@_member.defjvp
def _slope_of_member(k, primals, tangents):
    ds, dat, _ = tangents
    slope, curvature = max(k, 1), max(k, 1) * max(k - 1, 1)
    along = slope * _member(k - 1, *primals) * ds
    return _member(k, *primals), along + curvature * _member(k - 2, *primals) * dat


# --- the error function --------------------------------------------------------------


def complex_erf_and_bell(z):
    """``erf(z)`` and ``exp(-z^2)`` within 45 degrees of the real axis."""
    square = z**2
    # Rounding of a large imaginary square is not to be seen in the size of the bell.
    square = jax.lax.complex(jnp.maximum(jnp.real(square), 0), jnp.imag(square))
    bell = jnp.exp(-square)
    sign = jnp.where(jnp.real(z) < 0, -1, 1).astype(z.dtype)
    z = sign * z
    scale, terms = _weideman(_TERMS)
    ratio = (scale - z) / (scale + z)  # with i z for the argument of Faddeeva's w
    series = jnp.polyval(jnp.asarray(terms, z.dtype), ratio, unroll=1)
    w = 2 * series / (scale + z) ** 2 + 1 / math.sqrt(math.pi) / (scale + z)
    return sign * (1 - bell * w), bell


def _weideman(n):
    """Scale and coefficients of Weideman's series, the highest power first."""
    m = 2 * n
    scale = math.sqrt(n / math.sqrt(2))
    theta = np.arange(-m + 1, m) * np.pi / m
    nodes = scale * np.tan(theta / 2)
    values = np.concatenate([[0.0], np.exp(-(nodes**2)) * (scale**2 + nodes**2)])
    terms = np.real(np.fft.fft(np.fft.fftshift(values))) / (2 * m)
    return scale, np.flipud(terms[1 : n + 1])
