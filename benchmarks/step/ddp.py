"""A rank with PyTorch: in lock step, and with DistributedDataParallel on gloo.

python -m benchmarks.step.ddp MODEL BATCH
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.step import models
from benchmarks.step.turns import LOCK_STEP, SOCKET, Rank

DDP = "DistributedDataParallel"


def training(model: Any, model_name: str, batch: int) -> Callable[[], Any]:
    """The step of a model: SGD and cross-entropy."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    loss = torch.nn.CrossEntropyLoss()
    x, y = models.rows(model_name, batch)
    if x.ndim == 4:
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y.astype("int64"))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model(inputs), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    rank = Rank()
    model_name, batch = sys.argv[1], int(sys.argv[2])
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    store = f"file://{os.environ[SOCKET]}.gloo"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank.rank, world_size=rank.size)
    alone, shared = models.in_torch(model_name), models.in_torch(model_name)
    together = torch.nn.parallel.DistributedDataParallel(shared)
    steps = {
        LOCK_STEP: rank.lock_step(training(alone, model_name, batch)),
        DDP: training(together, model_name, batch),
    }
    rank.serve(steps, sum(weight.numel() for weight in alone.parameters()))


if __name__ == "__main__":
    main()
