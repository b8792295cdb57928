"""Training in Horovod scripts: optimizers, tapes, callbacks and states, against one process that has all rows."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import matex_tf.features.horovod.names.keras as hvd_keras
from matex_tf.features.horovod.names import callbacks, elastic
from matex_tf.features.horovod.names.sync_batch_norm import SyncBatchNormalization
from tests.features.horovod.cases.horovod_script import hvd, script

ROWS = 8  # of a rank in a batch
BATCHES = 6


def data(size, columns=6, classes=3):
    """For each batch, the rows of every rank."""
    draw = np.random.RandomState(1)
    x = draw.normal(size=(BATCHES, size, ROWS, columns)).astype("float32")
    y = (x @ draw.normal(size=(columns, classes))).argmax(axis=-1)
    return x, y


def own(array, rank):
    """A rank's rows, in the order of batches."""
    return array[:, rank].reshape(-1, *array.shape[3:])


def everyone(array):
    """All rows, each batch that of all ranks."""
    return array.reshape(-1, *array.shape[3:])


def network(*more, seed=3):
    """A small classifier."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential([layers.Input((6,)), layers.Dense(8, activation="tanh"), *more, layers.Dense(3)])


def loss():
    """Cross entropy of logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def trained(model, optimizer, x, y, batch, epochs=2, **options):
    """The model's weights after a fit without shuffling, and its history."""
    model.compile(optimizer, loss(), metrics=["accuracy"])
    history = model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0, **options)
    return [np.array(weight) for weight in model.get_weights()], history.history


def close(ours, theirs, most=2e-5):
    """Whether weights agree; how far they are apart where not."""
    far = max(float(np.max(np.abs(a - b))) if a.size else 0.0 for a, b in zip(ours, theirs, strict=True))
    return True if far < most else far


def reference(*args, **options):
    """What one process gets that has all rows; rank 0 trains, and the others hear of it."""
    mine = trained(*args, **options)[0] if hvd.rank() == 0 else None
    return hvd.broadcast_object(mine)


@script
def fit():
    """fit with each option of DistributedOptimizer, against one process with the whole batch."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    x, y = data(size)
    mine, all_rows = (own(x, rank), own(y, rank)), (everyone(x), everyone(y))
    plain = reference(network(), keras.optimizers.Adam(0.02), *all_rows, ROWS * size)

    def distributed(**options):
        return hvd.DistributedOptimizer(keras.optimizers.Adam(0.02), **options)

    for name, options in {
        "plain": {},
        "predivided, in groups": {"gradient_predivide_factor": float(size), "groups": 2},
    }.items():
        results[name] = close(trained(network(), distributed(**options), *mine, ROWS)[0], plain)
    half = trained(network(), distributed(compression=hvd.Compression.fp16), *mine, ROWS)[0]
    results["compressed"] = close(half, plain, 5e-2)
    rate = 0.1
    summed = trained(network(), hvd.DistributedOptimizer(keras.optimizers.SGD(rate), op=hvd.Sum), *mine, ROWS)[0]
    expected = reference(network(), keras.optimizers.SGD(rate * size), *all_rows, ROWS * size)
    results["sum"] = close(summed, expected)
    clipped = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, global_clipnorm=0.1))
    expected = reference(network(), keras.optimizers.SGD(rate, global_clipnorm=0.1), *all_rows, ROWS * size)
    results["clipped"] = close(trained(network(), clipped, *mine, ROWS)[0], expected)
    scaler = keras.optimizers.LossScaleOptimizer
    scaled = trained(network(), scaler(hvd.DistributedOptimizer(keras.optimizers.SGD(rate))), *mine, ROWS)[0]
    expected = reference(network(), keras.optimizers.SGD(rate), *all_rows, ROWS * size)
    results["scaled losses"] = close(scaled, expected)
    model = network()
    model.compile(distributed(), loss(), jit_compile=True)
    model.fit(*mine, batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
    results["jit_compile"] = close(model.get_weights(), plain)
    optimizer = distributed()
    results["name of the class"] = type(optimizer).__name__ == "Adam"
    results["variables may be called"] = len(optimizer.variables()) == len(optimizer.variables)
    return {name: value for name, value in results.items() if value is not True}


@script
def passes():
    """backward_passes_per_step: two batches for an update, their sum or their mean, None gradients and iterations."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    x, y = data(size)
    mine = own(x, rank), own(y, rank)
    both = [array.reshape(BATCHES // 2, 2, size, ROWS, *array.shape[3:]).swapaxes(1, 2) for array in (x, y)]
    pairs = [array.reshape(-1, *array.shape[4:]) for array in both]
    for average in (True, False):
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        got = trained(network(), optimizer, *mine, ROWS)[0]
        rate = 0.1 if average else 0.2
        expected = reference(network(), keras.optimizers.SGD(rate), *pairs, 2 * ROWS * size)
        results[f"average {average}"] = close(got, expected)
        results[f"iterations {average}"] = int(optimizer.iterations.numpy()) == 2 * BATCHES
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    variables = [tf.Variable([1.0]), tf.Variable([2.0])]
    for step in range(4):
        optimizer.apply_gradients([(tf.constant([1.0 + rank + step]), variables[0]), (None, variables[1])])
    mean = 1 + (size - 1) / 2
    results["eager"] = close(
        [variables[0].numpy(), variables[1].numpy()], [np.array([1 - 4 * mean - 6]), np.array([2.0])]
    )
    table = tf.Variable(tf.zeros([4, 1]))
    try:
        slices = tf.IndexedSlices(tf.ones([1, 1]), [0], [4, 1])
        hvd.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=2).apply_gradients([(slices, table)])
        results["sparse"] = "went through"
    except ValueError as error:
        results["sparse"] = "IndexedSlices are not supported" in str(error)
    return {name: value for name, value in results.items() if value is not True}


@script
def embedding():
    """Sparse gradients, joined and made dense; both as one process has them."""
    rank, size = hvd.rank(), hvd.size()
    draw = np.random.RandomState(2)
    x, y = draw.randint(0, 20, (BATCHES, size, ROWS, 4)), draw.randint(0, 3, (BATCHES, size, ROWS))

    def model():
        keras.utils.set_random_seed(5)
        return keras.Sequential([layers.Input((4,)), layers.Embedding(20, 5), layers.Flatten(), layers.Dense(3)])

    expected = reference(model(), keras.optimizers.SGD(0.5), everyone(x), everyone(y), ROWS * size)
    results = {}
    for as_dense in (False, True):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), sparse_as_dense=as_dense)
        got = trained(model(), optimizer, own(x, rank), own(y, rank), ROWS)[0]
        results[f"dense {as_dense}"] = close(got, expected)
    return {name: value for name, value in results.items() if value is not True}


@script
def tape():
    """DistributedGradientTape in a tf.function and eagerly; local layers; one source instead of a list."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    x, y = data(size)
    whole = network()
    with tf.GradientTape() as plain:
        value = loss()(y[0].reshape(-1), whole(x[0].reshape(-1, 6)))
    expected = [grad.numpy() for grad in plain.gradient(value, whole.trainable_variables)]

    def step(partial=False):
        with tf.GradientTape() as tape:
            value = loss()(y[0, rank], model(x[0, rank]))
        local = [model.layers[0]] if partial else None
        tape = (
            hvd.PartialDistributedGradientTape(tape, local_layers=local)
            if partial
            else hvd.DistributedGradientTape(tape)
        )
        return tape.gradient(value, model.trainable_variables)

    model = network()
    results["eager"] = close([grad.numpy() for grad in step()], expected)
    results["graph"] = close([grad.numpy() for grad in tf.function(step)()], expected)
    with tf.GradientTape() as plain:
        value = loss()(y[0, rank], model(x[0, rank]))
    mine = [grad.numpy() for grad in plain.gradient(value, model.trainable_variables)]
    partial = [grad.numpy() for grad in step(partial=True)]
    results["local layer"] = close(partial[:2], [grad / size for grad in mine[:2]])
    results["other layer"] = close(partial[2:], expected[2:])
    variable = tf.Variable([2.0, rank])
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        value = tf.reduce_sum(variable * (rank + 1.0))
    results["one source"] = close([tape.gradient(value, variable).numpy()], [np.full(2, (size + 1) / 2)])
    results["sources by name"] = list(tape.gradient(value, {"v": variable})) == ["v"]
    results["none"] = tape.gradient(value, [tf.Variable(1.0)]) == [None]
    even = hvd.add_process_set([0]) if size > 1 else hvd.global_process_set
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(variable * (rank + 1.0))
    alone = hvd.DistributedGradientTape(tape, process_set=even).gradient(value, [variable])[0]
    results["set of one"] = close([alone.numpy()], [np.full(2, rank + 1.0)])
    optimizer = hvd_keras.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=model.layers[0])
    before = [np.array(weight) for weight in model.get_weights()]
    optimizer.apply_gradients(zip([tf.constant(grad) for grad in mine], model.trainable_variables, strict=True))
    after = [a - b for a, b in zip(before, model.get_weights(), strict=True)]
    results["partial optimizer"] = close(after[:2], [grad / size for grad in mine[:2]]) and close(
        after[2:], expected[2:]
    )
    return {name: value for name, value in results.items() if value is not True}


@script
def session_optimizer(passes):
    """An optimizer of TensorFlow 1 in a session, with one and with several backward passes for a step."""
    rank, size = hvd.rank(), hvd.size()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        w = tf.compat.v1.get_variable("w", initializer=tf.constant([1.0, 2.0]), use_resource=True)
        x = tf.compat.v1.placeholder(tf.float32, [])
        count = tf.compat.v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(0.5), backward_passes_per_step=passes
        )
        train = optimizer.minimize(tf.reduce_sum(w) * x, global_step=count)
        session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()])
        for step in range(4):
            session.run(train, {x: float(rank + step)})
        moved = 0.5 * sum(step + (size - 1) / 2 for step in range(4))
        return close([session.run(w)], [np.array([1.0, 2.0]) - moved]), int(session.run(count))


def combined(moves):
    """Adasum of the moves of ranks, a power of two: neighbours first."""
    while len(moves) > 1:
        pairs = [(moves[i], moves[i + 1]) for i in range(0, len(moves), 2)]
        moves = [
            (1 - a @ b / (2 * (a @ a) or 1)) * a + (1 - a @ b / (2 * (b @ b) or 1)) * b for a, b in pairs
        ]  # fmt: skip
    return moves[0]


@script
def adasum_optimizer(passes, where):
    """op=hvd.Adasum: what each rank's optimizer, momentum and all, makes of its gradients is combined."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    draw = np.random.RandomState(4)
    grads = draw.normal(size=(4, size, 3)).astype("float32")
    expected, speeds = np.array([1.0, 2.0, 3.0]), np.zeros((size, 3))
    own, shown = np.tile(expected, (size, 1)), []
    for step in range(4):
        speeds = 0.9 * speeds + grads[step]
        own = own - 0.1 * speeds
        if step % passes == passes - 1:
            expected = expected + combined(list(own - expected))
            own = np.tile(expected, (size, 1))
        shown.append(own[rank].copy())

    def optimizer():
        plain = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
        return hvd.DistributedOptimizer(plain, op=hvd.Adasum, backward_passes_per_step=passes)

    if where == "eager":
        w = tf.Variable([1.0, 2.0, 3.0])
        for function in (False, True):
            w.assign([1.0, 2.0, 3.0])
            made = optimizer()

            def apply(grad, made=made):
                made.apply_gradients([(grad, w)])

            apply = tf.function(apply) if function else apply
            got = []
            for step in range(4):
                apply(tf.constant(grads[step, rank]))
                got.append(w.numpy())
            results[f"function {function}"] = close(got, shown)
    else:
        for resource in (True, False):
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                start = tf.constant([1.0, 2.0, 3.0]) + (rank if resource else 0)
                w = tf.compat.v1.get_variable("w", initializer=start, use_resource=resource)
                x = tf.compat.v1.placeholder(tf.float32, [3])
                count = tf.compat.v1.train.get_or_create_global_step()
                train = optimizer().minimize(tf.reduce_sum(w * x), global_step=count)
                session.run(tf.compat.v1.global_variables_initializer())
                if resource:
                    session.run(hvd.broadcast_global_variables(0))
                got = []
                for step in range(4):
                    session.run(train, {x: grads[step, rank]})
                    got.append(session.run(w))
                results[f"resource {resource}"] = close(got, shown)
                results[f"steps {resource}"] = int(session.run(count)) == 4
    for options in ({"average_aggregated_gradients": True}, {"process_set": hvd.ProcessSet([0])}):
        try:
            hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), op=hvd.Adasum, **options)
            results[str(options)] = "went through"
        except (ValueError, NotImplementedError):
            results[str(options)] = True
    try:
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op=hvd.Adasum)
        results["of Keras"] = "went through"
    except ValueError as error:
        results["of Keras"] = "DistributedGradientTape" in str(error)
    return {name: value for name, value in results.items() if value is not True}


@script
def batch_norm():
    """SyncBatchNormalization gives what BatchNormalization gives one process, moving statistics too."""
    rank, size = hvd.rank(), hvd.size()
    x, y = data(size)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    got = trained(network(SyncBatchNormalization()), optimizer, own(x, rank), own(y, rank), ROWS)[0]
    expected = reference(
        network(layers.BatchNormalization()), keras.optimizers.SGD(0.1), everyone(x), everyone(y), ROWS * size
    )
    return close(got, expected, 1e-4)


@script
def with_callbacks():
    """Weights of rank 0 after the first batch, averaged logs, warm-up, decay, and the best model."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    x, y = data(size)
    rate = 0.01 * size
    rates = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    model = network(seed=rank)
    best = callbacks.BestModelCheckpoint(monitor="loss")
    best.filepath = f"best{rank}.keras"
    _, history = trained(
        model,
        hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9)),
        own(x, rank),
        own(y, rank),
        ROWS,
        epochs=4,
        callbacks=[
            callbacks.BroadcastGlobalVariablesCallback(0),
            callbacks.MetricAverageCallback(),
            callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),
            callbacks.LearningRateScheduleCallback(rate, multiplier=0.5, start_epoch=2),
            best,
            Watch(),
        ],
    )
    weights = hvd.allgather_object([np.array(weight) for weight in model.get_weights()])
    results["weights"] = all(close(weights[0], other, 1e-6) is True for other in weights)
    results["logs"] = all(close([np.array(h)], [np.array(history["loss"])], 1e-12) is True
                          for h in hvd.allgather_object(history["loss"]))  # fmt: skip
    steps = np.arange(1, 2 * BATCHES + 1) / BATCHES
    warm = rate / size * (steps * (size - 1) / 2 + 1)
    results["warm-up"] = close([np.array(rates[: 2 * BATCHES])], [warm], 1e-6)
    results["decay"] = close([np.array(rates[2 * BATCHES :: BATCHES])], [np.array([rate, rate / 2])], 1e-6)
    results["lr in the logs"] = close([np.array(history["lr"][-1:])], [np.array([rate / 2])], 1e-6)
    again = hvd_keras.load_model(f"best{rank}.keras")
    results["loaded"] = type(again.optimizer).__name__ == "SGD" and int(again.optimizer.iterations.numpy()) > 0
    again.fit(own(x, rank), own(y, rank), batch_size=ROWS, shuffle=False, verbose=0)
    weights = hvd.allgather_object([np.array(weight) for weight in again.get_weights()])
    results["loaded trains on"] = all(close(weights[0], other, 1e-6) is True for other in weights)
    return {name: value for name, value in results.items() if value is not True}


@script
def momentum_correction():
    """A step of SGD with momentum after the rate has changed: that of the momentum times new / old."""
    optimizer, variable = keras.optimizers.SGD(0.1, momentum=0.9), keras.Variable([1.0])
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    callback = callbacks.LearningRateScheduleCallback(0.4, multiplier=lambda epoch: 1.0)
    callback.set_model(type("Model", (), {"optimizer": optimizer})())
    callback.on_epoch_begin(0)
    callback.on_batch_begin(0)
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    return close([np.array(variable)], [np.array([1.0 - 0.1 + 0.9 * 4 * -0.1 - 0.4])])


@script
def states():
    """Elastic: rank 0's model, optimizer and objects on every rank; commits, and going back to one."""
    rank, size, results = hvd.rank(), hvd.size(), {}
    x, y = data(size)
    model = network(seed=rank)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), loss())
    model.fit(own(x, rank)[:ROWS], own(y, rank)[:ROWS], batch_size=ROWS, verbose=0)
    state = elastic.KerasState(model, batch=10 + rank, epoch=rank)

    @elastic.run
    def train(state, more):
        results["objects"] = (state.batch, state.epoch) == (10, 0)
        weights = hvd.allgather_object([np.array(weight) for weight in state.model.get_weights()])
        results["weights"] = all(close(weights[0], other, 1e-9) is True for other in weights)
        state.commit()
        kept = [np.array(weight) for weight in state.model.get_weights()]
        state.epoch = 5
        callback_list = [
            elastic.UpdateBatchStateCallback(state),
            elastic.UpdateEpochStateCallback(state),
        ]
        state.model.fit(own(x, rank), own(y, rank), batch_size=ROWS, epochs=2, verbose=0, callbacks=callback_list)
        results["epochs"] = (state.epoch, state.batch) == (7, 0)
        results["trained"] = close(state.model.get_weights(), kept) is not True
        state.restore()
        results["restored"] = close(state.model.get_weights(), kept, 1e-9) is True and state.epoch == 0
        state.model.fit(own(x, rank), own(y, rank), batch_size=ROWS, verbose=0,
                        callbacks=[elastic.CommitStateCallback(state, batches_per_commit=4)])  # fmt: skip
        kept = [np.array(weight) for weight in state.model.get_weights()]
        state.restore()
        results["committed"] = close(state.model.get_weights(), kept, 1e-9)
        return more + 1

    results["called once"] = train(state, 1) == 2
    variables = [tf.Variable(1.0 + rank)]
    simple = elastic.TensorFlowState(variables, step=rank)
    simple.sync()
    variables[0].assign(9.0)
    simple.restore()
    results["variables"] = (float(variables[0]), simple.step) == (1.0, 0)
    called = []
    simple.register_reset_callbacks([lambda: called.append(1)])
    simple.on_reset()
    results["reset"] = called == [1]

    @elastic.run
    def fails(state):
        raise elastic.HorovodInternalError("lost")

    try:
        fails(simple)
        results["fails"] = "went through"
    except elastic.HorovodInternalError:
        results["fails"] = True
    return {name: value for name, value in results.items() if value is not True}


@script
def timeline(tmp):
    """start_timeline and stop_timeline: a file in which every rank has a track."""
    import json

    hvd.start_timeline("line.json", mark_cycles=True)
    hvd.allreduce(tf.ones([1000]))
    hvd.stop_timeline()
    if hvd.rank() > 0:
        return True
    with open("line.json") as file:
        events = json.load(file)["traceEvents"]
    return {event["pid"] for event in events if event["name"] == "op"} == set(range(hvd.size()))


@script
def keras_functions():
    """allreduce, allgather, broadcast and reducescatter of horovod.keras, on plain values."""
    rank, size = hvd.rank(), hvd.size()
    return [
        float(hvd_keras.allreduce(rank + 1.0)) == (size + 1) / 2,
        float(hvd_keras.allreduce(rank + 1.0, op=hvd_keras.Sum)) == size * (size + 1) / 2,
        hvd_keras.allgather([rank]).numpy().tolist() == list(range(size)),
        int(hvd_keras.broadcast(rank, 0)) == 0,
        hvd_keras.reducescatter([1.0] * size, op=hvd_keras.Sum).numpy().tolist() == [size],
    ]


@script
def computed_gradients():
    """`_compute_gradients` gives the gradients of all ranks, applied as they are; local ones are the rank's."""
    rank, size = hvd.rank(), hvd.size()
    model = network(seed=1)
    opt = hvd_keras.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=model.layers[:1])
    weights, local = model.trainable_variables, {id(v) for v in model.layers[0].trainable_variables}
    before = [np.array(weight) for weight in weights]
    x = tf.constant(np.random.RandomState(rank).normal(size=(4, 6)), tf.float32)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(model(x) ** 2)
        own = tape.gradient(value, weights)
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(model(x) ** 2)
        pairs = opt._compute_gradients(value, weights, tape=tape)
        opt.apply_gradients(pairs)
        return own, [gradient for gradient, _ in pairs]

    own, reduced = step()
    results = {}
    for place, (weight, mine, got) in enumerate(zip(weights, own, reduced, strict=True)):
        mean = hvd.allreduce(mine)
        expected = mine / size if id(weight) in local else mean
        results[f"gradient {place}"] = close([np.array(got)], [np.array(expected)])
        results[f"move {place}"] = close([before[place] - np.array(weight)], [np.array(expected)])
    sums = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=3)
    single = tf.Variable([1.0])
    for _ in range(4):
        sums.apply_gradients([(tf.constant([1.0]), single)])
    results["passes"] = int(sums._agg_helper.counter) == 1 and float(single[0]) == -2.0
    return {name: value for name, value in results.items() if value is not True}
