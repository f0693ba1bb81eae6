"""Programs for those who use the project. README.md has a row for each."""

import signal
import sys


def end_with_the_reader() -> None:
    """From now on a program ends without a word if `head` or `less` reads no more of its output."""
    print_anything()
    if hasattr(signal, "SIGPIPE"):  # Windows has none
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def print_anything() -> None:
    """From now on standard output shows what it cannot encode, as in a path, with a backslash."""
    if hasattr(sys.stdout, "reconfigure"):  # a notebook's and IDLE's have not
        sys.stdout.reconfigure(errors="backslashreplace")
