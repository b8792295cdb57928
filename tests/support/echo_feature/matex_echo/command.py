"""`matex-tf echo`."""

from matex_echo.options import EchoOptions
from matex_tf.job.command_line import Parser
from matex_tf.settings import Settings


def parser():
    """The command line."""
    parser = Parser("matex-tf echo", "WORDS [options]", "Print words.", "the README of matex-echo", mixed=True)
    parser.add_settings(shown=False)
    return parser


def run(line, ranks, hosts, settings, script, mpirun, hosts_now):
    """What `matex-tf run --faults echo` does in place of a job."""
    print(f"{ranks} ranks of {script}")
    return 0


def command(given):
    """Print them."""
    print(*(word for word in given.rest for _ in range(Settings.read(given.flags).of(EchoOptions).echo_times)))
    return 0
