"""Write the small files that the other examples read: make_data.py DIRECTORY.

With --higgs 500000 write one large file alone, DIRECTORY/higgs.h5, of so many simulated collisions (decays.py), and
print how well a boosted tree tells signal from background.
"""

import argparse
import gzip
from pathlib import Path

import h5py
import netCDF4
import numpy as np
from decays import DERIVED, MEASURED, boosted_tree, collisions
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("directory", type=Path)
parser.add_argument("--events", type=int, default=20000, help="rows of higgs.csv (default 20000)")
parser.add_argument("--higgs", type=int, default=0, metavar="ROWS", help="of higgs.h5, which is written alone")
options = parser.parse_args()
directory = options.directory
directory.mkdir(parents=True, exist_ok=True)

if options.higgs:
    inputs, label = collisions(options.higgs)
    with h5py.File(directory / "higgs.h5", "w") as file:
        file.create_dataset("inputs", data=inputs)
        file.create_dataset("labels", data=label)
    print(f"{directory / 'higgs.h5'}: {len(label):,} rows, {label.mean():.1%} of them signal")
    print(f"AUC of a boosted tree, on the last fifth of the rows: {boosted_tree(inputs, label):.3f}")
    raise SystemExit

# Collisions: 21 measured and 7 derived quantities; the label, 1 for a signal, comes first.
random = np.random.RandomState(7)
inputs, label = collisions(options.events)
with (directory / "higgs.csv").open("w") as file:
    file.write(",".join(["signal", *MEASURED, *DERIVED]) + "\n")
    np.savetxt(file, np.column_stack([label, inputs]), fmt=["%d"] + ["%.6g"] * 28, delimiter=",")

# Handwritten digits, as they are and as MNIST has them: 28 x 28 pixels in gzipped idx files.
images, digits = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8).astype(np.uint8)
with h5py.File(directory / "digits.h5", "w") as file:
    file.create_dataset("images", data=images, chunks=(100, 8, 8), compression="gzip")
    file.create_dataset("labels", data=digits.astype(np.int64))
large = np.pad(np.kron(images * 15, np.ones((1, 3, 3), np.uint8)), ((0, 0), (2, 2), (2, 2)))
for part, rows in (("train", slice(0, 1500)), ("t10k", slice(1500, None))):
    for name, code, array in (("images-idx3", 3, large[rows]), ("labels-idx1", 1, digits[rows].astype(np.uint8))):
        header = bytes([0, 0, 8, code]) + np.array(array.shape, ">i4").tobytes()
        with gzip.open(directory / f"{part}-{name}-ubyte.gz", "wb") as file:
            file.write(header + array.tobytes())

# A field on a grid at 600 times: temperature and humidity, packed into 16 bits, and the rain that follows from them.
times, size = 600, 12
phase = random.uniform(0, 2 * np.pi, (times, 1, 1))
grid = np.linspace(0, 2 * np.pi, size)
temperature = 285 + 10 * np.sin(grid[None, :, None] + phase) + random.normal(size=(times, size, size))
humidity = 0.5 + 0.3 * np.cos(grid[None, None, :] - phase) + 0.05 * random.normal(size=(times, size, size))
rain = (humidity * np.exp((temperature - 285) / 10)).mean(axis=(1, 2))
with netCDF4.Dataset(directory / "field.nc", "w", format="NETCDF3_64BIT_DATA") as file:
    file.createDimension("time", None)
    file.createDimension("lat", size)
    file.createDimension("lon", size)
    for name, values, scale, offset in (("temperature", temperature, 0.01, 285.0), ("humidity", humidity, 1e-4, 0.5)):
        variable = file.createVariable(name, "i2", ("time", "lat", "lon"), fill_value=-32767)
        variable.scale_factor, variable.add_offset = scale, offset
        variable[:] = values
    file.createVariable("rain", "f4", ("time",))[:] = rain
