"""What mpirun starts its daemons on other hosts with."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from matex_tf.core.sign import Sign
from matex_tf.launch import agent, ulfm

pytestmark = pytest.mark.timeout(60)


def test_what_is_handed_on():
    """All that the two say to one another; not that the daemon is gone; and that mpirun is."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        relay = agent.Relay(["127.0.0.1"], listening.getsockname()[1])
        assert [key.fileobj.getsockname()[0] for key in relay._events.get_map().values()] == ["127.0.0.1"]
        daemon = socket.create_connection(("127.0.0.1", relay.port))
        assert not relay.connected and relay.serve(10)
        mpirun, _ = listening.accept()
        for source, target in ((daemon, mpirun), (mpirun, daemon)):
            source.sendall(b"words")
            assert relay.serve(10) and target.recv(100) == b"words"
        assert relay.connected and relay.whole
        daemon.close()
        assert relay.serve(10) and not relay.whole
        mpirun.sendall(b"more")
        assert relay.serve(10)
        mpirun.setblocking(False)
        with pytest.raises(BlockingIOError):
            mpirun.recv(1)
        mpirun.close()
        assert not relay.serve(10)


@pytest.mark.parametrize(("does", "up", "code"), [("exit 3", True, 3), ("kill -9 $$", True, 1), ("exit 0", False, 1)])
def test_a_daemon_that_never_comes(does, up, code):
    """mpirun hears of it at once, whatever the code of what started it."""
    with socket.create_server(("127.0.0.1", 0)) as listening, Sign() as sign:
        if up:
            sign.hear(sign.lines[0])
        line = [sys.executable, "-I", "-S", str(Path(agent.__file__)), "2", "sh", "-c", f"{does};", "tcp://127.0.0.1:"]
        line[-1] += f"{listening.getsockname()[1]}:24"
        ended = subprocess.run(line, capture_output=True, text=True)
        assert ended.returncode == code, ended


def test_what_starts_daemons():
    """ssh, what the user has in its place, or srun; nothing in other batch systems."""
    assert ulfm.agent_options("h1:2", {})[-1].endswith("agent.py 1 ssh")
    assert ulfm.agent_options("h1:2", {"PRTE_MCA_plm_ssh_agent": "mine --fast:rsh"})[-1].endswith(
        "agent.py 2 mine --fast"
    )
    assert ulfm.agent_options("", {"PBS_NODEFILE": "/nodes"}) == []
