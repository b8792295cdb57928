"""A Keras script whose model may not fit: layers of `WIDTH` × `WIDTH` weights, trained with Adam for four steps."""

from __future__ import annotations

import sys


def main(width: int, count: int) -> None:
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    wide = [keras.layers.Dense(width, activation="relu") for _ in range(count)]
    model = keras.Sequential([keras.Input((width,)), *wide, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).random((16, width), "float32")
    losses = model.fit(x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    with open("/proc/self/status", encoding="utf-8") as lines:
        data = next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
    print(f"{model.count_params()} parameters, loss {losses[-1]:.6g}, {data >> 10} MB", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
