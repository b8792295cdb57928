"""How an HDF5 file, which a netCDF-4 file is too, is told from others."""

from __future__ import annotations

from matex_tf.readers.places import addresses

HDF5 = b"\x89HDF\r\n\x1a\n"
_AT_AN_ADDRESS = 2048 + len(HDF5)


def is_hdf5(path: str) -> bool:
    """Whether the signature of HDF5 is at the start, or after a user's own block of 512, 1024, 2048, … bytes.

    At an address, where each look is a request, such a block has 2048 bytes at most.
    """
    place = 0
    if addresses.is_address(path):
        with addresses.open(path) as file:
            head = file.read(_AT_AN_ADDRESS)
        return any(head.startswith(HDF5, place) for place in (0, 512, 1024, 2048))
    with open(path, "rb") as file:
        while True:
            file.seek(place)
            found = file.read(len(HDF5))
            if found == HDF5 or len(found) < len(HDF5):
                return found == HDF5
            place = place * 2 or 512


def looks_like_hdf5(path: str, head: bytes) -> bool:
    """Whether it is HDF5, where its first bytes are known: a classic NetCDF file is not searched.

    Args:
        path: an address or a path; it is opened unless `head` is that of a classic NetCDF file.
        head: the first bytes of the file, three or more.
    """
    return head[:3] != b"CDF" and is_hdf5(path)
