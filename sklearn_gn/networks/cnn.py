"""Convolutional network for images."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sklearn_gn.networks._base import Network, check_positive, checked_sizes


@dataclass(eq=False)
class CNN(Network):
    """Convolutions with relu, average pooling between them, the mean at the end.

    Parameters
    ----------
    image_shape : tuple of int
        (height, width) or (height, width, channels); a row of X is an image in C order.
    channels : tuple of int, default=(32, 64)
        Channels of the convolutions; the last one is the number of features.
    kernel_size : int, default=5
        Height and width of the kernels, in pixels.
    """

    image_shape: tuple[int, ...]
    channels: tuple[int, ...] = (32, 64)
    kernel_size: int = 5

    def _shape(self):
        shape = checked_sizes("image_shape", self.image_shape)
        return shape if len(shape) == 3 else (*shape, 1)

    def check(self) -> None:
        """Raise a ValueError where a parameter is out of its range."""
        shape = checked_sizes("image_shape", self.image_shape)
        n_poolings = len(checked_sizes("channels", self.channels)) - 1
        if n_poolings < 0:
            raise ValueError("channels must hold positive integers, got none.")
        if len(shape) not in (2, 3):
            raise ValueError(
                "image_shape must be (height, width) or (height, width, channels), got "
                f"{self.image_shape!r}."
            )
        check_positive("kernel_size", self.kernel_size, Integral)
        if min(shape[:2]) < 2**n_poolings:
            raise ValueError(
                f"image_shape={self.image_shape!r} is too small: {n_poolings + 1} "
                f"layers of channels need at least {2**n_poolings} pixels on each "
                "side, which are halved from one layer to the next."
            )

    def init(self, rng: np.random.RandomState, n_inputs: int) -> Any:
        """Draw uniform kernels of variance ``1 / (3 fan_in)``; there is no bias.

        They have the shape (size, size, channels in, channels out). A ValueError is
        raised if ``n_inputs`` does not match ``image_shape``.
        """
        shape = self._shape()
        if n_inputs != np.prod(shape):
            raise ValueError(
                f"image_shape={self.image_shape!r} has {np.prod(shape)} values, X has "
                f"{n_inputs} features."
            )
        size, before, kernels = self.kernel_size, shape[2], []
        for after in checked_sizes("channels", self.channels):
            bound = 1 / np.sqrt(size * size * before)
            kernels.append(rng.uniform(-bound, bound, (size, size, before, after)))
            before = after
        return tuple(kernels)

    def split(self, params: Any) -> Any:
        """Return the kernels; there are no biases."""
        return list(params), []

    def apply(self, params: Any, x: Any) -> Any:
        """Return the features, of shape (m, channels[-1])."""
        x = x.reshape(x.shape[0], *self._shape())
        for k, kernel in enumerate(params):
            if k:
                x = _pool(x)
            x = jax.nn.relu(convolve(x, kernel))
        return jnp.mean(x, axis=(1, 2))


def _pool(x):
    """Means of 2 x 2 pixels; an odd last row or column is left out."""
    m, height, width, channels = x.shape
    h, w = height // 2, width // 2
    x = x[:, : 2 * h, : 2 * w].reshape(m, h, 2, w, 2, channels)
    return jnp.mean(x, axis=(2, 4))


@jax.custom_jvp
def convolve(x, kernel):
    """Convolution of images (m, h, w, c) with a kernel (s, s, c, q), zeros around.

    On a CPU, XLA takes seven times as long for the derivative in the kernel as for the
    convolution. There the tangent is a sum over single images of small products, whose
    transpose is quick.
    """
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@convolve.defjvp
def _convolve_jvp(primals, tangents):
    x, kernel = primals
    dx, dkernel = tangents
    along = lax.platform_dependent(x, dkernel, cpu=_image_by_image, default=convolve)
    return convolve(x, kernel), convolve(dx, kernel) + along


def _image_by_image(x, kernel):
    size, _, channels, q = kernel.shape
    _, height, width, _ = x.shape
    before = (size - 1) // 2
    margin = (before, size - 1 - before)
    rows = kernel.reshape(size, size * channels, q)

    # Without the checkpoint, the shifted images would be kept for the transpose.
    @jax.checkpoint
    def of_image(rows, image):
        wide = jnp.pad(image, (margin, margin, (0, 0)))
        shifted = [wide[:, j : j + width] for j in range(size)]
        shifted = jnp.concatenate(shifted, axis=-1)
        parts = (
            shifted[i : i + height].reshape(height * width, -1) @ rows[i]
            for i in range(size)
        )
        return sum(parts).reshape(height, width, q)

    return lax.map(lambda image: of_image(rows, image), x)
