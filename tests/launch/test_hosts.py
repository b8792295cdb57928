"""Jobs on two hosts with two ranks each, emulated on this machine by benchmarks/hosts.py."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import LAUNCHER, MEET, Job
from on_hosts import left
from there import case, needs

from benchmarks.hosts import Hosts, HostsError, unavailable

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run"),
]

#: An ordinary script, but for the last lines, which tell what the rank has seen.
TRAIN = """
import json, os, socket, sys
import keras
import numpy as np
import greeting

keras.utils.set_random_seed(3)
fetched = []
from keras.src.utils import file_utils
fetch = file_utils.urlretrieve
file_utils.urlretrieve = lambda *args: (fetched.append(args[0]), fetch(*args))
path = keras.utils.get_file("data.npz", "file://" + os.path.abspath("data.npz"))
with np.load(path) as data:
    x, y = data["x"], data["y"]
model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0)
print("the loss is", history.history["loss"][-1])

rank = os.environ.get("OMPI_COMM_WORLD_RANK", "alone")
seen = {"host": socket.gethostname(), "fetched": len(fetched), "losses": history.history["loss"],
        "predicted": model.predict(x, verbose=0).ravel().tolist(), "greeting": greeting.word,
        "seed": os.environ["MATEX_SEED"], "parent": os.getppid()}
with open(f"seen.{rank}", "w") as file:
    json.dump(seen, file)
"""


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    """A directory that is empty on each host, and is another on each."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def hosts(downloads):
    with Hosts(2, private=[downloads]) as made:
        yield made


def start(hosts: Hosts, folder: Path, **environ: str) -> Job:
    """`matex-tf run` of script.py, typed on the login node."""
    line = [*hosts.on(folder=folder), LAUNCHER, "run", "-n", "4", "--hosts", "h1:2,h2:2", "script.py"]
    return Job(line, folder, **{**hosts.environ, **environ})


@pytest.mark.variants(1)
@pytest.mark.parametrize("warm", [case("warm", "on"), "off"])
def test_training(hosts, downloads, tmp_path, warm):
    """An unmodified script ends as on one rank, each host downloads once, and what the ranks depend on reaches them;
    also where a server of each host has forked them."""
    import numpy as np

    rng = np.random.default_rng(1)
    x = rng.normal(size=(101, 5)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=x[:, :1] * x[:, 1:2])
    (tmp_path / "script.py").write_text(TRAIN)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "greeting.py").write_text("word = 'hello'")
    environ = {"PYTHONPATH": str(tmp_path / "library"), "KERAS_HOME": str(downloads / warm), "MATEX_SEED": "5"}
    alone = Job([sys.executable, "script.py"], tmp_path, **environ).end(120)
    assert alone.code == 0, alone.err
    one = json.loads((tmp_path / "seen.alone").read_text())

    job = start(hosts, tmp_path, **environ, MATEX_WARM_IMPORTS=warm)
    ended = job.end(180)
    assert ended.code == 0, ended.err
    assert "imports TensorFlow for itself" not in ended.err
    lines = [line for line in ended.err.splitlines() if re.match("matex_tf: (?!epoch )", line)]
    assert len(lines) == 2 and lines[0].startswith("matex_tf: 4 ranks on 2 nodes, "), lines
    assert lines[1] == "matex_tf: each of 4 ranks has the same 101 rows, and computes its part of each batch"
    assert ended.out.count("the loss is") == 1
    ranks = [json.loads((tmp_path / f"seen.{rank}").read_text()) for rank in range(4)]
    assert [rank["host"] for rank in ranks] == ["h1", "h1", "h2", "h2"]
    assert [rank["fetched"] for rank in ranks] == [1, 0, 1, 0]
    parents = [rank["parent"] for rank in ranks]
    assert warm == "off" or (parents[0], parents[2]) == (parents[1], parents[3])  # whose numbers are those of a host
    for rank in ranks:
        assert rank["greeting"] == "hello" and rank["seed"] == "5"
        np.testing.assert_allclose(rank["losses"], one["losses"], rtol=1e-5)
        np.testing.assert_allclose(rank["predicted"], one["predicted"], rtol=1e-4, atol=1e-5)
    assert left(hosts, job, 10) == []


@pytest.mark.variants(1)
@pytest.mark.parametrize("line", ["os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError('boom')", "sys.exit(3)"])
def test_a_rank_of_the_other_host_fails(hosts, tmp_path, line):
    """Both hosts are empty within ten seconds, and one report says which rank and where."""
    (tmp_path / "script.py").write_text(MEET % (3, line))
    job = start(hosts, tmp_path)
    job.await_file(tmp_path / "pid", 60)
    begin = time.monotonic()
    ended = job.end(10)
    assert left(hosts, job, max(0.1, 10 - (time.monotonic() - begin))) == []
    assert ended.code == {"r": 1, "s": 3, "o": 137}[line[0]], ended.err
    if "boom" in line:
        assert len(re.findall("matex_tf: rank 3 of 4 on h2 failed:", ended.err)) == 1
        assert ended.err.count("ValueError: boom") == 1 and ended.err.count("Traceback") == 1
    elif "exit" in line:
        assert len(re.findall(r"matex_tf: rank 3 of 4 on h2: sys.exit\(3\) at script.py:\d+", ended.err)) == 1
    else:
        assert re.search(r"rank 3 .*on node h2 exited on\s+signal 9", ended.err)


def test_interrupt(hosts, tmp_path):
    """Ctrl-C on the login node ends the ranks of all hosts."""
    (tmp_path / "script.py").write_text(MEET % (3, "pass"))
    job = start(hosts, tmp_path)
    job.await_file(tmp_path / "pid", 60)
    job.process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert job.end(10).code == 130
    assert left(hosts, job, max(0.1, 10 - (time.monotonic() - begin))) == []


def test_a_host_loses_its_power(tmp_path):
    """The job ends on the hosts that are left, and not as if it had gone well."""
    (tmp_path / "script.py").write_text(MEET % (3, "pass"))
    with Hosts(2) as made:
        job = start(made, tmp_path)
        job.await_file(tmp_path / "pid", 60)
        made.kill("h2")
        begin = time.monotonic()
        ended = job.end(10)
        # mpirun hears of it from its connection to the host or from its ssh, whichever ends first; then on stdout.
        assert ended.code in (1, 255)
        assert re.search(r"\bh2\b", ended.err + ended.out), ended
        assert left(made, job, max(0.1, 10 - (time.monotonic() - begin))) == []


@needs("restart")
def test_a_job_starts_again_without_a_lost_host(tmp_path):
    """With `--faults restart` the job goes on where it can, with the ranks that the other hosts had."""
    again = "if os.environ['MATEX_RESTARTS'] == '1': print('again on', world.hosts, flush=True); sys.exit()"
    (tmp_path / "script.py").write_text(MEET.replace('world.barrier("start")', again) % (3, "pass"))
    with Hosts(2) as made:
        hosts = ["-n", "4", "--hosts", "h1:2,h2:2", "--faults", "restart", "script.py"]
        job = Job([*made.on(folder=tmp_path), LAUNCHER, "run", *hosts], tmp_path, **made.environ)
        job.await_file(tmp_path / "pid", 60)
        made.kill("h2")
        ended = job.end(90)
        assert ended.code == 0 and "again on ['h1', 'h1']" in ended.out, ended
        # mpirun may hear of the end of a rank there before it misses the host
        for line in ("(host h2|a rank) died", "h2 cannot be reached, and is left out", "restart 1 of 3, with 2 ranks"):
            assert re.search(line, ended.err), ended.err
        assert left(made, job, 10) == [] and not (tmp_path / ".matex-checkpoints").exists()


def test_links_and_removal(tmp_path):
    """A link has the rate that was asked for and counts what goes over it; at the end the kernel has no trace of it."""
    receive = "import socket; s = socket.create_server(('h2', 5000)); print('up', flush=True); c, _ = s.accept()\n"
    receive += "while c.recv(1 << 16): pass"
    send = "import socket; s = socket.create_connection(('h2', 5000)); s.sendall(bytes(10_000_000)); s.close()"
    before = os.listdir("/sys/class/net")
    with Hosts(2, gbit=0.1) as made:
        with subprocess.Popen(
            [*made.on("h2"), sys.executable, "-c", receive], stdout=subprocess.PIPE, text=True
        ) as end:
            assert end.stdout.readline() == "up\n"
            begin, earlier = time.monotonic(), made.traffic()
            subprocess.run([*made.on("h1"), sys.executable, "-c", send], check=True)
            assert end.wait() == 0
            seconds = time.monotonic() - begin
        sent = made.traffic()["h1"].sent - earlier["h1"].sent
        received = made.traffic()["h2"].received - earlier["h2"].received
        assert seconds > 0.75  # 0.8 s at 0.1 Gbit/s, less what may go in one burst
        assert 10_000_000 < sent < 11_000_000 and 10_000_000 < received < 11_000_000
        made.unplug("h2")
        dial = "import socket; socket.create_connection(('h2', 5000), timeout=0.5)"
        tried = subprocess.run([*made.on("h1"), sys.executable, "-c", dial], stderr=subprocess.PIPE, text=True)
        assert "TimeoutError" in tried.stderr
        lost = subprocess.Popen([*made.on("h1"), "sh", "-c", "echo up; exec sleep 1000"], stdout=subprocess.PIPE)
        assert lost.stdout.read(3) == b"up\n"
        assert len(made.processes("h1")) == 1
        made.kill("h1")
        assert lost.wait(10) != 0
        lost.stdout.close()
        assert os.listdir("/sys/class/net") == before


def test_processes_that_begin_another_program(hosts, tmp_path):
    """A process counts at every look, also amid its exec, where the kernel has no command line of it."""
    again = tmp_path / "again"
    again.write_text('exec sh "$0"\n')
    with subprocess.Popen([*hosts.on("h1"), "sh", str(again)]) as loop:
        limit = time.monotonic() + 10
        while not hosts.processes("h1"):
            assert time.monotonic() < limit
        try:
            assert [len(hosts.processes("h1")) for _ in range(100)] == [1] * 100
        finally:
            for pid in hosts.processes("h1"):
                os.kill(pid, signal.SIGKILL)
        assert loop.wait(10) != 0


def test_hosts_of_a_killed_process_are_gone(tmp_path):
    """However the process that made hosts ends, nothing is left of them."""
    command = [sys.executable, str(Path(sys.modules["benchmarks.hosts"].__file__)), "-n", "2", "--"]
    inside = "readlink /proc/self/ns/net; eval \"$PRTE_MCA_plm_ssh_agent h2 'readlink /proc/self/ns/net; sleep 1000'\""
    job = Job([*command, "sh", "-c", inside], tmp_path)
    spaces = {job.process.stdout.readline().strip() for _ in range(2)}
    assert len(spaces) == 2 and all(space.startswith("net:[") for space in spaces)
    job.process.kill()
    limit = time.monotonic() + 10
    while alive := [path for path in Path("/proc").glob("[0-9]*/ns/net") if namespace(path) in spaces]:
        assert time.monotonic() < limit, alive
        time.sleep(0.05)
    job.end(10)


def namespace(path: Path) -> str:
    """What a link of /proc points to; the empty string where its process has ended."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def test_too_many_cores():
    """Hosts that cannot be made are refused in one sentence."""
    with pytest.raises(HostsError, match="2 hosts of 1000 cores need 2000 cores, and there are"):
        Hosts(2, cores=1000)
