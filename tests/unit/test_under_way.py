"""What is under way: blocks within blocks, and threads that have begun nothing by themselves."""

from __future__ import annotations

import threading

import pytest

from matex_tf.patches.common import under_way


def in_thread(function):
    """What a function returns in a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_blocks():
    """A block adds to what is under way, and takes away nothing but that at its end, also by an error."""
    with under_way.having(in_keras=True):
        with pytest.raises(KeyError), under_way.having(gradient_names=["a"]):
            assert under_way.now().in_keras
            raise KeyError
        assert under_way.now() == under_way.UnderWay(in_keras=True)
    assert under_way.now() == under_way.UnderWay()


def test_thread_apart():
    """A thread that does all by itself takes no part in what others do, and no other thread in what it does."""
    entered, leave = threading.Event(), threading.Event()

    def stay():
        with under_way.apart(), under_way.having(exchanged=True):
            assert under_way.is_apart() and not under_way.now().in_step
            entered.set()
            leave.wait()

    with under_way.having(in_step=True):
        beside = threading.Thread(target=stay)
        beside.start()
        try:
            assert entered.wait(60)
            assert not under_way.is_apart()
            assert in_thread(under_way.now) == under_way.UnderWay(in_step=True)
        finally:
            leave.set()
            beside.join()


def test_thread_takes_part():
    """A thread of TensorFlow is called in the course of what the others do, and may begin something beside them."""
    with under_way.having(in_keras=True):
        assert in_thread(under_way.now).in_keras

        def begin():
            with under_way.having(exchanged=True):
                return under_way.now()

        assert in_thread(begin) == under_way.UnderWay(in_keras=True, exchanged=True)
        assert not under_way.now().exchanged


def test_threads_end_in_any_order():
    """What a thread has begun goes on when another one ends what it began earlier."""
    begun, end = threading.Event(), threading.Event()

    def other():
        with under_way.having(metrics=("other",)):
            begun.set()
            assert end.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(10)
    with under_way.having(in_keras=True):
        end.set()
        thread.join()
        assert under_way.now().in_keras
    assert under_way.now() == under_way.UnderWay()
