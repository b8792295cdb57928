"""Run cases, each "package.module:function", in a plain Python with nothing patched: plain.py FILE CASE [CASE ...]."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.support.named import find  # noqa: E402


def main() -> None:
    results = {}
    for case in sys.argv[2:]:
        results[case] = find(case)()
    assert "matex_tf.patches" not in sys.modules
    Path(sys.argv[1]).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()
