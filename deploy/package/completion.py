"""Completion scripts of a tree of commands (help.py), for bash, zsh and fish. In each the words before the cursor are walked once: a
word that is a command of where we are goes down, an option that takes a value takes the next word with it."""

import re


def key_of(command):
    """Where a command stands, as the scripts say it: "" is the program, "checkpoint get" a command."""
    return " ".join(command.path[1:])


def options_at(root, command, inherit):
    """What may stand after a command: its own options, and the program's where they fall through."""
    inherited = [item for item in root.options if item.flags[-1] not in ("--help", "--version")] if inherit and command is not root else []
    return [*command.options, *inherited]


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def words(items):
    return " ".join(flag for item in items for flag in item.flags)


def function_of(name):
    return "_" + re.sub(r"\W", "_", name)


def bash(root, inherit):
    name, function = root.path[0], function_of(root.path[0])
    lines = [f"# bash completion of {name}, made from its --help.", f"{function}_at() {{", "  case $1 in"]
    choices = []
    for command in root.walk():
        options = options_at(root, command, inherit)
        lines.append(f"    {quoted(key_of(command))}) commands={quoted(' '.join(each.path[-1] for each in command.commands))}"
                     f" flags={quoted(words(options))} takes={quoted(words(item for item in options if item.value))} ;;")
        for item in options:
            if item.choices():
                where = "|".join(quoted(f"{key_of(command)}:{flag}") for flag in item.flags)
                choices.append(f"      {where}) mapfile -t COMPREPLY < <(compgen -W {quoted(' '.join(item.choices()))} -- \"$cur\") ;;")
    lines += ["  esac", "}", f"{function}() {{",
              "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at='' commands='' flags='' takes='' i word",
              f"  {function}_at ''",
              "  for ((i = 1; i < COMP_CWORD; i++)); do",
              "    word=${COMP_WORDS[i]}",
              '    if [[ " $takes " == *" $word "* ]]; then',
              "      ((++i))",
              '    elif [[ " $commands " == *" $word "* ]]; then',
              '      at="${at:+$at }$word"',
              f'      {function}_at "$at"',
              "    fi",
              "  done",
              "  COMPREPLY=()",
              '  if [[ " $takes " == *" $prev "* ]]; then',
              '    case "$at:$prev" in',
              *choices,
              "      *) ;;  # a file, by -o default",
              "    esac",
              "  elif [[ $cur == -* ]]; then",
              '    mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$cur")',
              '  elif [[ -n $commands ]]; then',
              '    mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$cur")',
              "  fi",
              "}",
              f"complete -o default -F {function} {name}"]
    return "\n".join(lines) + "\n"


def zsh(root, inherit):
    name, function = root.path[0], function_of(root.path[0])

    def described(pairs):
        return " ".join(quoted(f"{word.replace(':', chr(92) + ':')}:{text}") for word, text in pairs)

    lines = [f"#compdef {name}", f"# Made from {name}'s --help.", f"{function}_at() {{", "  case $1 in"]
    choices = []
    for command in root.walk():
        options = options_at(root, command, inherit)
        below = described((each.path[-1], each.about.splitlines()[0]) for each in command.commands)
        lines.append(f"    {quoted(key_of(command))}) below=({below})"
                     f" flags=({described((flag, item.text) for item in options for flag in item.flags)})"
                     f" takes=({words(item for item in options if item.value)}) ;;")
        for item in options:
            if item.choices():
                where = "|".join(quoted(f"{key_of(command)}:{flag}") for flag in item.flags)
                choices.append(f"      {where}) compadd -- {' '.join(item.choices())} ;;")
    lines += ["  esac", "}", f"{function}() {{",
              "  local at='' word",
              "  local -a below flags takes",
              "  integer i",
              f"  {function}_at ''",
              "  for ((i = 2; i < CURRENT; i++)); do",
              "    word=${words[i]}",
              "    if (( ${takes[(Ie)$word]} )); then",
              "      (( ++i ))",
              "    elif (( ${${(@)below%%:*}[(Ie)$word]} )); then",
              '      at="${at:+$at }$word"',
              f'      {function}_at "$at"',
              "    fi",
              "  done",
              "  if (( ${takes[(Ie)${words[CURRENT-1]}]} )); then",
              '    case "$at:${words[CURRENT-1]}" in',
              *choices,
              "      *) _files ;;",
              "    esac",
              "  elif [[ ${words[CURRENT]} == -* ]]; then",
              "    _describe option flags",
              "  elif (( ${#below} )); then",
              "    _describe command below",
              "  else",
              "    _files",
              "  fi",
              "}",
              f'{function} "$@"']
    return "\n".join(lines) + "\n"


def fish(root, inherit):
    name, function = root.path[0], "_" + function_of(root.path[0])

    def text_of(text):
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = [f"# fish completion of {name}, made from its --help.", f"function {function}_at",
             "    set -l at ''", "    set -l words (commandline -opc)", "    set -l skip no",
             "    for word in $words[2..-1]",
             "        if test $skip = yes", "            set skip no", "            continue", "        end",
             '        switch "$at:$word"']
    completions = []
    for command in root.walk():
        options = options_at(root, command, inherit)
        taking = [f"{key_of(command)}:{flag}" for item in options if item.value for flag in item.flags]
        if taking:
            lines += [f"            case {' '.join(map(text_of, taking))}", "                set skip yes"]
        for each in command.commands:
            lines += [f"            case {text_of(f'{key_of(command)}:{each.path[-1]}')}", f"                set at {text_of(key_of(each))}"]
        condition = text_of(f'{function}_at "{key_of(command)}"')
        for each in command.commands:
            about = text_of(each.about.splitlines()[0])
            completions.append(f"complete -c {name} -n {condition} -f -a {text_of(each.path[-1])} -d {about}")
        for item in options:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in item.flags)
            choices = f" -x -a {text_of(' '.join(item.choices()))}" if item.choices() else ""
            value = choices or (" -r -F" if item.is_file() else " -x" if item.value else "")
            completions.append(f"complete -c {name} -n {condition} {flags}{value} -d {text_of(item.text)}")
    lines += ["        end", "    end", '    test "$at" = "$argv[1]"', "end", *completions]
    return "\n".join(lines) + "\n"
