"""`kvguard completion`: a script by which a shell completes the command, its options and the files they take."""

import argparse
import functools
from typing import Any, Final

import shtab

SHELLS: Final = ("bash", "zsh", "fish")
# What an argument is called that names a file.
FILES: Final = frozenset({"FILE", "LOG", "BODY", "CONFIG"})

INSTALLING: Final = """\
to install:
  bash  kvguard completion bash > ~/.local/share/bash-completion/completions/kvguard
  zsh   kvguard completion zsh > ~/.zfunc/_kvguard      (a directory in $fpath)
  fish  kvguard completion fish > ~/.config/fish/completions/kvguard.fish
"""


def add_parser(commands: Any, whole: argparse.ArgumentParser) -> None:
    """Register the subcommand, which completes the `whole` command as it is when it runs."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print a script that completes this command in a shell",
        description="Print a script that completes this command in a shell.",
        epilog=INSTALLING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell the script is for")
    parser.set_defaults(run=functools.partial(_run, whole))


def _run(whole: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    _mark_files(whole)
    print(shtab.complete(whole, shell=chosen.shell))


def _mark_files(parser: argparse.ArgumentParser) -> None:
    """Let every argument that names a file be completed by files."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _mark_files(each)
        elif action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
