#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "worker/transport/transport.h"

namespace lorad::worker {

// A shard as it will be sent: prefix (header) and data. The data lie in the slot's staging memory
// until the slot's next Save, or its end.
struct Shard {
  std::string prefix;
  std::string_view data;
  int64_t step = 0;
  int64_t bytes() const { return static_cast<int64_t>(prefix.size() + data.size()); }
};

// A formed group at work, as the core's orders see it (effects.h): one operation at a time, in the
// sequence in which they are given. Threads: one.
class GroupEngine {
 public:
  virtual ~GroupEngine() = default;

  // Of several stages: the way to the others, once, before the first window. It outlives this.
  virtual absl::Status Connect(Transport* transport) = 0;

  // Its microbatches may end in a later window: then it is kept alive here.
  virtual absl::Status BeginWindow(std::shared_ptr<const v1::Window> window) = 0;
  virtual void EndWindow() = 0;

  // False: dropped, because its job has failed, or what it was to receive was given up. An error is
  // a window that cannot be executed, or another stage that is gone, but for LoadSlot's
  // UNAVAILABLE: its content cannot be had now, and another try may follow.
  virtual absl::StatusOr<bool> Execute(const v1::Operation& operation) = 0;

  // These jobs lose what their open batches have accumulated.
  virtual void DropBatches(const std::set<std::string>& jobs) = 0;

  // The shard that the job's last Save has staged. REQUIRES: it was done, and the slot is not
  // freed.
  virtual Shard Staged(const std::string& job) const = 0;
};

// The surroundings that an engine may use while it forms and executes, on its own thread.
struct EngineContext {
  std::function<void(v1::Report)> report;
  // Of several stages: where the others reach this one, for GroupFormed.
  std::string endpoint = {};
  // Fetches the content that a slot starts from, once, within timeout_ms (Bulk::Fetch).
  std::function<absl::Status(const v1::FetchSlotContentRequest&, int64_t timeout_ms,
                             const std::function<absl::Status(std::string_view)>& sink)>
      fetch;
  // Hands what the coordinator's files of the group's model hold to the sink (Bulk::Describe).
  std::function<absl::Status(const v1::DescribeModelRequest&, int64_t timeout_ms,
                             const std::function<absl::Status(const v1::ModelPart&)>& sink)>
      describe;
};

// Makes the engines of a worker, one group after the other. Threads: one, which is theirs.
class EngineMaker {
 public:
  virtual ~EngineMaker() = default;

  // Forms a group and reports GroupFormed. An error's reason is GroupFailed's. What a group loads
  // of its model is kept for the next one, whichever way it ends; not where it is not formed.
  virtual absl::StatusOr<std::unique_ptr<GroupEngine>> Form(const v1::FormGroup& order,
                                                            const EngineContext& context) = 0;

  // Nothing is kept any more. REQUIRES: its groups have ended.
  virtual void DropWeights() = 0;
};

}  // namespace lorad::worker
