"""What a job on one machine listens on: nothing that another machine can reach."""

import socket
import subprocess
import sys
import time

import pytest
from jobs import LAUNCHER, Job

from benchmarks.hosts import Hosts, unavailable
from matex_tf.launch import loopback, mpirun_command, resources

MEET = """
import time
import matex_tf
world = matex_tf.init()
world.barrier("start")
open("up", "w").write("yes")
while True:
    world.barrier("take a step")
    time.sleep(0.01)
"""

#: Listens in every way that there is, tells where, and waits.
LISTEN = """
import socket, sys
four, six = socket.create_server(("", 0)), socket.create_server(("::", 0), family=10, dualstack_ipv6=True)
local, datagrams = socket.create_server(("127.0.0.1", 0)), socket.socket(type=socket.SOCK_DGRAM)
datagrams.bind(("", 0))
print(*(each.getsockname()[1] for each in (four, six, local)), flush=True)
sys.stdin.read()
"""

DIAL = "import socket; socket.create_connection(('head', {}), timeout=5)"


def listening(hosts: Hosts) -> list[str]:
    """Address and port of all that listens on `head`."""
    lines = subprocess.check_output([*hosts.on(), "ss", "-ltnuH"], text=True).splitlines()
    return [line.split()[-2] for line in lines]


def for_others(addresses: list[str]) -> list[str]:
    return [address for address in addresses if "%lo:" not in address and not address.startswith(("127.", "[::1]"))]


@pytest.mark.timeout(150)
@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "can run")
def test_a_job_on_one_machine(tmp_path):
    """Ranks and mpirun listen on the loopback interface alone, with `shrink` too; another host is refused."""
    (tmp_path / "script.py").write_text(MEET)
    with Hosts(1) as made:
        for faults in ("abort", "shrink"):
            (tmp_path / "up").unlink(missing_ok=True)
            line = [*made.on(folder=tmp_path), LAUNCHER, "run", "-n", "2", "--faults", faults, "script.py"]
            job = Job(line, tmp_path)
            try:
                job.await_file(tmp_path / "up", 60)
                limit = time.monotonic() + 20
                while for_others(listening(made)) and time.monotonic() < limit:
                    time.sleep(0.1)
                addresses = listening(made)
                assert addresses and for_others(addresses) == []
                port = addresses[0].rpartition(":")[2]
                dial = [sys.executable, "-c", DIAL.format(port)]
                assert (
                    "ConnectionRefusedError"
                    in subprocess.run([*made.on("h1"), *dial], capture_output=True, text=True).stderr
                )
            finally:
                job.stop()
                job.end(10)


def test_sockets_of_another_process():
    """All that it listens on for others is tied to the loopback interface, where it is still reached."""
    with subprocess.Popen([sys.executable, "-c", LISTEN], stdin=-1, stdout=-1, text=True) as process:
        ports = list(map(int, process.stdout.readline().split()))
        try:
            assert loopback.narrow(process.pid) == []
        except PermissionError:
            pytest.skip("this kernel gives no process the sockets of another")
        shown = subprocess.check_output(["ss", "-ltnupH"], text=True).splitlines()
        mine = [line.split()[-3] for line in shown if f"pid={process.pid}," in line]
        assert len(mine) == 4 and for_others(mine) == [], mine
        for port in ports:
            socket.create_connection(("127.0.0.1", port), 10).close()
        process.stdin.close()
    with pytest.raises(OSError):
        loopback.narrow(process.pid)


def test_the_interface_of_the_user(monkeypatch):
    """Whoever has chosen an interface keeps it; MPICH is told in its own words; ranks on several hosts are not."""
    monkeypatch.setattr(resources, "in_batch_system", lambda: False)
    openmpi, mpich = (
        mpirun_command.Mpirun("mpirun", "Open MPI", (5, 0, 11)),
        mpirun_command.Mpirun("mpirun", "MPICH", (5, 0, 0)),
    )
    assert "lo" in mpirun_command.mpirun_line(openmpi, 2) and "lo" in mpirun_command.mpirun_line(mpich, 2)
    assert "lo" not in mpirun_command.mpirun_line(openmpi, 2, "a:2") and "lo" not in mpirun_command.mpirun_line(
        mpich, 2, "a:2"
    )
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "eth0")
    assert "lo" not in mpirun_command.mpirun_line(openmpi, 2)
