"""Rows that wait, in one `fit`: which of them an epoch uses, what steps find out about them, what is left in the end.

A pipeline says how many rows there are (`over`) and asks which are used (`codes`); a step gives its rows' scores
(`note`); between two epochs the ranks merge them and choose the rows of the next one, each for itself, and all the
same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.features.samples import score_files, scoring
from matex_tf.features.samples.options import SampleOptions, Scored
from matex_tf.features.samples.patches import array_tags, numbered_rows
from matex_tf.features.samples.patches.row_losses import RowLosses
from matex_tf.features.samples.patches.schedules import Ahead
from matex_tf.patches.common import active_flag, log_once
from matex_tf.patches.steps.row_choice import RowChoice
from matex_tf.state import run_state

#: Steps whose scores are held as tensors: to look into one that a device has yet to compute would wait for it.
_HELD = 32
LOG = "rows_used"
#: Of an epoch: whether it was trained in a job before this one, and what `state` gave if that was within it.
Resumed = Callable[[int], tuple[bool, Any]]


class Pruning(RowChoice):
    """The rows of one `fit`.

    Attributes:
        number: of this fit, from 1.
        batches: of the script's size, that the epoch has; None before there is one.
        scores: of all rows; None before the data are known.
        epoch: which of them are used now.
        factors: float32 (2,), for the graph of a step: the scale of gradients and the factor of logs.
        resumed: see `Resumed`.
        walk: Keras' iterator over the epochs; None before there is one.
    """

    asked = "--prune-samples"

    def __init__(self, chosen: SampleOptions, epochs: int, factors: tf.Variable, ahead: Ahead, resumed: Resumed):
        """Args: epochs: at which the fit ends. Collective."""
        from tensorflow.python.eager import context

        scored = run_state.current().part(Scored)
        scored.fits += 1
        self.number, self.resumed = scored.fits, resumed
        self.rate, self.by, self._rescale = (
            chosen.prune_samples,
            chosen.prune_samples_by,
            chosen.prune_samples_rescale,
        )
        self._chosen = chosen
        self._until = math.floor(chosen.prune_samples_until * epochs)  # so that the last one is whole, if any is
        self._seed = world.current().broadcast((context.global_seed() or 0) + self.number, "share a seed")
        self.factors, self._ahead = factors, ahead
        self.scores: scoring.SampleScores | None = None
        self.epoch = scoring.Epoch.whole(0)
        self.batches: int | None = None
        self._size = self._global_size = 1
        self._drop = False
        self._held: list[tuple[Any, Any]] = []
        self._images: Any = None
        self.offset = 0
        self._used = self._offered = 0
        self._epochs = epochs
        self.walk: Any = None
        self._now = 0  # the number of the epoch

    def over(
        self, counts: Sequence[int], own: int, size: int, global_size: int, images: Any = None, drop: bool = False
    ) -> None:
        """The data are known.

        Args:
            counts: rows of each rank that has some of its own; of one where all have the same.
            own: which of these this rank is.
            size: rows of a batch of the script.
            global_size: rows of a step of all ranks.
            images: what has the rows of this rank, from the first; None where they cannot be had again.
            drop: whether a last batch that is not full is left out.
        """
        self.scores = scoring.SampleScores(sum(counts), self.by == "forgetting")
        self.offset = sum(counts[:own])
        self.counts = list(counts)
        self._size, self._global_size, self._images, self._drop = size, global_size, images, drop
        self.epoch = scoring.Epoch.whole(len(self.scores))

    @property
    def known(self) -> scoring.SampleScores:
        """The scores of all rows."""
        assert self.scores is not None, "no pipeline has said what the data are"
        return self.scores

    def of_arrays(self, counts: Sequence[int], own: int, size: int, global_size: int, first: Any, orphans: Any) -> None:
        self.over(counts, own, size, global_size, first)
        if orphans is not None:
            raise MatexError(
                "--prune-samples and --faults shrink go together only if every rank holds all rows, and here each has "
                "rows of its own: take --faults restart, or leave out --prune-samples."
            )

    def tags_of_whole(self, adapter: Any, numbers: Callable[[], Any], size: int) -> Any:
        return array_tags.of_whole(adapter, numbers, self, size)

    def tags_of_shards(self, adapter: Any, counts: list[int], size: int) -> Any:
        return array_tags.of_shards(adapter, counts, size, self)

    def of_pydataset(self, adapter: Any) -> Any:
        return numbered_rows.of_pydataset(adapter, self, _batches_of_a_step())

    def has_epochs(self, iterator: Any, own: bool) -> None:
        """Let the rows of a tf.data pipeline have numbers; those of arrays and of a PyDataset have theirs.

        Args:
            iterator: Keras' own over the epochs, which has just been made.
            own: whether each rank has rows of its own.

        Raises:
            MatexError: nobody can say which rows an epoch has.
        """
        kind = type(iterator.data_adapter).__name__
        if own:
            raise MatexError(
                "--prune-samples: each rank has rows of its own in these data, and nobody can say which row is which: "
                "give fit the arrays of a DataSet, or leave out --prune-samples and --sample-scores (docs/samples.md)."
            )
        if kind == "TFDatasetAdapter" and not iterator.steps_per_epoch:
            data = iterator._distributed_dataset
            iterator._distributed_dataset = numbered_rows.of_tf_data(data, self, _batches_of_a_step())
        if iterator.steps_per_epoch:
            raise MatexError(
                "--prune-samples: with steps_per_epoch an epoch does not use all rows, so none can be left out of "
                "it: leave out steps_per_epoch (and repeat()), or --prune-samples and --sample-scores "
                "(docs/samples.md)."
            )
        if self.scores is None:
            raise MatexError(
                f"--prune-samples: nobody can say which row is which in these data ({kind.removesuffix('Adapter')}): "
                "give fit arrays, or leave out --prune-samples and --sample-scores (docs/samples.md)."
            )
        self.walk = iterator

    def codes(self) -> np.ndarray:
        """Of all rows, which are used in this epoch; see `scoring.Epoch`."""
        return self.epoch.codes

    def tags(self, shuffle: bool) -> np.ndarray:
        """Of the rows that are used in this epoch, in their order; see `row_choice`. int64 (rows,).

        Args:
            shuffle: whether the order is drawn, for each epoch anew and the same on every rank.
        """
        return scoring.tags(self.epoch.codes, (self._seed, self._now) if shuffle else None)

    def begin_epoch(self, epoch: int, whole: bool = False) -> None:
        """Choose the rows of an epoch. Every rank chooses the same.

        Args:
            whole: whether all are used.
        """
        scores, self._now = self.known, epoch
        self.epoch = scoring.Epoch.whole(len(scores))
        if self.rate and epoch < self._until and not whole:
            self.epoch = scoring.choose(scores.scores, self.rate, self._seed, epoch, self.by == "random")
            if not self._rescale:
                self.epoch = self.epoch._replace(scale=1.0, log_factor=1.0)
        if self._drop and self.epoch.used < self._size:
            self.epoch = scoring.Epoch.whole(len(scores))
        self.batches = self._in_batches(self.epoch.used, self._size)
        self.factors.assign([self.epoch.scale, self.epoch.log_factor])
        full, short = (self._in_batches(rows, self._global_size) for rows in (len(scores), self.epoch.used))
        self._ahead.begin_epoch(max(full, 1), max(short, 1))

    def _in_batches(self, rows: int, size: int) -> int:
        return rows // size if self._drop else math.ceil(rows / size)

    def codes_of_epoch(self) -> Any:
        """A pipeline that gives `codes` again and again: those of the epoch in which it is first asked."""

        @tf.autograph.experimental.do_not_convert
        def now(_: Any) -> Any:
            return tf.ensure_shape(tf.numpy_function(self.codes, [], tf.int8), [None])

        once = tf.data.Dataset.range(1).map(now)
        return once.flat_map(lambda codes: tf.data.Dataset.from_tensors(codes).repeat())

    def before_step(self) -> None:
        """A step is about to run."""
        # Where Keras knows how many batches there are, it makes an iterator after the last one too, which nobody uses.
        self.walk._num_batches = None
        self._ahead.before_step()

    def note(self, found: tuple[Any, Any]) -> None:
        """A step has run: numbers and scores of this rank's rows, see `RowLosses.found`."""
        self._ahead.after_step()
        self._held.append(found)
        if len(self._held) > _HELD:
            self._settle()

    def _settle(self) -> None:
        for numbers, values in self._held:
            self.known.note(np.asarray(numbers), np.asarray(values))
        self._held = []

    def end_epoch(self) -> int:
        """Merge what the ranks have found; gives the rows that were used. Collective."""
        self._settle()
        self.known.merge(world.current())
        self._ahead.end_epoch()
        self._used += self.epoch.used
        self._offered += len(self.known)
        return self.epoch.used

    def row_losses(self, tags: tf.Tensor, rows: tf.Tensor) -> RowLosses:
        """What measures the rows of a step, in its graph. Args: see `RowLosses`."""
        return RowLosses(tags, rows, self.by, self.factors if self.rate and self._rescale else None)

    def state(self) -> dict[str, Any]:
        """What a job that is started again goes on with, on rank 0. Collective."""
        self._settle()
        self.known.gather(world.current())
        return {
            **self.known.state(),
            "codes": self.epoch.codes.copy(),
            "factors": np.array([self.epoch.scale, self.epoch.log_factor]),
            "seed": self._seed,
            "now": self._now,
            "ahead": self._ahead.state(),
            "sums": [self._used, self._offered],
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Go on where `state` was taken, in an epoch that has begun.

        Raises:
            MatexError: the data have another number of rows.
        """
        if len(kept["scores"]) != len(self.known):
            raise MatexError(
                f"the checkpoint has scores of {len(kept['scores'])} rows, and the data have {len(self.known)}: a "
                "script must do the same when it is run again."
            )
        self.known.restore(kept, world.current().rank == 0)
        scale, log_factor = map(float, kept["factors"])
        codes = kept["codes"]
        self.epoch = scoring.Epoch(codes, int((codes != scoring.LEFT_OUT).sum()), scale, log_factor)
        self.batches = self._in_batches(self.epoch.used, self._size)
        self.factors.assign([scale, log_factor])
        self._seed, self._now = kept["seed"], kept["now"]
        self._ahead.restore(kept["ahead"])
        self._used, self._offered = kept["sums"]

    def end(self) -> None:
        """The fit is over: say what was left out, and write the file of scores. Collective."""
        if self.scores is None or not self._offered:
            return
        if self.rate:
            left = 1 - self._used / self._offered
            log_once.log(
                f"fit {self.number}: {self._used:,} of {self._offered:,} rows were used in {self._epochs} epochs, "
                f"{100 * left:.1f} % were left out (--prune-samples)"
            )
        if path := self._chosen.sample_scores:
            self._write(score_files.numbered(path, self.number))

    def _write(self, path: str) -> None:
        ranks, scores = world.current(), self.known
        shown = score_files.extremes(scores.scores)
        everyone = ranks.allgather(self._pictures(shown), "gather the rows of a picture")
        error = ""
        if ranks.rank == 0:
            images = {number: image for own in everyone for number, image in own.items()}
            try:
                with active_flag.alone():
                    score_files.write_table(path, scores.scores, scores.used)
                    picture = score_files.draw(path, shown, scores.scores, images, self.by)
                log_once.log(f"the scores of {len(scores):,} rows are in {path}" + (f", {picture}" if picture else ""))
            except OSError as problem:
                error = f"--sample-scores {path} cannot be written: {problem}"
        if error := ranks.broadcast(error, "write the scores of rows"):
            raise MatexError(error)

    def _pictures(self, shown: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
        """Of these rows, the images that this rank has."""
        held = self._images
        if held is None or not score_files.is_image(tuple(held.shape[1:])):
            return {}
        if len(self.counts) == 1 and world.current().rank:
            return {}  # rank 0 has all of them
        wanted = [int(number) for numbers in shown for number in numbers]
        there = [number for number in wanted if 0 <= number - self.offset < held.shape[0]]
        return {number: np.asarray(held[number - self.offset]) for number in there}


def _batches_of_a_step() -> int:
    return world.current().size if settings.current().batch == "per-rank" else 1
