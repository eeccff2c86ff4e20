"""Checks that what the documentation names is there: paths, links, anchors, Bazel targets, options and identifiers of
README.md, CONTRIBUTING.md and docs/**/*.md, and the pages, files and folders that comments of the code refer to. A type or a
function that is named in one sentence (or row of a table) with paths must be in the files of one of them. Behind the
mark of a piece of code stands its kind alone.

usage: names_test.py    (in the checkout, or under Bazel)
"""

import fnmatch
import glob
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROOMS = ["client", "deploy", "docs", "examples", "kernels", "logging", "planner", "proto", "server", "sizes", "storage", "tests",
         "third_party", "tools", "worker"]
TOP = {".ci", ".bazelrc", "BUILD.bazel", "WORKSPACE", *ROOMS}
CODE = {".bazel", ".bzl", ".cc", ".conf", ".cu", ".cuh", ".h", ".proto", ".py", ".sbatch", ".service", ".sh", ".yaml", ""}
# Names of others that the documentation speaks of, and the options of their programs.
FOREIGN = {"LlamaTokenizer", "CUDA_VISIBLE_DEVICES", "omp.h", "nvml.h", "cupti.h",
           "--racecheck-indirect-barrier-dependency", "--system", "--home-dir", "--shell", "--now",
           "--dependency", "--jobid", "--overlap", "--nodelist", "--pty", "--from-file", "--replicas",
           "--build-arg", "--create-dirs", "--stop-timeout", "--pids-limit", "--restart", "--rm",
           # OpenAI's fine-tuning API and transformers.
           "function_call", "preferred_output", "non_preferred_output", "retrieve", "list_events", "fine_tuned_model",
           "training_file", "validation_file", "n_epochs", "learning_rate_multiplier", "validating_files",
           "resume_from_checkpoint"}
# Put together at run time.
COMPOSED = {"ADAPTER_EXISTS"}
# Words that stand for a name of the reader's.
ANY = re.compile(r"\b(NAME|FILE|X)\b")
# What is made in a checkout, and so is not in a fresh one.
MADE = ("third_party/wheels",)

PATH = re.compile(r"(?<![\w./:@<-])((?:" + "|".join(ROOMS) + r"|\.ci)/[\w./*{},+@-]*[\w*}/])")
FILE = re.compile(r"(?<![\w./*-])([\w-]+\.(?:md|h|cc|cu|cuh|proto))(?![\w*/])")
LINK = re.compile(r"\]\(([^)\s]+)\)")
TARGET = re.compile(r"(?<![\w:/])//((?:" + "|".join(ROOMS) + r")[\w./-]*)(?::([\w.{},*-]+))?")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]+)")
IDENTIFIER = re.compile(r"`([A-Za-z_][\w:.]*)(?:\([^`]*\))?`")
CAMEL_CASE = re.compile(r"`(?:\w+::)*([A-Z]\w*[a-z]\w*)(?:\([^`]*\))?`")
# A language, and a name or a word for docs_commands_test.
FENCE = re.compile(r"\s*```(?!`)(?:\w+(?: [\w.-]+)?)?")
SENTENCE = re.compile(r"\S.*?(?:\.(?=\s)|\Z)", re.DOTALL)


def code_files():
    """The tree's files that are no documentation and were not made there."""
    for room in [*sorted(TOP - {"docs"})]:
        path = ROOT / room
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            name = str(file.relative_to(ROOT))
            if file.is_file() and file.suffix in CODE and not name.startswith(MADE) and "__pycache__" not in name:
                yield name, file.read_text(errors="replace")


def braces(text):
    """a{b,c} as [ab, ac]."""
    inner = re.search(r"\{([^{}]*)\}", text)
    if not inner:
        return [text]
    return [path for word in inner[1].split(",") for path in braces(text[:inner.start()] + word + text[inner.end():])]


def is_there(path, beside=ROOT):
    """Whether a path exists; NAME and X stand for any name, and a source may be named without its ending."""
    wild = ANY.sub("*", path)
    return all(glob.glob(str(beside / p)) or glob.glob(str(beside / p) + ".*") for p in braces(wild))


def is_no_file(name, files):
    return name not in files and not re.match(r"(NAME|FILE|X)\b|NAME_", name)


def anchors_of(page):
    """The anchors of a page's headings."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def bad_link(page, link):
    if re.match(r"[a-z]+:", link):
        return None
    path, _, anchor = link.partition("#")
    target = (page.parent / path) if path else page
    if not target.exists():
        return f"the link {link} leads nowhere"
    if anchor and anchor not in anchors_of(target):
        return f"the link {link} leads to no heading"
    return None


def bad_target(package, name):
    build = ROOT / package.rstrip("/.") / "BUILD.bazel"
    if package.endswith("...") or "*" in (name or ""):
        return None if build.parent.is_dir() else f"the package //{package} is not there"
    if not build.exists():
        return f"the package //{package} is not there"
    text = build.read_text()
    for word in braces(name or pathlib.Path(package).name):
        # A target that a list makes is known by its word there.
        if f'"{word}"' not in text and f'"{word.removesuffix("_test")}"' not in text:
            return f"the target //{package}:{word} is not there"
    return None


def mistakes_of(page, words, options, files):
    """[(line, what is wrong)] of a page."""
    mistakes = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        found = [bad_link(page, link) for link in LINK.findall(line)]
        found += [bad_target(*target) for target in TARGET.findall(line)]
        plain = TARGET.sub("", LINK.sub("", line))
        for path in PATH.findall(plain):
            if not path.startswith(MADE) and not is_there(path):
                found.append(f"there is no {path}")
        found += [f"no file is called {file}" for file in FILE.findall(plain) if is_no_file(file, files)]
        for option in OPTION.findall(plain):
            if option not in options:
                found.append(f"nothing knows the option {option}")
        for name in IDENTIFIER.findall(plain):
            last = re.split(r"::|\.", name)[-1]
            if re.search(r"[a-z][A-Z]|_|::", name) and last and last not in words:
                found.append(f"nothing is called {name}")
        mistakes += [(number, what) for what in found if what]
    return mistakes


def sentences_of(text):
    """[(line, sentence)] of a page's prose; a row of a table is one."""
    blocks = [[]]  # of (line, text): paragraphs, items, rows
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if re.match(r"\s*(\d+\. |- |#|\||$)", line) or fence:
            blocks.append([])
        if not fenced and not fence and line.strip():
            blocks[-1].append((number, line))
    for block in filter(None, blocks):
        if block[0][1].startswith("|"):
            yield block[0]
            continue
        prose = "\n".join(line for _, line in block)
        for found in SENTENCE.finditer(prose):
            yield block[0][0] + prose.count("\n", 0, found.start()), found[0]


def words_at(path, code):
    """The words of the files that a path means: a file with those of its stem beside it, or all below a folder."""
    stems = [re.sub(r"\.\w+$", "", p).rstrip("/") for p in braces(ANY.sub("*", path))]
    texts = [text for name, text in code.items() for stem in stems
             if fnmatch.fnmatch(name, stem + ".*") or fnmatch.fnmatch(name, stem + "/*")]
    return set(re.findall(r"\w+", "\n".join(texts)))


def strangers(text, code):
    """[(line, what is wrong)]: names that are in none of the files that their sentence names."""
    mistakes = []
    for number, sentence in sentences_of(text):
        paths = PATH.findall(TARGET.sub("", LINK.sub("", sentence)))
        there = set().union(*(words_at(path, code) for path in paths))
        if there:  # pages and data hold no code
            names = CAMEL_CASE.findall(sentence)
            mistakes += [(number, f"{name} is not in {' or '.join(paths)}") for name in names if name not in there]
    return mistakes


def check_that_strangers_are_noticed():
    code = {"server/a.cc": "void Apply() {}", "server/a.h": "class Core {", "worker/core/b.cc": "Enqueue(Plan)"}
    page = ("`Apply` of `Core` is in `server/a.cc`. `Elsewhere` is\nno matter. `Enqueue(x)` in `server/a.h`,\n"
            "`Core::Plan` too.\n\n| `Plan` | `worker/core` |\n| `Core::Apply` | `worker/NAME.cc`, `server/{a,b}.h` |\n"
            "| `Apply` | `worker/core/b.cc` |\n\n1. `Core`\n2. `server/a.h` has no `Gone`\n\n"
            "`Page`: `docs/a.md`\n```\n`Gone` in server/a.h\n```\n")
    said = strangers(page, code)
    assert said == [(2, "Enqueue is not in server/a.h"), (2, "Plan is not in server/a.h"),
                    (7, "Apply is not in worker/core/b.cc"), (10, "Gone is not in server/a.h")], said


def bad_fences(text):
    """Marks of code with prose behind them, which no reader sees, and marks that nothing ends."""
    fences = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith("```")]
    for i, (number, line) in enumerate(fences):
        if not FENCE.fullmatch(line) or (i % 2 and line.strip() != "```"):
            yield number, f"the mark of code has more than its kind behind it: {line.strip()[:40]}"
    if len(fences) % 2:
        yield fences[-1][0], "nothing ends this code"


def check_that_bad_fences_are_noticed():
    good = "```\na\n```\n  ```json rows.jsonl\n{}\n  ```\n```console slow\n$ lora\n```\n"
    assert not list(bad_fences(good)), list(bad_fences(good))
    said = [number for number, _ in bad_fences(good + "``` Below is an\ninstruction.\n```\n```\na\n```text\n```\n")]
    assert said == [10, 15, 16], said


def long_lines(page):
    """Lines of prose beyond 100 columns; tables, code and a link alone on its line may be longer."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        link_alone = re.fullmatch(r"\W*\[[^\]]*\]\([^)]*\)\W*", line)
        if len(line) > 100 and not fenced and not line.startswith(("|", "    ")) and not link_alone:
            yield number, f"{len(line)} columns; the limit is 100"


def comment_mistakes(name, text, files):
    """Pages, files and folders that a comment or a message of the code names."""
    mistakes = []
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(?:^|\s)(?://|#(?!include)|\*)\s(.*)", line)
        if not comment:
            continue
        mistakes += [(number, f"no file is called {file}") for file in FILE.findall(comment[1])
                     if is_no_file(file, files)]
        for path in PATH.findall(comment[1]):
            if not path.startswith(MADE) and not is_there(path) and not (ROOT / name).parent.joinpath(path).exists():
                mistakes.append((number, f"there is no {path}"))
    return mistakes


def check_that_comments_are_read():
    text = ("tests/docs/names_test.py and tests/golden/qwen3 are there, server/core/NAME.h may be; "
            "tests/golden/gone is not, nor is gone.cc.")
    for mark in ("//", "x = 1  #", "  *"):
        said = comment_mistakes("tests/a.cc", f"{mark} {text}\n", {"names_test.py"})
        assert said == [(1, "no file is called gone.cc"), (1, "there is no tests/golden/gone")], said
    assert not comment_mistakes("tests/a.cc", text, set())


def main():
    check_that_strangers_are_noticed()
    check_that_comments_are_read()
    check_that_bad_fences_are_noticed()
    code = dict(code_files())
    everything = "\n".join(code.values())
    words = set(re.findall(r"\w+", everything)) | {pathlib.Path(name).stem for name in code} | FOREIGN | COMPOSED
    options = set(OPTION.findall(everything)) | {"--help", "--version"} | FOREIGN
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    files = {pathlib.Path(name).name for name in code} | {page.name for page in (ROOT / "docs").rglob("*.md")} | FOREIGN
    files |= {page.name for page in ROOT.glob("*.md")} | {page.name for page in (ROOT / "client").rglob("*.md")}
    mistakes = [(page.relative_to(ROOT), *m) for page in pages 
                for m in [*mistakes_of(page, words, options, files), *strangers(page.read_text(), code),
                          *long_lines(page), *bad_fences(page.read_text())]]
    mistakes += [(name, *m) for name, text in code.items() for m in comment_mistakes(name, text, files)]
    for page, line, what in mistakes:
        print(f"{page}:{line}: {what}")
    print(f"{len(pages)} pages, {len(code)} files of code: {len(mistakes)} mistakes")
    sys.exit(1 if mistakes else 0)


if __name__ == "__main__":
    main()
