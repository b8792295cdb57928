"""Whether ranks of cases have private layers: MATEX_TEST_FILES=private runs tests of files as `--files private` does.

Without it, a call that changes files is done by one rank for all.
"""

from __future__ import annotations

import os

import pytest

LAYERED = os.environ.get("MATEX_TEST_FILES") == "private"

#: Of tests that look at how ranks meet in calls: with layers they do not.
of_calls_in_common = pytest.mark.skipif(LAYERED, reason="each rank does everything itself")
