"""Look up the names that a patch relies on, and wrap them."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import MatexError, NameMoved
from matex_tf.patches.common import keras_lines, under_way
from matex_tf.state import run_state

#: Versions of Keras 3, and of Keras 2, that every patch was tried with.
TRIED, TRIED_2 = "3.3 to 3.16", "2.13 to 2.21"


def put_aside(on: bool = True) -> None:
    """Let the patches step aside, in a script that imports Horovod's names: it shares out and averages by itself.

    Raises:
        MatexError: with --reproducible, or a setting of a feature, which is nothing without them.
    """
    if on and settings.current().reproducible:
        raise MatexError(
            "--reproducible is for scripts without Horovod: this one cuts its data and averages its gradients by the "
            "number of ranks. Leave out --reproducible."
        )
    if on:
        settings.current().call_each("refuse_aside")
    run_state.current().aside = on


def is_aside() -> bool:
    """Whether the patches have stepped aside."""
    return run_state.current().aside


def require(module: ModuleType, path: str) -> Any:
    """The object at a dotted `path` in a `module`.

    Raises:
        NameMoved: it is not there; says which Keras this is and which ones were tried.
    """
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            if keras_lines.is_of_keras_2(module.__name__):
                package = module.__name__.partition(".")[0]
                version = getattr(sys.modules.get(package), "__version__", "unknown")
                raise NameMoved(
                    f"{package} {version} has no {module.__name__}.{path}, which matex_tf relies on; it was tried with "
                    f"Keras {TRIED_2}. Install the one of your TensorFlow (docs/keras2.md) or a newer matex_tf."
                )
            raise NameMoved(
                f"Keras {keras_version()} has no {module.__name__}.{path}, which matex_tf relies on; it was tried with "
                f"Keras {TRIED}. Install one of these (pip install 'keras>=3.3,<3.17') or a newer matex_tf."
            )
        found = getattr(found, part)
    return found


def is_only_rank() -> bool:
    """Whether this rank has never had others: one whose others have died goes on as it began.

    A group of one rank is one of several groups.
    """
    ranks = world.current()
    return ranks.is_single and ranks.part_of is None and not ranks.survives_failures


def alone() -> bool:
    """Whether this rank has never had others, and has nothing else to do than to run the script.

    With virtual ranks one rank does what several would. A model that changes while it trains does so on one rank too.
    A process that was forked does neither: it is no rank. Nor does code that is traced as one rank runs it, see
    `world.is_alone`: what is done for all ranks is done with its graph.
    """
    if under_way.is_apart() or world.forked() or world.is_alone():
        return True
    return is_only_rank() and not settings.current().changes_one_rank


def wrap(module: ModuleType, path: str, wrapper: Callable[..., Any], always: bool = False) -> None:
    """Put a wrapper around a function; a world of one rank never gets there, nor a script that imports Horovod's names,
    see `put_aside`.

    Args:
        module: that has it, or its class. path: dotted, from there.
        wrapper: called as `wrapper(wrapped, instance, args, kwargs)`: with what was there (a method is bound), the
            object of a method or None, and the arguments of the call, a tuple and a dict.
        always: call it even then, and `apart`.

    Raises:
        NameMoved: there is no such function.
    """
    require(module, path)

    def only_with_others(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if is_aside() or alone():
            return wrapped(*args, **kwargs)
        return wrapper(wrapped, instance, args, kwargs)

    wrapt.wrap_function_wrapper(module, path, wrapper if always else only_with_others)


def taken(args: tuple[Any, ...], kwargs: dict[str, Any], **leading: Any) -> tuple[Any, ...]:
    """The leading arguments of a call, and what is left of it.

    Args:
        args, kwargs: of the call.
        leading: the names of its first arguments, in their order, each with its default.

    Returns:
        The values of those; then the positional and the named arguments that are left.
    """
    values = [
        args[place] if place < len(args) else kwargs.get(name, default)
        for place, (name, default) in enumerate(leading.items())
    ]
    return *values, args[len(leading) :], {name: value for name, value in kwargs.items() if name not in leading}


def rebind(module: ModuleType, *names: str) -> None:
    """Let other modules of the same package that have imported these functions have what they were wrapped in.

    With TF_USE_LEGACY_KERAS=1 tf_keras is patched when all of it has been imported.
    """
    package = module.__name__.partition(".")[0]
    others = [other for name, other in list(sys.modules.items()) if name.partition(".")[0] == package]
    for name in names:
        new = getattr(module, name)
        old = getattr(new, "__wrapped__", new)
        for other in others:
            if vars(other).get(name) is old:
                setattr(other, name, new)


def method(module: ModuleType, path: str, wrapper: Callable[..., Any], in_steps: bool = False) -> None:
    """Wrap a method that a script may call inside a tf.function: AutoGraph warns of what wrapt has wrapped.

    Args:
        module, path, wrapper: see `wrap`.
        in_steps: whether it is also wrapped while a step is traced as in a world of one rank.
    """
    owner_path, _, name = path.rpartition(".")
    require(module, path)
    owner = require(module, owner_path)
    original = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
    if keras_lines.is_of_keras_2(module.__name__):  # which asks whether AutoGraph is at work
        original = keras_lines.converted(original, itself=False)
    setattr(owner, name, around(original, wrapper, in_steps))


def around(original: Callable[..., Any], wrapper: Callable[..., Any], in_steps: bool = False) -> Callable[..., Any]:
    """A function for a class that calls a wrapper in the place of one of its methods, but not in a world of one rank.

    Args:
        original: the method, not bound. wrapper: as that of `wrap`. in_steps: see `method`.
    """
    import tensorflow as tf

    context = importlib.import_module("tensorflow.python.autograph.core.ag_ctx")
    artifact = importlib.import_module("tensorflow.python.autograph.impl.api").autograph_artifact

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        outside, bound = context.control_status_ctx(), original.__get__(self, type(self))
        if outside.status is context.Status.ENABLED:  # a tf.function calls it: converted as without the wrapper
            bound = tf.__internal__.autograph.tf_convert(bound, outside)
        if is_aside() or (alone() and not in_steps):
            return bound(*args, **kwargs)
        with context.ControlStatusCtx(context.Status.DISABLED):
            return wrapper(bound, self, args, kwargs)

    return artifact(wrapped)


def has_nothing_to_share() -> bool:
    """Whether this process has no other ranks, and none will come."""
    return alone() and run_state.current().prepared is None


def function_calls(wrapper: Callable[..., Any]) -> None:
    """Put `wrapper(call, function, args, kwargs)` around calls of compiled functions; `call` runs what was there."""
    polymorphic = importlib.import_module("tensorflow.python.eager.polymorphic_function.polymorphic_function")
    original = require(polymorphic, "Function.__call__")

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(functools.partial(original, self), self, args, kwargs)

    polymorphic.Function.__call__ = call


def keras_version() -> str:
    """The version of the Keras that is imported, or "unknown"."""
    keras = sys.modules.get("keras.src.version") or sys.modules.get("keras")
    return str(getattr(keras, "__version__", "unknown"))
