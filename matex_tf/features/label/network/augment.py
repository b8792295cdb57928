"""Changes of images, or of rows of numbers, that do not change what they show."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

#: What may be done to an image without changing what it shows.
AUGMENTS = ("none", "shift", "flip", "rotate")
DRAWS = 12  # numbers between 0 and 1 that augment one image


class Augment:
    """Changes images, or rows of numbers, in ways that do not change what they show.

    Args:
        kind: one of AUGMENTS. Any but `none` moves images by up to an eighth; `flip` mirrors them, `rotate`
            turns them too.
    """

    def __init__(self, kind: str):
        self.kind = kind

    def __call__(self, images: Any, draws: Any, strong: bool) -> Any:
        """Images, float32 (rows, height, width, channels), changed as `draws`, (rows, DRAWS) between 0 and 1, say."""
        if len(images.shape) == 2:
            return self._row(images, draws, strong)
        if self.kind != "none" or strong:
            images = self._moved(images, draws, strong)
        return self._recoloured(images, draws) if strong else images

    def _row(self, rows: Any, draws: Any, strong: bool) -> Any:
        """Numbers, each moved a little, by waves of which the draws are the phases; strong: a sixth of them is gone."""
        width = rows.shape[1]
        places = tf.range(width, dtype=tf.float32)[None] * (1.0 + draws[:, :1])
        waves = tf.sin(2 * math.pi * (draws[:, 1:2] + 7.13 * places)) + tf.sin(
            2 * math.pi * (draws[:, 2:3] + 3.71 * places)
        )
        changed = rows + (0.15 if strong else 0.05) * waves
        if strong:
            gone = tf.math.floormod(draws[:, 3:4] + 0.618034 * places, 1.0) < 1 / 6
            changed = tf.where(gone, 0.0, changed)
        return changed

    def _moved(self, images: Any, draws: Any, strong: bool) -> Any:
        height, width = images.shape[1:3]
        around = lambda column: 2 * draws[:, column] - 1  # noqa: E731
        turn = 0.35 if strong else 0.0
        angle = around(0) * (math.pi if self.kind == "rotate" else turn)
        scale = tf.exp(around(1) * (0.25 if strong else 0.0))
        mirror = tf.where(draws[:, 2] < 0.5, -1.0, 1.0) if self.kind in ("flip", "rotate") else tf.ones_like(angle)
        share = 0.0 if self.kind == "none" else 0.125
        across, down = around(3) * share * width, around(4) * share * height
        cos, sin = tf.cos(angle) * scale, tf.sin(angle) * scale
        middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
        a, b, c, d = cos * mirror, -sin, sin * mirror, cos
        zero = tf.zeros_like(a)
        transform = tf.stack(
            [a, b, middle_x + across - a * middle_x - b * middle_y,
             c, d, middle_y + down - c * middle_x - d * middle_y, zero, zero], axis=1
        )  # fmt: skip
        return keras.ops.image.affine_transform(images, transform, "bilinear", "reflect")

    def _recoloured(self, images: Any, draws: Any) -> Any:
        """Other brightness and contrast, and a square of it gone (Cutout, as in section 2.3)."""
        height, width = images.shape[1:3]
        each = lambda column: draws[:, column, None, None, None]  # noqa: E731
        images = images * tf.exp(0.8 * (each(5) - 0.5)) + 0.8 * (each(6) - 0.5)
        rows, columns = tf.range(height)[None, :, None, None], tf.range(width)[None, None, :, None]
        top, left = each(7) * height, each(8) * width
        half = 0.2 * max(height, width) * each(9)
        near = (tf.abs(tf.cast(rows, tf.float32) - top) < half) & (tf.abs(tf.cast(columns, tf.float32) - left) < half)
        return tf.where(near, 0.0, images)
