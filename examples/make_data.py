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
parser.add_argument("--crystals", type=int, default=0, help="images of water and ice in crystals.h5, such as 4000")
parser.add_argument("--things", type=int, default=0, help="small colour images of ten kinds in things.h5, such as 4000")
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


def blotches(count: int, size: int, coarse: int) -> np.ndarray:
    """Soft random fields, (count, size, size) around 0: coarse noise, made fine between its points."""
    knots = random.normal(size=(count, coarse, coarse)).astype(np.float32)
    place = np.linspace(0, coarse - 1.001, size)
    low, part = place.astype(int), (place % 1).astype(np.float32)
    rows = knots[:, low] * (1 - part)[:, None] + knots[:, low + 1] * part[:, None]
    return rows[:, :, low] * (1 - part) + rows[:, :, low + 1] * part


def of_each(*ends: float) -> np.ndarray:
    """A number between two for each image, to go with its pixels."""
    return random.uniform(*ends, (count, 1, 1)).astype(np.float32)


if options.crystals:
    # Particles of a cloud as a probe sees them, in shades of grey: drops of water are round, ice has corners, arms or
    # is long. Where a particle is small, out of focus, or a drop that has just frozen, the two look alike.
    count, size = options.crystals, 64
    ice = random.randint(0, 2, count)
    is_ice = ice[:, None, None].astype(bool)
    form = random.randint(0, 3, count)[:, None, None]  # of ice: a plate, a column, an aggregate
    y, x = np.mgrid[:size, :size].astype(np.float32) - (size - 1) / 2
    x, y = x[None] - of_each(-6, 6), y[None] - of_each(-6, 6)
    turn = of_each(0, 2 * np.pi)
    x, y = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    long = np.where(is_ice & (form == 1), 1 + of_each(0.25, 1.8), of_each(1, 1.12))
    radius, angle = np.hypot(x / np.sqrt(long), y * np.sqrt(long)), np.arctan2(y, x)
    strength = np.where(is_ice & (form != 1), of_each(0.09, 0.4), of_each(0, 0.025))
    arms = np.cos(np.where(form == 0, 6, 5) * angle + np.where(form == 2, np.sin(2 * angle + turn), 0))
    edge = of_each(9, 20) * (1 + strength * arms + 0.4 * strength * np.cos(3 * angle + 2 * turn))
    soft = of_each(0.7, 2.2)  # how far out of focus
    inside = 1 / (1 + np.exp(np.clip((radius - edge) / soft, -30, 30)))
    ring = of_each(0, 0.6) * np.exp(-(((radius - edge - 3 * soft) / (1.2 * soft)) ** 2))  # light that was bent
    middle = of_each(0, 0.8) * np.exp(-((radius / (0.35 * edge)) ** 2))  # and to its middle
    kind = random.randint(0, 4, count)[:, None, None]  # of background: even, a slope, stripes, blotches
    wave = np.sin(of_each(0.2, 0.8) * x + of_each(0, 2 * np.pi))
    soft_ones = 0.09 * blotches(count, size, 7)
    behind = np.select([kind == 0, kind == 1, kind == 2], [0 * x, 0.008 * x, 0.07 * wave], soft_ones)
    picture = 0.62 + behind - of_each(0.25, 0.6) * (inside * (1 - middle) - 0.4 * ring)
    picture += of_each(0.01, 0.05) * random.normal(size=picture.shape).astype(np.float32)
    with h5py.File(directory / "crystals.h5", "w") as file:
        pixels = (255 * np.clip(picture, 0, 1)).astype(np.uint8)
        chunks = (min(100, len(pixels)), size, size)
        file.create_dataset("images", data=pixels, chunks=chunks, compression="gzip", compression_opts=1)
        file.create_dataset("labels", data=ice)
        file["labels"].attrs["classes"] = ["water", "ice"]

if options.things:
    random = np.random.RandomState(7)  # the same with crystals and without
    # Small colour images in the form of CIFAR-10: a thing of one of ten shapes, anywhere, of any size, turn and colour.
    count, size = options.things, 32
    things = random.randint(0, 10, count)
    y, x = (np.mgrid[:size, :size].astype(np.float32) - (size - 1) / 2) / (size / 2)
    x, y, turn = x[None] - of_each(-0.2, 0.2), y[None] - of_each(-0.2, 0.2), of_each(-0.3, 0.3)
    scale = of_each(0.55, 0.85)
    x, y = (x * np.cos(turn) + y * np.sin(turn)) / scale, (y * np.cos(turn) - x * np.sin(turn)) / scale
    far, angle = np.hypot(x, y), np.arctan2(y, x)
    shapes = [
        far - 0.9,  # a disc
        np.maximum(abs(x), abs(y)) - 0.75,  # a square
        np.maximum(np.maximum(y - 0.6, -0.87 * x - 0.5 * y - 0.5), 0.87 * x - 0.5 * y - 0.5),  # a triangle
        abs(far - 0.7) - 0.22,  # a ring
        np.minimum(np.maximum(abs(x) - 0.25, abs(y) - 0.95), np.maximum(abs(y) - 0.25, abs(x) - 0.95)),  # a cross
        far - 0.65 - 0.3 * np.cos(5 * angle),  # a star
        np.maximum(abs(y) - 0.3, abs(x) - 1),  # a bar
        np.minimum(np.hypot(x - 0.5, y), np.hypot(x + 0.5, y)) - 0.38,  # two discs
        np.maximum(far - 0.9, 0.75 - np.hypot(x - 0.5, y)),  # a crescent
        np.maximum(np.maximum(abs(x), abs(y)) - 0.8, 0.45 - np.maximum(abs(x), abs(y))),  # a frame
    ]
    inside = 1 / (1 + np.exp(np.clip(12 * np.choose(things[:, None, None], shapes), -30, 30)))
    colour = random.uniform(0, 1, (count, 1, 1, 3)).astype(np.float32)
    ground = (colour + random.uniform(0.3, 0.7, (count, 1, 1, 3)).astype(np.float32)) % 1  # of another colour
    ground = ground + 0.1 * np.stack([blotches(count, size, 6) for _ in range(3)], axis=-1)
    colour = colour + 0.08 * np.stack([blotches(count, size, 9) for _ in range(3)], axis=-1)
    picture = ground + inside[..., None] * (colour - ground)
    picture += of_each(0.01, 0.05)[..., None] * random.normal(size=picture.shape).astype(np.float32)
    with h5py.File(directory / "things.h5", "w") as file:
        pixels = (255 * np.clip(picture, 0, 1)).astype(np.uint8)
        chunks = (min(100, len(pixels)), size, size, 3)
        file.create_dataset("images", data=pixels, chunks=chunks, compression="gzip", compression_opts=1)
        file.create_dataset("labels", data=things)
