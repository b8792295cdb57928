"""Trainings of Keras on JAX, run by one rank or by many; what each comes to is pickled.

python tests/features/jax/jax_rank.py FOLDER [CASE ...]
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import keras
from jax_calls import CALLS
from jax_cases import USUAL
from jax_models import MODELS
from jax_more import MORE

from matex_tf.core import world

CASES = (*USUAL, *MODELS, *CALLS, *MORE)


def main():
    folder, wanted = Path(sys.argv[1]), sys.argv[2:]
    results = {}
    for case in CASES:
        if case.__name__ not in (wanted or [case.__name__]):
            continue
        keras.utils.set_random_seed(3)
        keras.backend.clear_session()
        (folder / case.__name__).mkdir(exist_ok=True)
        results[case.__name__] = case(folder / case.__name__)
    everyone = world.current().allgather(results, "compare results")
    (folder / f"results.{len(everyone)}").write_bytes(pickle.dumps(everyone))


if __name__ == "__main__":
    main()
