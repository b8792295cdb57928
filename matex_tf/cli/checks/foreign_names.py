"""Whether a Keras, tf_keras or TensorFlow has the names that this package reads or wraps: `matex-tf doctor --keras`."""

from __future__ import annotations

import zipfile

from matex_tf.errors import SettingError
from matex_tf.facts import check


def show(place: str) -> int:
    """Print what is gone from a wheel or a directory, and who needs it; returns 1 if something is.

    Raises:
        SettingError: there are no such sources.
    """
    try:
        lines, good = check.report(place)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise SettingError(f"matex-tf doctor --keras {place}: {error}.") from error
    print("\n".join(lines))
    return 0 if good else 1
