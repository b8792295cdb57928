"""Files of arrays, each with the rows that a reader must give for it."""

from __future__ import annotations

import gzip
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np

ROWS = 53


@dataclass
class Sample:
    """A table and what it must hold.

    Attributes:
        name: for messages; paths, wanted: what it is opened with; x, y: all its rows.
        format: as named by the user; None where it is to be found.
    """

    name: str
    paths: list[str]
    x: Any
    y: Any
    wanted: dict[str, Any] = field(default_factory=dict)
    format: str | None = None


def rows(dtype: Any, *shape: int, count: int = ROWS, seed: int = 0) -> np.ndarray:
    """Random rows of a dtype."""
    random, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, (count, *shape)).astype(bool)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min // 2 + 2, np.iinfo(dtype).max // 2
        return random.integers(low, high, (count, *shape)).astype(dtype)
    return random.normal(size=(count, *shape)).astype(dtype)


def words(count: int = ROWS) -> list[str]:
    return [f"wört{number}"[: 3 + number % 5] for number in range(count)]


def hdf5(directory: Path) -> list[Sample]:
    """HDF5 in every layout and dtype."""
    samples = []

    def write(
        name: str,
        content: dict[str, Any],
        inputs: Any = "x",
        labels: Any = "y",
        wanted: Any = None,
        options: Any = None,
        **file_options: Any,
    ) -> None:
        path = directory / f"{name}.h5"
        with h5py.File(path, "w", **file_options) as file:
            for key, value in content.items():
                file.create_dataset(key, data=value, **(options or {}))
        x = tuple(content[key] for key in inputs) if isinstance(inputs, tuple) else content[inputs]
        samples.append(Sample(name, [str(path)], x, None if labels is None else content[labels], wanted or {}))

    x, y = rows("f4", 4, 3), rows("i8")
    write("contiguous", {"x": x, "y": y})
    write("user_block", {"x": x, "y": y}, userblock_size=1024)
    write("new_layout", {"x": x, "y": y}, options={"chunks": True}, libver="latest")
    write("in_groups", {"deep/down/images": x, "deep/down/Labels": y}, "deep/down/images", "deep/down/Labels")
    for name, options in {
        "gzip": {"compression": "gzip", "shuffle": True},
        "lzf": {"compression": "lzf", "fletcher32": True},
        "plain": {},
    }.items():
        content = {"data": rows("i4", 6), "label": rows("u2", 2)}
        write(f"chunks_{name}", content, "data", "label", options={"chunks": (7, 2), **options})
    for dtype in ("u1", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "bool", "c8"):
        write(f"of_{dtype}", {"features": rows(dtype, 2), "target": y}, "features", "target")
    for dtype in (">f4", ">i2"):
        content = {"Inputs": x.astype(dtype), "Targets": y.astype(">i8")}
        write(f"big_endian_{dtype[1:]}", content, "Inputs", "Targets")
    mixed = {"a": x, "b": rows("f8", 2), "c": y}
    write("named", mixed, "b", "c", {"x": "b", "y": "c"})
    write("several", mixed, ("a", "b"), "c", {"x": ["a", "b"], "y": "c"})
    write("alone", {"temperature": x, "epoch": 3}, "temperature", None)
    write("without_labels", {"x": x, "y": y}, "x", None, {"y": False})
    path = directory / "text.h5"
    fixed = np.array([word.encode() for word in words()])
    with h5py.File(path, "w") as file:
        file["x"], file["fixed"] = x, fixed
        file.create_dataset("free", data=words(), dtype=h5py.string_dtype())
        file.create_dataset("kind", data=y % 3, dtype=h5py.enum_dtype({"cat": 0, "dog": 1, "cow": 2}, "i1"))
        file["link"] = h5py.SoftLink("/x")
        file["other"] = h5py.ExternalLink("contiguous.h5", "/x")
    for name, expected in {
        "fixed": np.array(words()).astype(f"U{fixed.dtype.itemsize}"),
        "free": np.array(words(), object),
        "kind": (y % 3).astype("i1"),
    }.items():
        samples.append(Sample(f"text_{name}", [str(path)], x, expected, {"x": "link", "y": name}))
    samples.append(Sample("external", [str(path)], x, None, {"x": "other"}))
    samples.append(
        Sample("cast", [str(directory / "of_u1.h5")], rows("u1", 2).astype("f4"), y, {"dtype": np.dtype("f4")})
    )
    halves = [str(directory / f"half{number}.h5") for number in (0, 1)]
    for path, part in zip(halves, (slice(0, 20), slice(20, None)), strict=True):
        with h5py.File(path, "w") as file:
            file["x"], file["y"] = x[part], y[part]
    samples.append(Sample("two_files", halves, x, y))
    return samples


def netcdf(directory: Path) -> list[Sample]:
    """NetCDF in its formats, each with what attributes do."""
    samples = []
    x, number = rows("f4", 3), np.arange(ROWS)
    for format in ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4", "NETCDF4_CLASSIC"):
        for length in (None, ROWS):
            path = str(directory / f"{format}_{length}.{'h5' if length else 'nc'}")
            with netCDF4.Dataset(path, "w", format=format) as file:
                for name, size in {"row": length, "column": 3, "letters": 12, "one": 1}.items():
                    file.createDimension(name, size)
                options = {"chunksizes": (10, 2), "zlib": True} if format == "NETCDF4" and not length else {}
                file.createVariable("features", "f4", ("row", "column"), **options)[:] = x
                file.createVariable("target", "i2", ("row",))[:] = number
                file.createVariable("row", "f8", ("row",))[:] = number / 2
                file.createVariable("odd", "i1", ("row",))[:] = number % 7
                variable = file.createVariable("gaps", "i2", ("row", "column"), fill_value=-9)
                variable[:] = np.where(number[:, None] % 5 == [0, 1, 2], -9, number[:, None])
                variable = file.createVariable("wide", "i4", ("row",), fill_value=-9)
                variable[:] = np.where(number % 5 == 0, -9, number)
                variable = file.createVariable("packed", "i2", ("row", "column"))
                variable.set_auto_maskandscale(False)
                variable.scale_factor, variable.add_offset, variable.missing_value = 0.5, 100.0, np.int16(3)
                variable[:] = number[:, None]
                variable = file.createVariable("doubles", "i4", ("row",))
                variable.set_auto_maskandscale(False)
                variable.scale_factor = 0.5
                variable[:] = number
                variable = file.createVariable("unsigned", "i1", ("row",))
                variable.set_auto_maskandscale(False)
                variable._Unsigned = "true"
                variable[:] = (number * 4).astype("u1").view("i1")
                letters = np.array([word.encode() for word in words()], "S12")
                file.createVariable("text", "S1", ("row", "letters"))[:] = letters.view("S1").reshape(ROWS, 12)
                if format == "NETCDF4":
                    group = file.createGroup("deep")
                    group.createVariable("words", str, ("row",))[:] = np.array(words(), object)
                    group.createVariable("big", "u8", ("row",))[:] = number.astype("u8") + 2**60
            gaps = np.where(number[:, None] % 5 == [0, 1, 2], np.nan, number[:, None]).astype("f4")
            packed = np.broadcast_to((number * 0.5 + 100)[:, None], (ROWS, 3)).astype("f4")
            packed[3] = np.nan
            text = np.array(words()).astype("U12")
            name = Path(path).stem
            samples += [
                Sample(name, [path], x, number.astype("i2")),
                Sample(f"{name} packed", [path], (packed, number / 2), text, {"x": ["packed", "row"], "y": "text"}),
                Sample(f"{name} gaps", [path], gaps, (number % 7).astype("i1"), {"x": "gaps", "y": "odd"}),
                Sample(f"{name} doubles", [path], (number * 0.5, np.where(number % 5 == 0, np.nan, number)),
                       (number * 4).astype("u1"), {"x": ["doubles", "wide"], "y": "unsigned"}),
            ]  # fmt: skip
            if format == "NETCDF4":
                expected = np.array(words(), object)
                big = number.astype("u8") + 2**60
                samples.append(Sample(f"{name} deep", [path], big, expected, {"x": "deep/big", "y": "deep/words"}))
    return samples


def numpy(directory: Path) -> list[Sample]:
    """.npy and .npz files."""
    samples = []
    labels = rows("i8")
    np.save(directory / "labels.npy", labels)
    for name, array in {
        "c": rows("f4", 5, 3),
        "fortran": np.asfortranarray(rows("f8", 5, 3)),
        "big": rows("f4", 2).astype(">f4"),
        "bool": rows("?", 4),
        "half": rows("f2"),
        "complex": rows("c16", 2),
        "bytes": np.array([word.encode() for word in words()]),
        "text": np.array(words()),
        "empty_rows": np.zeros((ROWS, 0), "f4"),
    }.items():
        path = str(directory / f"{name}.npy")
        np.save(path, array)
        expected = np.array(words()).astype(f"U{array.dtype.itemsize}") if name == "bytes" else array
        expected = expected.astype(expected.dtype.newbyteorder("="))
        samples += [Sample(name, [path], expected, None), Sample(f"{name} y", [path], expected, labels,
                    {"y": "labels.npy"})]  # fmt: skip
    arrays = {"x_train": rows("u1", 4, 4), "y_train": labels, "x_test": rows("u1", 4, 4, count=9), "extra": labels}
    turned = {**arrays, "x_train": np.asfortranarray(arrays["x_train"])}
    for name, save, content in (
        ("stored", np.savez, arrays),
        ("packed", np.savez_compressed, arrays),
        ("turned", np.savez_compressed, turned),
        ("turned_stored", np.savez, turned),
    ):
        path = str(directory / f"{name}.npz")
        save(path, **content)
        samples.append(Sample(name, [path], arrays["x_train"], labels))
        samples.append(
            Sample(
                f"{name} named",
                [path],
                (labels, arrays["x_train"]),
                labels,
                {"x": ["y_train", "x_train"], "y": "extra"},
            )  # fmt: skip
        )
    return samples


def idx_bytes(array: np.ndarray) -> bytes:
    """An array as idx has it."""
    code = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}[array.dtype.str[1:]]
    header = bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def cifar_content(count: int, hundred: bool = False, seed: int = 0) -> tuple[dict[bytes, Any], Any, dict[str, Any]]:
    """What a file of CIFAR holds, and the images and labels that are in it."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, 3072)).astype("u1")
    fine = random.integers(0, 100 if hundred else 10, count).tolist()
    content = {b"data": images, b"batch_label": b"batch 1", b"filenames": [b"%d.png" % n for n in range(count)]}
    labels = {"fine_labels": fine, "coarse_labels": [one % 20 for one in fine]} if hundred else {"labels": fine}
    content |= {key.encode(): value for key, value in labels.items()}
    return content, images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels


def mnist_cifar(directory: Path) -> list[Sample]:
    """idx files and files of CIFAR."""
    samples = []
    for number, dtype in enumerate(("u1", "i1", "i2", "i4", "f4", "f8")):
        for packed in (False, True):
            place = directory / f"mnist{number}{packed}"
            place.mkdir()
            x, y = rows(dtype, 5, 4), np.arange(ROWS).astype("u1")
            names = "train-images-idx3-ubyte", "train-labels.idx1-ubyte" if number % 2 else "train-labels-idx1-ubyte"
            for name, array in zip(names, (x, y), strict=True):
                content = idx_bytes(array)
                path = place / (f"{name}.gz" if packed else name)
                path.write_bytes(gzip.compress(content) if packed else content)
            path = str(place / (names[0] + ".gz" * packed))
            samples.append(Sample(f"idx {dtype} {packed}", [path], x, y))
            samples.append(Sample(f"idx {dtype} {packed} alone", [path], x, None, {"y": False}))
    both = sorted(str(path) for path in (directory / "mnist0False").iterdir())
    samples.append(Sample("idx both named", both, rows("u1", 5, 4), np.arange(ROWS).astype("u1")))
    for protocol in (2, 4, 5):
        paths, x, y = [], [], []
        for number, count in enumerate((11, 20, 5)):
            content, images, labels = cifar_content(count, seed=number)
            paths.append(str(directory / f"data_batch_{protocol}_{number}"))
            Path(paths[-1]).write_bytes(pickle.dumps(content, protocol))
            x.append(images)
            y += labels["labels"]
        samples.append(Sample(f"cifar10 protocol {protocol}", paths, np.concatenate(x), np.array(y), format="CIFAR10"))
    content, images, labels = cifar_content(30, hundred=True)
    path = directory / "train"
    path.write_bytes(pickle.dumps(content, 2))
    for name in ("fine_labels", "coarse_labels", None):
        expected = np.array(labels[name or "fine_labels"])
        samples.append(Sample(f"cifar100 {name}", [str(path)], images, expected, {"y": name}))
    return samples
