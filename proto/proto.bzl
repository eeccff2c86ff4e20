"""Generates C++ (and gRPC) code once per set of protos, with the system's protoc."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def cc_proto(name, protos, grpc = False, deps = [], import_root = "proto", extra_inputs = [], pch = None):
    """A cc_library of the generated code of `protos` (paths below `import_root`).

    With `pch`, a precompiled header that has the code's headers: that comes with the library, and the
    code without it is NAME_code.
    """
    stems = [p[:-len(".proto")] for p in protos]
    sources = [s + ".pb.cc" for s in stems]
    headers = [s + ".pb.h" for s in stems]
    plugin = ""
    if grpc:
        sources += [s + ".grpc.pb.cc" for s in stems]
        headers += [s + ".grpc.pb.h" for s in stems]
        plugin = "--plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) --grpc_out=$(RULEDIR)"
    native.genrule(
        name = name + "_gen",
        srcs = protos + extra_inputs,
        outs = sources + headers,
        cmd = "protoc -I %s --cpp_out=$(RULEDIR) %s %s" % (
            import_root,
            plugin,
            " ".join(["%s/%s" % (import_root, p) for p in protos]),
        ),
    )
    code = name + "_code" if pch else name
    if pch:
        cc_library(
            name = name,
            deps = [
                code,
                pch,
            ],
        )
    cc_library(
        name = code,
        srcs = sources,
        hdrs = headers,
        copts = ["-w"],
        includes = ["."],
        deps = deps + (["//third_party:grpc"] if grpc else ["//third_party:protobuf"]),
    )
