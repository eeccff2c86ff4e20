#pragma once

#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <future>

#include "absl/status/status.h"
#include "client/calls/session.h"

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

// Calls `each` with every page; the next one is on its way meanwhile.
template <typename Stub, typename Request, typename Response, typename Each>
absl::Status ForEachPage(Session& session, Method<Stub, Request, Response> method, Request request,
                         const Each& each) {
  request.set_page_size(1000);
  Response page;
  absl::Status status = Call(session, method, request, page);
  while (status.ok() && !page.next_page_token().empty()) {
    request.set_page_token(page.next_page_token());
    Response next;
    auto fetch =
        std::async(std::launch::async, [&] { return Call(session, method, request, next); });
    each(page);
    status = fetch.get();
    page.Swap(&next);
  }
  if (status.ok()) each(page);
  return status;
}

}  // namespace lorad::client
