"""The center: its formulas against numpy, and servers and clients in threads of this process."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matex_tf.errors import MatexError, SettingError
from matex_tf.features.groups.center import wire
from matex_tf.features.groups.center.client import Client, Dealer, Servers
from matex_tf.features.groups.center.piece import Piece
from matex_tf.features.groups.center.schedule import Supply, parts_at_once, ranges, spans
from matex_tf.features.groups.center.service import Service

TOKEN = b"of this job"


@pytest.fixture
def serving():
    services = [Service("127.0.0.1", TOKEN) for _ in range(2)]
    yield services
    for service in services:
        service.close()


def servers_of(services):
    """As each rank knows them."""
    return Servers([service.address for service in services], TOKEN)


@given(st.integers(1, 300), st.floats(0.01, 0.99), st.integers(0, 2**32 - 1))
def test_elastic_formula(size, alpha, seed):
    """w <- w - d, c <- c + d, d = alpha (w - c): the sum of both stays."""
    random = np.random.default_rng(seed)
    c, w = random.normal(size=(2, size)).astype(np.float32)
    piece = Piece(size)
    piece.offer(0, c)
    d = np.frombuffer(piece.elastic(0, size, alpha, w.tobytes(), None, "0"), np.float32)
    np.testing.assert_allclose(d, alpha * (w - c), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(piece.values, c + alpha * (w - c), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("codec", ["none", "bf16", "int8", "int4"])
def test_two_groups(serving, codec):
    """Groups that meet the center in turn come together at the mean of all three, and their sum stays."""
    random = np.random.default_rng(0)
    start, w = random.normal(size=1001).astype(np.float32), random.normal(size=(2, 1001)).astype(np.float32)
    clients = [Client(servers_of(serving), 1, str(g), start, (0, 1001), codec) for g in range(2)]
    total = start + w.sum(axis=0)
    for _ in range(80):
        for group, client in enumerate(clients):
            w[group] -= client.elastic(w[group], 0.3)
    center = clients[0].pull()
    np.testing.assert_allclose(center + w.sum(axis=0), total, atol=1e-3)
    for group in range(2):
        np.testing.assert_allclose(w[group], total / 3, atol=2e-2)
        clients[group].close()


def test_copy_is_the_center(serving):
    """What a client keeps of the center costs no byte, and is right."""
    random = np.random.default_rng(0)
    start, w = random.normal(size=(2, 50)).astype(np.float32)
    client = Client(servers_of(serving), 1, "0", start, (10, 30))
    client.elastic(w[10:30], 0.4)
    copy = client.copy.copy()
    np.testing.assert_allclose(copy, client.pull(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(copy, start[10:30] + 0.4 * (w - start)[10:30], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_push_and_pull(serving, codec):
    """Pushes add up; with a codec what could not be said is said later."""
    start = np.zeros(700, np.float32)
    clients = [Client(servers_of(serving), 1, str(g), start, (0, 700), codec) for g in range(2)]
    moves = np.random.default_rng(0).normal(size=(30, 2, 700)).astype(np.float32)
    for step, both in enumerate(moves):
        for client, moved in zip(clients, both, strict=True):
            client.push_and_pull(moved, step, 5)
    np.testing.assert_allclose(clients[1].pull(), moves.sum(axis=(0, 1)), atol=1e-4 if codec == "none" else 0.1)


@pytest.mark.parametrize("staleness", [1, 3])
def test_staleness_is_bounded(serving, staleness):
    """A group waits where it is more than so many steps ahead, and for nobody who has no more steps."""
    start = np.zeros(4, np.float32)
    fast, slow = (Client(servers_of(serving), 1, name, start, (0, 4)) for name in ("fast", "slow"))
    reached, stopped = [0], threading.Event()

    def run():
        for clock in range(1, 20):
            fast.push_and_pull(np.ones(4, np.float32), clock, staleness)
            reached[0] = clock
            if clock == staleness:
                stopped.set()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        assert stopped.wait(60)
        assert reached[0] == staleness  # the next one waits for the slow group, whose clock is 0
        slow.push_and_pull(np.ones(4, np.float32), 1, staleness)
        slow.over()
        running.result(60)
    np.testing.assert_array_equal(fast.pull(), np.full(4, 20.0))


def test_a_server_dies(serving):
    """The next one takes its piece, with the copy that a client has of its last meeting."""
    start = np.arange(100, dtype=np.float32)
    clients = [Client(servers_of(serving), 1, str(g), start, (0, 100)) for g in range(2)]
    for client in clients:
        client.push_and_pull(np.ones(100, np.float32), 1, 9)
    kill(serving[0])
    for client in clients:
        client.push_and_pull(np.ones(100, np.float32), 2, 9)
    center = clients[0].pull()
    assert clients[0].replaced and clients[1].replaced
    np.testing.assert_array_equal(center[50:], start[50:] + 4)  # of the server that lives
    assert (start[:50] + 3 <= center[:50]).all() and (center[:50] <= start[:50] + 4).all()  # at most a push is lost
    kill(serving[1])
    with pytest.raises(MatexError, match="no server of the center is left"):
        clients[0].pull()


def kill(service):
    """As the end of a process does it."""
    service.close()
    for connection in list(service.serving):
        wire.shut(connection)


def test_parts_are_dealt_once(serving):
    """Whatever the order in which groups ask; ranks of a group get the same."""
    dealers = [Dealer(servers_of(serving), 1, group) for group in "011"]
    for dealer in dealers:
        dealer.begin_epoch(1)
    first = [dealers[0].next_part() for _ in range(3)]
    second = [dealers[1].next_part() for _ in range(2)]
    first += [dealers[0].next_part()]
    assert sorted(first + second) == list(range(6))
    assert [dealers[2].next_part() for _ in range(2)] == second
    kill(serving[0])
    assert dealers[0].next_part() > max(first)  # what a group knows to be dealt is not dealt again


def test_parts_are_dealt_in_runs(serving):
    """Where there are many groups each gets several parts at once; all together get each part once."""
    dealers = [Dealer(servers_of(serving), 1, group) for group in "01"]
    for dealer in dealers:
        dealer.begin_epoch(1, seen=2, at_once=3)
    assert [dealers[0].next_part() for _ in range(2)] == [2, 3]
    assert [dealers[1].next_part() for _ in range(4)] == [5, 6, 7, 8]
    assert [dealers[0].next_part() for _ in range(3)] == [4, 11, 12]
    dealers[0].begin_epoch(2)
    assert dealers[0].next_part() == 0
    assert [parts_at_once(groups) for groups in (1, 100, 101, 1000, 10**5)] == [1, 1, 2, 10, 16]


def test_parts_are_asked_for_ahead():
    """One more ahead after each wait, up to a limit, and one less in each epoch."""
    supply = Supply()
    seen = [supply.ahead]
    for event in (*[supply.waited] * 9, supply.begin_epoch, *[supply.begin_epoch] * 9):
        event()
        seen.append(supply.ahead)
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 7, 6, 5, 4, 3, 2, 1, 1, 1, 1]


def test_another_token(serving):
    """Who does not know the token gets nothing, and the server goes on."""
    with pytest.raises(MatexError, match="another job"):
        Client(Servers([serving[0].address], b"guessed"), 1, "0", np.zeros(3, np.float32), (0, 3))
    Client(servers_of(serving), 1, "0", np.zeros(3, np.float32), (0, 3)).pull()


def test_addresses():
    """Loopback on one host; otherwise a private address that the host has for itself."""
    assert wire.address_of(["10.1.0.1"], [["10.1.0.1"]] * 2, "", True) == "127.0.0.1"
    both = [["172.17.0.1", "10.1.0.1"], ["172.17.0.1", "10.1.0.2"]]
    assert wire.address_of(both[0], both, "", False) == "10.1.0.1"
    assert wire.address_of(both[0], [both[0]] * 2, "172.16.0.0/12", True) == "172.17.0.1"
    for known, network in ((["8.8.8.8"], ""), (both[0], "192.168.0.0/16")):
        with pytest.raises(SettingError, match="--center-network"):
            wire.address_of(known, [known, ["10.1.0.9"]], network, False)
    with pytest.raises(SettingError, match="not an address of a private network"):
        wire.listen("8.8.8.8")


@settings(max_examples=30)
@given(st.integers(0, 100), st.integers(1, 9))
def test_spans(total, parts):
    found = spans(total, parts)
    assert [low for low, _ in found[1:]] == [high for _, high in found[:-1]]
    assert found[0][0] == 0 and found[-1][1] == total


@settings(max_examples=50)
@given(st.integers(1, 100), st.integers(1, 9), st.data())
def test_ranges(total, servers, data):
    """A rank's part, each number once, from the pieces of all servers in turn."""
    low = data.draw(st.integers(0, total))
    part = low, data.draw(st.integers(low, total))
    first = data.draw(st.integers(0, 20))
    found = ranges(total, servers, part, first)
    starts = [low for low, _ in spans(total, servers)]
    wanted = {
        starts[one.piece] + number: one.here.start + number - one.low
        for one in found
        for number in range(one.low, one.high)
    }
    assert wanted == {number: number - part[0] for number in range(*part)}
    pieces = [(one.piece - first) % servers for one in found]
    assert pieces == sorted(set(pieces))
