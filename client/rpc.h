#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "client/session.h"

// The two shapes of almost every command: one call, and a list read page by page.

namespace lorad::client {

template <typename Stub, typename Request, typename Response>
using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

template <typename Stub, typename Request, typename Response>
absl::Status Call(Session& session, Method<Stub, Request, Response> method, const Request& request,
                  Response& response, int seconds = kAnswerSeconds) {
  Stub stub(session.channel());
  grpc::ClientContext context;
  SetDeadline(context, seconds);
  return session.FromRpc((stub.*method)(&context, request, &response));
}

// Calls `each` with every page.
template <typename Stub, typename Request, typename Response, typename Each>
absl::Status ForEachPage(Session& session, Method<Stub, Request, Response> method, Request request,
                         const Each& each) {
  request.set_page_size(1000);
  do {
    Response response;
    const absl::Status status = Call(session, method, request, response);
    if (!status.ok()) return status;
    each(response);
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

}  // namespace lorad::client
