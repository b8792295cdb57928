"""The steps of groups that train apart: which group takes which rows of a batch.

Every group walks over all batches. Of each batch it takes one part, its own, where groups go in step (local); or as
many parts as it is dealt, where each goes as fast as it can (elastic, server): then all groups together take each row
once an epoch, a slow one fewer of them, and no group waits for another before the end of the epoch.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.faults import transactions
from matex_tf.features.groups import apart
from matex_tf.features.groups.membership import Groups
from matex_tf.patches.common import model_state, row_slicing
from matex_tf.patches.common.row_slicing import RowRange
from matex_tf.patches.data import batches
from matex_tf.patches.data.batches import Batch

if TYPE_CHECKING:  # for annotations alone
    from matex_tf.patches.fit.step.shared_step import SharedStep


class GroupSteps:
    """Runs the training steps of this rank's group.

    Args:
        step: that of the model.
    """

    def __init__(self, step: SharedStep):
        self._step = step
        self._batch = 0  # of the epoch
        self._logs: Any = None

    def begin_epoch(self) -> None:
        """The next batch is the first one of an epoch. All ranks come here."""
        self._batch = 0
        apart.current().begin_epoch(self._step.model)

    @property
    def made_no_step(self) -> bool:
        """Whether this group has trained on no part of a batch yet."""
        return self._logs is None

    def pass_over(self, executions: int) -> None:
        """So many batches of the epoch were drawn and left."""
        self._batch += executions

    def end_epoch(self) -> None:
        """No batch of the epoch is left. All ranks come here."""
        apart.current().end_epoch(self._step.model, self._batch)

    def __call__(self, batch: Batch, single: bool = False) -> Any:
        """Make the steps of this group on a batch.

        Args:
            single: whether it is one by itself, on which all groups work at the same time.

        Returns:
            The logs of the last step, also where that was on an earlier batch.
        """
        ranks, model = world.current(), self._step.model
        groups = apart.current().groups_of(ranks)
        whole = batches.whole(batch)
        if begins := model_state.of(model).begin:
            self._step.begin(batch()[0] if whole is None else whole)
        model_state.of(model).unmerged = True  # of all groups, also of one that makes no step
        self._step.group = groups.world
        try:
            if whole is None:
                self._logs = self._run(*_own(batch, groups))
            else:
                # Of the first batch each group takes a part, so that all have made a step and have logs from then on.
                own = single or (begins and not settings.current().is_guest)
                for part in self._parts(groups, row_slicing.rows_of(whole), own):
                    self._logs = self._run(whole, _share(groups, part, row_slicing.rows_of(whole)))
        finally:
            self._step.group = None
        self._batch += not single
        self._step.count()
        return {} if self._logs is None else self._logs

    def _parts(self, groups: Groups, rows: int, own: bool) -> Iterator[tuple[int, int]]:
        """What this group takes of a batch: first row and one past the last.

        Args:
            own: whether each group takes one part, be it empty: groups that go in step make as many steps.
        """
        strategy, model = apart.current(), self._step.model
        if own or not strategy.deals_parts:
            yield groups.rows(rows)[groups.number]
            return
        parts = strategy.parts_of_batch(model, world.current())
        while (at_hand := strategy.next_part(model)) // parts <= self._batch:
            batch, part = divmod(at_hand, parts)
            strategy.take_part(model)
            low, high = part * rows // parts, (part + 1) * rows // parts
            if batch == self._batch and low < high:
                yield low, high

    def _run(self, data: Any, share: RowRange) -> Any:
        try:
            return self._step(data, share)
        except Exception as error:
            if world.current().guard is not None and transactions.comes_from_a_death(error):
                # A group that has lost a rank is lost as a whole, and the others go on; an exit code would end the job.
                os.kill(os.getpid(), signal.SIGKILL)
            raise


def _share(groups: Groups, part: tuple[int, int], rows: int) -> RowRange:
    """This rank's rows of a part of a batch of so many rows, which is the batch of its group."""
    if part[0] == part[1]:  # all of the group are ghosts
        low = min(part[0], rows - 1)
        return RowRange(low, low + 1, 0, 1, 0)
    own = RowRange.of(part[1] - part[0], groups.world.rank, groups.world.size)
    return own._replace(low=own.low + part[0], high=own.high + part[0])


def _own(batch: Batch, groups: Groups) -> tuple[Any, RowRange]:
    """Rows that only this rank has, and a share that is all of them.

    Raises:
        MatexError: the group has other ranks.
    """
    if groups.world.size > 1:
        raise MatexError(
            "each rank has rows of its own, and a group of several ranks (--groups) splits batches that all of its "
            "ranks have: give every rank all rows, or leave out --groups."
        )
    data, share = batch()
    return data, RowRange(share.low, share.high, share.rows, max(share.rows, 1), 0)
