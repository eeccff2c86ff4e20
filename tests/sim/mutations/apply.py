"""Writes a source file with one mutation: apply.py MUTATION SOURCE > MUTANT.

A mutation is a text file:

    What breaks, in a sentence or a few.
    ---- was
    text that is in SOURCE exactly once
    ---- is
    what takes its place; MUTATED somewhere in it tells the runner that it was reached

More pairs may follow. MUTATED is an expression, true.
"""
import sys


def pairs_of(mutation: str) -> list[tuple[str, str]]:
    parts = ("\n" + mutation).split("\n---- was\n")
    if len(parts) < 2:
        sys.exit("it needs a line '---- was'")
    pairs = []
    for part in parts[1:]:
        was, sep, becomes = part.partition("\n---- is\n")
        if not sep:
            sys.exit("after '---- was' it needs a line '---- is'")
        pairs.append((was.rstrip("\n"), becomes.rstrip("\n")))
    if not any("MUTATED" in becomes for _, becomes in pairs):
        sys.exit("nothing tells when it is reached: put MUTATED into the new text")
    return pairs


def main() -> None:
    mutation_path, source_path = sys.argv[1:]
    with open(mutation_path, encoding="utf-8") as file:
        pairs = pairs_of(file.read())
    with open(source_path, encoding="utf-8") as file:
        text = file.read()
    for was, becomes in pairs:
        found = text.count(was)
        if found != 1:
            sys.exit(f"{mutation_path}: {source_path} holds {found} times, not once:\n{was}")
        text = text.replace(was, becomes)
    print("namespace lorad::sim { bool ReachMutation(); }")
    print("#define MUTATED (::lorad::sim::ReachMutation())")
    print(f'#line 1 "{source_path}"')
    print(text, end="")


main()
