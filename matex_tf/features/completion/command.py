"""`matex-tf completion`: what a shell completes, made from the command lines of all commands."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from matex_tf.errors import SettingError
from matex_tf.job.command_line import Parser

#: Kinds of values that are names of files.
_FILES = re.compile(r"FILE|DIR|SCRIPT|WHEEL|BLUEPRINT|IMAGES")


@dataclass(frozen=True)
class Option:
    """An option of a command.

    Attributes:
        flag: as users type it, with its dashes.
        help: what it does, in a line.
        words: that its value can be, as far as they are known.
        value: "" for an option without one, "may" for one that can stand alone, "must" for another.
        files: whether its value is the name of a file.
    """

    flag: str
    help: str
    words: tuple[str, ...] = ()
    value: str = ""
    files: bool = False


def parser() -> Parser:
    """The command line."""
    parser = Parser(
        "matex-tf completion",
        "bash | zsh | fish",
        "Print what lets a shell complete commands, options, and the words that a setting can be.",
        "docs/launcher.md",
        mixed=True,
    )
    parser.epilog = (
        "to have it in each shell:\n"
        '  bash  eval "$(matex-tf completion bash)" in ~/.bashrc\n'
        '  zsh   eval "$(matex-tf completion zsh)" in ~/.zshrc, after compinit\n'
        "  fish  matex-tf completion fish > ~/.config/fish/completions/matex-tf.fish\n\n"
        f"{parser.epilog}"
    )
    return parser


def command(given: argparse.Namespace) -> int:
    """Print the script of a shell. Raises: SettingError: it is none that is known."""
    shells = {"bash": bash, "zsh": zsh, "fish": fish}
    if len(given.rest) != 1 or given.rest[0] not in shells:
        raise SettingError(f"matex-tf completion takes one shell: {' or '.join(shells)}.")
    print(shells[given.rest[0]](), end="")
    return 0


def tables() -> dict[str, tuple[str, bool, list[Option]]]:
    """For each command what it does, whether options may follow its other words, and its options."""
    from matex_tf.cli.main import commands

    found = {}
    for name, one in commands().items():
        line: Parser = importlib.import_module(one.module).parser()
        found[name] = one.text.partition(": matex-tf ")[0], line.mixed, list(_options(line))
    return found


def _options(line: Parser) -> Iterator[Option]:
    for flag, action in line.known.items():
        shown = action.metavar if isinstance(action.metavar, str) else ""
        words = tuple(shown.strip("[]").split("|")) if "|" in shown else ()
        value = "" if action.nargs == 0 else "may" if action.nargs == "?" or line.stands_alone(flag) else "must"
        files = bool(_FILES.search(shown))
        plain = tuple(word for word in words if re.fullmatch(r"[\w.:+-]+", word) and not word.isupper())
        about = "" if action.help is argparse.SUPPRESS else (action.help or "").replace("%%", "%")
        help = " ".join(about.split()).partition("; ")[0]
        yield Option(flag, help, plain, value, files or (bool(words) and "DIR" in words))
    yield Option("--help", "Print what the command takes")


_BASH = r"""# bash completion for matex-tf: eval "$(matex-tf completion bash)"
_matex_tf_options() {
    case "$1" in
@OPTIONS@
    esac
}
# Of an option: none (no value), may or must (a value that is some of the words that follow), and whether files are.
_matex_tf_value() {
    case "$1 $2" in
@VALUES@
    *) echo none ;;
    esac
}
_matex_tf() {
    local line=${COMP_LINE:0:COMP_POINT} words word command value="" flag
    local current=""
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] || { current=${words[-1]}; unset 'words[-1]'; }
    COMPREPLY=()
    if (( ${#words[@]} <= 1 )); then
        COMPREPLY=($(compgen -W "@COMMANDS@ --help --version" -- "$current"))
        return
    fi
    command=${words[1]}
    for word in "${words[@]:2}"; do
        if [[ $value == must* ]]; then
            value=""
        elif [[ $word == -?* && $word != *=* ]]; then
            value=$(_matex_tf_value "$command" "$word")
        elif [[ $word == -?* || $value == may* || " @MIXED@ " == *" $command "* ]]; then
            value=""
        else
            compopt -o default  # the script's own words
            return
        fi
    done
    if [[ $current == -*=* ]]; then
        flag=${current%%=*}
        value=$(_matex_tf_value "$command" "$flag")
        current=${current#*=}
    elif [[ $value != must* ]]; then
        COMPREPLY=($(compgen -W "$(_matex_tf_options "$command")" -- "$current"))
        [[ $current == -* ]] && return
        [[ $value == may* ]] || compopt -o default
    fi
    read -ra words <<< "$value"
    [[ " ${words[*]} " == *" files "* ]] && compopt -o default
    COMPREPLY+=($(compgen -W "${words[*]:2}" -- "$current"))
}
complete -F _matex_tf matex-tf
"""


def bash() -> str:
    """The script of bash."""
    known = tables()
    values = {
        f'"{name} {one.flag}"': f"{one.value} {'files' if one.files else 'text'} {' '.join(one.words)}".strip()
        for name, (_, _, options) in known.items()
        for one in options
        if one.value
    }
    texts = {
        "OPTIONS": "\n".join(
            f"    {name}) printf '%s\\n' '{' '.join(one.flag for one in options)}' ;;"
            for name, (_, _, options) in known.items()
        ),
        "VALUES": "\n".join(f"    {patterns}) echo '{text}' ;;" for text, patterns in _alike(values).items()),
        "COMMANDS": " ".join(known),
        "MIXED": " ".join(name for name, (_, mixed, _) in known.items() if mixed),
    }
    return re.sub(r"@(\w+)@", lambda found: texts[found[1]], _BASH)


def _alike(values: dict[str, str]) -> dict[str, str]:
    """The patterns that have the same text, in one."""
    found: dict[str, list[str]] = {}
    for pattern, text in values.items():
        found.setdefault(text, []).append(pattern)
    return {text: "|".join(patterns) for text, patterns in found.items()}


def zsh() -> str:
    """The script of zsh."""
    known = tables()
    lines = ["#compdef matex-tf", "_matex_tf() {", "    local -a commands", "    commands=("]
    lines += [f"        {_quoted(f'{name}:{about}')}" for name, (about, _, _) in known.items()]
    lines += [
        "    )",
        "    if (( CURRENT == 2 )); then",
        "        _describe command commands",
        "        return",
        "    fi",
    ]
    lines += ["    local command=$words[2]", "    shift words", "    (( CURRENT-- ))", "    case $command in"]
    for name, (_, mixed, options) in known.items():
        lines += [f"    {name})", "        _arguments \\" if mixed else "        _arguments -A '-*' \\"]
        lines += [f"            {_quoted(_zsh_option(one))} \\" for one in options]
        lines += [f"            {_quoted('*: :_files' if mixed else '*:: :_files')}", "        ;;"]
    return "\n".join([*lines, "    esac", "}", "compdef _matex_tf matex-tf", ""])


def _zsh_option(one: Option) -> str:
    text = re.sub(r"([\[\]:\\])", r"\\\1", one.help)
    if not one.value:
        return f"{one.flag}[{text}]"
    equals = "=" if one.flag.startswith("--") else ""
    action = "_files" if one.files and not one.words else f"({' '.join(one.words)})" if one.words else " "
    return f"{one.flag}{equals}[{text}]:{':' if one.value == 'may' else ''}value:{action}"


def fish() -> str:
    """The script of fish."""
    lines = ["# fish completion for matex-tf", "complete -c matex-tf -n __fish_use_subcommand -f"]
    for name, (about, _, options) in tables().items():
        lines.append(f"complete -c matex-tf -n __fish_use_subcommand -a {name} -d {_quoted(about)}")
        for one in options:
            dashes = "-l" if one.flag.startswith("--") else "-s" if len(one.flag) == 2 else "-o"
            needs = {"must": " -r" if one.files else " -x"}.get(one.value, "")
            words = f" -a {_quoted(' '.join(one.words))}" if one.words else ""
            lines.append(
                f"complete -c matex-tf -n '__fish_seen_subcommand_from {name}' {dashes} {one.flag.lstrip('-')}"
                f"{needs}{words} -d {_quoted(one.help)}"
            )
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    """A text for a shell; fish and zsh have an apostrophe in the same way."""
    return "'" + text.replace("'", "'\\''") + "'"
