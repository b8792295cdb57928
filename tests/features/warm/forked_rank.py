"""A process that a launcher has started as a rank, as far as `features.warm` sees it: without MPI and TensorFlow.

python tests/features/warm/forked_rank.py EXPECTED BEFORE IMPORTS DOES

DOES is a list in JSON of what each rank does.
"""

import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))

from matex_tf.features.warm import meeting_point
from matex_tf.features.warm.process import Refused

expected, before, imports, does = sys.argv[1:]
exec(before)
how = "itself"
if int(expected):
    try:
        meeting_point.enter(lambda: exec(imports, {}), int(expected))
        how = "forked"
    except Refused as reason:
        how = f"refused: {reason}"
rank = os.environ["PMIX_RANK"]
exec(json.loads(does)[int(rank)])
