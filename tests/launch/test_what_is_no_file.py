"""What a script does to a machine beside files: ports, trackers, and what it finds of the launcher."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from jobs import LAUNCHER, Job

pytestmark = pytest.mark.timeout(100)

#: A server on a fixed port that counts who has asked; two trackers; what is found of the launcher. Each rank says it
#: once to `say`, which is another module and knows no ranks.
SCRIPT = """
import http.server, os, socket, sys, threading, urllib.request
import mlflow, say, wandb

asked = []


class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(1)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words):
        pass


port = int(sys.argv[1])
server = http.server.HTTPServer(("127.0.0.1", port), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
for _ in range(2):
    urllib.request.urlopen(f"http://localhost:{port}/").read()
lock, other = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
lock.bind(f"\\0one start, {port}"), lock.listen(), other.connect(f"\\0one start, {port}"), lock.accept()
names = ("OMPI_COMM_WORLD_SIZE",)
found = sorted(name for name in os.environ if name.startswith(("OMPI_", "OPAL_", "PMIX_", "PRTE_")))
say.say(asked=len(asked), own=server.server_address[1] == port, found=found, wandb=os.environ.get("WANDB_MODE", ""))
mlflow.set_tracking_uri("http://tracker:5000")
say.say(mlflow=mlflow.uri[:8], mode=[wandb.init(mode=mode) for mode in ("online", "offline")])
server.shutdown()
"""

SET = "OMPI_MCA_btl_base_verbose"  # by the user
SAY = """
import json, os, tempfile
place = os.environ["SAY"]
said = {}


def say(**words):
    said.update(words)
    with open(os.path.join(place, f"said.{os.getpid()}"), "w") as file:
        json.dump(said, file)
"""

MLFLOW = """
uri = ""


def set_tracking_uri(address):
    global uri
    uri = address
"""


WANDB = """
def init(mode=None):
    return mode
"""


@pytest.fixture
def common():
    """A directory that no layer covers: what each rank writes there is found."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="matex-said-") as place:
        yield Path(place)


def said(folder, say, port, *options, script=SCRIPT):
    """What the ranks say, the first one's first, and the job."""
    places = folder / "elsewhere"
    places.mkdir(exist_ok=True)
    for name, text in (("say", SAY), ("wandb", WANDB), ("mlflow", MLFLOW)):
        (places / f"{name}.py").write_text(text)
    (folder / "script").mkdir(exist_ok=True)
    (folder / "script" / "script.py").write_text(script)
    line = [LAUNCHER, "run", "-n", "3", *options, "script/script.py", str(port)]
    environ = {"SAY": str(say), "PYTHONPATH": str(places), SET: "0"}
    job = Job(line, folder, **environ).end(80)
    assert job.code == 0, job.err
    words = [json.loads(path.read_text()) for path in say.iterdir()]
    return sorted(words, key=lambda one: not one["own"]), job


@pytest.fixture
def port():
    """A port that is free now."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_once_on_a_machine(tmp_path, common, port):
    """The first rank has the port and the trackers; each finds its own server; nobody finds a launcher, and what the
    user has set is there."""
    words, job = said(tmp_path, common, port, script=SCRIPT.replace("OMPI_COMM_WORLD_SIZE", ""))
    first = {"asked": 2, "own": True, "found": [SET], "wandb": "", "mlflow": "http://t", "mode": ["online", "offline"]}
    other = {**first, "own": False, "wandb": "disabled", "mlflow": "sqlite:/", "mode": ["disabled", "offline"]}
    assert words == [first, other, other]
    assert f"port {port} is that of the first rank of a node: rank 1 has" in job.err
    assert "wandb is imported: rank 0 reports the run, other ranks report nothing" in job.err


#: Memory of a name, to which this process and one that it forks add; another program has made `other`.
MEMORY = """
import multiprocessing, say, sys
from multiprocessing.shared_memory import SharedMemory


def add(*names):
    for name in names:
        memory = SharedMemory(name)
        memory.buf[0] += 1
        memory.close()


memory, fork = SharedMemory(sys.argv[1], create=True, size=1), multiprocessing.get_context("fork")
child = fork.Process(target=add, args=(sys.argv[1], memory.name))
add(sys.argv[1]), child.start(), child.join()
other = SharedMemory(sys.argv[1] + ".other")
say.say(own=memory.name == sys.argv[1], count=memory.buf[0], other=other.buf[0])
memory.close(), memory.unlink(), other.close()
try:
    add(sys.argv[1])
except FileNotFoundError:
    say.say(gone=True)
"""


@pytest.mark.parametrize("options", [(), ("--files", "once")], ids=["layers", "once"])
def test_shared_memory_of_a_name(options, tmp_path, common, port):
    """Each rank has its own, and finds what another program has made."""
    other = Path("/dev/shm", f"{port}.other")
    other.write_bytes(b"\7")
    try:
        words, _ = said(tmp_path, common, port, *options, script=MEMORY)
    finally:
        other.unlink(missing_ok=True)  # Python removes what a process of its has opened
    assert words == [{"own": rank == 0, "count": 3, "other": 7, "gone": True} for rank in range(3)]


def test_standard_input(tmp_path, common):
    """Every rank reads what the job is given: a line, then the rest, then nothing."""
    (tmp_path / "say.py").write_text(SAY)
    (tmp_path / "script").mkdir()
    text = "import say, sys\nsay.say(line=input('who? '), rest=list(sys.stdin), end=sys.stdin.buffer.read().decode())\n"
    (tmp_path / "script" / "script.py").write_text(text)
    environ = {"SAY": str(common), "PYTHONPATH": str(tmp_path)}
    job = Job([LAUNCHER, "run", "-n", "3", "script/script.py"], tmp_path, **environ).end(80, "you\n1\n2\n")
    assert job.code == 0 and job.out.count("who? ") == 1, job.err
    words = [json.loads(path.read_text()) for path in common.glob("said.*")]
    assert words == [{"line": "you", "rest": ["1\n", "2\n"], "end": ""}] * 3


@pytest.mark.parametrize("options", [(), ("--env", "keep")], ids=["it names one", "--env keep"])
def test_who_finds_the_launcher(options, tmp_path, common, port):
    """A script that names a launcher's variable finds all of them; so does every one with --env keep."""
    script = SCRIPT if not options else SCRIPT.replace("OMPI_COMM_WORLD_SIZE", "")
    words, _ = said(tmp_path, common, port, *options, script=script)
    assert all({"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"} <= set(one["found"]) for one in words)
