"""What the built-in networks are made of."""

from __future__ import annotations

from typing import Any

import keras

from matex_tf.errors import MatexError

FEATURES = 64  # numbers that stand for an image, from which its group follows


def network(shape: tuple[int, ...], classes: int, backbone: str, weights: str) -> tuple[Any, Any]:
    """A network for images of a shape, or for rows of numbers.

    Args:
        shape: of an image, (height, width, channels); or of a row, (numbers,).
        backbone: `small`, or a class of keras.applications.
        weights: a file of weights of the backbone without its top; "" for none.

    Returns:
        What makes (rows, FEATURES) of images, and what makes (rows, classes) of that: logits.

    Raises:
        MatexError: Keras has no such backbone, or the weights are not its own.
    """
    inputs = keras.Input(shape)
    if len(shape) == 1:
        x = inputs
        for width in (128, 128):
            x = keras.layers.Dense(width, "gelu")(x)
            x = keras.layers.Dropout(0.1)(x)
    elif backbone == "small":
        x = _small(inputs, min(shape[:2]))
    else:
        x = _backbone(backbone, shape, weights)(inputs if shape[2] == 3 else keras.layers.Concatenate()([inputs] * 3))
    body = keras.Model(inputs, keras.layers.Dense(FEATURES, "gelu")(x), name="body")
    return body, keras.layers.Dense(classes, name="head")


def _backbone(name: str, shape: tuple[int, ...], weights: str) -> Any:
    make = getattr(keras.applications, name, None)
    if not callable(make):
        raise MatexError(f"--model {name}: keras.applications has no such class; take small, or such as MobileNetV2.")
    made = make(include_top=False, weights=None, input_shape=(*shape[:2], 3), pooling="avg")
    if weights:
        try:
            made.load_weights(weights)
        except (OSError, ValueError, KeyError) as error:
            raise MatexError(
                f"--weights {weights} cannot be read as weights of {name} without its top (include_top=False): {error}"
            ) from None
    return made


def _small(x: Any, size: int) -> Any:
    """Convolutions, each on half as many pixels across as the one before, until 4 to 7 are left of the shorter side.

    Large images lose half of their pixels in the first one. Later ones see all pixels, and the largest of four goes on:
    with strides in their place a network needs several times the steps for shapes that may be anywhere.
    """
    width, half = 16, size >= 48
    x = _convolution(x, width, 2 if half else 1)
    size = size // 2 if half else size
    while size >= 8:
        width = min(2 * width, 64)
        x = keras.layers.MaxPooling2D()(_convolution(x, width))
        size //= 2
    return keras.layers.GlobalAveragePooling2D()(_convolution(x, width))


def _convolution(x: Any, width: int, stride: int = 1) -> Any:
    x = keras.layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
    return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))
