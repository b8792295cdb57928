"""Compiled functions of the script's own, in loops whose batches every rank has whole: partitioned.

- `steps`: calls of them; `traced`: their traces, rebuilt; `one_rank_trace`: how they are traced, as one rank does.
- `taken`: batches that a function takes from an iterator by itself.

It may import core, exchange, strategies, patches.checking, patches.common, patches.loops,
patches.partition and patches.recovery. Start reading in steps.py.
"""
