"""C++ rules for what needs CUDA: .cu files compiled by nvcc, and C++ files that include its headers.

Where there is no CUDA on the machine none of these targets exists.
"""

load("@local_cuda//:config.bzl", "HAVE_CUDA", "NVCC", "NVCC_VERSION")
load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

# Machine code of sm_80 for Ampere and Ada, its PTX for what comes later, and Hopper's own instructions (sm_90a).
_EVERY_DEVICE = [
    "-gencode=arch=compute_80,code=[sm_80,compute_80]",
    "-gencode=arch=compute_90a,code=sm_90a",
]
_HOPPER = ["-gencode=arch=compute_90a,code=sm_90a"]

_FLAGS = [
    "-x=cu",
    "-c",
    "-std=c++20",
    "-O3",
    "-lineinfo",
    "--expt-relaxed-constexpr",
    "--Werror=all-warnings",
    "-Xcompiler=-fPIC,-Wall,-UNDEBUG",
]

def _cuda_object_impl(context):
    compilation = [dep[CcInfo].compilation_context for dep in context.attr.deps]
    headers = depset(context.files.hdrs, transitive = [c.headers for c in compilation])
    arguments = context.actions.args()
    arguments.add_all(_FLAGS + (_HOPPER if context.attr.hopper_only else _EVERY_DEVICE) + context.attr.copts)
    arguments.add_all(["-I.", "-I" + context.genfiles_dir.path])
    for c in compilation:
        arguments.add_all(depset(transitive = [c.includes, c.system_includes]), format_each = "-isystem=%s")
        arguments.add_all(c.quote_includes, format_each = "-I=%s")
        arguments.add_all(c.defines, format_each = "-D%s")
    output = context.actions.declare_file(context.label.name + ".o")
    arguments.add("-o", output)
    arguments.add(context.file.src)
    context.actions.run(
        executable = NVCC,
        arguments = [arguments],
        inputs = depset([context.file.src], transitive = [headers]),
        outputs = [output],
        # The version is in the action's key: another compiler compiles again.
        env = {"PATH": "/usr/bin:/bin", "LORAD_NVCC_VERSION": NVCC_VERSION},
        mnemonic = "CudaCompile",
        progress_message = "Compiling " + context.file.src.short_path,
    )
    return [DefaultInfo(files = depset([output]))]

_cuda_object = rule(
    implementation = _cuda_object_impl,
    attrs = {
        "src": attr.label(allow_single_file = [".cu"], mandatory = True),
        "hdrs": attr.label_list(allow_files = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "hopper_only": attr.bool(),
    },
)

def cuda_library(name, srcs, hdrs = [], deps = [], copts = [], hopper_only = False, **kwargs):
    """A cc_library whose sources may be .cu files.

    Args:
      name: the library's name.
      srcs: .cu files (one object each), .cc files, which the host's compiler takes as usual, .h and .cuh files.
      hdrs: headers.
      deps: cc_library targets; their headers are visible to the .cu files.
      copts: flags of nvcc.
      hopper_only: compile for sm_90a alone (wgmma, TMA).
      **kwargs: visibility and the like.
    """
    if not HAVE_CUDA:
        return
    all_deps = deps + ["@local_cuda//:cudart"]
    objects = []
    for src in [s for s in srcs if s.endswith(".cu")]:
        target = src[:-3] + "_cu"
        _cuda_object(
            name = target,
            src = src,
            hdrs = hdrs + [s for s in srcs if not s.endswith(".cu") and not s.endswith(".cc")],
            deps = all_deps,
            copts = copts,
            hopper_only = hopper_only,
        )
        objects.append(":" + target)
    cc_library(
        name = name,
        srcs = objects + [s for s in srcs if s.endswith(".cc") or s.endswith(".h")],
        hdrs = hdrs,
        textual_hdrs = [s for s in srcs if s.endswith(".cuh")],
        # One copy of the CUDA runtime in a program, so no shared libraries of ours with one each.
        linkstatic = True,
        deps = all_deps,
        **kwargs
    )

def cuda_test(**kwargs):
    """A cc_test of its own that needs CUDA to be built."""
    if HAVE_CUDA:
        cc_test(linkstatic = True, **kwargs)

def cuda_binary(**kwargs):
    """A cc_binary that needs CUDA to be built."""
    if HAVE_CUDA:
        cc_binary(linkstatic = True, **kwargs)
