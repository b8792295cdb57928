"""What small models cannot afford in each step."""

import os
import subprocess
import sys

import pytest

from tests.support.cases import hot_path

#: Whether glibc maps a block of 30 MB by itself, in a process in which nothing has been freed.
MAPS = """
import ctypes
from matex_tf.patches.common import wrapping
from matex_tf.patches.imports import allocator

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]

library = ctypes.CDLL(None)
library.mallinfo2.restype, library.malloc.restype = Info, ctypes.c_void_p
wrapping.alone = lambda: False
allocator.install(None)
before = library.mallinfo2().hblkhd
block = library.malloc(ctypes.c_size_t(30 << 20))
print(library.mallinfo2().hblkhd - before > 30 << 20)
"""


def test_a_step_runs_one_graph(ranks):
    """One op gathers the rows of an array, and in the first epoch one gives the next rows of its order.

    The rest is one call of the step's graph: an op by hand is dear in a small step.
    """
    for size, found in ranks(hot_path.eager_ops, (2,)).items():
        assert found == [[3.0, 2.0]] * size


def test_epochs_of_arrays_make_no_iterators(ranks):
    """Each takes TensorFlow some ten milliseconds, for training and for validation; see `patches.data.row_batches`."""
    for size, found in ranks(hot_path.iterators, (2,)).items():
        assert found == [0.0] * size


def test_threads_spin_where_there_are_cores_for_them(ranks):
    """Not where a rank has one core: they would take it from the ranks that compute."""
    for size, found in ranks(hot_path.threads, (2,), apart="they look at themselves").items():
        assert [spin for _, spin in found] == [threads > 1 for threads, _ in found]
        assert len(found) == size


@pytest.mark.parametrize(("environ", "maps"), [({}, "False"), ({"MALLOC_ARENA_MAX": "2"}, "True")])
def test_memory_is_kept(environ, maps):
    """A rank does not ask the system anew for each large block, unless the user has said something of it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", MAPS], env={**clean, **environ}, capture_output=True, text=True)
    if "mallinfo2" in done.stderr:
        pytest.skip("the C library has no mallinfo2 (glibc 2.33)")
    assert done.stdout.split() == [maps], done.stderr
