"""Models with a `train_step` of their own, for random jobs: two optimizers, second derivatives, losses across rows."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers as L

COLUMNS, WIDTH = 12, 5


class Own(keras.Model):
    """A step that is drawn from a few forms.

    Attributes:
        form: which; clip: by what gradients are clipped in the step, None for nothing.
    """

    def __init__(self, form, clip, body):
        super().__init__()
        self.form, self.clip = form, clip
        self.body, self.critic = body, keras.Sequential([L.Dense(4, "tanh"), L.Dense(1)])
        self.tracker = keras.metrics.Mean("mean")
        self.table = self.add_weight(shape=(7, WIDTH), initializer="random_normal", trainable=False, name="table")
        self.body.build((None, COLUMNS))
        self.critic.build((None, WIDTH))

    def compile(self, optimizer, second=None, **options):
        super().compile(optimizer, **options)
        self.second = second

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return self.body(x)

    def _apply(self, optimizer, gradients, weights):
        gradients = [g for g in gradients]
        if self.clip == "norm":
            gradients, _ = tf.clip_by_global_norm(gradients, 0.5)
        elif self.clip == "value":
            gradients = [tf.clip_by_value(g, -0.05, 0.05) for g in gradients]
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    def train_step(self, data):
        x, y = data[:2]
        loss = getattr(self, "_" + self.form)(x, y)
        self.tracker.update_state(loss)
        return {"loss": loss, "twice": 2.0 * self.tracker.result(), "mean": self.tracker.result()}

    def _simple(self, of, x, y):
        weights = self.body.trainable_variables
        with tf.GradientTape() as tape:
            loss = of(self, x, y) + sum(self.body.losses, 0.0)
        self._apply(self.optimizer, tape.gradient(loss, weights), weights)
        return loss

    def _adversarial(self, x, y):
        """Two optimizers, noise, and a gradient penalty."""
        noise = tf.random.normal(tf.shape(x), seed=3, dtype=x.dtype)
        weights = self.critic.trainable_variables
        with tf.GradientTape() as tape:
            fake, real = self.body(x + 0.1 * noise, training=True), self.body(x, training=True)
            mixed = real + tf.random.uniform([tf.shape(x)[0], 1], seed=4, dtype=x.dtype) * (fake - real)
            with tf.GradientTape() as inner:
                inner.watch(mixed)
                score = self.critic(mixed)
            slope = tf.norm(inner.gradient(score, mixed) + 1e-6, axis=1)
            loss = tf.reduce_mean(self.critic(fake) - self.critic(real)) + tf.reduce_mean((slope - 1.0) ** 2)
        self._apply(self.second, tape.gradient(loss, weights), weights)
        return self._simple(lambda me, a, b: -tf.reduce_mean(self.critic(me.body(a + 0.1 * noise))), x, y)

    def _sharpness(self, x, y):
        """SAM: a step up, and the gradient from there."""
        weights = self.body.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.body(x, training=True) - tf.cast(y[:, :1], x.dtype)) ** 2)
        first = tape.gradient(loss, weights)
        moved = [0.05 * g / (tf.linalg.global_norm(first) + 1e-6) for g in first]
        for weight, move in zip(weights, moved, strict=True):
            weight.assign_add(move)
        with tf.GradientTape() as tape:
            again = tf.reduce_mean((self.body(x, training=True) - tf.cast(y[:, :1], x.dtype)) ** 2)
        second = tape.gradient(again, weights)
        for weight, move in zip(weights, moved, strict=True):
            weight.assign_sub(move)
        self._apply(self.optimizer, second, weights)
        return loss

    def _persistent(self, x, y):
        """One tape, two losses and two optimizers."""
        with tf.GradientTape(persistent=True) as tape:
            rows = self.body(x, training=True)
            one = tf.reduce_mean(tf.square(rows))
            two = tf.reduce_sum(tf.abs(self.critic(rows) - tf.cast(y[:, :1], x.dtype)))
        self._apply(self.optimizer, tape.gradient(one, self.body.trainable_variables), self.body.trainable_variables)
        weights = self.critic.trainable_variables
        self._apply(self.second, tape.gradient(two, weights), weights)
        return one + two

    def _triplets(self, x, y):
        def of(me, x, y):
            rows = me.body(x, training=True)
            apart = tf.reduce_sum(tf.square(rows[:, None] - rows[None]), -1)
            alike = tf.cast(tf.equal(y[:, :1], tf.transpose(y[:, :1])), x.dtype)
            far, near = tf.reduce_max(apart * alike, 1), tf.reduce_min(apart + 1e3 * alike, 1)
            active = tf.nn.relu(far - near + 1.0)
            return tf.math.divide_no_nan(tf.reduce_sum(active), tf.cast(tf.math.count_nonzero(active > 1e-9), x.dtype))

        return self._simple(of, x, y)

    def _redundancy(self, x, y):
        """Barlow Twins, with a queue of earlier rows."""

        def of(me, x, y):
            one, two = me.body(x + 0.1, training=True), me.body(x * 0.9, training=True)
            one = (one - tf.reduce_mean(one, 0)) / (tf.math.reduce_std(one, 0) + 0.1)
            two = (two - tf.reduce_mean(two, 0)) / (tf.math.reduce_std(two, 0) + 0.1)
            cross = tf.matmul(one, two, transpose_a=True) / tf.cast(tf.shape(x)[0], x.dtype)
            near = tf.reduce_mean(tf.matmul(one, tf.convert_to_tensor(me.table), transpose_b=True))
            me.table.assign(tf.concat([two, tf.convert_to_tensor(me.table)], 0)[:7])
            return tf.reduce_sum((cross - tf.eye(WIDTH, dtype=x.dtype)) ** 2) + 0.1 * near

        return self._simple(of, x, y)

    def _unrolled(self, x, y):
        """MAML: the gradient of a gradient step."""

        def of(me, x, y):
            weight = me.critic.trainable_variables[0]
            with tf.GradientTape() as inner:
                inner.watch(weight.value)
                first = tf.reduce_mean(tf.square(me.body(x, training=True) @ weight))
            step = weight - 0.1 * inner.gradient(first, weight.value)
            return tf.reduce_mean(tf.square(me.body(x) @ step - 1.0))

        return self._simple(of, x, y)

    def _branching(self, x, y):
        def of(me, x, y):
            rows = me.body(x, training=True)
            loss = tf.reduce_mean(rows**2)
            loss = tf.cond(loss > 0.3, lambda: loss, lambda: tf.reduce_sum(tf.abs(rows)) / 7.0)
            return loss + 0.1 * tf.reduce_mean(tf.map_fn(lambda row: tf.reduce_max(row) ** 2, rows))

        return self._simple(of, x, y)

    def _mixture(self, x, y):
        """Experts with a gate and a loss that balances them."""

        def of(me, x, y):
            rows = me.body(x, training=True)
            gate = tf.nn.softmax(rows)
            chosen = tf.one_hot(tf.argmax(gate, 1), WIDTH, dtype=x.dtype)
            share, chance = tf.reduce_mean(chosen, 0), tf.reduce_mean(gate, 0)
            kept = tf.cumsum(chosen, 0) * chosen <= 3.0  # a capacity: later rows of a batch are left out
            got = tf.reduce_sum(gate * chosen * tf.cast(kept, x.dtype), 1)
            return tf.reduce_mean((got - 0.5) ** 2) + 0.1 * WIDTH * tf.reduce_sum(share * chance)

        return self._simple(of, x, y)


FORMS = [name[1:] for name in vars(Own) if name[:1] == "_" and name[1] != "_" and name not in ("_apply", "_simple")]


def model(draw):
    body = [L.Dense(6, draw.choice(["tanh", "gelu"]), kernel_regularizer=draw.choice([None, "l2"]))]
    body += draw.choice([[], [L.BatchNormalization()], [L.Dropout(0.3)], [L.LayerNormalization()]])
    form = draw.choice(FORMS)
    return Own(form, draw.choice([None, None, "norm", "value"]), keras.Sequential([*body, L.Dense(WIDTH)]))


def optimizers(draw, own):
    """Arguments of `compile`."""
    make = [
        lambda: keras.optimizers.SGD(0.05, momentum=0.9), lambda: keras.optimizers.Adam(0.01, clipnorm=0.5),
        lambda: keras.optimizers.AdamW(0.01), lambda: keras.optimizers.RMSprop(0.01),
        lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
        lambda: keras.optimizers.Adam(0.01, use_ema=True),
    ]  # fmt: skip
    made = {"optimizer": draw.choice(make)()}
    if own.form in ("adversarial", "persistent"):
        made["second"] = draw.choice(make)()
    return made
