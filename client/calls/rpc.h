#pragma once

#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <future>
#include <memory>

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

// A response whose thousands of messages and strings come and go with one piece of memory.
template <typename Response>
struct Page {
  google::protobuf::Arena arena{[] {
    google::protobuf::ArenaOptions options;
    options.start_block_size = options.max_block_size = 1 << 20;
    return options;
  }()};
  Response& response = *google::protobuf::Arena::CreateMessage<Response>(&arena);
};

// Calls `each` with every page; the next one is on its way meanwhile.
template <typename Stub, typename Request, typename Response, typename Each>
absl::Status ForEachPage(Session& session, Method<Stub, Request, Response> method, Request request,
                         const Each& each) {
  request.set_page_size(1000);
  auto page = std::make_unique<Page<Response>>();
  absl::Status status = Call(session, method, request, page->response);
  while (status.ok() && !page->response.next_page_token().empty()) {
    request.set_page_token(page->response.next_page_token());
    auto next = std::make_unique<Page<Response>>();
    auto fetch = std::async(std::launch::async,
                            [&] { return Call(session, method, request, next->response); });
    each(page->response);
    status = fetch.get();
    page = std::move(next);
  }
  if (status.ok()) each(page->response);
  return status;
}

}  // namespace lorad::client
