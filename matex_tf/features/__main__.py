"""`python -m matex_tf.features` prints known.txt: what to install for the commands and flags of our own features."""

from matex_tf.features import found
from matex_tf.settings.declaration import Option
from matex_tf.settings.run_settings import declarations

for name, feature in found().items():
    if feature.package:
        flags = [one.flag for one in Option.of(declarations()[name])] if feature.settings else []
        print(feature.package, name, *feature.commands, *flags)
