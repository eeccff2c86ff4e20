"""Tests that pass when a site's histories notice a defect that was put in."""

load("@rules_cc//cc:defs.bzl", "cc_test")

def mutation_test(name, source, deps, args = []):
    """A program with NAME.mutation applied to one source file; passes if some seed notices.

    Args:
      name: of the test; NAME.mutation lies beside.
      source: the .cc that is mutated. The library that has it is linked in as a shared one, and the
        program's own definitions go before those.
      deps: libraries that compile that source.
      args: of the runner.
    """
    native.genrule(
        name = name + "_source",
        testonly = True,
        srcs = [name + ".mutation", source],
        outs = [name + "_mutant.cc"],
        cmd = "python3 $(location apply.py) $(SRCS) > $@",
        tools = ["apply.py"],
    )
    cc_test(
        name = name,
        size = "medium",
        srcs = [name + "_mutant.cc"],
        args = args,
        tags = ["manual"],
        copts = ["-w"],
        deps = deps + [
            ":runner",
            "//third_party/pch:messages",
        ],
    )
