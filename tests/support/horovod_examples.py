"""Run Horovod's own examples on two ranks, from a checkout of release 0.28.1, with made data in place of MNIST.

    python tests/support/horovod_examples.py PATH_OF_CHECKOUT [-n 2] [NAME …]

Each example runs as it is; only its data set is made up, and its steps and epochs are cut short. The exit code is 1
where one does not end as `EXAMPLES` says. With TF_USE_LEGACY_KERAS=1 they run on tf_keras, as far as they say
`tf.keras`; with the Python of an environment for Keras 2 (scripts/setup --keras2), on that.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from matex_tf.patches.common import keras_lines

HERE = Path(__file__).resolve().parent
LAUNCHER = str(Path(sys.executable).parent / "matex-tf")
SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Example:
    """An example of Horovod's.

    Attributes:
        path: in the checkout.
        arguments: which cut it short.
        replace: what has to be changed in it on Keras 3, from and to; empty where it runs as it is.
        fails: words of its error, where it cannot run.
    """

    path: str
    arguments: tuple[str, ...] = ()
    replace: tuple[tuple[str, str], ...] = ()
    fails: str = ""


#: A model that is quick, and one batch.
SHORT = ("--model", "MobileNetV2", "--batch-size", "1", "--num-iters", "1", "--num-batches-per-iter", "1")
#: Keras has it there still, and the example imports it before Horovod.
TF_KERAS = (("from keras.preprocessing.image import", "from tensorflow.keras.preprocessing.image import"),)
#: Its data is of tf.keras, its model of `keras`, which then is another one.
OF_TF_KERAS = (("import keras\n", "import tf_keras as keras\n"), ("from keras", "from tf_keras"))

EXAMPLES = (
    Example("examples/tensorflow2/tensorflow2_mnist.py"),
    Example("examples/tensorflow2/tensorflow2_keras_mnist.py"),
    Example("examples/tensorflow2/tensorflow2_synthetic_benchmark.py", (*SHORT, "--num-warmup-batches", "1")),
    Example("examples/tensorflow2/tensorflow2_keras_synthetic_benchmark.py", SHORT),
    Example("examples/keras/keras_mnist.py"),
    Example("examples/keras/keras_mnist_advanced.py", ("--epochs", "1"), TF_KERAS),
    Example("examples/tensorflow/tensorflow_keras_mnist.py"),
    Example("examples/tensorflow/tensorflow_mnist.py", fails="has no attribute 'layers'"),
    Example("examples/tensorflow/tensorflow_mnist_eager.py", fails="has no attribute 'app'"),
    Example("examples/tensorflow/tensorflow_synthetic_benchmark.py", SHORT, fails="'GradientDescentOptimizer'"),
)


def changes(example: Example) -> tuple[tuple[str, str], ...]:
    """What has to be changed in it for the Keras that is installed."""
    if keras_lines.keras_is_2() or not example.replace:
        return ()
    return OF_TF_KERAS if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else example.replace


def run(example: Example, checkout: Path, ranks: int) -> tuple[bool, str]:
    """Whether an example ended with 0, and its last words."""
    source = (checkout / example.path).read_text()
    for old, new in changes(example):
        assert old in source, f"{example.path} has no {old!r}: this is not release 0.28.1"
        source = source.replace(old, new)
    with tempfile.TemporaryDirectory(prefix="matex-example-") as name:
        script = Path(name) / Path(example.path).name
        script.write_text(source)
        command = [LAUNCHER, "run", "-n", str(ranks), str(HERE / "horovod_example_rank.py"), str(script)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        try:
            ended = subprocess.run(
                [*command, *example.arguments], cwd=name, env=environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, errors="replace", timeout=SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False, f"no end within {SECONDS} s"
        text = ended.stdout + ended.stderr
    lines = [line for line in text.splitlines() if "Error: " in line and "Errorcode" not in line] or text.splitlines()
    return ended.returncode == 0, lines[-1].strip()[:300] if lines else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of Horovod 0.28.1")
    parser.add_argument("names", nargs="*", help="examples, by the names of their files; all where there is none")
    parser.add_argument("-n", type=int, default=2, dest="ranks", help="ranks")
    options = parser.parse_args()
    wrong = 0
    for example in EXAMPLES:
        name = Path(example.path).name
        if options.names and name not in options.names:
            continue
        went, words = run(example, options.checkout.resolve(), options.ranks)
        right = not went and example.fails in words if example.fails else went
        wrong += not right
        count = len(changes(example))
        how = f"with {count} change{'s' * (count > 1)}" if count else "as it is"
        print(f"{'' if right else 'WRONG: '}{name}: {f'runs {how}' if went else f'fails: {words}'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
