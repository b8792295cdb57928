"""`python -m matex_tf.features` prints known.txt: what to install for the commands and flags of our own features."""

import importlib

from matex_tf.features import found
from matex_tf.settings.declaration import Option
from matex_tf.settings.run_settings import declarations

known = declarations()
for name, feature in found().items():
    if feature.package:
        topics = [name] * bool(feature.settings) + [f"strategy {strategy}" for strategy in feature.strategies]
        flags = [one.flag for topic in topics if topic in known for one in Option.of(known[topic])]
        backends = [f"KERAS_BACKEND={backend}" for backend in feature.backends]
        formats = [f"format={importlib.import_module(module).FORMAT.name}" for module in feature.formats]
        choices = [f"--strategy={one}" for one in feature.strategies] + [f"--faults={one}" for one in feature.faults]
        print(feature.package, name, *feature.commands, *backends, *formats, *choices, *flags)
