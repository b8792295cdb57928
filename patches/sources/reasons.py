"""Why ranks do more of the work on data than their part: the one list of reasons, in the words that a user reads.

Code that finds a reason calls it, with what its words leave open: `Reason.BEHIND(kind="filter")`. What comes out is a
text, empty if there is no reason. `python -m matex_tf.patches.sources.reasons` prints the list as the table of
docs/data-reasons.md.
"""

from __future__ import annotations

import enum
import re


class Why(str):
    """A reason with its details, in words; empty if there is none."""

    __slots__ = ()


NOTHING = Why("")


class Unfit(Exception):
    """The work on data cannot be divided. Attributes: why."""

    def __init__(self, why: Why):
        super().__init__(why)
        self.why = why


class Reason(enum.Enum):
    """A reason: of which data, in which words, and what to do about it."""

    # How the job was started, and what the ranks hold.
    WHOLE_ASKED = "all", "--data whole", "leave it out"
    SOURCE_ASKED = "all", "--data source", "leave it out"
    EVERY_RANK_ASKED = "Python", "--generators rank", "leave it out"
    PER_RANK = "all", "--batch per-rank", "ranks need whole batches for it"
    REPRODUCIBLE = "all", "the parts of virtual ranks are cut of whole batches (--reproducible)", "leave it out"
    FAULTS = "all", "a rank that dies (--faults shrink) would take its rows with it", "--faults restart"
    TRAIN_ALONE = "all", "ranks train independently (--strategy)", "--strategy sync"
    OWN_ROWS = "all", "each rank has rows of its own", "nothing: each rank makes only its own rows"
    ROWS_DIFFER = "all", "its rows differ between ranks", "seed what draws them; or --rows own"
    COUNTS_DIFFER = "all", "ranks have different numbers of batches", "seed what draws them; or --rows own"
    KERAS_2 = "all", "Keras 2 gives every rank whole batches", "Keras 3"
    SPARSE = "arrays", "rows of sparse arrays are cut out of whole batches", "dense arrays"
    # Pipelines of tf.data.
    NO_MAP = "tf.data", "it has no map before batch", "nothing: there is no work to divide"
    BEHIND = "tf.data", "{kind} comes after batch, and may look at several rows", "do it before `batch`"
    EFFECTS = (
        "tf.data",
        "a map {effects}",
        "of Python: `tf.numpy_function(…, stateful=False)`. That draws: no branch around it, and known shapes",
    )
    SAMPLE_EFFECTS = "tf.data", "a function of it {effects}", "see above"
    MAY_KEEP = "tf.data", "{kind} may keep a state", "do it before files are read"
    ORDER = "tf.data", "its order is not fixed", "`deterministic=True`, and the same seeds on every rank"
    UNORDERED = "tf.data", "deterministic=False lets its elements come in any order", "`deterministic=True`"
    SHAPES = "tf.data", "the shapes of its rows are not known before they are made", "`tf.ensure_shape` in a map"
    SPARSE_SHAPES = "tf.data", "the shapes of its sparse elements are not known", "`tf.sparse.reset_shape` in a map"
    NO_TENSORS = "tf.data", "its elements are not tensors", "tensors"
    PADDED = (
        "tf.data",
        "a map after padded_batch changes what is padded to the longest row of the whole batch",
        "do that before it, or give `padded_shapes`",
    )
    ROUNDS = "tf.data", "take or skip comes after repeat", "`take` and `skip` before `repeat`"
    UNLIKE = "tf.data", "this kind of dataset is not known ({error})", "report it with your version of TensorFlow"
    CSV = "tf.data", "{function} parses lines as it reads them, since {why}", "one line for each record"
    IN_FUNCTION = "tf.data", "it is made inside a tf.function", "make it outside"
    # Code of Python that makes batches or elements.
    DRAWS = (
        "Python",
        "making {made} draws random numbers, of a generator that other code can see",
        "`np.random.default_rng([seed, index])` in `__getitem__`; a generator's own `rng`",
    )
    CHANGES = "Python", "making {made} changes what other code can see", "keep nothing; or --generators node"
    CANNOT_COMPARE = "Python", "it can reach {what}", "open files to be read; or --generators node"
    SPEAKS = "Python", "it can reach {what}, by which ranks communicate", "leave that to matex_tf"
    GOES_ON = "Python", "it continues a {kind} that other code can see", "make it inside the generator"
    PARTS = "Python", "its batches have parts that are not tensors", "tensors and arrays"
    NO_LENGTH = "PyDataset", "it has no length", "`__len__`"
    WALKED = "PyDataset", "it was iterated over before", "a new one for each `fit`"
    OTHER_KERAS = "PyDataset", "this version of Keras makes batches in another way", "Keras 3.4 or newer"
    WORKERS = (
        "PyDataset",
        "its workers start again in each epoch, and lose batches made ahead (steps_per_epoch)",
        "leave out `steps_per_epoch`",
    )
    ITERATOR = "generator", "it is not a generator of Python", "a generator function"
    FIRST_WALK = (
        "from_generator",
        "in the first pass of a loop of the script's own every rank runs the generator of from_generator",
        "nothing: the next pass is split",
    )
    KEEPS = "from_generator", "a dataset after it may keep its elements (cache)", "leave out `cache`"
    PICKLE = "from_generator", "an element cannot be sent to other ranks (pickle)", "arrays and numbers"
    NO_WAY = "Python", "the ranks of a node cannot reach one another ({error})", "a /dev/shm that they share"
    FIRST_DIFFER = "from_generator", "its first elements differ between ranks", "seed what draws them"

    def __init__(self, data: str, words: str, instead: str):
        self.data, self.words, self.instead = data, words, instead

    def __call__(self, **details: object) -> Why:
        """The reason in words. Args: details: what the words leave open."""
        return Why(self.words.format(**details))

    @property
    def pattern(self) -> str:
        """A regular expression that the words match, whatever they leave open."""
        return re.sub(r"\\\{\w+\\\}", ".+", re.escape(self.words))


def reason_of(why: str) -> Reason:
    """The reason behind words.

    Raises:
        KeyError: they are none of the list.
    """
    fitting = [one for one in Reason if re.fullmatch(one.pattern, why, re.DOTALL)]
    if not fitting:
        raise KeyError(why)
    return max(fitting, key=lambda one: len(re.sub(r"{\w+}", "", one.words)))  # the one that says most


def table() -> str:
    """The list, as a table of Markdown."""
    rows = [f"| {one.data} | {re.sub(r'{[a-z]+}', '…', one.words)} | {one.instead} |" for one in Reason]
    return "\n".join(["| data | why | what to do |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())
