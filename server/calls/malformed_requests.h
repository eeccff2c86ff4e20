// Requests that are no message of their method's type.
#pragma once

#include <memory>

#include "grpcpp/support/server_interceptor.h"

namespace lorad::server {

// gRPC answers such a request itself, as if there were no such method and without a word. With
// this, a call with one request is answered INVALID_ARGUMENT (REQUEST_MALFORMED). A stream of
// requests just ends there, which each stream answers in its own words.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> AnswerMalformedRequests();

}  // namespace lorad::server
