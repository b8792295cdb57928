"""A job in PyTorch, with DistributedDataParallel on gloo: python benchmarks/whole/in_torch.py TASK ddp RESULT TABLE"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from benchmarks.whole import clock, tasks


def network(name: str) -> Any:
    """As in `tasks.network`, with channels first."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        """A block of ResNet-20."""

        def __init__(self, inside: int, width: int, stride: int):
            super().__init__()
            self.body = nn.Sequential(
                *(nn.Conv2d(inside, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
                *(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)),
            )
            self.same = nn.Identity() if stride == 1 else nn.Conv2d(inside, width, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.same(x) + self.body(x))

    class Block(nn.Module):
        """Attention and two dense layers."""

        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
            self.dense = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
            self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)

        def forward(self, x: Any) -> Any:
            x = self.first(x + self.attention(x, x, x, need_weights=False)[0])
            return self.second(x + self.dense(x))

    class Mean(nn.Module):
        """The mean over words."""

        def forward(self, x: Any) -> Any:
            return x.mean(1)

    if name == "lenet":
        return nn.Sequential(
            *(nn.Conv2d(1, 20, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(20, 50, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(2450, 500), nn.ReLU(), nn.Linear(500, tasks.CLASSES)),
        )
    if name == "resnet":
        widths = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
        blocks = [Residual(*each) for each in widths]
        first = (nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, tasks.CLASSES))
    if name == "text":
        words = nn.Embedding(tasks.WORDS, 64)
        return nn.Sequential(words, Block(), Block(), Mean(), nn.Dropout(0.1), nn.Linear(64, tasks.CLASSES))
    hidden = [nn.Linear(tasks.COLUMNS, 256), nn.ReLU(), *[nn.Linear(256, 256), nn.ReLU()] * 2]
    return nn.Sequential(*hidden, nn.Linear(256, 2))


def moved(images: Any) -> Any:
    """Images, half of them flipped, each batch shifted by up to a tenth."""
    import torch

    flips = torch.rand(len(images)) < 0.5
    images[flips] = images[flips].flip(-1)
    down, right = (int(one) for one in torch.randint(-3, 4, (2,)))
    return images.roll((down, right), (-2, -1))


def main() -> None:
    time = clock.Clock()
    import torch
    import torch.distributed as dist
    from torch import nn

    time.done("import")
    name, result, table = sys.argv[1], sys.argv[3], sys.argv[4]
    task = tasks.TASKS[name]
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{what}"]) for what in ("RANK", "SIZE"))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.manual_seed(7)
    time.done("start")
    held: Any = None
    if name == "tabular":
        import pandas

        frame = pandas.read_csv(table, dtype="float32")
        x, y = frame[frame.columns[:-1]].to_numpy(), frame["label"].to_numpy()
    else:
        x, y = tasks.rows(name, task.steps * task.batch)
        held = tasks.rows(name, task.validation or 1000, seed=1)
    x, y = x[rank::size], y[rank::size]
    time.done("input")
    model = nn.parallel.DistributedDataParallel(network(name))
    optimizer = torch.optim.Adam(model.parameters(), 0.001)
    loss = nn.CrossEntropyLoss()
    time.done("model")
    batch, first, score = task.batch // size, True, 0.0
    for _ in range(task.epochs):
        model.train()
        order, right = np.random.permutation(len(x)), 0
        for low in range(0, len(x) // batch * batch, batch):
            inputs, labels = given(x, y, order[low : low + batch])
            if name == "resnet":
                inputs = moved(inputs)
            optimizer.zero_grad(set_to_none=True)
            logits = model(inputs)
            loss(logits, labels).backward()
            optimizer.step()
            right += int((logits.argmax(1) == labels).sum())
            if first:
                time.done("first step")
                first = False
        score = right / len(x)
        if task.validation:
            begin = clock.now()
            evaluate(model, *held)
            time.done("evaluation", clock.now() - begin)
    time.done("steps")
    if held is not None and not task.validation:
        evaluate(model, *held)
    time.done("evaluation")
    if not rank:
        torch.save(model.module.state_dict(), result + ".pt")
    time.done("saving")
    time.write(result, score)
    dist.destroy_process_group()


def given(x: Any, y: Any, places: Any) -> tuple[Any, Any]:
    """Some rows, as tensors."""
    import torch

    inputs = x[places]
    if inputs.ndim == 4:
        inputs = np.ascontiguousarray(inputs.transpose(0, 3, 1, 2))
    return torch.from_numpy(inputs), torch.from_numpy(y[places].astype("int64"))


def evaluate(model: Any, x: Any, y: Any) -> float:
    """The part of this rank's rows of the held ones that are named right."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        x, y = x[rank::size], y[rank::size]
        right = sum(
            int((model.module(inputs).argmax(1) == labels).sum())
            for low in range(0, len(x), 32)
            for inputs, labels in [given(x, y, np.arange(low, min(low + 32, len(x))))]
        )
    return right / len(x)


if __name__ == "__main__":
    main()
