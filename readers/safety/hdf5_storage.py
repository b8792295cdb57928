"""Where the rows of an HDF5 dataset are stored, and whether they are all there.

HDF5 gives the fill value, zero as a rule, for what it does not find: for bytes that a file of external storage no
longer has, for a source of a virtual dataset that is missing, is too small or never was named, and for chunks that were
never written. Nobody would see that in training, so it is looked for before a row is read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from matex_tf.errors import quoted, shortened
from matex_tf.readers.places import addresses
from matex_tf.readers.safety import read_watch
from matex_tf.readers.safety.limits import most_claimed

_UNLIMITED = (1 << 64) - 1
_MOST_CELLS = 1 << 26  # of the grid in which mappings are compared
_MOST_CHUNKS = 1 << 20  # along the rows, that are counted one by one
_DEEPEST = 16  # virtual datasets of virtual datasets


@contextlib.contextmanager
def opened(h5py: Any, path: str) -> Iterator[Any]:
    """An HDF5 file, on a disk or at an address.

    Args:
        h5py: the module, which the caller has imported.
        path: an address or a path.
    """
    if addresses.is_address(path):
        with addresses.open(path, buffered=True) as ranges, h5py.File(ranges, "r") as file:
            yield file
        return
    # Locks where the file system has them: a file that a program is still writing is refused, not half read.
    with h5py.File(path, "r", locking="best-effort") as file:
        yield file


class Storage:
    """What is behind a dataset.

    Attributes:
        fault: why its rows cannot be trusted, in words that fit after its name; empty where all of them are there.
        note: what is legal and should be known; empty as a rule.
        files: other files that have rows of it.
    """

    def __init__(self, h5py: Any, dataset: Any, path: str):
        """Args: dataset: of an open file. path: of that file."""
        self._length = addresses.look(path)[0] if addresses.is_address(path) else None
        self._h5py, self.note = h5py, ""
        self.files: set[str] = set()
        self._latest: tuple[str, Any] | None = None
        try:
            self.fault = self._fault(dataset, ())
        finally:
            self._close()

    def _fault(self, dataset: Any, within: tuple[tuple[str, str], ...]) -> str:
        read_watch.goes_on()
        key = os.path.realpath(str(dataset.file.filename)), dataset.name
        if key in within or len(within) >= _DEEPEST:
            return "is virtual, and takes rows from itself"
        if self._length is not None and (dataset.is_virtual or dataset.external):
            return "lies in other files, which are not looked for at an address: download them all"
        if dataset.is_virtual:
            return self._fault_of_virtual(dataset, (*within, key))
        if dataset.size == 0:
            return ""
        if dataset.external:
            return self._fault_of_external(dataset)
        stored = dataset.id.get_storage_size()
        if stored == 0:
            return f"was made and never written: every value of it would be {quoted(_fill(dataset))}"
        if dataset.chunks is not None:
            chunk = int(np.prod(dataset.chunks, dtype=object)) * dataset.id.get_type().get_size()
            length = os.path.getsize(dataset.file.filename) if self._length is None else self._length
            if chunk > most_claimed(length):  # HDF5 would ask for the memory of a whole chunk
                return f"is damaged: its chunks would have {chunk} bytes each, and the file has {length}"
            self.note = self.note or _unwritten(dataset)
            return ""
        promised = dataset.size * dataset.id.get_type().get_size()
        if stored != promised and dataset.dtype.kind != "O":
            return f"is damaged: its shape {dataset.shape} makes {promised} bytes, and {stored} are stored"
        return ""

    def _fault_of_external(self, dataset: Any) -> str:
        left = dataset.size * dataset.id.get_type().get_size()
        row_bytes, done = max(1, left // max(1, dataset.shape[0])), 0
        directory = os.path.dirname(os.path.abspath(dataset.file.filename))
        for name, offset, size in dataset.external:
            if left <= 0:
                break
            due = min(left, size)
            path = _external_path(name, directory)
            self.files.add(path)
            try:
                there = os.path.getsize(path) - offset
            except OSError as error:
                return f"is stored in {shortened(path, 300)}, which cannot be read ({error.strerror})"
            if there < due:
                first = (done + max(0, there)) // row_bytes
                return (
                    f"is stored in {shortened(path, 300)}, which ends {due - max(0, there)} bytes too soon: rows "
                    f"{first} to {dataset.shape[0]} are not all there"
                )
            left, done = left - due, done + due
        if left > 0:
            return f"has rows that are stored nowhere, from row {done // row_bytes} on"
        return ""

    def _fault_of_virtual(self, dataset: Any, within: tuple[tuple[str, str], ...]) -> str:
        shape, selections = dataset.shape, []
        directory = os.path.dirname(os.path.abspath(dataset.file.filename))
        for source in dataset.virtual_sources():
            for virtual in _selections(source.vspace, shape):
                selections.append(virtual)
            if not selections:
                continue
            for block in _blocks(source, selections[-1]):
                rows = _rows(selections[-1], block, shape[0])
                file, name = _named(source.file_name, block), _named(source.dset_name, block)
                why = self._fault_of_source(dataset, directory, file, name, source, within)
                if why:
                    where = "" if file == "." else f" of {shortened(file, 300)}"
                    return f"is virtual, and takes rows {rows} from dataset {shortened(name)}{where}, which {why}"
        first, last = _uncovered(shape, selections)
        if first < last:
            return (
                f"is virtual, and no source has all of rows {first} to {last}, which would be {quoted(_fill(dataset))}"
            )
        return ""

    def _fault_of_source(
        self, dataset: Any, directory: str, file: str, name: str, source: Any, within: tuple[tuple[str, str], ...]
    ) -> str:
        if file == ".":
            opened = dataset.file
        else:
            path = _virtual_path(file, directory)
            if not path:
                return "is not there: there is no such file"
            self.files.add(path)
            try:
                opened = self._open(path)
            except Exception as error:  # as `data_errors` has it: what a damaged file raises is no closed list
                return f"cannot be read ({shortened(' '.join(str(error).split()), 200)})"
        try:
            found = opened[name]
        except Exception:
            return "is not there"
        if not isinstance(found, self._h5py.Dataset):
            return "is no dataset"
        lacking = _lacking(source, found.shape, dataset.shape)
        if lacking:
            return lacking
        why = self._fault(found, within)
        return why and f"itself {why}"

    def _open(self, path: str) -> Any:
        """A source, which stays open until another one is: sources are often named one dataset after the other."""
        if self._latest is None or self._latest[0] != path:
            self._close()
            self._latest = path, self._h5py.File(path, "r", locking="best-effort")
        return self._latest[1]

    def _close(self) -> None:
        if self._latest is not None:
            self._latest[1].close()
            self._latest = None


def _fill(dataset: Any) -> Any:
    with contextlib.suppress(Exception):
        return dataset.fillvalue.tolist()
    return "the fill value"


def _external_path(name: str, directory: str) -> str:
    """Where HDF5 looks for a file of external storage: from the working directory, unless the environment says."""
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", directory)
    return os.path.abspath(os.path.join(prefix, name))


def _virtual_path(name: str, directory: str) -> str:
    """Where HDF5 finds a source of a virtual dataset; empty where it does not."""
    prefix = os.environ.get("HDF5_VDS_PREFIX", "").replace("${ORIGIN}", directory)
    places = [os.path.join(prefix, name)] if prefix else []
    places += [os.path.join(directory, name), os.path.abspath(name)]
    if os.path.isabs(name):
        places.append(os.path.join(directory, os.path.basename(name)))
    return next((place for place in places if os.path.exists(place)), "")


def _named(text: str, block: int | None) -> str:
    """A name of a source with the number of the block in it, as HDF5 puts it there."""
    if block is None:
        return text
    return text.replace("%%", "\0").replace("%b", str(block)).replace("\0", "%")


#: Of a selection: for each axis start, stride, count and block.
Selection = list[tuple[int, int, int, int]]


def _selections(space: Any, extent: tuple[int, ...]) -> Iterator[Selection]:
    """What is selected of a space, as regular selections, up to an extent."""
    from h5py import h5s

    kind = space.get_select_type()
    if kind == h5s.SEL_ALL:
        yield [(0, size, 1, size) for size in extent]
    elif kind == h5s.SEL_HYPERSLABS and space.is_regular_hyperslab():
        axes = zip(*space.get_regular_hyperslab(), extent, strict=True)
        yield [_clipped(*map(int, axis)) for axis in axes]
    elif kind == h5s.SEL_HYPERSLABS:
        for low, high in space.get_select_hyper_blocklist():
            yield [
                _clipped(int(a), 1, 1, int(b) - int(a) + 1, size) for a, b, size in zip(low, high, extent, strict=True)
            ]


def _clipped(start: int, stride: int, count: int, block: int, size: int) -> tuple[int, int, int, int]:
    if block == _UNLIMITED:
        return start, 1, 1, max(0, size - start)
    stride = max(1, stride)
    return start, stride, min(count, max(0, -(-(size - start) // stride))), block


def _blocks(source: Any, selection: Selection) -> Iterable[int | None]:
    """The numbers of the blocks of a virtual dataset that have a source each; None for a source of its own."""
    if "%b" not in source.file_name + source.dset_name:
        return [None]
    return range(max(count for _, _, count, _ in selection))


def _rows(selection: Selection, block: int | None, most: int) -> str:
    """The rows that are selected, or those of a block, in words."""
    start, stride, count, size = selection[0]
    first, last = (0, count - 1) if block is None or count == 1 else (block, block)
    return f"{start + first * stride} to {min(most, start + last * stride + size)}"


def _lacking(source: Any, have: tuple[int, ...], virtual: tuple[int, ...]) -> str:
    """In what a source of this shape is smaller than what is taken from it; empty where it is not."""
    from h5py import h5s

    space, size = source.src_space, int(np.prod(have, dtype=object))
    if space.get_select_type() == h5s.SEL_ALL:  # whose extent a file does not keep
        selected = list(_selections(source.vspace, virtual))
        due = sum(int(np.prod([count * block for _, _, count, block in one], dtype=object)) for one in selected)
        due //= max(1, len(list(_blocks(source, selected[0]))))
        return f"has {size} values, shape {have}, and {due} are due" if size < due else ""
    needed = _needed(source, virtual)
    if len(needed) != len(have):
        return f"has the shape {have}, and {len(needed)} dimensions are due"
    if any(there < need for there, need in zip(have, needed, strict=True)):
        return f"has the shape {have}, and {needed} is due"
    return ""


def _needed(source: Any, virtual: tuple[int, ...]) -> tuple[int, ...]:
    """The least shape that a source must have for what is selected of it."""
    space = source.src_space
    if not space.is_regular_hyperslab():
        return tuple(int(high) + 1 for high in space.get_select_bounds()[1])
    needed = []
    for start, stride, count, block in zip(*space.get_regular_hyperslab(), strict=True):
        if _UNLIMITED in (count, block):
            # As many blocks, or rows, as the virtual dataset takes along its own unlimited axis.
            axes = [axis for axis in zip(*source.vspace.get_regular_hyperslab(), virtual, strict=True)
                    if _UNLIMITED in axis[2:4]]  # fmt: skip
            if "%b" in source.file_name + source.dset_name or not axes:
                count, block = 1, 0 if block == _UNLIMITED else block
            else:
                taken = _clipped(*map(int, axes[0]))
                count, block = (taken[2], block) if count == _UNLIMITED else (1, taken[2] * taken[3])
        needed.append(int(start) + (int(count) - 1) * int(stride) + int(block) if count else 0)
    return tuple(needed)


def _uncovered(shape: tuple[int, ...], selections: list[Selection]) -> tuple[int, int]:
    """The first rows of which some value is in no selection, and one past the last of these; (0, 0) where all are.

    Selections are compared on a grid whose lines are their edges.
    """
    lines = []
    for axis, size in enumerate(shape):
        edges = [np.array([0, size])]
        for selection in selections:
            start, stride, count, block = selection[axis]
            if stride == block:
                edges.append(np.array([start, start + count * block]))
            else:
                begins = start + stride * np.arange(count)
                edges += [begins, begins + block]
        joined = np.unique(np.concatenate(edges))
        lines.append(joined[(joined >= 0) & (joined <= size)])
    cells = [len(one) - 1 for one in lines]
    if int(np.prod(cells, dtype=object)) > _MOST_CELLS:
        covered = sum(int(np.prod([c * b for _, _, c, b in one], dtype=object)) for one in selections)
        return (0, 0) if covered >= int(np.prod(shape, dtype=object)) else (0, shape[0])
    grid = np.zeros(cells, bool)
    for selection in selections:
        masks = []
        for (start, stride, count, block), edge in zip(selection, lines, strict=True):
            at = edge[:-1] - start
            masks.append((at >= 0) & (at // stride < count) & (at % stride < block))
        grid[np.ix_(*masks)] = True
    lacking = np.flatnonzero(~grid.reshape(cells[0], -1).all(axis=1))
    if not len(lacking):
        return 0, 0
    apart = np.flatnonzero(np.diff(lacking) > 1)
    last = lacking[apart[0]] if len(apart) else lacking[-1]
    return int(lines[0][lacking[0]]), int(lines[0][last + 1])


def _unwritten(dataset: Any) -> str:
    """Which rows of a chunked dataset were never written; empty where all were."""
    due = [-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
    written = dataset.id.get_num_chunks()
    if written >= int(np.prod(due, dtype=object)):
        return ""
    rows = "some rows"
    if due[0] <= _MOST_CHUNKS and hasattr(dataset.id, "chunk_iter"):  # to ask for one chunk walks over all before it
        counts = np.zeros(due[0], np.int64)

        def count(chunk: Any) -> None:
            counts[chunk.chunk_offset[0] // dataset.chunks[0]] += 1

        dataset.id.chunk_iter(count)
        lacking = np.flatnonzero(counts < int(np.prod(due[1:], dtype=object)))
        low, high = int(lacking[0]) * dataset.chunks[0], (int(lacking[-1]) + 1) * dataset.chunks[0]
        most = min(dataset.shape[0], len(lacking) * dataset.chunks[0])
        rows = f"of rows {low} to {min(dataset.shape[0], high)}, {most}"
    return f"{rows} were not written, or not in full: what is not there is {quoted(_fill(dataset))}"
