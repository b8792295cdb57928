"""Scripts whose ranks die; see `test_restart`.

DIES in the environment has who dies where: [rank, fit, epoch, step], each once. A rank that is about to die waits
until there is a checkpoint of that fit.
"""

_HEAD = """
import glob, json, os, signal, sys, time
import numpy as np, keras
import tensorflow as tf
from pathlib import Path

rank = os.environ.get("OMPI_COMM_WORLD_RANK", "")
DIES = json.loads(os.environ.get("DIES", "[]"))

class Die(keras.callbacks.Callback):
    def __init__(self, fit):
        super().__init__()
        self.fit, self.epoch = fit, 0
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_begin(self, batch, logs=None):
        for number, (who, *place) in enumerate(DIES):
            mark = Path(f"died.{number}")
            if rank == str(who) and place == [self.fit, self.epoch, batch] and not mark.exists():
                while not glob.glob(f"**/.matex-checkpoints/*/fit-000{self.fit}.epoch*", recursive=True):
                    time.sleep(0.01)
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

def finish(**result):
    for part in result.values():
        if isinstance(part, dict):
            part.pop("world_size", None)
    Path(f"result.{rank}").write_text(json.dumps(result, default=float))

def size(values):
    return [float(np.abs(value).sum()) for value in values]

keras.utils.set_random_seed(3)
x = np.random.RandomState(0).rand(330, 8).astype("float32")
y = (x @ np.arange(8) > 14).astype("int32")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""

#: Two fits, on arrays and on tf.data, that shuffle; what callbacks and random numbers are afterwards.
TWO_FITS = (
    _HEAD
    + """
layers = [keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization(synchronized=True)]
model = keras.Sequential([*layers, keras.layers.Dense(2)])
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
plateau = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=0.05, monitor="loss")
first = model.fit(x, y, batch_size=32, epochs=3, validation_split=0.2, verbose=0,
                  callbacks=[Die(1), plateau, keras.callbacks.CSVLogger("log.csv")])
between = model.evaluate(x, y, verbose=0)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(330, seed=1).batch(40)
second = model.fit(data, epochs=3, verbose=0, callbacks=[Die(2)])
finish(first=first.history, epochs=first.epoch, between=between, second=second.history, wait=plateau.wait,
       predicted=size(model.predict(x, verbose=0).T), numpy=np.random.rand(2).tolist(),
       tensorflow=tf.random.uniform([2]).numpy().tolist(),
       log=[int(line.split(",")[0]) for line in Path("log.csv").read_text().splitlines()[1:]])
"""
)

#: Dropout, noise of ops and generators, moving statistics and metrics of each rank's own; Python code that shuffles;
#: accumulated gradients; an endless pipeline; early stopping; two optimizers in an eager step, with an optimizer that
#: makes its variables late.
FEATURES = (
    _HEAD
    + """
class Rows(keras.utils.PyDataset):
    order = np.arange(330)
    def __len__(self):
        return 11
    def __getitem__(self, i):
        rows = self.order[i * 30:(i + 1) * 30]
        return x[rows], y[rows]
    def on_epoch_end(self):
        self.order = np.random.permutation(330)

generator = tf.random.Generator.from_seed(5)
class Noise(keras.layers.Layer):
    def call(self, x, training=False):
        if not training:
            return x
        drawn = tf.random.normal(tf.shape(x)) + generator.normal(tf.shape(x)) + keras.random.normal(tf.shape(x))
        return x + 0.1 * drawn

layers = [keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3), keras.layers.Dense(2)]
model = keras.Sequential([keras.Input((8,)), Noise(), *layers])
model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping(monitor="loss", patience=0, min_delta=0.05, restore_best_weights=True)
first = model.fit(Rows(), epochs=6, verbose=0, callbacks=[Die(1), stop])
weights = size(model.get_weights())

endless = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100, seed=2).batch(20).repeat()
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3), loss, steps_per_execution=2)
decay = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)
second = model.fit(endless, epochs=3, steps_per_epoch=10, verbose=0, callbacks=[Die(2), decay])

class Two(keras.Model):
    def __init__(self):
        super().__init__()
        self.a, self.b = keras.layers.Dense(4), keras.layers.Dense(2)
        self.of_a, self.of_b = keras.optimizers.SGD(0.1, momentum=0.5), keras.optimizers.SGD(0.1, momentum=0.9)
        self.mean = keras.metrics.Mean(name="mean")
    def call(self, inputs):
        return self.b(self.a(inputs))
    def train_step(self, data):
        with tf.GradientTape(persistent=True) as tape:
            value = loss(data[1], self(data[0]))
        for layer, optimizer in ((self.a, self.of_a), (self.b, self.of_b)):
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(value, variables), variables))
        self.mean.update_state(value)
        return {"mean": self.mean.result()}

two = Two()
two.compile(run_eagerly=True)
third = two.fit(x, y, batch_size=60, epochs=3, verbose=0, callbacks=[Die(3)])
finish(first=first.history, stopped=stop.stopped_epoch, weights=weights, second=second.history, third=third.history,
       two=size(two.get_weights()))
"""
)

#: One `fit`, in which nobody dies.
ONE_FIT = (
    _HEAD
    + """
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
model.compile("sgd", loss)
model.fit(x, y, batch_size=32, epochs=2, verbose=0)
"""
)

#: The same `fit` each time, of a model that depends on the environment.
ANOTHER = (
    _HEAD
    + """
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(int(os.environ.get("UNITS", "2")))])
model.compile("sgd", loss)
model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[Die(1)])
if rank == "1":
    raise ValueError("an error of the script")
"""
)
