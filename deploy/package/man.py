"""Man pages of a tree of commands (help.py): one of the program, and one of each of its commands, with those below it."""

import re


def roff(text):
    """Text as roff takes it: a line that begins with a control character, backslashes and hyphens are what they are."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def first_sentence(text):
    line = text.splitlines()[0].rstrip(".")
    return re.sub(r"^[\w-]+: ", "", line)  # "lora: fine-tunes ...": NAME says the name


def paragraphs(text):
    return "".join(f".PP\n{roff(line)}\n" for line in text.splitlines())


def items(title, found):
    if not found:
        return ""
    return f".SS {title}\n" + "".join(f".TP\n.B {roff(item.spec)}\n{roff(item.text) or chr(92) + '&'}\n" for item in found)


def see_also(names):
    return ".SH SEE ALSO\n" + "".join(f".BR {roff(name)} (1)\n" for name in names)


def body(command):
    return (f".B {roff(command.usage)}\n" + paragraphs(command.about)
            + items("Arguments", command.positionals) + items("Options", command.options))


def page(command, version, see, below):
    """The text of a page; `below` are the commands that it describes in full, `see` are names of other pages."""
    name = "-".join(command.path)
    text = (f'.TH {roff(name.upper())} 1 "" "lorad {version}" "lorad"\n.SH NAME\n{roff(name)} \\- {roff(first_sentence(command.about))}\n'
            f".SH SYNOPSIS\n.B {roff(command.usage)}\n.SH DESCRIPTION\n{paragraphs(command.about).removeprefix('.PP' + chr(10))}")
    text += items("Arguments", command.positionals) + items("Options", command.options)
    if command.commands:
        text += ".SS Commands\n"
        for each in command.commands:
            text += f".TP\n.B {roff(' '.join(each.path[1:]))}\n{roff(first_sentence(each.about))}\n"
    for each in below:
        text += f".SH {roff(' '.join(each.path).upper())}\n{body(each)}"
    return text + see_also(see)


def pages(root, version, others):
    """{file name: text} of a program's pages; `others` are names of pages beside them."""
    names = [f"{root.path[0]}-{command.path[1]}" for command in root.commands]
    found = {f"{root.path[0]}.1": page(root, version, [*names, *others], [])}
    for command in root.commands:
        below = list(command.walk())[1:]
        found["-".join(command.path) + ".1"] = page(command, version, [root.path[0], *others], below)
    return found


def script_page(name, head, version, others):
    """The page of a script: the comment at its head, as it stands there."""
    about = first_sentence(head.splitlines()[0])
    about = about.split(". ")[0].split(": ")[0]
    return (f'.TH {roff(name.upper())} 1 "" "lorad {version}" "lorad"\n.SH NAME\n{roff(name)} \\- {roff(about)}\n.SH DESCRIPTION\n.nf\n'
            + roff(head) + "\n.fi\n" + see_also(others))
