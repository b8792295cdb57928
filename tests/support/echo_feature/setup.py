"""A package of somebody else's that adds a command and a setting to matex_tf."""

from setuptools import setup

setup(
    name="matex-echo",
    version="1.0",
    packages=["matex_echo"],
    entry_points={"matex_tf.features": ["echo = matex_echo:register"]},
)
