"""Precompiled headers: what many files include is read once, not by each of them."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    header = ctx.actions.declare_file(ctx.label.name + ".pch.h")
    compiled = ctx.actions.declare_file(ctx.label.name + ".pch.h.gch")
    ctx.actions.write(header, "".join(["#include <%s>\n" % i for i in ctx.attr.includes]))

    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    needs = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    context = needs.compilation_context
    cpp = ctx.fragments.cpp
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = compiled.path,
        user_compile_flags = cpp.copts + cpp.cxxopts + ctx.attr.copts,
        include_directories = context.includes,
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
        use_pic = True,
    )
    flags = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = ["-x", "c++-header"] + flags,
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset([header], transitive = [context.headers, toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % header.short_path,
    )
    own = CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset([header, compiled]),
    ))
    return [
        DefaultInfo(files = depset([header, compiled])),
        cc_common.merge_cc_infos(cc_infos = [own, needs]),
    ]

# NAME.pch.h, and beside it what gcc takes instead when a file begins with it. Which files do is
# said in .bazelrc, by their paths ("-include"); there the same flags are given as copts here.
precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(doc = "as those of the files that begin with it"),
        "deps": attr.label_list(providers = [CcInfo], doc = "whose headers are included"),
        "includes": attr.string_list(mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    incompatible_use_toolchain_transition = True,
)
