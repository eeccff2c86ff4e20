"""What programs say of themselves by --help, as a tree of commands: the one source of man pages and completion scripts.

The programs' help is CLI11's: a description, `Usage: ...`, then sections of items (an option group's stand indented below its
name); an item's text begins in column 30, or on the next line where its name is longer. A line that is none of these is an error,
so that nothing is lost unseen.
"""

import dataclasses
import re
import subprocess

COLUMN = 30
ITEM = re.compile(r"(?P<flags>-[\w-]+(?:,-[\w-]+)*)(?P<false>\{\w+\})?(?: (?P<rest>.*))?")
# What CLI11 says of an option beside its value.
NOTES = re.compile(r"\s*(\(Env:(\w+)\)|\bREQUIRED\b|(?:Excludes|Needs): .*$|\.\.\.)")


@dataclasses.dataclass
class Item:
    """An option or a positional."""
    flags: list  # -f, --file; empty of a positional
    value: str  # how the value is called, "" where none is taken
    spec: str  # all that stands before the text, as the help has it
    text: str

    def choices(self):
        """The values that it may have, where the help names them all."""
        found = re.search(r"\{([\w,-]+)\}", self.value) or re.fullmatch(r"([a-z]+(?:\|[a-z]+)+)(?:=.*)?", self.value)
        return re.split(r"[,|]", found[1]) if found else []

    def is_file(self):
        """Whether the value may be the path of a file or folder."""
        return re.match(r"(TEXT|FILE|DIR|PATH|FROM=TO)\b", self.value) is not None and not self.choices()


@dataclasses.dataclass
class Command:
    path: list  # ["lora", "checkpoint", "get"]
    about: str
    usage: str
    positionals: list
    options: list
    commands: list  # of Command, in the help's order

    def walk(self):
        yield self
        for command in self.commands:
            yield from command.walk()


def items_of(lines):
    """[(spec, text)] of a section."""
    items, i = [], 0
    while i < len(lines):
        line = lines[i]
        if not re.match(r"  \S", line):
            raise ValueError(f"no item of a help: {line!r}")
        if i + 1 < len(lines) and lines[i + 1].startswith(" " * COLUMN):
            items.append((line.strip(), lines[i + 1].strip()))
            i += 2
        else:
            items.append((line[:COLUMN].strip(), line[COLUMN:].strip()))
            i += 1
    return items


def option_of(spec, text):
    found = ITEM.fullmatch(spec)
    if not found:
        raise ValueError(f"no option of a help: {spec!r}")
    value = NOTES.sub("", found["rest"] or "").strip()
    return Item(found["flags"].split(","), value, spec, text)


def parse(path, said):
    """The command of one help; its commands are (name, text) as yet."""
    about, found, rest = said.partition("Usage: ")
    if not found:
        raise ValueError(f"{' '.join(path)} --help has no usage: {said!r}")
    usage, *lines = rest.splitlines()
    sections, section, indent = {}, None, 0
    for line in lines:
        if re.fullmatch(r"\[Option Group: .*\]", line):  # sections of its own follow, two columns further in
            indent = 2
            continue
        if indent and re.fullmatch(r"\s*\[.*\]", line):
            continue
        line = line[indent:]
        if re.fullmatch(r"[A-Z]\w+:", line):
            section = sections.setdefault(line[:-1], [])
        elif line.strip():
            if section is None:
                raise ValueError(f"{' '.join(path)} --help: {line!r} is in no section")
            section.append(line)
    unknown = sections.keys() - {"Options", "Positionals", "Subcommands"}
    if unknown:
        raise ValueError(f"{' '.join(path)} --help has sections that are not known: {unknown}")
    options = [option_of(*item) for item in items_of(sections.get("Options", []))]
    positionals = [Item([], spec.split(" ", 1)[-1], spec, text) for spec, text in items_of(sections.get("Positionals", []))]
    # A program's usage has the path that it was started by.
    usage = " ".join(path) + usage[re.match(r"\S*", usage).end():].removeprefix(" " + " ".join(path[1:]) if path[1:] else "")
    return Command(path, about.strip(), usage, positionals, options, items_of(sections.get("Subcommands", [])))


def read(program, path):
    """The tree of a program's commands; `program` is its file, `path` begins with its name."""
    done = subprocess.run([program, *path[1:], "--help"], capture_output=True, text=True, timeout=60, env={})
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(path)} --help: status {done.returncode}: {done.stderr}")
    command = parse(path, done.stdout)
    command.commands = [read(program, [*path, name]) for name, _ in command.commands]
    return command
