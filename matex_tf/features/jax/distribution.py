"""`keras.distribution` of a script on JAX: its mesh and its layouts are those of steps.

A script sees one process with the devices of all ranks. Between steps a rank has each variable whole, as without a
distribution: so it can be looked at, saved and used by any rank for itself. In a step, and from one to the next, it
lies as its layout says.

Relies on (Keras 3.12 to 3.16): `distribute_tensor`, `distribute_variable`, `distribute_data_input`, `initialize`,
`num_processes` and `process_id` of keras.src.backend.jax.distribution_lib, which Keras calls as attributes of it;
`JaxVariable._initialize_layout` and `_initialize_with_initializer`, `Variable._layout`, private;
`device_scope` of keras.src.backend.jax.core;
`set_distribution` and `Distribution.device_mesh`, `batch_dim_name`, public.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.features.jax import team
from matex_tf.features.jax.place import Place
from matex_tf.patches.common import log_once, under_way, wrapping


def begin() -> None:
    """Patch Keras, when JAX knows of all ranks: its trainer has imported these modules.

    A rank has devices of its own also where it makes a batch as on one rank, so these patches are never in abeyance.
    """
    wrap = functools.partial(wrapping.wrap, always=True)
    wrap(importlib.import_module("keras.src.distribution.distribution_lib"), "set_distribution", _set)
    library = importlib.import_module("keras.src.backend.jax.distribution_lib")
    for name in ("distribute_tensor", "distribute_variable"):  # the second up to Keras 3.13
        if hasattr(library, name):
            wrap(library, name, _in_steps)
    wrap(library, "distribute_data_input", lambda wrapped, instance, args, kwargs: args[0])
    wrap(library, "num_processes", lambda *_: 1)
    wrap(library, "process_id", lambda *_: 0)
    wrap(library, "initialize", _initialize)
    core = importlib.import_module("keras.src.backend.jax.core")
    if hasattr(core.JaxVariable, "_initialize_layout"):
        wrap(core, "JaxVariable._initialize_with_initializer", _made)
    wrap(core, "device_scope", _own_device)
    wrapping.rebind(core, "device_scope")


def place() -> Place:
    """Where a step that is made now has its batches."""
    import keras

    team.current().meet()
    value = keras.distribution.distribution()
    return Place(value.device_mesh.backend_mesh, value.batch_dim_name) if value is not None else team.current().place


def layouts(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    """How the state of a step lies: that of its variables, which have arrays of the rank's own now. A wrapper
    (see `wrapping.wrap`) of a trainer's method."""
    whole = place().whole
    optimizer = getattr(model, "optimizer", None)
    kinds = (model.trainable_variables, model.non_trainable_variables, optimizer.variables if optimizer else [])
    return tuple([_layout(one) or whole for one in variables] for variables in (*kinds, model.metrics_variables))


def _layout(variable: Any) -> Any:
    layout = getattr(variable, "_layout", None)
    return getattr(layout, "backend_layout", layout)


def _in_steps(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """A tensor in its layout, inside of steps; elsewhere it is the rank's own."""
    return wrapped(*args, **kwargs) if under_way.now().in_step else args[0]


def _made(wrapped: Any, variable: Any, args: Any, kwargs: Any) -> None:
    """A variable begins whole on every rank."""
    variable._initialize_layout()
    core = importlib.import_module("keras.src.backend.jax.core")
    core.KerasVariable._initialize_with_initializer(variable, *args, **kwargs)


def _own_device(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`keras.device("cpu:0")` is a device of the rank's own: it cannot read what lies on those of others."""
    import jax

    name = args[0] if args else kwargs["device_name"]
    if not isinstance(name, str):
        return wrapped(name)
    kind, _, number = name.lower().partition(":")
    own = jax.local_devices(backend=kind)
    if int(number or 0) >= len(own):
        raise ValueError(f"Device not found: {name}: this rank has {len(own)} of that kind, and {kind}:0 is its first.")
    return wrapped(own[int(number or 0)])


def _initialize(*_: Any) -> None:
    log_once.log(
        "keras.distribution.initialize: matex-tf has started the ranks, so the script's addresses are not used"
    )


def _set(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    """Set a distribution for all that follows.

    Raises:
        MatexError: its mesh lacks a device of some rank, or has one that is not there.
    """
    value = args[0] if args else kwargs["value"]
    if value is not None:
        import jax

        ranks = {f"{one.platform}:{one.id}": one.process_index for one in jax.devices()}
        meant = [str(one).lower() for one in value.device_mesh.devices.flatten()]
        if {ranks.get(one) for one in meant} != set(range(world.current().size)):
            raise MatexError(
                f"keras.distribution.{type(value).__name__}: its mesh has the devices {', '.join(meant)}, and needs "
                f"one of each of {world.current().size} ranks: make it of keras.distribution.list_devices() "
                "(docs/jax.md)."
            )
    wrapped(*args, **kwargs)
