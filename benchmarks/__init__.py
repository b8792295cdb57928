"""What `scripts/bench` measures, a module a part."""
