"""What gradients look like on the wire."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """Makes tensors smaller for the wire."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The tensor to send, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """The tensor as it was, but for what was lost.

        Args:
            tensor: what came.
            ctx: what `compress` gave beside the tensor that was sent.
        """
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The tensor."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """The `tensor`; `ctx` is not needed."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16, which is summed in float32 and rounded once."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The tensor in float16, and its dtype."""
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """The `tensor` in the dtype that it had, `ctx`."""
        return tf.cast(tensor, ctx) if ctx.is_floating else tensor


class Compression:
    """Compression of gradients: `Compression.none` or `Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
