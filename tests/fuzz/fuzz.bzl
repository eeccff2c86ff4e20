"""fuzzer(): one coverage-guided fuzzer, and a plain test that replays its corpus."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

def fuzzer(name, deps):
    """Declares what NAME_fuzzer.cc fuzzes; seeds, and what once crashed it, lie in corpus/NAME/.

    NAME_fuzzer: for tools/fuzz alone (clang).
    NAME_corpus_test: runs the same function over the corpus, under any configuration.

    Args:
      name: of the fuzzer.
      deps: what it fuzzes.
    """
    cc_library(
        name = name + "_function",
        testonly = True,
        srcs = [name + "_fuzzer.cc"],
        alwayslink = True,
        deps = deps,
    )
    cc_binary(
        name = name + "_fuzzer",
        testonly = True,
        tags = ["manual"],  # its main() is libFuzzer's
        deps = [":" + name + "_function"],
    )
    cc_test(
        name = name + "_corpus_test",
        size = "small",
        srcs = ["replay_main.cc"],
        args = ["tests/fuzz/corpus/" + name],
        data = native.glob(["corpus/" + name + "/**"]),
        deps = [":" + name + "_function"],
    )
