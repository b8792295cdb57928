"""DataSet: name a file, and each rank has its part of it (arXiv 1704.04560, section 3.3)."""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from matex_tf import settings
from matex_tf.core import world
from matex_tf.core.world import World
from matex_tf.errors import DataError, quoted, shortened
from matex_tf.readers import missing_values
from matex_tf.readers.file_names import DIRECTORIES, expand, files_of
from matex_tf.readers.formats import registry
from matex_tf.readers.shard import AUTO, Shard
from matex_tf.readers.tables.table import Arrays, Names, ReadOptions, Table, all_or_none, take_rows
from matex_tf.state import run_state


class _Said(set[str]):
    """Of a run: what a line has said of files."""


NAMES = ("MNIST", "CIFAR10", "CIFAR100", "CSV", "HDF5", "PNETCDF")

#: How many classes labels have.
_CLASSES = {"MNIST": 10, "CIFAR10": 10, "CIFAR100": 100}

#: Rows of MNIST's training files that are not for validation.
_MNIST_TRAINING = 50_000

#: The shape that MaTEx gives to rows: MNIST's with their one channel, CIFAR's as they lie in the file.
_FORMS = {
    "MNIST": lambda images: images[..., np.newaxis],
    "CIFAR10": lambda images: images.transpose(0, 3, 1, 2).reshape(len(images), 3072),
    "CIFAR100": lambda images: images.transpose(0, 3, 1, 2).reshape(len(images), 3072),
}
_FORMS_IN_WORDS = {"MNIST": "28 x 28 x 1", "CIFAR10": "3072 bytes", "CIFAR100": "3072 bytes"}


class DataSet:
    """Training, validation and test data; each rank reads its own part.

    Every rank must make the same DataSet. `fit`, `evaluate` and `predict` take its arrays as they are: they know that
    each rank holds other rows, use every row once an epoch, and make batches of the script's size of them all together.

    It is MaTEx's class; docs/data.md says what is different.

    Attributes:
        training, validation, testing: a `Shard` each, or None where there are no such data.
        training_data, validation_data, testing_data: inputs of this rank's rows; None where there are none.
        training_labels, validation_labels, testing_labels: their labels.
        dataset, train_file, validation_file, test_file, data_directory, train_batch_size, test_batch_size: as given.

    Example:
        data = DataSet("CSV", train_file="train.csv", valid_pct=0.1)
        model.fit(data.training_data, data.training_labels, batch_size=256,
                  validation_data=(data.validation_data, data.validation_labels))
    """

    def __init__(
        self,
        data_name: str,
        delim: str | None = None,
        train_batch_size: int | None = None,
        test_batch_size: int | None = None,
        normalize: float | bool | None = None,
        train_file: str | os.PathLike[str] | None = None,
        validation_file: str | os.PathLike[str] | None = None,
        test_file: str | os.PathLike[str] | None = None,
        data_directory: str | os.PathLike[str] | None = None,
        valid_pct: float = 0.0,
        test_pct: float = 0.0,
        *,
        x: Names = None,
        y: Names = None,
        one_hot: bool | int | None = None,
        dtype: Any = None,
        missing: missing_values.Missing = None,
    ):
        """Read this rank's part of the data.

        Args:
            data_name: MNIST, CIFAR10, CIFAR100, CSV, HDF5 or PNETCDF, in any case.
            delim: what stands between two fields of a CSV file; None finds it.
            train_batch_size: rows of a global batch of `next_train_batch`.
            test_batch_size: the same of `next_validation_batch` and `next_test_batch`.
            normalize: what inputs are divided by, as float32; True for the largest absolute value of the training
                inputs; None or False for inputs as they are.
            train_file, validation_file, test_file: a file, a pattern such as "part-*.csv", or a directory of files;
                below `data_directory` where it is no absolute path. MNIST and CIFAR are found by their usual names.
            data_directory: where the files are. None: MNIST_data or CIFAR_data, where there is such a directory, or
                else the working directory. For CSV without a `train_file` it is a directory all of whose files, with
                those of the directories in it, are one table of inputs, without labels.
            valid_pct: fraction of the training rows, 0 to 1, that is held out for validation: the last ones, of CIFAR
                the first ones. Of MNIST the rows from the 50,000th on are, where it is 0.
            test_pct: fraction of the training rows, 0 to 1, that is held out for the test: the last ones before those
                for validation.
            x, y, dtype: see `open`. Of a CSV file that does not say which column has the labels it is the first.
            one_hot: whether labels become one-hot vectors, see `open`. None: those of MNIST, CIFAR, CSV and of an HDF5
                file with a dataset for each class do, where they are words or whole numbers from 0, or -1 and 1.
            missing: see `open`; the mean and median are those of the training rows.

        Raises:
            DataError: on every rank: a file is missing, or is not what it should be.
        """
        ranks = world.current()
        name = str(data_name).upper()
        if name not in NAMES:
            raise DataError(f"{quoted(data_name)} is not a name that DataSet knows: give one of {', '.join(NAMES)}.")
        if delim is not None and not isinstance(delim, str):
            raise DataError(f"delim={quoted(delim)} is not a delimiter: give batch sizes by name (train_batch_size=).")
        self.dataset, self.data_directory = data_name, data_directory
        self.train_file, self.validation_file, self.test_file = train_file, validation_file, test_file
        self.train_batch_size, self.test_batch_size = train_batch_size, test_batch_size
        all_inputs = name == "CSV" and train_file is None and data_directory is not None
        if y is None and all_inputs:
            y = False
        wanted = dataclasses.replace(_wanted(x, y, dtype, delim), first=True)

        def table(part: str, file: str | os.PathLike[str] | None) -> Table | None:
            paths = files_of(name, part, file, data_directory, ranks)
            return registry.open_table(paths, name, wanted, ranks) if paths else None

        whole = table("train", train_file)
        if whole is None:
            raise DataError(f"DataSet({quoted(data_name)}) needs train_file=, the file with the rows to train on.")
        held_out = table("validation", validation_file), table("test", test_file)
        rows = _parts(whole.rows, valid_pct, test_pct, held_out, name)
        known = len(whole.classes) or _CLASSES.get(name, False)
        vectors = one_hot if one_hot is not None else AUTO if name == "CSV" else known
        options: dict[str, Any] = {"one_hot": vectors, "normalize": False if normalize is None else normalize}
        options |= {"form": _FORMS.get(name), "missing": missing}
        self.training: Shard = Shard(whole, rows[0], ranks, **options)
        others = []
        for other, part in zip(held_out, rows[1:], strict=True):
            found = (other, range(other.rows)) if other is not None else (whole, part)
            shard = Shard(*found, ranks, scale_of=self.training, **options)
            others.append(shard if len(found[1]) else None)
        self.validation, self.testing = others
        for one in (whole, *held_out):
            if one is not None:
                form = _FORMS_IN_WORDS.get(name, "")
                say(one, one.rows, ranks, classes_follow=vectors is not False, missing=missing, form=form)
        for each in (self.training, self.validation, self.testing):
            if each is not None:
                _read_together(each, ranks)
        # Attributes, as in MaTEx: scripts put other arrays in their place.
        self.training_data, self.training_labels = self.training.data, self.training.labels
        nothing: tuple[Arrays, Arrays] = (None, None)  # a shard without rows on this rank is something
        self.validation_data, self.validation_labels = nothing if self.validation is None else self.validation
        self.testing_data, self.testing_labels = nothing if self.testing is None else self.testing

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Any,
        format: str | None = None,
        x: Names = None,
        y: Names = None,
        *,
        one_hot: bool | int = False,
        dtype: Any = None,
        rows: slice | range | int | None = None,
        normalize: float | bool = False,
        missing: missing_values.Missing = None,
        delimiter: str | None = None,
        header: bool | None = None,
    ) -> Shard:
        """This rank's part of files of any known format; read when `data`, `labels` or batches are asked for.

        Args:
            path: a file, a pattern, a directory (all its files), or a list of these; together they are one table. Each
                may be an address (s3://, gs://, https://), of which a rank reads the bytes of its rows; or an
                `xarray.Dataset`.
            format: csv, hdf5, netcdf, numpy, idx, cifar, or that of a feature; None finds it by the files'
                content.
            x, y: names or positions of inputs and labels: columns of a CSV or Parquet file (one array of them), or
                datasets of an HDF5 file, variables of a netCDF file, members of an .npz file (an array each). None
                finds them; y=False: there are no labels.
            one_hot: whether labels become one-hot vectors (float32); a number of classes saves a pass over the labels.
            dtype: of the inputs.
            rows: which rows of the whole: slice(0, 1000), range(0, 1000), or 1000 for the first so many.
            normalize: what inputs are divided by; True for their largest absolute value.
            missing: what a missing input becomes: "mean" or "median" for that of its column in all the rows, the same
                on every rank and for any number of ranks; a number; or None for NaN.
            delimiter, header: of a CSV file; None finds out.

        Returns:
            A `Shard`: `shard.data`, `shard.labels`, or `x, y = shard`; `shard.to_tf_data(batch_size)`.

        Raises:
            DataError: on every rank: a file is missing, has no known format, or has not what is wanted.
        """
        ranks = world.current()
        wanted = _wanted(x, y, dtype, delimiter, header)
        table = registry.open_object(path, wanted, ranks)
        if table is None:
            table = registry.open_table(expand(path, ranks), format, wanted, ranks)
        window = range(table.rows)
        if rows is not None:
            window = window[_slice(rows)]
            if window.step < 0 or len(window) == 0:
                raise DataError(
                    f"{table.paths[0]} has {table.rows} rows, and {quoted(rows)} takes none of them, or goes backwards."
                )
        shard = Shard(table, window, ranks, one_hot=one_hot, normalize=normalize, missing=missing)
        say(table, len(window), ranks, classes_follow=one_hot is not False, missing=missing)
        return shard

    def next_train_batch(self, batch_size: int | None = None) -> list[Arrays]:
        """This rank's rows of the next global batch, inputs and labels, from the first again after the last.

        Args:
            batch_size: rows over all ranks; None for `train_batch_size`.
        """
        return self._next("train", batch_size)

    def next_validation_batch(self, batch_size: int | None = None) -> list[Arrays]:
        """This rank's rows of the next batch of validation rows; see `next_train_batch`.

        Args:
            batch_size: rows over all ranks; None for `test_batch_size`.
        """
        return self._next("validation", batch_size)

    def next_test_batch(self, batch_size: int | None = None) -> list[Arrays]:
        """This rank's rows of the next batch of test rows; see `next_train_batch`.

        Args:
            batch_size: rows over all ranks; None for `test_batch_size`.
        """
        return self._next("test", batch_size)

    def _next(self, part: str, batch_size: int | None) -> list[Arrays]:
        shard, x, y = {
            "train": (self.training, self.training_data, self.training_labels),
            "validation": (self.validation, self.validation_data, self.validation_labels),
            "test": (self.testing, self.testing_data, self.testing_labels),
        }[part]
        if shard is None:
            raise DataError(
                f"this DataSet has no {part} rows: give it a {part}_file, or a fraction of the training rows."
            )
        size = batch_size or (self.train_batch_size if part == "train" else self.test_batch_size)
        if not size:
            name = "train_batch_size" if part == "train" else "test_batch_size"
            raise DataError(f"next_{part}_batch needs a batch size: give it one, or {name}= to DataSet.")
        rows = shard.next_rows(size)
        return [take_rows(x, rows), take_rows(y, rows)]


def say(
    table: Table,
    rows: int,
    ranks: World,
    classes_follow: bool = False,
    missing: missing_values.Missing = None,
    form: str = "",
) -> None:
    """Print what was found in files, on one rank. A job says it once of files that are alike, such as a test set.

    Args:
        table: of them.
        rows: of it that are taken.
        ranks: who reads.
        classes_follow: whether labels become one-hot vectors.
        missing: what a missing input becomes.
        form: another shape of rows than that of the files, in words.
    """
    if ranks.rank != 0 or not settings.current().notes:
        return
    name = shortened(os.path.basename(table.paths[0]), 300)
    more = f" and {len(table.paths) - 1} more" if len(table.paths) > 1 else ""
    taken = f" of {table.rows}" if rows != table.rows else ""
    given = f"; rows are given as {form}" if form else ""
    gaps = f"; {table.gaps} rows lack an input ({missing_values.in_words(missing)})" if table.gaps else ""
    parts = f"; each of {ranks.size} ranks has its part" if ranks.size > 1 else ""
    found = f"{table.format}, {table.said}{given}"
    if not (parts and found in run_state.part(_Said)) or taken or gaps:
        run_state.part(_Said).update([found] if parts else [])
        ranks.log(f"{name}{more}: {table.format}, {rows}{taken} rows, {table.said}{given}{gaps}{parts}")
    if table.words and not classes_follow:
        ranks.log("the labels are words, which a model cannot use: give one_hot=True, or number them by shard.classes")
    for note in table.notes:
        ranks.log(f"{name}: {note}")


def _slice(rows: Any) -> slice:
    if isinstance(rows, slice):
        return rows
    if isinstance(rows, range):
        return slice(rows.start, rows.stop, rows.step) if rows.step > 0 and rows.start >= 0 else slice(0, 0)
    try:
        if isinstance(rows, (bool, np.bool_)) or rows < 0:
            raise TypeError
        return slice(operator.index(rows))
    except TypeError:
        raise DataError(
            f"rows={quoted(rows)} names no rows: give a slice, a range, or how many of the first."
        ) from None


def _parts(rows: int, valid: float, test: float, held_out: tuple[Table | None, Table | None], name: str) -> list[range]:
    """Training, validation and test rows of the training file, as MaTEx holds them out."""
    for what, value, table in (("valid_pct", valid, held_out[0]), ("test_pct", test, held_out[1])):
        if not 0 <= value < 1:
            raise DataError(f"{what} is {quoted(value)}: give a fraction from 0 to 1, such as 0.1.")
        if value and table is not None and (what == "valid_pct" or name not in DIRECTORIES):
            raise DataError(f"{what}={value} and a file for the same part: give one of them.")
    validation, testing = int(rows * valid), int(rows * test)
    if name == "MNIST" and not valid and held_out[0] is None:
        validation = max(0, rows - _MNIST_TRAINING)
    training = rows - testing - validation
    if training <= 0:
        raise DataError(f"valid_pct={valid} and test_pct={test} leave none of {rows} rows for training.")
    if name.startswith("CIFAR"):
        return [range(validation, rows - testing), range(validation), range(rows - testing, rows)]
    return [range(training), range(training + testing, rows), range(training, training + testing)]


def _wanted(x: Names, y: Names, dtype: Any, delimiter: str | None, header: bool | None = None) -> ReadOptions:
    try:
        kind = None if dtype is None else np.dtype(dtype)
    except TypeError:
        raise DataError(f"{quoted(dtype)} is not a dtype.") from None
    return ReadOptions(x, y, kind, delimiter, header)


def _read_together(shard: Shard, ranks: World) -> None:
    """Read a rank's part; an error on one rank is raised on all."""
    with all_or_none(ranks, "read the data"):
        raw = shard.load()
    shard.keep(raw)
