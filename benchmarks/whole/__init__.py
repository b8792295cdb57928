"""Whole jobs that `scripts/bench jobs` times: scripts as users write them, with the time noted at some places."""
