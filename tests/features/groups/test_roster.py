"""Which groups train: a job, and groups that join it, as connections to a server in this process."""

import copy
import socket
import threading
import time
from multiprocessing import AuthenticationError

import numpy as np
import pytest

from matex_tf.features.groups.center import wire
from matex_tf.features.groups.center.client import Client, Dealer, Lines, Servers
from matex_tf.features.groups.center.roster import refusal
from matex_tf.features.groups.center.service import NO_PART, Service

TOKEN = b"of this job"
TERMS = {
    "version": "1",
    "script": "train.py",
    "arguments": ["--rate", "1"],
    "settings": {"--strategy": "elastic", "--elastic-every": "16"},
    "weights": ["8x1 float32", "1 float32"],
}


class Talk:
    """A connection to the roster of a service."""

    def __init__(self, service, client=""):
        self.lines = Lines(Servers([service.address], TOKEN))
        self.client = {"client": client} if client else {}

    def __call__(self, what, body=b"", **words):
        answer = self.lines.answer(self.lines.send(0, {"ask": "roster", "what": what, **self.client, **words}, body))
        assert answer is not None
        return answer


@pytest.fixture
def said():
    return []


@pytest.fixture
def service(said):
    made = Service("127.0.0.1", TOKEN, log=said.append)
    yield made
    made.close()


@pytest.fixture
def job(service):
    talk = Talk(service)
    assert talk("begin", b"state", training=1, epoch=1, groups=2, terms=TERMS)[0] == {"count": 2, "bytes": 0}
    return talk


def join(service, name="guest", terms=TERMS, training=1):
    talk = Talk(service, name)
    return talk, talk("join", training=training, terms=terms, ranks=2, host="far")


def until(happened, seconds=60):
    limit = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_rows_are_divided_anew(service, job, said):
    """A group that joins takes parts of this epoch, and from the next one on each batch has a part more."""
    guest, (answer, state) = join(service)
    assert (answer["epoch"], answer["count"], state) == (1, 2, b"state")
    assert "far has joined" in said[0]
    assert job("begin", b"", training=1, epoch=2, groups=2, terms=TERMS)[0]["count"] == 3
    assert guest("next", training=1, epoch=2)[0]["count"] == 3
    dealers = [Dealer(Servers([service.address], TOKEN), 1, name) for name in ("0", "1", "guest")]
    for dealer in dealers:
        dealer.begin_epoch(2)
    assert sorted(dealer.next_part() for _ in range(4) for dealer in dealers) == list(range(12))
    guest.lines.close()
    until(lambda: "has left" in said[-1])
    assert job("begin", b"", training=1, epoch=3, groups=2, terms=TERMS)[0]["count"] == 2


def test_epochs_that_are_over_have_no_parts(service):
    """A group that is late gets none of their rows a second time."""
    early, late = (Dealer(Servers([service.address], TOKEN), 1, name) for name in ("0", "guest"))
    early.begin_epoch(2)
    assert early.next_part() == 0
    late.begin_epoch(1)
    assert late.next_part() == NO_PART
    late.begin_epoch(2)
    assert late.next_part() == 1


CHANGES = {
    "matex_tf 2, and the job 1": {"version": "2"},
    "runs other.py, and the job train.py": {"script": "other.py"},
    "the arguments --rate 2, and that of the job --rate 1": {"arguments": ["--rate", "2"]},
    "--elastic-every is 8, and that of the job is 16": {"settings": {"--strategy": "elastic", "--elastic-every": "8"}},
    "has 1 weights, and that of the job 2": {"weights": ["8x1 float32"]},
    "the weight 9x1 float32 where that of the job has 8x1 float32": {"weights": ["9x1 float32", "1 float32"]},
}


@pytest.mark.parametrize("words", CHANGES)
def test_refused_in_words(service, job, said, words):
    """On both sides, and the job goes on without that group."""
    other = {**copy.deepcopy(TERMS), **CHANGES[words]}
    _, (answer, _) = join(service, terms=other)
    assert words in answer["refused"] and words in said[0] and words in refusal(TERMS, other)
    assert job("begin", b"", training=1, epoch=2, groups=2, terms=TERMS)[0]["count"] == 2


def test_another_token(service, job, said):
    """Refused, and said on both sides. A connection that says nothing holds nobody up."""
    silent = socket.create_connection(service.address)
    with pytest.raises(AuthenticationError):
        wire.connect(service.address, b"of another job")
    until(lambda: said)
    assert "from 127.0.0.1 was refused: it has another token" in said[0]
    assert join(service)[1][0]["count"] == 2
    silent.close()


@pytest.mark.parametrize("how", ["settles", "leaves", "is late"])
def test_the_end_of_an_epoch(service, job, said, how):
    """The job waits for a group that is at a part of the epoch, until it has settled or is gone, or for so long."""
    guest, _ = join(service)
    dealer = Dealer(Servers([service.address], TOKEN), 1, "guest")
    dealer.begin_epoch(1)
    assert dealer.next_part() == 0
    ended = threading.Event()

    def end():
        job("used_up", epoch=1, of="1.1", parts=4, limit=0.5 if how == "is late" else 600)
        ended.set()

    waiting = threading.Thread(target=end)
    waiting.start()
    if how == "is late":
        waiting.join(60)
        assert ended.is_set() and "has not ended its part of a batch after 0.5 s" in said[-1]
    else:
        assert not ended.wait(0.1)
        guest("settled", epoch=1) if how == "settles" else guest.lines.close()
        waiting.join(60)
        assert ended.is_set() and ("has left" in said[-1]) == (how == "leaves")
    assert job("begin", b"", training=1, epoch=2, groups=2, terms=TERMS)[0]["count"] == 2 + (how == "settles")


def test_a_group_without_parts_is_not_waited_for(service, job):
    join(service)
    begin = time.monotonic()
    job("used_up", epoch=1, of="1.1", parts=4, limit=600)
    assert time.monotonic() - begin < 300


def test_the_end_of_a_training(service, job):
    """Whoever waits for the next epoch hears of it; and a fit that is over cannot be joined."""
    guest, _ = join(service)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(guest("next", training=1, epoch=2)[0]))
    waiting.start()
    job("end", training=1)
    waiting.join(60)
    assert answers[0]["over"]
    assert join(service, "another")[1][0]["over"]
    assert Talk(service, "third")("where", training=1)[0]["over"]


def test_takes_the_center(service):
    """A client that offers nothing takes the center. Nobody waits for its steps until it has made one."""
    start = np.arange(10, dtype=np.float32)
    servers = Servers([service.address], TOKEN)
    guest = Client(servers, 1, "guest", np.zeros(10, np.float32), (0, 10), offers=False)
    found = []
    waiting = threading.Thread(target=lambda: found.append(guest.pull().copy()))
    waiting.start()
    own = Client(servers, 1, "0", start, (0, 10))
    waiting.join(60)
    np.testing.assert_array_equal(found[0], start)
    Client(servers, 1, "guest.0", found[0], (0, 10), clock=np.inf)
    own.push_and_pull(np.ones(10, np.float32), 100, 0)
    np.testing.assert_array_equal(guest.pull(), start + 1)
