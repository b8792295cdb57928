"""What a graph takes from a collective, and gives back here: the kind of its error, and a thread to wait in.

TensorFlow makes most exceptions of a `tf.numpy_function` an `UnknownError`, with a page of traceback for a message. And
a session runs as many ops at once as it has threads, which are as few as the rank has cores: where more collectives
than that wait for one another, each rank in an order of its own, none would ever end.

Relies on (TensorFlow 2.16 to 2.21), all private: `Context.call_function` of `tensorflow.python.eager.context`;
`BaseSession._do_call`, `BaseSession._do_run(handle, target_list, fetch_list, …)` and
`BaseSession.__init__(target, graph, config)` of `tensorflow.python.client.session`.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf
import wrapt

from matex_tf import errors
from matex_tf.core import world
from matex_tf.errors import MatexError
from matex_tf.features.horovod.names.core import graph_calls
from matex_tf.features.horovod.names.core.exceptions import BadArgument, HorovodInternalError, Mismatch
from matex_tf.patches.common import wrapping

#: Collectives that a session runs at once.
THREADS = 64

#: The line of a traceback that says what was raised.
_RAISED = re.compile(
    rf"^{re.escape(Mismatch.__module__)}\.(Mismatch|BadArgument|HorovodInternalError): (.*)$", re.MULTILINE
)


def as_op_error(error: MatexError) -> tf.errors.OpError:
    """The error that Horovod has in place of one of matex_tf."""
    kind = tf.errors.InvalidArgumentError if isinstance(error, BadArgument) else tf.errors.FailedPreconditionError
    return kind(None, None, str(error))


def to_be_recognized(error: MatexError) -> MatexError:
    """The error, of a class that is known by its name when it comes out of a graph."""
    return error if isinstance(error, BadArgument | Mismatch) else Mismatch(str(error))


def _recognized(error: Any) -> Any:
    """What an error that came out of a graph was when it was raised; None where it was not one of a collective."""
    if not isinstance(error, tf.errors.UnknownError | tf.errors.InvalidArgumentError):
        return None
    raised = _RAISED.findall(error.message)
    if not raised:
        return None
    kind, text = raised[-1]
    if kind == HorovodInternalError.__name__:
        return HorovodInternalError(text)
    known = as_op_error(BadArgument(text) if kind == "BadArgument" else Mismatch(text))
    return type(known)(error.node_def, error.op, text)


def _with_known_errors(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    try:
        return wrapped(*args, **kwargs)
    except tf.errors.OpError as error:
        known = _recognized(error)
        if known is None:
            raise
        raise known from (errors.remembered() if isinstance(known, HorovodInternalError) else None)


def _with_a_look(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    def arguments(handle: Any, target_list: Any, fetch_list: Any, *more: Any, **named: Any) -> list[Any]:
        return [*target_list, *(tensor.op for tensor in fetch_list)]

    try:
        graph_calls.check(session.graph, arguments(*args, **kwargs))
    except MatexError as error:
        raise as_op_error(error) from None
    return wrapped(*args, **kwargs)


def _with_threads(wrapped: Any, session: Any, args: Any, kwargs: Any) -> Any:
    def arguments(target: str = "", graph: Any = None, config: Any = None) -> tuple[str, Any, Any]:
        return target, graph, config

    target, graph, config = arguments(*args, **kwargs)
    if target or not wrapping.is_aside() or world.current().is_single:  # whether or not hvd.init() was called yet
        return wrapped(*args, **kwargs)
    own = tf.compat.v1.ConfigProto()
    if config is not None:
        own.CopyFrom(config)
    if not own.session_inter_op_thread_pool:
        # One pool for all sessions of the rank. It has the last word over inter_op_parallelism_threads.
        own.session_inter_op_thread_pool.add(num_threads=THREADS, global_name="matex_tf")
    return wrapped(target, graph, own)


wrapt.wrap_function_wrapper("tensorflow.python.eager.context", "Context.call_function", _with_known_errors)
wrapt.wrap_function_wrapper("tensorflow.python.client.session", "BaseSession._do_call", _with_known_errors)
wrapt.wrap_function_wrapper("tensorflow.python.client.session", "BaseSession._do_run", _with_a_look)
wrapt.wrap_function_wrapper("tensorflow.python.client.session", "BaseSession.__init__", _with_threads)
