"""The API, package lorad.v1: messages (NAME_pb2) and stubs (NAME_pb2_grpc) as protoc makes them of proto/lorad/v1."""
