"""Cases that try the pool: ranks that raise, hang, die, print."""

import os
import time

from matex_tf.core import world


def identify():
    """Who this rank is, and what all ranks of its world sum to."""
    ranks = world.current()
    everyone = ranks.allgather((ranks.rank, os.getpid()), "identify")
    return ranks.rank, ranks.size, everyone


def directory(tmp):
    """The group's directory, which is also the working directory."""
    ranks = world.current()
    with open(f"{ranks.rank}.txt", "w") as file:
        file.write("here")
    ranks.barrier("all files written")
    return tmp == os.getcwd(), sorted(os.listdir(tmp))


def one_raises():
    """Rank 1 raises while the others wait for it in a collective."""
    print("a word before the end")
    if world.current().rank == 1:
        raise ValueError("only here")
    world.current().allgather(0, "wait for rank 1")


def all_raise():
    """Every rank finds out that they went different ways."""
    world.current().barrier(f"go way {world.current().rank}")


def one_hangs():
    """Rank 0 sleeps for too long."""
    if world.current().rank == 0:
        time.sleep(600)


def one_dies():
    """Rank 1 is gone without a word."""
    if world.current().rank == 1:
        os._exit(9)
    world.current().allgather(0, "wait for rank 1")


def unpicklable():
    """A result that cannot travel."""
    return lambda: None
