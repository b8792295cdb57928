"""Scripts that train and use packages that write files, for `layer_packages`; each has a `result`."""

#: Before each script that trains.
MODEL = """
import os
import numpy as np, keras

def data(rows=64):
    drawn = np.random.default_rng(1)
    x = drawn.normal(size=(rows, 4)).astype("float32")
    return x, (x.sum(1, keepdims=True) > 0).astype("float32")

def model(units=8):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Input((4,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(1, "sigmoid")]
    net = keras.Sequential(layers)
    net.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    return net

def fit(epochs=2, units=8, log=None):
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=log)] if log else []
    return model(units).fit(*data(), epochs=epochs, verbose=0, callbacks=callbacks).history["accuracy"]
"""

AUTOLOG = """
import mlflow
mlflow.set_tracking_uri("sqlite:///auto-{models}.db")
mlflow.tensorflow.autolog(log_models={models})
fit()
runs = mlflow.search_runs()
result = len(runs), sorted(name for name in runs.columns if name.startswith(("metrics", "params")))
mlflow.tensorflow.autolog(disable=True)
"""

#: By name: packages that it needs, and what it does.
TRAINS = {
    "mlflow, files": (
        ("mlflow",),
        """
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        import mlflow
        mlflow.set_tracking_uri("file:./mlruns")
        mlflow.set_experiment("one")
        with mlflow.start_run(run_name="a"):
            mlflow.log_param("units", 8)
            for epoch, value in enumerate(fit()):
                mlflow.log_metric("accuracy", value, step=epoch)
            open("note.txt", "w").write("note")
            mlflow.log_artifact("note.txt")
        runs = mlflow.search_runs(experiment_names=["one"])
        result = len(runs), round(float(runs["metrics.accuracy"][0]), 4)
        """,
    ),
    "mlflow, SQLite": (
        ("mlflow",),
        """
        import mlflow
        mlflow.set_tracking_uri("sqlite:///runs.db")
        mlflow.set_experiment("one")
        for units in (4, 8):
            with mlflow.start_run():
                mlflow.log_param("units", units)
                mlflow.log_metric("accuracy", fit(units=units)[-1])
        runs = mlflow.search_runs(experiment_names=["one"])
        result = len(runs), sorted(round(value, 4) for value in runs["metrics.accuracy"])
        """,
    ),
    "mlflow, autolog": (("mlflow",), AUTOLOG.format(models=False)),
    "mlflow, autolog with models": (("mlflow",), AUTOLOG.format(models=True)),
    "optuna, SQLite": (
        ("optuna",),
        """
        import optuna
        def objective(trial):
            net = model(trial.suggest_int("units", 2, 16))
            for epoch in range(3):
                accuracy = net.fit(*data(), epochs=1, verbose=0).history["accuracy"][0]
                trial.report(accuracy, epoch)
                if trial.should_prune():
                    raise optuna.TrialPruned()
            return accuracy
        for _ in range(2):
            study = optuna.create_study(
                storage="sqlite:///study.db", study_name="s", load_if_exists=True, direction="maximize",
                sampler=optuna.samplers.TPESampler(seed=1), pruner=optuna.pruners.MedianPruner(1, 0),
            )
            study.optimize(objective, n_trials=4)
        result = [[trial.state.name, trial.params["units"]] for trial in study.trials]
        """,
    ),
    "keras-tuner, reopened": (
        ("keras_tuner",),
        """
        import keras_tuner
        for trials in (2, 4):
            tuner = keras_tuner.RandomSearch(
                lambda drawn: model(drawn.Int("units", 2, 16)), "val_accuracy", max_trials=trials, seed=1,
                overwrite=False, directory="tuner", project_name="p",
            )
            tuner.search(*data(), validation_data=data(), epochs=2, verbose=0)
        best = tuner.get_best_models()[0].evaluate(*data(), verbose=0)
        result = len(tuner.oracle.trials), tuner.get_best_hyperparameters()[0].values, round(float(best[0]), 4)
        """,
    ),
    "keras-hub, LoRA": (
        ("keras_hub",),
        """
        import keras_hub
        keras.utils.set_random_seed(1)
        net = keras_hub.models.GemmaBackbone(
            vocabulary_size=32, num_layers=1, num_query_heads=2, num_key_value_heads=1, hidden_dim=8,
            intermediate_dim=16, head_dim=4,
        )
        net.enable_lora(2)
        net.compile("sgd", "mse")
        tokens = {"token_ids": np.arange(64).reshape(8, 8) % 32, "padding_mask": np.ones((8, 8), int)}
        net.fit(tokens, np.ones((8, 8, 8), "float32"), epochs=2, batch_size=4, verbose=0)
        net.save_lora_weights("w.lora.h5")
        before = [np.asarray(weight) for weight in net.trainable_weights]
        net.load_lora_weights("w.lora.h5")
        result = all(np.allclose(a, np.asarray(b)) for a, b in zip(before, net.trainable_weights))
        """,
    ),
    "W&B, offline": (
        ("wandb",),
        """
        os.environ["WANDB_MODE"] = "offline"
        import wandb
        with wandb.init(project="p", dir=os.getcwd()) as run:
            for value in fit():
                run.log({"accuracy": value})
        result = len([name for name in os.listdir("wandb") if name.startswith("offline-run")])
        del os.environ["WANDB_MODE"]
        """,
    ),
    "W&B, mode of the script": (
        ("wandb",),
        """
        import wandb
        wandb.init(project="p", mode="offline", dir=os.getcwd())
        for value in fit():
            wandb.log({"accuracy": value})
        wandb.finish()
        result = len([name for name in os.listdir("wandb") if name.startswith("offline-run")])
        """,
    ),
    "ClearML, offline": (
        ("clearml",),
        """
        from clearml import Task
        Task.set_offline(True)
        task = Task.init("p", "t")
        for epoch, value in enumerate(fit()):
            task.get_logger().report_scalar("accuracy", "train", value, epoch)
        task.close()
        result = None
        """,
    ),
    "TensorBoard, HParams": (
        ("tensorboard",),
        """
        import tensorflow as tf
        from tensorboard.plugins.hparams import api
        units = api.HParam("units", api.Discrete([4, 8]))
        with tf.summary.create_file_writer("logs").as_default():
            api.hparams_config(hparams=[units], metrics=[api.Metric("accuracy")])
        for number, value in enumerate(units.domain.values):
            with tf.summary.create_file_writer(f"logs/{number}").as_default():
                api.hparams({units: value})
                net, calls = model(value), [keras.callbacks.TensorBoard(f"logs/{number}")]
                calls.append(api.KerasCallback(f"logs/{number}", {units: value}))
                found = net.fit(*data(), epochs=2, verbose=0, callbacks=calls).history["accuracy"]
                tf.summary.scalar("accuracy", found[-1], step=1)
        result = sorted(os.listdir("logs/0"))[-1]
        """,
    ),
    "DeepXDE": (
        ("deepxde",),
        """
        os.environ["DDE_BACKEND"] = "tensorflow"
        import deepxde
        deepxde.config.set_random_seed(1)
        line = deepxde.geometry.Interval(-1, 1)
        ends = deepxde.icbc.DirichletBC(line, lambda x: 0, lambda x, on: on)
        points = deepxde.data.PDE(line, lambda x, y: deepxde.grad.hessian(y, x) + 2, ends, 16, 2, num_test=16)
        net = deepxde.nn.FNN([1] + [8] * 2 + [1], "tanh", "Glorot uniform")
        whole = deepxde.Model(points, net)
        whole.compile("adam", lr=0.001)
        losses, state = whole.train(iterations=30, display_every=10)
        deepxde.saveplot(losses, state, issave=True, isplot=False, output_dir=os.getcwd())
        result = round(float(np.sum(losses.loss_train[-1])), 3)
        """,
    ),
    "netCDF4, a log": (
        ("netCDF4",),
        """
        import netCDF4
        def log(epoch, logs):
            with netCDF4.Dataset("log.nc", "a" if os.path.exists("log.nc") else "w") as file:
                if "epoch" not in file.dimensions:
                    file.createDimension("epoch", None)
                    file.createVariable("accuracy", "f4", ("epoch",))
                file["accuracy"][epoch] = round(logs["accuracy"], 4)
        fit(3, log=log)
        with netCDF4.Dataset("log.nc") as file:
            result = file["accuracy"][:].tolist()
        """,
    ),
    "Zarr, a log": (
        ("zarr",),
        """
        import zarr
        zarr.create_array("log.zarr", shape=(0,), chunks=(2,), dtype="f4", overwrite=False)
        def log(epoch, logs):
            zarr.open_array("log.zarr", mode="r+").append(np.array([round(logs["accuracy"], 4)], "f4"))
        fit(3, log=log)
        result = zarr.open_array("log.zarr", mode="r")[:].tolist()
        """,
    ),
    "shelve, a log": (
        (),
        """
        import shelve
        with shelve.open("shelf") as shelf:
            shelf["begin"] = shelf.get("begin", 0) + 1
        def log(epoch, logs):
            with shelve.open("shelf") as shelf:
                shelf[f"epoch {epoch}"] = round(logs["accuracy"], 4)
        fit(3, log=log)
        with shelve.open("shelf") as shelf:
            result = sorted(shelf.items())
        """,
    ),
    "HDFStore, a log": (
        ("pandas", "tables"),
        """
        import pandas
        def log(epoch, logs):
            with pandas.HDFStore("log.h5") as store:
                store.append("log", pandas.DataFrame({"epoch": [epoch], "accuracy": [round(logs["accuracy"], 4)]}))
        fit(3, log=log)
        result = pandas.read_hdf("log.h5")["accuracy"].tolist()
        """,
    ),
    "cv2.VideoWriter": (
        ("cv2",),
        """
        import cv2
        video = cv2.VideoWriter("v.avi", cv2.VideoWriter_fourcc(*"MJPG"), 5, (32, 32))
        fit(3, log=lambda epoch, logs: video.write(np.full((32, 32, 3), int(logs["accuracy"] * 100), "uint8")))
        video.release()
        result = int(cv2.VideoCapture("v.avi").get(cv2.CAP_PROP_FRAME_COUNT))
        """,
    ),
    "imageio": (
        ("imageio", "imageio_ffmpeg"),
        """
        import imageio.v2 as imageio
        with imageio.get_writer("v.gif", mode="I") as still, imageio.get_writer("v.mp4", macro_block_size=None) as film:
            def log(epoch, logs):
                picture = np.full((32, 32, 3), int(logs["accuracy"] * 100), "uint8")
                still.append_data(picture), film.append_data(picture)
            fit(3, log=log)
        imageio.imwrite("v.png", np.zeros((8, 8, 3), "uint8"))
        result = len(imageio.mimread("v.gif"))
        """,
    ),
    "matplotlib, its cache": (
        ("matplotlib",),
        """
        os.environ["SOURCE_DATE_EPOCH"] = "1"
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plot
        plot.plot(np.round(fit(3), 3))
        plot.savefig("p.png"), plot.savefig("p.pdf")
        result = os.path.basename(matplotlib.get_cachedir())
        """,
    ),
    "joblib.Memory": (
        ("joblib",),
        """
        import joblib
        @joblib.Memory("cache", verbose=0).cache
        def prepare(rows):
            open("calls.txt", "a").write("call\\n")
            return data(rows)
        for _ in range(2):
            x, y = prepare(64)
            model().fit(x, y, epochs=1, verbose=0)
        result = len(open("calls.txt").readlines())
        """,
    ),
    "Dask, its scratch": (
        ("dask",),
        """
        import dask, dask.array
        dask.config.set(temporary_directory="scratch")
        x, y = data()
        dask.array.to_npy_stack("stack", dask.array.from_array(x, chunks=16))
        x = dask.array.from_npy_stack("stack").compute()
        result = round(model().fit(x, y, epochs=2, verbose=0).history["accuracy"][-1], 4)
        """,
    ),
    "directories as pytest's": (
        (),
        """
        import pathlib, tempfile
        base = pathlib.Path(tempfile.gettempdir()) / "pytest-of-user"
        base.mkdir(exist_ok=True)
        for _ in range(3):
            number = 1 + max((int(path.name.split("-")[-1]) for path in base.glob("pytest-[0-9]*")), default=-1)
            folder = base / f"pytest-{number}"
            folder.mkdir()
            os.close(os.open(folder / ".lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            link = base / "pytest-current"
            if link.is_symlink():
                link.unlink()
            link.symlink_to(folder)
            np.save(folder / "x.npy", data()[0])
            model().fit(np.load(link / "x.npy"), data()[1], epochs=1, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            open(folder + "/a", "w").write("a")
        result = sorted(path.name for path in base.iterdir())
        """,
    ),
    "locks": (
        (),
        """
        import fcntl
        first, second = open("job.lock", "w"), open("other.lock", "w")
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        running = os.open("pid.lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        fit()
        os.close(running), os.remove("pid.lock")
        result = sorted(os.listdir())
        """,
    ),
    "names of the clock": (
        (),
        """
        import datetime, glob, tempfile, time, uuid
        now = datetime.datetime.now()
        names = [time.time(), f"{now:%H%M%S.%f}", os.getpid(), uuid.uuid4(), time.strftime("%H%M%S")]
        for which, name in zip("abcde", names):
            os.makedirs(f"runs/{which}-{name}")
            log = keras.callbacks.CSVLogger(f"runs/{which}-{name}/log.csv")
            best = keras.callbacks.ModelCheckpoint(f"runs/{which}-{name}/m.keras")
            model().fit(*data(), epochs=1, verbose=0, callbacks=[log, best])
        result = [len(glob.glob(f"runs/{which}-*")) for which in "abcde"]
        """,
    ),
}
