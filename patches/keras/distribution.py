"""`keras.distribution` with TensorFlow: the ranks are the devices, and a batch is divided among all of them as ever.

Keras has it on JAX. On TensorFlow it makes meshes and layouts, and nothing follows from them; names that it needs are
missing. Here a script sees one process with as many devices as there are ranks. Weights that a layout divides lie in
parts on the ranks, as with `--shard weights`. Tensors stay what they are whatever their layout, so `distribute_tensor`
gives back what it gets.

Relies on (Keras 3.3 to 3.15): `list_devices` of the backend's distribution_lib; `set_distribution`, public;
`Variable.__init__` of the backends, and `Variable._layout`, private, which is the variable's on JAX.
"""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

from matex_tf import settings
from matex_tf.core import world
from matex_tf.errors import MatexError, SettingError
from matex_tf.patches.common import keras_lines, log_once, wrapping
from matex_tf.state import run_state

WHOLE = "keras.distribution: every rank holds whole what a layout divides"


@dataclasses.dataclass
class Layouts:
    """Attributes: divide: whether there is a variable that a layout divides."""

    divide: bool = False


def install(module: ModuleType) -> None:
    """Patch distribution_lib, that of TensorFlow or that of all backends, or the module of variables."""
    if module.__name__.endswith("common.variables"):
        name = "Variable" if hasattr(module, "Variable") else "KerasVariable"
        wrapping.method(module, f"{name}.__init__", _made, in_steps=True)
    elif "backend" in module.__name__:
        wrapping.wrap(module, "list_devices", _devices)
        for name, function in _missing(module).items():
            setattr(module, name, getattr(module, name, function))
    else:
        wrapping.wrap(module, "set_distribution", functools.partial(_set, module))


def _missing(module: ModuleType) -> dict[str, Any]:
    """What Keras asks of a backend, and TensorFlow's lacks. Each batch is made as by one process, and then divided."""
    return {
        "distribute_tensor": lambda tensor, layout: tensor,
        "get_device_count": lambda device_type=None: len(module.list_devices(device_type)),
        "initialize": lambda job_addresses, num_processes, process_id: log_once.log(
            "keras.distribution.initialize: matex-tf has started the ranks, so the script's addresses are not used"
        ),
        "num_processes": lambda: 1,
        "process_id": lambda: 0,
    }


def _devices(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> list[str]:
    """One for each rank, of the kind that this one has."""
    own = wrapped(*args, **kwargs)
    kind = own[0].partition(":")[0] if own else ""
    return [f"{kind}:{rank}" for rank in range(world.of_job().size)] if own else []


def _set(module: ModuleType, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> None:
    """Say what becomes of a distribution.

    Args:
        module: distribution_lib.

    Raises:
        MatexError: its mesh has devices that there are not.
    """
    value = args[0] if args else kwargs["value"]
    if value is not None:
        ranks, name = world.of_job().size, type(value).__name__
        meant = [str(device).lower() for device in value.device_mesh.devices.flatten()]
        there = {kind: module.list_devices(kind) for kind in {one.partition(":")[0] for one in meant}}
        if unknown := [one for one in meant if one not in there[one.partition(":")[0]]]:
            raise MatexError(
                f"keras.distribution.{name}: its mesh has the device {unknown[0]}, and the devices are {ranks} "
                f"ranks. Take those of keras.distribution.list_devices(), or -n {len(meant)}."
            )
        if len(meant) < ranks:
            log_once.log(
                f"keras.distribution.{name}: all {ranks} ranks are its devices, though its mesh has {len(meant)}"
            )
    wrapped(value)


def _made(bound: Any, variable: Any, args: Any, kwargs: Any) -> None:
    """A variable keeps the layout that the distribution of its time gives it, as on JAX."""
    bound(*args, **kwargs)
    from keras.src.backend.common import global_state

    distribution = global_state.get_global_attribute("distribution")
    if distribution is None or getattr(variable, "_layout", None) is not None:
        return
    variable._layout = distribution.get_variable_layout(variable)
    if is_divided(variable):
        run_state.current().part(Layouts).divide = True
        if why := _why_whole():
            log_once.log(f"{WHOLE}: {why}")


def is_divided(variable: Any) -> bool:
    """Whether the layout of a variable of Keras divides it among devices."""
    layout = getattr(variable, "_layout", None)
    mesh = getattr(layout, "device_mesh", None)
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True)) if mesh is not None else {}
    return any(sizes.get(axis, 1) > 1 for axis in getattr(layout, "axes", ()) if axis)


def divided(model: Any) -> list[Any]:
    """The variables of a model that layouts divide, if the settings let them lie in parts."""
    if not run_state.current().part(Layouts).divide or _why_whole():
        return []
    return [variable for variable in keras_lines.variables(model) if is_divided(variable)]


def _why_whole() -> str:
    """What of the settings keeps variables whole, in words; empty for nothing."""
    try:
        dataclasses.replace(settings.current(), shard="weights").refuse_conflicts(world.of_job().size)
    except SettingError as error:
        return str(error)
    return ""
