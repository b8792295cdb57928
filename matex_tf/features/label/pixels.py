"""Pixels: from files of images, and to small pictures of the page, within limits."""

from __future__ import annotations

import io
import warnings
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageDraw

from matex_tf.errors import DataError

MOST_PIXELS = 64 << 20  # of one image
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM")
_PLOT = (96, 96)
_FEW = 16  # columns of a row that is drawn as bars


def require_size(width: int, height: int, where: str) -> None:
    """Refuse an image that claims to be larger than is unpacked, before it is.

    Args:
        width, height: pixels that it claims to have.
        where: its name, for the error.

    Raises:
        DataError: it has none, or more than `MOST_PIXELS`.
    """
    if width * height > MOST_PIXELS or not width or not height:
        raise DataError(f"{where} has {width} x {height} pixels, and an image may have {MOST_PIXELS >> 20} million.")


def decode(file: BinaryIO, name: str, size: int = 0) -> Any:
    """An image of a file, unpacked.

    Args:
        size: in pixels, that will do; a JPEG is then unpacked to little more than that. 0 for all of it.

    Raises:
        DataError: it is none, is damaged, or too large.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns where require_size refuses
            image = Image.open(file, formats=_FORMATS)
            require_size(*image.size, name)
            if size:
                image.draft(None, (size, size))
            image.load()
    except DataError:
        raise
    except Exception as error:  # the decoders raise many kinds
        raise DataError(f"{name} is not an image that can be read ({error}).") from None
    return _plain(image)


def from_array(array: np.ndarray) -> Any:
    """An image of uint8 (height, width), with or without channels."""
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    return _plain(Image.fromarray(np.ascontiguousarray(array)))


def _plain(image: Any) -> Any:
    """Grey or colour, of 8 bits, on white where it was transparent."""
    if image.mode in ("I", "F", "I;16", "I;16L", "I;16B", "I;16N"):
        values = np.nan_to_num(np.asarray(image, np.float64))
        low, high = np.percentile(values, [0.5, 99.5])
        return Image.fromarray((255 * (values - low) / max(high - low, 1e-9)).clip(0, 255).astype(np.uint8))
    if image.mode in ("L", "RGB"):
        return image
    if image.mode == "1":
        return image.convert("L")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        ground.alpha_composite(image)
        return ground.convert("RGB")
    return image.convert("RGB")


def square(image: Any, size: int) -> np.ndarray:
    """What a network learns from: uint8 (size, size, channels), with 1 channel or 3.

    Args:
        image: of Pillow, in grey or colour; stretched to a square.
        size: pixels across.
    """
    if image.size != (size, size):
        image = image.resize(
            (size, size), Image.Resampling.BOX if min(image.size) > size else Image.Resampling.BILINEAR
        )
    array = np.asarray(image)
    return array[..., None] if array.ndim == 2 else array


def png(image: Any, size: int) -> bytes:
    """A picture as a PNG file. Small ones are drawn up to eight times as large, and not made soft.

    Args:
        image: of Pillow.
        size: pixels that the longer side has at most.
    """
    largest = max(image.size)
    if largest > size:
        image = image.copy()
        image.thumbnail((size, size), Image.Resampling.BOX)
    elif (times := min(8, size // largest)) > 1:
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def plot(row: np.ndarray) -> Any:
    """A small plot of a row of numbers around 0, in units of their spread: bars of a few, a line of many."""
    times = 2  # drawn larger, and made smooth
    width, height = (times * side for side in _PLOT)
    image = Image.new("RGB", (width, height), "#f7f8fa")
    draw = ImageDraw.Draw(image)
    top = max(2.5, float(np.abs(row).max(initial=0)))
    middle, unit = height / 2, 0.45 * height / top
    draw.line([(0, middle), (width, middle)], fill="#c3c9d4", width=times)
    step = width / len(row)
    if len(row) <= _FEW:
        for place, value in enumerate(row):
            ends = sorted((middle, middle - unit * float(value)))
            colour = "#3b6fd4" if value >= 0 else "#c9553d"
            draw.rectangle([(place + 0.15) * step, ends[0], (place + 0.85) * step, ends[1]], fill=colour)
    else:
        points = [((place + 0.5) * step, middle - unit * float(value)) for place, value in enumerate(row)]
        draw.line(points, fill="#3b6fd4", width=2 * times, joint="curve")
    return image.resize(_PLOT, Image.Resampling.LANCZOS)
