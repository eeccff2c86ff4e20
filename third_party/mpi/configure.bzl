"""Finds Debian's Open MPI and makes @local_mpi of it: headers, the library, and HAVE_MPI.

What Debian's package lacks on a machine is left out there: nothing is fetched.
"""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# By -isystem, so that it raises no warnings here.
cc_library(
    name = "mpi",
    hdrs = glob(["include/**/*.h"]),
    defines = ["OMPI_SKIP_MPICXX"],
    includes = ["include"],
    linkopts = ["-L{lib}", "-lmpi"],
)
"""

_EMPTY_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(name = "mpi")
"""

def _find(context):
    for machine in ["x86_64", "aarch64"]:
        folder = "/usr/lib/%s-linux-gnu/openmpi" % machine
        if context.path(folder + "/include/mpi.h").exists:
            return folder
    return None

def _mpi_configure_impl(context):
    folder = _find(context)
    if folder != None:
        context.symlink(folder + "/include", "include")
    build = _EMPTY_BUILD if folder == None else _BUILD.replace("{lib}", folder + "/lib")
    context.file("BUILD.bazel", build)
    context.file("config.bzl", "HAVE_MPI = %s\n" % (folder != None))

mpi_configure = repository_rule(
    implementation = _mpi_configure_impl,
    local = True,
)
