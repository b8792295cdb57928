"""Modules of a few lines that stand for PyTorch and JAX; no TensorFlow is needed to write them."""

from __future__ import annotations

#: A PyTorch and a JAX of a few lines, by file.
TORCH = {
    "torch/__init__.py": "from torch import distributed, optim",
    "torch/distributed.py": "def is_initialized():\n    return False",
    "torch/optim/__init__.py": "from torch.optim.optimizer import SGD\ndel optimizer",
    "torch/optim/optimizer.py": """
hooks = []
register_optimizer_step_pre_hook = hooks.append


class SGD:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
""",
}
JAX = {
    "jax.py": """
def value_and_grad(function, has_aux=False):
    return lambda x: (function(x), 1.0)


def grad(function, has_aux=False):
    return lambda x: 1.0
"""
}


def write(files, folder):
    """Put the files of a module there."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
