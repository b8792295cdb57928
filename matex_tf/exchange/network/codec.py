"""What numbers look like on the wire: bfloat16 by truncation, int8 and int4 with a scale a block (Pipe-SGD, arXiv
1811.03619, the section on compression).

A codec turns a flat array of floats into bytes and back. Float32 is what it works in; other floats go by way of it.
It goes through an array in pieces that stay in a core's cache, in memory of its own: so nothing of the array's size is
allocated on the way, and a codec belongs to one thread at a time.

All are idempotent: what was decoded once is encoded to the same bytes again. NaN and infinities come out as what they
were, at their places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from matex_tf.errors import SettingError

#: Elements of a piece: 256 KB as float32, so that a piece and what becomes of it lie in a core's second cache or little
#: beyond. In smaller pieces the calls into NumPy take longer than what they do.
PIECE = 1 << 16

#: Blocks with nothing at or above this are zero on the wire: their scale's inverse would not be a float32.
LEAST = 2.0**-118

_ABSOLUTE = np.uint32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)
_MARK = np.uint32(0x80000000)  # the sign of a scale: its block holds a NaN or an infinity
_MANTISSA = np.uint32(0xFFFFFF00)  # 16 bits of a scale, so that a scale times a code of 7 bits is exact


class Codec:
    """How numbers are encoded: an array in pieces, each as float32, and error feedback around a piece. `wire` is always
    uint8, contiguous, and as long as `nbytes` says.

    Attributes:
        name: as settings have it.
    """

    name = ""

    def __init__(self) -> None:
        self._floats = np.empty(PIECE, np.float32)  # a piece of another dtype, or with its residual, or decoded
        self._work = np.empty(PIECE, np.float32)  # of the codec itself

    def nbytes(self, count: int) -> int:
        """Bytes on the wire for so many numbers."""
        raise NotImplementedError

    def _encode(self, start: int, piece: np.ndarray, wire: np.ndarray, count: int) -> None:
        raise NotImplementedError

    def _decode(self, start: int, wire: np.ndarray, piece: np.ndarray, count: int) -> None:
        raise NotImplementedError

    def encode(self, values: np.ndarray, wire: np.ndarray, residual: np.ndarray | None = None) -> None:
        """Write `values` to `wire`.

        Args:
            values: flat and contiguous, of any float dtype.
            wire: where to.
            residual: float32, of the size of `values`, zero at first: what earlier calls could not say (error feedback,
                arXiv 1901.09847). It is added to the values, and left with what this call could not say; `values`
                stay as they are.

        Raises:
            ValueError: the sizes do not fit together.
        """
        self._check(values, wire, residual)
        with np.errstate(all="ignore"):  # what a codec makes of NaN and infinities is its business
            for here in _pieces(values.size):
                piece = values[here]
                if residual is not None:
                    wanted = self._floats[: piece.size]
                    np.add(piece, residual[here], out=wanted, casting="unsafe")
                    self._encode(here.start, wanted, wire, values.size)
                    self._keep(here, wanted, wire, residual, values.size)
                    continue
                if piece.dtype != np.float32:
                    piece = self._floats[: piece.size]
                    np.copyto(piece, values[here], casting="unsafe")
                self._encode(here.start, piece, wire, values.size)

    def decode(self, wire: np.ndarray, values: np.ndarray) -> None:
        """Read `values`, of any float dtype, from `wire`.

        Args:
            wire: uint8, as `encode` has written it.
            values: flat and contiguous; overwritten.
        """
        self._check(values, wire, None)
        with np.errstate(all="ignore"):
            for here in _pieces(values.size):
                piece = values[here]
                if piece.dtype == np.float32:
                    self._decode(here.start, wire, piece, values.size)
                else:
                    said = self._floats[: piece.size]
                    self._decode(here.start, wire, said, values.size)
                    np.copyto(piece, said, casting="unsafe")

    def add(self, wire: np.ndarray, total: np.ndarray) -> None:
        """Add what `wire` says to `total`, of any float dtype; short floats are added in float32 and rounded once.

        Args:
            wire: uint8, as `encode` has written it.
            total: flat and contiguous, of as many numbers as were encoded.
        """
        self._check(total, wire, None)
        with np.errstate(all="ignore"):
            for here in _pieces(total.size):
                said = self._floats[: here.stop - here.start]
                self._decode(here.start, wire, said, total.size)
                np.add(total[here], said, out=total[here], casting="unsafe")

    def _keep(self, here: slice, wanted: np.ndarray, wire: np.ndarray, residual: np.ndarray, count: int) -> None:
        left = residual[here]
        self._decode(here.start, wire, left, count)
        np.subtract(wanted, left, out=left)
        # Of a NaN or an infinity nothing is left to say; a NaN in the residual would stay there for ever.
        if left.size and np.isnan(np.maximum.reduce(left)):
            left[np.isnan(left)] = 0

    def _check(self, values: np.ndarray, wire: np.ndarray, residual: np.ndarray | None) -> None:
        if values.ndim != 1 or wire.size != self.nbytes(values.size):
            raise ValueError(
                f"{self.name}: numbers of shape {values.shape} take {self.nbytes(values.size)} bytes on the wire, "
                f"not {wire.size}."
            )
        if residual is not None and (residual.size != values.size or residual.dtype != np.float32):
            raise ValueError(f"{self.name}: a residual of {residual.size} {residual.dtype} for {values.size} numbers.")


class BFloat16(Codec):
    """The upper half of each float32: 8 bits of exponent, 7 of mantissa. Values lose less than 1/128 of themselves,
    always towards zero, so a sum of many leans there too; error feedback takes that away."""

    name = "bf16"

    def nbytes(self, count: int) -> int:
        return 2 * count

    def _encode(self, start: int, piece: np.ndarray, wire: np.ndarray, count: int) -> None:
        codes = wire[2 * start : 2 * (start + piece.size)].view(np.uint16)
        np.copyto(codes, piece.view(np.uint16)[_UPPER::2])
        if np.isnan(np.maximum.reduce(piece)):
            codes[np.isnan(piece)] |= 0x0040  # a NaN of which only the lower half says so would be an infinity

    def _decode(self, start: int, wire: np.ndarray, piece: np.ndarray, count: int) -> None:
        bits = piece.view(np.uint32)
        np.copyto(bits, wire[2 * start : 2 * (start + piece.size)].view(np.uint16))
        np.left_shift(bits, 16, out=bits)


class _Whole(Codec):
    """Whole numbers, times a scale for each block: an error of at most half a scale. On the wire the scales come first.

    A block that holds a NaN or an infinity has a negative scale. There the largest code and its negative are the
    infinities, the one below that is NaN, and the others are coded with one code less, by the largest finite number.

    Attributes:
        block: elements that share a scale.
        most: the largest code.
    """

    block: ClassVar[int]
    most: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self._inverse = np.empty((PIECE // self.block, 1), np.float32)
        self._largest = np.empty(PIECE // self.block, np.int32)

    def _codes(self, start: int, size: int, wire: np.ndarray, count: int) -> np.ndarray:
        """int8: where the codes of a piece are put; of `wire`, or of this codec's own memory."""
        raise NotImplementedError

    def _pack(self, start: int, codes: np.ndarray, wire: np.ndarray, count: int) -> None:
        """Write codes that are not in `wire` already."""

    def _unpacked(self, start: int, size: int, wire: np.ndarray, count: int) -> np.ndarray:
        """int8: the codes of a piece."""
        raise NotImplementedError

    def _encode(self, start: int, piece: np.ndarray, wire: np.ndarray, count: int) -> None:
        scales, codes = self._scales(start, piece.size, wire), self._codes(start, piece.size, wire, count)
        whole, block = piece.size // self.block, self.block
        if whole:
            self._encode_blocks(piece[: whole * block], scales[:whole], codes[: whole * block])
        if whole < scales.size:
            self._encode_blocks(piece[whole * block :], scales[whole:], codes[whole * block :])
        self._pack(start, codes, wire, count)

    def _encode_blocks(self, values: np.ndarray, scales: np.ndarray, codes: np.ndarray) -> None:
        """Blocks of one length."""
        blocks = scales.size
        work, largest, inverse = self._work[: values.size], self._largest[:blocks], self._inverse[:blocks]
        np.bitwise_and(values.view(np.uint32), _ABSOLUTE, out=work.view(np.uint32))
        # Floats without a sign are in the order of their bits, NaN after infinity.
        np.maximum.reduce(work.view(np.int32).reshape(blocks, -1), axis=1, out=largest)
        _set_scales(largest.view(np.float32), self.most, scales, inverse)
        np.multiply(values.reshape(blocks, -1), inverse, out=work.reshape(blocks, -1))
        np.rint(work, out=work)
        np.copyto(codes, work, casting="unsafe")
        if np.maximum.reduce(largest) >= _INFINITY:
            self._encode_marked(np.flatnonzero(largest >= _INFINITY), values, scales, codes)

    def _encode_marked(self, marked: np.ndarray, values: np.ndarray, scales: np.ndarray, codes: np.ndarray) -> None:
        """Encode blocks that hold a NaN or an infinity. Rare, so in plain numpy."""
        values, codes = values.reshape(scales.size, -1), codes.reshape(scales.size, -1)
        held = values[marked]
        finite = np.isfinite(held)
        inverse, scale = np.empty((marked.size, 1), np.float32), np.empty(marked.size, np.float32)
        _set_scales(np.where(finite, np.abs(held), np.float32(0)).max(axis=1), self.most - 1, scale, inverse)
        said = np.rint(np.where(finite, held, np.float32(0)) * inverse)
        said = np.where(finite, said, np.where(np.isnan(held), -self.most - 1, np.copysign(self.most, held)))
        codes[marked] = said.astype(np.int8)
        scales[marked] = (scale.view(np.uint32) | _MARK).view(np.float32)

    def _decode(self, start: int, wire: np.ndarray, piece: np.ndarray, count: int) -> None:
        scales, codes = self._scales(start, piece.size, wire), self._unpacked(start, piece.size, wire, count)
        np.copyto(piece, codes)
        whole = piece.size // self.block
        if whole:
            part = piece[: whole * self.block].reshape(whole, self.block)
            np.multiply(part, scales[:whole, None], out=part)
        if whole < scales.size:
            np.multiply(piece[whole * self.block :], scales[whole], out=piece[whole * self.block :])
        if np.maximum.reduce(scales.view(np.uint32)) >= _MARK:
            for block in np.flatnonzero(np.signbit(scales)):
                here = slice(block * self.block, (block + 1) * self.block)
                part, said = piece[here], codes[here]
                np.negative(part, out=part)
                part[said == -self.most - 1] = np.nan
                part[said == self.most] = np.inf
                part[said == -self.most] = -np.inf

    def _scales(self, start: int, size: int, wire: np.ndarray) -> np.ndarray:
        """float32: the scales of a piece, which starts at a block."""
        first, last = start // self.block, -(-(start + size) // self.block)
        return wire[4 * first : 4 * last].view(np.float32)

    def _scale_bytes(self, count: int) -> int:
        return 4 * -(-count // self.block)


class Int8(_Whole):
    """8 bits each: whole numbers from -127 to 127, times a scale for 512 of them, which takes 0.8 % of their bytes. An
    error of at most 1/254 of the largest number of the block."""

    name = "int8"
    block, most = 512, 127

    def nbytes(self, count: int) -> int:
        return count + self._scale_bytes(count)

    def _codes(self, start: int, size: int, wire: np.ndarray, count: int) -> np.ndarray:
        first = self._scale_bytes(count) + start
        return wire[first : first + size].view(np.int8)

    _unpacked = _codes


class Int4(_Whole):
    """4 bits each, two in a byte: whole numbers from -7 to 7, times a scale for 128 of them, which takes 6 % of their
    bytes. An error of at most 1/14 of the largest number of the block: made for the outer step of `local`
    (Streaming DiLoCo, arXiv 2501.18512, sends 4 bits too)."""

    name = "int4"
    block, most = 128, 7

    def __init__(self) -> None:
        super().__init__()
        self._apart = np.empty(PIECE, np.int8)

    def nbytes(self, count: int) -> int:
        return -(-count // 2) + self._scale_bytes(count)

    def _codes(self, start: int, size: int, wire: np.ndarray, count: int) -> np.ndarray:
        return self._apart[:size]

    def _pack(self, start: int, codes: np.ndarray, wire: np.ndarray, count: int) -> None:
        pairs = self._pairs(start, codes.size, wire, count)
        bits = codes.view(np.uint8)
        np.bitwise_and(bits[::2], 15, out=pairs)
        pairs[: codes.size // 2] |= bits[1::2] << np.uint8(4)

    def _unpacked(self, start: int, size: int, wire: np.ndarray, count: int) -> np.ndarray:
        pairs, codes = self._pairs(start, size, wire, count), self._apart[:size]
        np.right_shift((pairs << np.uint8(4)).view(np.int8), 4, out=codes[::2])
        np.right_shift(pairs.view(np.int8)[: size // 2], 4, out=codes[1::2])
        return codes

    def _pairs(self, start: int, size: int, wire: np.ndarray, count: int) -> np.ndarray:
        first = self._scale_bytes(count) + start // 2  # a piece starts at an even place
        return wire[first : first + -(-size // 2)]


def _set_scales(largest: np.ndarray, most: int, scales: np.ndarray, inverse: np.ndarray) -> None:
    """Scales so that `largest` has the code `most`, and their inverses; both zero where all is too small."""
    np.divide(largest, np.float32(most), out=scales)
    bits = scales.view(np.uint32)
    np.bitwise_and(bits, _MANTISSA, out=bits)  # down, so that the largest code times the scale is not infinity
    scales[~(largest >= LEAST)] = 0
    np.divide(np.float32(1), scales, out=inverse[:, 0])
    inverse[scales == 0] = 0


def _pieces(count: int) -> Iterator[slice]:
    for start in range(0, count, PIECE):
        yield slice(start, min(start + PIECE, count))


#: Where in the two halves of a float32 the upper one lies.
_UPPER = int(np.array([0x3F800000], np.uint32).view(np.uint16)[1] == 0x3F80)

#: By name; "none" of the settings is not a codec and has no class.
CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (BFloat16, Int8, Int4)}


def create(name: str) -> Codec:
    """A codec of its own for this caller.

    Raises:
        SettingError: there is none of this name.
    """
    if name not in CODECS:
        raise SettingError(f"there is no codec {name!r}; there is {', '.join(CODECS)}.")
    return CODECS[name]()
