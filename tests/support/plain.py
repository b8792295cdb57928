"""Run cases in a plain Python with nothing patched: python tests/support/plain.py FILE CASE [CASE ...]."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path


def main() -> None:
    results = {}
    for case in sys.argv[2:]:
        module, _, name = case.partition(":")
        results[case] = getattr(importlib.import_module(f"cases.{module}"), name)()
    assert "matex_tf.patches" not in sys.modules
    Path(sys.argv[1]).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()
