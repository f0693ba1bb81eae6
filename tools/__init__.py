"""Programs for those who use the project. README.md has a row for each."""

import signal


def end_with_the_reader() -> None:
    """From now on a program ends without a word if `head` or `less` reads no more of its output."""
    if hasattr(signal, "SIGPIPE"):  # Windows has none
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
