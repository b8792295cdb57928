"""The setting of this feature."""

import dataclasses

from matex_tf.errors import SettingError
from matex_tf.settings import option


@dataclasses.dataclass(frozen=True)
class EchoOptions:
    """Of `matex-tf echo`, and of scripts that ask for it."""

    echo_times: int = option(1, "How often each word is printed.", kind="positive")

    def check(self, settings, ranks):
        """Refuse what does not go together."""
        if self.echo_times > 1 and settings.codec != "none":
            raise SettingError("--echo-times and --codec do not go together: leave out one.")
