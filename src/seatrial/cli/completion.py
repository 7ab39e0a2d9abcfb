"""`seatrial completion SHELL`: print shell code that completes commands and options."""

from __future__ import annotations

import argparse
import importlib

from seatrial.cli import COMMANDS
from seatrial.verdict import EXIT_PASS

SHELLS = ("bash", "zsh", "fish")

_BASH = """\
_seatrial() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words
    case "${{COMP_WORDS[1]}}" in
{cases}
        *) words="{commands}" ;;
    esac
    if [[ $COMP_CWORD -eq 1 ]]; then words="{commands}"; fi
    if [[ $COMP_CWORD -eq 1 || $word == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _seatrial seatrial
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial completion`."""
    parser.add_argument(
        "shell", choices=SHELLS, help='shell to print the code for: eval "$(seatrial completion bash)"'
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the code for the shell to evaluate."""
    options = {name: _options(name) for name in COMMANDS}
    if arguments.shell == "fish":
        print("\n".join(_fish(options)))
        return EXIT_PASS
    cases = "\n".join(f'        {name}) words="{" ".join(held)}" ;;' for name, held in options.items())
    text = _BASH.format(cases=cases, commands=" ".join(COMMANDS))
    # zsh reads bash completions through bashcompinit.
    print(
        text if arguments.shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{text}", end=""
    )
    return EXIT_PASS


def _options(name: str) -> list[str]:
    parser = argparse.ArgumentParser(add_help=True)
    importlib.import_module(f"seatrial.cli.{name}").add_arguments(parser)
    return sorted(
        word for action in parser._actions for word in action.option_strings if word.startswith("--")
    )


def _fish(options: dict[str, list[str]]) -> list[str]:
    lines = ["complete -c seatrial -n __fish_use_subcommand -f -a '" + " ".join(COMMANDS) + "'"]
    for name, held in options.items():
        seen = f"__fish_seen_subcommand_from {name}"
        lines += [f"complete -c seatrial -n '{seen}' -l {word.removeprefix('--')}" for word in held]
    return lines
