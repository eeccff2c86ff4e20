#include "server/calls/worker_epochs.h"

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

namespace wire = worker::v1;

absl::Status NotAsked(int64_t epoch, const std::string& what) {
  return PreconditionFailed(
      "NOT_A_WORKERS_GROUP", absl::StrCat("epoch ", epoch),
      absl::StrCat("no worker that is connected was told to ", what, " under epoch ", epoch));
}

}  // namespace

void WorkerEpochs::Ordered(const void* stream, const std::string& worker,
                           const wire::CoordinatorMessage& order) {
  std::lock_guard lock(mutex_);
  if (order.has_form_group()) {
    Group& group = groups_[{order.form_group().epoch(), stream}];
    group.worker = worker;
    group.order = order.form_group();
  } else if (order.has_welcome()) {
    const wire::Welcome& welcome = order.welcome();
    if (!welcome.adopted()) return;
    Group& group = groups_[{welcome.group().epoch(), stream}];
    group.worker = worker;
    group.order = welcome.group();
    for (const wire::Welcome::Load& load : welcome.loads()) {
      group.contents[load.job()] = load.content();
    }
    for (const wire::Welcome::Save& save : welcome.saves()) group.saves[save.job()] = save.step();
  } else if (order.has_dissolve_group()) {
    groups_.erase({order.dissolve_group().epoch(), stream});
  } else if (order.has_window()) {
    const auto group = groups_.find({order.window().epoch(), stream});
    if (group == groups_.end()) return;
    for (const wire::Operation& operation : order.window().operations()) {
      if (operation.kind() == wire::Operation::LOAD_SLOT) {
        group->second.contents[operation.job()] = operation.content();
      } else if (operation.kind() == wire::Operation::FREE_SLOT) {
        group->second.contents.erase(operation.job());
      } else if (operation.kind() == wire::Operation::SAVE) {
        group->second.saves[operation.job()] = operation.step();
      }
    }
  }
}

void WorkerEpochs::Disconnected(const void* stream) {
  std::lock_guard lock(mutex_);
  std::erase_if(groups_, [&](const auto& entry) { return entry.first.second == stream; });
}

const WorkerEpochs::Group* WorkerEpochs::Find(
    int64_t epoch, const std::string& caller,
    const std::function<bool(const Group&)>& asked) const {
  for (auto at = groups_.lower_bound({epoch, nullptr});
       at != groups_.end() && at->first.first == epoch; ++at) {
    const Group& group = at->second;
    if ((caller.empty() || caller == group.worker) && asked(group)) return &group;
  }
  return nullptr;
}

absl::Status WorkerEpochs::CheckUpload(const wire::UploadShardRequest::Header& header,
                                       const std::string& caller) const {
  std::lock_guard lock(mutex_);
  const auto asked = [&header](const Group& group) {
    const auto save = group.saves.find(header.job());
    return save != group.saves.end() && header.step() <= save->second;
  };
  if (Find(header.epoch(), caller, asked) != nullptr) return absl::OkStatus();
  return NotAsked(header.epoch(), absl::StrCat("save '", Quotable(header.job(), 100), "'"));
}

absl::Status WorkerEpochs::CheckFetch(const wire::FetchSlotContentRequest& request,
                                      const std::string& caller) const {
  std::lock_guard lock(mutex_);
  const auto asked = [&request](const Group& group) {
    const auto content = group.contents.find(request.job());
    return content != group.contents.end() && content->second == request.content();
  };
  if (Find(request.epoch(), caller, asked) != nullptr) return absl::OkStatus();
  return NotAsked(request.epoch(), absl::StrCat("load '", Quotable(request.job(), 100), "' from '",
                                                Quotable(request.content(), 100), "'"));
}

absl::StatusOr<wire::FormGroup> WorkerEpochs::FormedBy(int64_t epoch,
                                                       const std::string& caller) const {
  std::lock_guard lock(mutex_);
  const auto any = [](const Group&) { return true; };
  if (const Group* group = Find(epoch, caller, any)) return group->order;
  return NotAsked(epoch, "form a group");
}

}  // namespace lorad::server
