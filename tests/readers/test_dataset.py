"""DataSet, drop-in for MaTEx's, over real files on real ranks."""

import pytest

from tests.support.cases import dataset

SIZES = (1, 2, 3, 4)


def all_true(results):
    assert all(value is True for values in results.values() for value in values), results


@pytest.mark.parametrize("name", ["csv", "CSV"])
def test_named(bare_ranks, name):
    """A file by the name of its format; fractions of it are held out; batches in turn."""
    all_true(bare_ranks(dataset.named, SIZES, meets="find the format of the data", name=name))


def test_several_files(bare_ranks):
    """A pattern, a directory and a list of files are one table."""
    all_true(bare_ranks(dataset.several_files, SIZES, meets="find the format of the data"))


@pytest.mark.parametrize("name", ["MNIST", "CIFAR10", "cifar100"])
def test_images(bare_ranks, name):
    """MNIST and CIFAR, found in a directory by their usual names."""
    all_true(bare_ranks(dataset.images, SIZES, meets="find the format of the data", name=name))


def test_as_matex_finds_them(bare_ranks):
    """In the directories that MaTEx has; of MNIST the rows from the 50,000th on are for validation."""
    all_true(bare_ranks(dataset.as_matex_finds_them, (1, 3), meets="find the format of the data"))


def test_csv_as_matex_reads_it(bare_ranks):
    """The label first, classes as vectors; a directory of files is inputs alone."""
    all_true(bare_ranks(dataset.higgs, (1, 3), meets="find the format of the data"))


def test_names(bare_ranks):
    """DataSet where MaTEx had it."""
    all_true(bare_ranks(dataset.other_names, (1, 2), apart="it looks at names"))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("name", ["IMAGENET", "MNIST, CIFAR10"]),
        ("no file", ["train_file"]),
        ("missing", ["none.h5", "no such file"]),
        ("pattern", ["*.parquet"]),
        ("fraction", ["valid_pct", "20"]),
        ("nothing left", ["100 rows"]),
        ("both", ["valid_pct"]),
        ("batch", ["train_batch_size"]),
        ("no test", ["test_file"]),
        ("positional", ["delim=64", "train_batch_size="]),
        ("rows", ["all.csv", "100 rows"]),
        ("format", ["excel", "netcdf"]),
        ("other format", ["all.csv", "HDF5"]),
        ("not downloaded", ["train-images", "Nothing is downloaded"]),
        ("one rank", ["all.csv.not-here", "rank 1"]),
        ("cut", ["all.csv.gz"]),
    ],
)
def test_refused(bare_ranks, how, words):
    """Every rank stops, and the message names what is wrong."""
    sizes = (3,) if how == "one rank" else (1, 3)
    for messages in bare_ranks.refused(dataset.refused, sizes, error="DataError", how=how).values():
        for message in messages:
            assert all(word in message for word in words), message
