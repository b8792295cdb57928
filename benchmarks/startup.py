"""Where the time goes from the command to the end of the first training step, beside plain Python and a bare import.

Compared are `python train.py`, `mpirun python` with a script that imports TensorFlow and Keras and does nothing else,
and `matex-tf run`. A file `sitecustomize.py` on PYTHONPATH notes the time as matex_tf is imported, makes the world and
patches; when processes began is read from /proc, to 10 ms. Figures are of rank 0, medians of the rounds.

    launcher     from the command to the start of mpirun
    mpirun       from there to the start of the rank's process
    server       the same with `--warm-imports on`: in it one process of the node starts, and imports all
    Python       from there to the script, or to matex_tf, which may start it again, to hash alike on all ranks
    matex_tf     its own imports, and what it prepares before the script
    world        MPI_Init, and what ranks tell one another
    TensorFlow   importing it and Keras
    patches      of that, what matex_tf does meanwhile
    script       its own: data, model, compile
    first step   `fit` up to the end of its first step; most of it traces
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import launching, tables
from matex_tf.launch import mpirun_command

#: In this order; the times of a process add up to the whole.
PHASES = (
    "launcher",
    "mpirun",
    "server",
    "Python",
    "matex_tf",
    "world",
    "TensorFlow",
    "patches",
    "script",
    "first step",
)

#: Notes the time; runs in every Python of the job before anything else. A phase is the sum of what was spent in it.
MARKS = """
import sys, time

def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)

began = {}
spent = {"world": 0.0, "prepare": 0.0, "imports": 0.0, "patches": 0.0}

def timed(phase, function):
    def call(*args, **kwargs):
        begin, nested = now(), sum(spent.values())
        try:
            return function(*args, **kwargs)
        finally:
            spent[phase] += now() - begin - (sum(spent.values()) - nested)
    return call

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in ("matex_tf.job.run", "matex_tf.patches"):
            return None
        others = (finder.find_spec(name, path) for finder in sys.meta_path if finder is not Finder)
        spec = next(found for found in others if found)
        exec_module = spec.loader.exec_module
        def execute(module):
            if name == "matex_tf.job.run":
                began["matex_tf"] = now()
                timed("imports", exec_module)(module)
                module.join = timed("world", module.join)
                module.prepare = timed("prepare", module.prepare)
            else:
                timed("imports", exec_module)(module)
                applier = module._applier
                module._applier = lambda *of: timed("patches", applier(*of))
        spec.loader.exec_module = execute
        return spec

sys.meta_path.insert(0, Finder)
"""

#: Ways to start ranks that train, by what `matex-tf run` is told; and a bare import.
FLAGS: dict[str, list[str]] = {"default": [], "off": ["--warm-imports", "off"], "on": ["--warm-imports", "on"]}
WAYS = ("import", *FLAGS)
TRAIN = """
import json, os, sys
from sitecustomize import began, now, spent

began["script"], before = now(), dict(spent)
import tensorflow
import keras

began["imported"], patched = now(), spent["patches"]
if len(sys.argv) > 2:
    import numpy as np

    x, y = np.random.RandomState(0).rand(128, 784).astype("float32"), np.arange(128) % 10
    model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            began.setdefault("stepped", now())

    began["fit"] = now()
    model.fit(x, y, batch_size=64, verbose=0, callbacks=[Clock()])
if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
    def start_of(pid):
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK"), int(fields[1])

    process, parent = start_of(os.getpid())
    forked = int(os.environ.get("MATEX_PARENT", "0"))
    spent = {**before, "patches": patched - before["patches"], "forked": forked}
    parent = forked or parent
    with open(sys.argv[1], "w") as file:
        json.dump({"began": began, "spent": spent, "process": process, "parent": start_of(parent)[0]}, file)
"""


def phases(command: float, marks: dict[str, Any], launched: bool) -> dict[str, float]:
    """Milliseconds of each phase; those that a command does not have are left out.

    Args:
        command: when it was given, in seconds of CLOCK_BOOTTIME.
        marks: what rank 0 has written.
        launched: whether mpirun started it.
    """
    began, spent = marks["began"], marks["spent"]
    found = {}
    if launched:
        found["launcher"] = max(0.0, marks["parent"] - command)
        found["mpirun"] = marks["process"] - max(command, marks["parent"])
    if spent.get("forked"):
        found["server"] = found.pop("mpirun")
        began["matex_tf"] = marks["process"]  # what came before is the server's
    at = began.get("matex_tf", began["script"])
    found["Python"] = at - (marks["process"] if launched else command)
    if "matex_tf" in began:
        found["world"] = spent["world"]
        found["matex_tf"] = began["script"] - at - spent["world"]
        found["patches"] = spent["patches"]
    found["TensorFlow"] = began["imported"] - began["script"] - spent["patches"]
    if "fit" in began:
        found["script"] = began["fit"] - began["imported"]
        found["first step"] = began["stepped"] - began["fit"]
    return {phase: 1e3 * seconds for phase, seconds in found.items()}


def commands(ranks: Sequence[int], ways: Sequence[str]) -> dict[str, tuple[list[str], bool, bool]]:
    """The commands that are compared: up to the script, whether it trains, and whether mpirun starts it.

    Args:
        ranks: numbers of them.
        ways: of `WAYS`.
    """
    mpirun = mpirun_command.find_mpirun()
    found = {"python train.py": ([sys.executable], True, False)}
    for count in ranks:
        line = mpirun_command.mpirun_line(mpirun, count, names=list(launching.THREADS))
        run = [str(Path(sys.executable).with_name("matex-tf")), "run", "-n", str(count), "--notes", "off"]
        for way in ways:
            if way == "import":
                found[f"mpirun -n {count} python import.py"] = ([*line, sys.executable], False, True)
            elif count > 1 or way == "default":
                title = " ".join([f"matex-tf run -n {count}", *FLAGS[way], "train.py"])
                found[title] = ([*run, *FLAGS[way]], True, True)
    return found


def measure(words: Sequence[str], trains: bool, launched: bool, folder: Path) -> dict[str, float]:
    """Run a command once; milliseconds by phase."""
    file = folder / "marks.json"
    file.unlink(missing_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environ.pop("PYTHONHASHSEED", None)
    line = [*words, str(folder / "train.py"), str(file), *["train"] * trains]
    begin = time.clock_gettime(time.CLOCK_BOOTTIME)
    done = subprocess.run(line, env=environ, capture_output=True, text=True, errors="replace")
    if done.returncode or not file.exists():
        sys.exit(f"{' '.join(line)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return phases(begin, json.loads(file.read_text()), launched)


def main() -> int:
    parser = tables.parser("startup", __doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--ranks", default="1,4", help="numbers of ranks, with commas between (default 1,4)")
    parser.add_argument("--rounds", type=int, default=5, help="in which the commands take turns (default 5)")
    parser.add_argument(
        "--ways",
        default="import,default,on",
        help=f"of {','.join(WAYS)}: a bare import, and --warm-imports (%(default)s)",
    )
    options = tables.parse(parser)
    wanted = options.ways.split(",")
    if unknown := set(wanted) - set(WAYS):
        parser.error(f"--ways: {', '.join(sorted(unknown))} is none of {', '.join(WAYS)}")
    compared = commands([int(count) for count in options.ranks.split(",")], wanted)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in compared}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(MARKS)
        (folder / "train.py").write_text(TRAIN)
        for number in range(options.rounds + 1):
            for title, (words, trains, launched) in compared.items():
                times = measure(words, trains, launched, folder)
                if number:  # the first fills the caches
                    found[title].append(times)
    rows = []
    for title, rounds in found.items():
        sums = [sum(one.values()) for one in rounds]
        medians = {phase: statistics.median(one[phase] for one in rounds) for phase in rounds[0]}
        cells = [f"{medians[phase]:.0f}" if phase in medians else "" for phase in PHASES]
        rows.append([title, *cells, f"{statistics.median(sums):.0f}", f"{min(sums):.0f} to {max(sums):.0f}"])
    columns = ["command", *PHASES, "all", "spread"]
    note = f"median of {options.rounds}"
    title = "milliseconds from the command to the end of the first step"
    tables.show(title, columns, rows, less=["all"], spreads={"all": "spread"}, note=note)
    tables.keep(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
