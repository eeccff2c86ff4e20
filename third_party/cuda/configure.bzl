"""Finds CUDA on the machine and makes @local_cuda of it: headers, libraries, and HAVE_CUDA for the macros.

Detection can be forced: --config=cuda (it must be there), --config=no-cuda (as if it were not).
"""

_FOLDERS = ["/usr/local/cuda", "/usr/lib/nvidia-cuda-toolkit", "/opt/cuda"]

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# What C++ files include, by -isystem so that it raises no warnings here. nvcc finds its own.
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**", "include/nv/**"]),
    includes = ["include"],
)

cc_library(
    name = "cudart",
    linkopts = ["{lib}/libcudart_static.a", "-ldl", "-lrt", "-pthread"],
    deps = [":headers"],
)

# Dynamic: half a gigabyte. Found at run time next to the toolkit, or where the loader looks.
cc_library(
    name = "cublaslt",
    linkopts = ["-L{lib}", "-Wl,-rpath,{lib}", "-lcublasLt"],
    deps = [":cudart"],
)

# cudnn-frontend's headers refer to NVRTC as well.
cc_library(
    name = "cudnn",
    linkopts = ["-L{lib}", "-Wl,-rpath,{lib}", "-lcudnn", "-lnvrtc"],
    deps = [":cudart"],
)
"""

_EMPTY_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

[cc_library(name = name) for name in ["headers", "cudart", "cublaslt", "cudnn"]]
"""

def _find(context):
    for folder in _FOLDERS:
        if context.path(folder + "/bin/nvcc").exists:
            return folder
    return None

def _cuda_configure_impl(context):
    wanted = context.os.environ.get("LORAD_BUILD_CUDA", "detect")
    if wanted not in ["detect", "on", "off"]:
        fail("LORAD_BUILD_CUDA is detect, on or off, not " + wanted)
    folder = None if wanted == "off" else _find(context)
    if folder == None:
        if wanted == "on":
            fail("CUDA was asked for (--config=cuda), but none of these has bin/nvcc: " + ", ".join(_FOLDERS))
        context.file("BUILD.bazel", _EMPTY_BUILD)
        context.file("config.bzl", "HAVE_CUDA = False\nNVCC = \"\"\nNVCC_VERSION = \"\"\n")
        return
    version = context.execute([folder + "/bin/nvcc", "--version"]).stdout.strip().split("\n")[-1]
    lib = folder + ("/lib64" if context.path(folder + "/lib64").exists else "/lib")
    context.symlink(folder + "/include", "include")
    context.file("BUILD.bazel", _BUILD.replace("{lib}", lib))
    context.file("config.bzl", "HAVE_CUDA = True\nNVCC = \"%s/bin/nvcc\"\nNVCC_VERSION = \"%s\"\n" % (folder, version))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["LORAD_BUILD_CUDA"],
    local = True,
)
