"""`tf.data.Dataset.from_generator`: its generator is run by the first rank of each node, or by every rank.

Before the first walk of a call of `fit`, `evaluate` or `predict` the ranks take a few elements, and keep them for that
walk, so that nothing runs more often than on one rank. They show whether making them leaves something behind that other
code can see (`reach`), and whether the ranks have the same: then one rank makes them for the others (`elements`). A
generator that goes on with something that other code has made, as an iterator or a queue, is left as it is.

In a loop of the script's own every rank runs it the first time. Once the ranks have shared out a batch of the loop,
they look at the elements when its next walk begins, and what connects them stays until the script ends.

What TensorFlow does with the elements each rank does, so a `shuffle` is where it is on one rank.

Relies on (TensorFlow 2.16 to 2.21): `tf.data.Dataset.from_generator` (public), and the names of dataset classes.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from matex_tf import settings
from matex_tf.patches.common import log_once, wrapping
from matex_tf.patches.sources import array_fingerprint, decide, pipeline_ownership, source_sharding
from matex_tf.patches.sources.decide import Source
from matex_tf.patches.sources.reasons import NOTHING, Reason, Why
from matex_tf.patches.turns import data_threads, read_ahead
from matex_tf.patches.turns.elements import Elements
from matex_tf.patches.turns.reach import Reach
from matex_tf.state import notes, run_state

#: How many elements the ranks look at: so many, or so many bytes, but two at least.
_LOOKED_AT, _BYTES, _LEAST = 32, 4 << 20, 2
#: Datasets, by a part of their names, behind which a generator may not run although there is a walk.
_KEEPING = ("Cache", "Snapshot", "Save")


def install(module: ModuleType) -> None:
    """Patch tensorflow."""
    wrapping.wrap(module, "data.Dataset.from_generator", _from_generator)


def _from_generator(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
    given = args[0] if args else kwargs.get("generator")
    if not callable(given) or not source_sharding.is_script_at_work():
        return wrapped(*args, **kwargs)
    own = Generator(given, args[3] if len(args) > 3 else kwargs.get("args"))
    dataset = wrapped(own, *args[1:], **{name: one for name, one in kwargs.items() if name != "generator"})
    notes.put(dataset, own)
    return dataset


class Generator(notes.Inside):
    """What gives the elements of a dataset.

    Attributes:
        elements: where the first rank of the node runs the script's code; None elsewhere, and outside of a call.
        mark: a checksum over the elements that were looked at.
        refused: whether every rank has to run it in loops of the script's own.
    """

    def __init__(self, script: Callable[..., Any], args: Any):
        """What the script has given to `from_generator`."""
        self._script, self._args = script, args
        self._taken: list[bytes] = []
        self._rest: Iterator[Any] | None = None  # a walk of which these have been taken, and nothing else
        self.elements: Elements | None = None
        self.mark = 0
        self.refused = False

    def __call__(self, *args: Any) -> Iterator[Any]:
        """Begin a walk."""
        return self._begin(args) if self.elements is None else self.elements.walk()

    def _begin(self, args: Any) -> Iterator[Any]:
        rest, self._rest = self._rest, None
        if rest is None:
            return iter(self._script(*args))
        return itertools.chain(map(pickle.loads, self._taken), rest)

    def arguments(self) -> tuple[Any, ...]:
        """What TensorFlow hands to the script's code."""
        return tuple(tf.convert_to_tensor(one).numpy() for one in self._args or ())

    def sample(self, spec: Any) -> Any:
        """A dataset of some elements, None where none can be had. Args: spec: of an element."""
        if self._rest is None and not self._taken:
            return None
        return tf.data.Dataset.from_generator(lambda: map(pickle.loads, list(self._taken)), output_signature=spec)

    def look(self, judged: bool) -> Why:
        """Take the first elements of the next walk.

        Args:
            judged: whether it matters what that leaves behind.

        Returns:
            Why every rank has to run the script's code; empty where it need not.
        """
        within = Reach(self._script, *self.arguments()) if judged else None
        if within is not None and (why := within.goes_on_with()):
            return why
        with data_threads.make_batches():
            self._rest, why = self._take()
        if not why and within is not None:
            why = within.why_every_rank("an element")
        return why

    def _take(self) -> tuple[Iterator[Any], Why]:
        self._taken, self.mark = [], 0
        try:
            walk = iter(self._script(*self.arguments()))
            nbytes = 0
            for number, one in enumerate(itertools.islice(walk, _LOOKED_AT), 1):
                try:
                    packed = pickle.dumps(one, protocol=5)
                    mark = array_fingerprint.checksum(tf.nest.flatten(one, expand_composites=True), self.mark)
                except Exception:  # classes may do anything when they are pickled
                    return itertools.chain([one], walk), Reason.PICKLE()
                self._taken.append(packed)  # a copy: it may be changed for the next
                self.mark = mark
                nbytes += len(packed)
                if number >= _LEAST and nbytes >= _BYTES:
                    break
        except Exception as error:  # where the walk comes to it
            return _raising(error), NOTHING
        return walk, NOTHING

    def share(self, may_run_again: bool) -> Why:
        """Let the first rank of each node run it until `close`. Collective. Returns: why that cannot be done."""
        try:
            self.elements = Elements(lambda: self._begin(self.arguments()), may_run_again)
        except OSError as error:
            return Reason.NO_WAY(error=error)
        return NOTHING

    def close(self) -> None:
        """The call is over: of what was looked at nothing is left."""
        self.elements, self._rest, self._taken, self.mark = None, None, [], 0

    abandon = close


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


def of(dataset: Any) -> Generator | None:
    """The generator that a dataset is made from; None of others."""
    return notes.found(dataset, Generator)


class OfLoops(read_ahead.Open):
    """What is open from a loop of the script's own on, until the script ends."""


def look_in_loop(dataset: Any) -> None:
    """Find out who runs the generators of a pipeline that a loop walks over again. All ranks come here."""
    if any(generator.elements is None and not generator.refused for generator, _ in generators(dataset)):
        look(dataset, "loop")


class _Elements(decide.Data):
    """The elements of a generator, as data to decide about; takes the first of them.

    Attributes:
        source, differ: see `decide.Data`.
    """

    source, differ = Source.NODE, Reason.FIRST_DIFFER

    def __init__(self, generator: Generator, keeping: bool):
        judged = settings.current().generators != "node"
        self._generator = generator
        self._why = Reason.KEEPS() if keeping else generator.look(judged)

    def unfit(self) -> Why:
        """See `decide.Data`."""
        return self._why

    def count(self) -> int:
        """See `decide.Data`."""
        return self._generator.mark

    def compare(self, what: str) -> Why:
        """See `decide.Data`: nothing but whether one rank can make them for the others of its node."""
        return self._generator.share(may_run_again=settings.current().generators != "node")


def look(dataset: Any, what: str) -> None:
    """Find out who runs the generators of a pipeline, for a call or a walk that begins. All ranks come here.

    Args:
        dataset: on every rank made of the same.
        what: whose data these are: "fit", "evaluate" or "predict"; "loop" for a walk of a loop of the script's own.
    """
    chosen, run = settings.current().generators, run_state.current()
    turns = run.part(OfLoops if what == "loop" else read_ahead.Open).turns
    for generator, keeping in generators(dataset):
        if generator.elements is not None:
            continue
        turns.append(generator)
        why = decide.decide(_Elements(generator, keeping), what).why
        generator.refused = bool(why)
        if generator.elements is not None:
            turns.append(generator.elements)
        if what in ("fit", "loop") and chosen != "rank":
            who = "every rank runs" if why else "the first rank of each node runs"
            then = f": {why}" if why else ", and the others get its elements"
            log_once.log(f"{who} the generator of from_generator (--generators {chosen}){then}")


def generators(dataset: Any) -> list[tuple[Generator, bool]]:
    """The generators of a pipeline, each once, and whether what stands behind may keep their elements."""
    found: dict[Generator, bool] = {}
    pending = [(pipeline_ownership.unwrapped(dataset), False)]
    while pending:
        one, keeping = pending.pop()
        keeping = keeping or any(part in type(one).__name__ for part in _KEEPING)
        generator = of(one)
        if generator is not None:
            found[generator] = keeping or found.get(generator, False)
        else:
            pending += [(before, keeping) for before in pipeline_ownership.inputs_of(one)]
    return list(found.items())
