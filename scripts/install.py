"""Install packages into the environment of the Python that runs this, as `pip install` does.

    .venv/bin/python scripts/install.py numpy "keras>=3"

With uv, which takes less than half of the time of pip for TensorFlow; with pip if uv cannot be had or fails. uv does
not read the configuration of pip, so what that says of indexes, wheels, constraints and certificates is handed on.

Both compile what they install. uv does not by default, and with PYTHONDONTWRITEBYTECODE set, as in most container
images, every process would then compile TensorFlow and Keras anew: 20 s of CPU for `import keras` instead of 7.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
#: Settings of pip, and the variables in which uv takes the same.
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
#: Where pip takes a setting from; later ones win.
SCOPES = ("global", "user", "site", "install", ":env:")


def main(wanted: Sequence[str]) -> int:
    if not wanted:
        print(f"usage: {sys.argv[0]} PACKAGE ...", file=sys.stderr)
        return 2
    if has_uv():
        # pip takes the newest version over all indexes; uv would take the first index that has the package.
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--compile-bytecode"]
        command += ["--index-strategy", "unsafe-best-match"]
        if subprocess.run([*command, "--python", sys.executable, *wanted], env=environ(settings())).returncode == 0:
            return 0
        print("scripts/install.py: uv has failed, so pip is tried", file=sys.stderr)
    return subprocess.run([*PIP, "install", "--quiet", "--compile", *wanted]).returncode


def has_uv() -> bool:
    """Whether uv is in this environment; it is installed where it is not."""
    if importlib.util.find_spec("uv") is None:
        subprocess.run([*PIP, "install", "--quiet", "--only-binary", "uv", "uv"], stderr=subprocess.DEVNULL)
        importlib.invalidate_caches()
    return importlib.util.find_spec("uv") is not None


def settings() -> str:
    """What `pip config list` prints."""
    return subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout


def environ(listed: str, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that uv shall have.

    Args:
        listed: lines of `pip config list`, such as `global.index-url='https://mirror.example/simple'`.
        base: variables of this process. What they say to uv stands.
    """
    found: dict[str, str] = {}
    lines = [line.partition("=") for line in listed.splitlines()]
    for scope in SCOPES:
        for name, _, value in lines:
            place, _, setting = name.rpartition(".")
            if place == scope and setting in SETTINGS:
                found[SETTINGS[setting]] = " ".join(ast.literal_eval(value).split())
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = ",".join(found["UV_FIND_LINKS"].split())
    return {**found, **base}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
