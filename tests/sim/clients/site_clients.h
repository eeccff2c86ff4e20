// Clients of a site: each goes through a list of requests, and asks again under the same
// request_id until it is told; or vanishes at any moment.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/site.h"

namespace lorad::sim {

// By kind of resource: what was acknowledged and nobody has asked to be deleted; and jobs that
// somebody has asked to be cancelled.
using Census = std::map<std::string, std::set<std::string>>;
inline constexpr char kCancelled[] = "cancelled job";
inline constexpr int64_t kAgainUs = 100'000;  // before a client asks again
// Who is refused in a story of its own (SiteClient) asks again after a pause that doubles up to
// this, as callers of gRPC do.
inline constexpr int64_t kAgainAtMostUs = 3'200'000;

// ---- what clients ask for ----

// By kind: "model", "dataset" or "adapter". An upload is written now, which may fail.
absl::StatusOr<server::Request> CreateOf(Site& site, const std::string& kind,
                                         const std::string& name);
server::Request GetOf(const std::string& kind, const std::string& name);
server::Request DeleteOf(const std::string& kind, const std::string& name);

template <class Request>
Request Named(const std::string& name) {
  Request request;
  request.set_name(name);
  return request;
}

// The steps of those that a job has.
std::vector<int64_t> CheckpointsOf(Site& site, const std::string& job);

// ---- clients ----

class Client {
 public:
  explicit Client(Site& site) : site_(site) {}
  virtual ~Client() = default;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void Begin() { Go(); }
  // It has all that it asked for, or is not there any more.
  bool ended() const { return vanished_ || next_ == steps_.size(); }
  // Asks twice at once from here on, and hears what comes first.
  void AskTwice() { asks_twice_ = true; }
  // What it is told from here on, nobody hears.
  void Vanish() { vanished_ = true; }

 protected:
  // An error: it cannot be asked now.
  using Make = std::function<absl::StatusOr<server::Request>()>;
  // Of an answer that is no failure that passes. False: the step is to be tried again.
  using Told = std::function<bool(const absl::StatusOr<server::ReplyValue>&)>;
  void Then(Make make, Told told) { steps_.push_back({std::move(make), std::move(told)}); }
  // Whether to ask again after that answer.
  bool Passes(const absl::Status& status) const;

  Site& site_;

 private:
  struct Step {
    Make make;
    Told told;
  };
  void Go();
  bool Ask();
  void Refused();

  std::vector<Step> steps_;
  size_t next_ = 0;
  int64_t asked_ = 0;
  int64_t pause_us_ = kAgainUs;  // after the next refusal
  bool asks_twice_ = false;
  bool vanished_ = false;
};

// Creates a model, dataset or adapter, gets it, deletes it; then the create again.
class ResourceClient final : public Client {
 public:
  ResourceClient(Site& site, Census& census, const std::string& kind, const std::string& name);

 private:
  Census& census_;
  const std::string kind_;
  const std::string name_;
  std::string made_;  // what the first create was answered, serialized
};

// Asks for estimates, for what a job would be, and for a look at the cluster.
class CuriousClient final : public Client {
 public:
  CuriousClient(Site& site, const v1::Job& job);
};

// Goes through all pages of a list: what is there all the time, it sees once.
class ListClient final : public Client {
 public:
  ListClient(Site& site, const Census& census, const std::string& kind, int page_size);

 private:
  bool TakePage(const server::ReplyValue& value);

  const Census& census_;
  const std::string kind_;
  std::string token_;
  std::set<std::string> before_, seen_;
};

// Reads the events, metrics and checkpoints of a job page by page, as the daemon does for its
// clients: straight from the store. What is there is in order and without gap.
void ReadJob(Site& site, const std::string& job);

}  // namespace lorad::sim
