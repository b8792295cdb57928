"""CRC-32, as zip files have it, of bytes that several ranks sum up."""

from __future__ import annotations

_POLYNOMIAL = 0xEDB88320


def joined(first: int, second: int, length: int) -> int:
    """The checksum of bytes of which the ends are known: of the first part, and of the second with its length.

    Args:
        first, second: CRC-32, of both parts.
        length: bytes of the second part.
    """
    return _product(_shift(length), first) ^ second


def _shift(length: int) -> int:
    """What moves a checksum on by so many bytes: x to the power of 8 times that."""
    result, power = 1 << 31, 1 << 23
    while length:
        if length & 1:
            result = _product(power, result)
        power = _product(power, power)
        length >>= 1
    return result


def _product(a: int, b: int) -> int:
    """Of two polynomials over GF(2), modulo that of CRC-32; the highest bit is x to the power of 0."""
    result = 0
    while a:
        if a & 1 << 31:
            result ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return result
