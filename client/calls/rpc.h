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

// A response whose thousands of messages and strings come and go with one piece of memory, which the
// next one takes over: fresh memory would cost as much as reading it.
template <typename Response>
class Page {
 public:
  Response& Fresh() {
    arena_.Reset();
    response_ = google::protobuf::Arena::CreateMessage<Response>(&arena_);
    return *response_;
  }
  const Response& response() const { return *response_; }

 private:
  static constexpr std::size_t kBytes = 2 << 20;
  google::protobuf::ArenaOptions Options() const {
    google::protobuf::ArenaOptions options;
    options.initial_block = memory_.get();
    options.initial_block_size = kBytes;
    options.max_block_size = kBytes;
    return options;
  }

  const std::unique_ptr<char[]> memory_ = std::make_unique_for_overwrite<char[]>(kBytes);
  google::protobuf::Arena arena_{Options()};
  Response* response_ = nullptr;
};

// Calls `each` with every page; the next one is on its way meanwhile.
template <typename Stub, typename Request, typename Response, typename Each>
absl::Status ForEachPage(Session& session, Method<Stub, Request, Response> method, Request request,
                         const Each& each) {
  request.set_page_size(1000);
  Page<Response> pages[2];
  Page<Response>*page = &pages[0], *next = &pages[1];
  absl::Status status = Call(session, method, request, page->Fresh());
  while (status.ok() && !page->response().next_page_token().empty()) {
    request.set_page_token(page->response().next_page_token());
    auto fetch = std::async(std::launch::async,
                            [&] { return Call(session, method, request, next->Fresh()); });
    each(page->response());
    status = fetch.get();
    std::swap(page, next);
  }
  if (status.ok()) each(page->response());
  return status;
}

}  // namespace lorad::client
