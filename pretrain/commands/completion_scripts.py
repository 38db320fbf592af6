"""The scripts of `pretrain completion`: lists as functions of the shell, and a function that picks from them.

bash and zsh share the lists. A config key is completed section by section, so that an empty word offers few.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class CompletedOption:
    """An option of a command."""

    help: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CompletedCommand:
    """A command, such as `data build`."""

    words: Mapping[str, str] = field(default_factory=dict)
    """verbs that may follow"""
    choices: tuple[str, ...] = ()
    """values of its positional arguments, if they can be listed"""
    options: Mapping[str, CompletedOption] = field(default_factory=dict)
    keys_of: str | None = None
    """`run` or `build`: whose keys it takes; None: it takes none"""
    takes_config: bool = False


@dataclass(frozen=True, kw_only=True)
class CompletionWords:
    """Everything that can be completed; commands by their words, the empty one is `pretrain` itself."""

    commands: Mapping[str, CompletedCommand]
    configs: Mapping[str, Sequence[str]]
    keys: Mapping[str, Mapping[str, Sequence[str]]]
    """`run`, `build` -> key -> values that can be listed"""


_BASH = r"""
_pretrain() {
    local IFS=$' \t\n' line=${COMP_LINE:0:COMP_POINT} words command="" found="" kept of
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local last=$(( ${#words[@]} - 1 ))
    local word=${words[last]} previous=${words[last-1]}
    (( last >= 2 )) && command=${words[1]}
    if (( last >= 3 )) && [[ " $(_pretrain_words "$command") " == *" ${words[2]} "* ]]; then
        command+=" ${words[2]}"
    fi
    of=$(_pretrain_keys_of "$command")
    COMPREPLY=()
    if [[ " $(_pretrain_valued "$command") " == *" $previous "* ]]; then
        found=$(_pretrain_choices "$command $previous")
    elif [[ $word == -* ]]; then
        found=$(_pretrain_options "$command")
    elif [[ -n $of && $word == *=* ]]; then
        found=$(_pretrain_values "$of ${word%%=*}")
        kept=${word%%=*}=
        [[ $COMP_WORDBREAKS == *=* ]] && kept=""
        mapfile -t COMPREPLY < <(compgen -P "$kept" -W "$found" -- "${word#*=}")
        return
    else
        if (( last <= 2 )); then
            found=$(_pretrain_words "$command")
        fi
        found+=" $(_pretrain_positional "$command") $(_pretrain_rest "$command" "$word" "${words[@]:1:last-1}")"
    fi
    mapfile -t COMPREPLY < <(compgen -W "$found" -- "$word")
    [[ ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace 2> /dev/null
}
complete -o default -F _pretrain pretrain
"""
_ZSH = r"""
_pretrain() {
    local word=$words[CURRENT] previous=$words[CURRENT-1] command="" found="" of one
    (( CURRENT >= 3 )) && command=$words[2]
    if (( CURRENT >= 4 )) && [[ " $(_pretrain_words "$command") " == *" $words[3] "* ]]; then
        command+=" $words[3]"
    fi
    of=$(_pretrain_keys_of "$command")
    if [[ " $(_pretrain_valued "$command") " == *" $previous "* ]]; then
        found=$(_pretrain_choices "$command $previous")
        [[ -n $found ]] && compadd -- ${=found} || _files
        return
    elif [[ $word == -* ]]; then
        found=$(_pretrain_options "$command")
        compadd -- ${=found}
        return
    elif [[ -n $of && $word == *=* ]]; then
        found=$(_pretrain_values "$of ${word%%=*}")
        compset -P '*='
        [[ -n $found ]] && compadd -- ${=found} || _files
        return
    fi
    if (( CURRENT <= 3 )); then
        found=$(_pretrain_words "$command")
    fi
    found+=" $(_pretrain_positional "$command") $(_pretrain_rest "$command" "$word" "${(@)words[2,CURRENT-1]}")"
    local -a plain open
    for one in ${=found}; do
        [[ $one == *[=.] ]] && open+=($one) || plain+=($one)
    done
    compadd -- $plain
    compadd -S '' -- $open
    (( CURRENT > 2 )) && _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -u }
if [[ $funcstack[1] == _pretrain ]]; then
    _pretrain "$@"
else
    compdef _pretrain pretrain
fi
"""
_SHARED = r"""
_pretrain_rest() {  # configs and keys: after a command, for a word, with the words before it
    local command=$1 word=$2 given="" of one
    shift 2
    of=$(_pretrain_keys_of "$command")
    [ -n "$of" ] || return 0
    case $word in
    *.*) _pretrain_keys "$of" ;;
    *) _pretrain_sections "$of" ;;
    esac
    [ -n "$(_pretrain_takes_config "$command")" ] || return 0
    for one in "$@"; do
        case $one in
        *=*) ;;
        */*) given=yes ;;
        esac
    done
    [ -n "$given" ] && [ -z "$word" ] || _pretrain_configs "$of"
}
"""


def _function(name: str, cases: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A function of the shell that prints the list of its argument, by the same lists together."""
    by_list: dict[tuple[str, ...], list[str]] = {}
    for case, values in cases.items():
        if values:
            by_list.setdefault(tuple(values), []).append(case)
    yield f"_pretrain_{name}() {{"
    yield "    case $1 in"
    for listed, names in by_list.items():
        yield f"    {'|'.join(_quoted(name) for name in names)}) echo {_quoted(' '.join(listed))} ;;"
    yield "    esac"
    yield "}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _lists(words: CompletionWords) -> Iterator[str]:
    commands = words.commands
    yield from _function("words", {name: list(one.words) for name, one in commands.items()})
    yield from _function("positional", {name: one.choices for name, one in commands.items()})
    yield from _function("options", {name: list(one.options) for name, one in commands.items()})
    valued = {
        name: [option for option, how in one.options.items() if how.takes_value] for name, one in commands.items()
    }
    yield from _function("valued", valued)
    choices = {f"{name} {option}": how.choices for name, one in commands.items() for option, how in one.options.items()}
    yield from _function("choices", choices)
    yield from _function("keys_of", {name: [one.keys_of] for name, one in commands.items() if one.keys_of})
    yield from _function("takes_config", {name: ["yes"] for name, one in commands.items() if one.takes_config})
    yield from _function("configs", words.configs)
    yield from _function("keys", {of: [f"{key}=" for key in keys] for of, keys in words.keys.items()})
    yield from _function("sections", {of: sections(keys) for of, keys in words.keys.items()})
    values = {f"{of} {key}": listed for of, keys in words.keys.items() for key, listed in keys.items()}
    yield from _function("values", values)


def sections(keys: Mapping[str, Sequence[str]]) -> list[str]:
    """Completions of a word without a dot: `optimizer.`, or a key that is in no section."""
    return list(dict.fromkeys(f"{key.partition('.')[0]}." if "." in key else f"{key}=" for key in keys))


def bash(words: CompletionWords) -> Iterator[str]:
    """Lines of the script for bash."""
    yield "# Tab completion of pretrain for bash: source this file, or keep it among bash's completions."
    yield from _lists(words)
    yield (_SHARED + _BASH).strip("\n")


def zsh(words: CompletionWords) -> Iterator[str]:
    """Lines of the script for zsh."""
    yield "#compdef pretrain"
    yield "# Tab completion of pretrain for zsh: source this file, or keep it as _pretrain in a folder of fpath."
    yield from _lists(words)
    yield (_SHARED + _ZSH).strip("\n")


def fish(words: CompletionWords) -> Iterator[str]:
    """Lines of the script for fish, which shows the help of options."""
    yield "# Tab completion of pretrain for fish: keep it in ~/.config/fish/completions."
    yield from _FISH.strip("\n").splitlines()
    for of, keys in words.keys.items():
        pairs = [f"{key}={value}" for key, listed in keys.items() for value in listed]
        yield f"function __pretrain_{of}"
        yield "    switch (commandline -ct)"
        yield f"        case '*=*'; printf '%s\\n' {' '.join(map(_quoted, pairs))}"
        yield f"        case '*.*'; printf '%s\\n' {' '.join(_quoted(f'{key}=') for key in keys)}"
        yield f"        case '*'; printf '%s\\n' {' '.join(map(_quoted, sections(keys)))}"
        yield "    end"
        yield "end"
    for name, one in words.commands.items():
        inside = f"complete -c pretrain -n {_quoted(f'__pretrain_is {_quoted(name)}')}"
        if one.words or one.choices:
            yield f"{inside} -f -a {_quoted(' '.join((*one.words, *one.choices)))}"
        if one.takes_config and one.keys_of:
            yield f"{inside} -a {_quoted(' '.join(words.configs[one.keys_of]))}"
        if one.keys_of:
            yield f"{inside} -a '(__pretrain_{one.keys_of})'"
        for option, how in one.options.items():
            value = f" -x -a {_quoted(' '.join(how.choices))}" if how.choices else " -r" if how.takes_value else ""
            yield f"{inside} -l {option.removeprefix('--')}{value} -d {_quoted(how.help)}"


_FISH = r"""
function __pretrain_is  # whether the words before the cursor are this command
    set -l words (commandline -opc)[2..-1]
    set -l wanted (string split -n ' ' -- $argv[1])
    set -l number (count $wanted)
    test (count $words) -ge $number; or return 1
    test $number -eq 0; and test (count $words) -eq 0; and return 0
    test $number -eq 0; and return 1
    test "$words[1..$number]" = "$wanted"
end
"""

SCRIPTS: dict[str, Callable[[CompletionWords], Iterator[str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
"""Shells, with the script of each."""
