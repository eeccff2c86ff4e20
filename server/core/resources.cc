// Models, datasets and adapters that go: this concerns jobs, rows and groups besides the catalog.
#include "absl/strings/str_cat.h"
#include "server/core/state.h"

namespace lorad::server {

std::string Core::State::UserOf(const std::string& kind, const std::string& name) const {
  return jobs_.FirstLive([&](const JobState& live) {
    const v1::Job& job = live.job();
    const bool uses = kind == kModelKind ? job.base_model() == name
                      : kind == kDatasetKind
                          ? job.training_dataset() == name || job.validation_dataset() == name
                          : job.adapter().init_from() == name;
    return uses;
  });
}

void Core::State::On(uint64_t request, const v1::UnregisterModelRequest& content) {
  const std::string& name = content.name();
  if (absl::Status status = catalog_.CheckDelete(kModelKind, name, UserOf(kModelKind, name));
      !status.ok()) {
    return turn_.Fail(request, status);
  }
  EndGenerations([&](const GuestContent& of) { return of.base_model == name; },
                 absl::StrCat("model '", name, "' was unregistered"));
  // A group without jobs may still hold its weights.
  for (const std::string& group_name : groups_.names()) {
    GroupState& group = *groups_.Find(group_name);
    if (group.base_model == name) Dissolve(group, "its base model was unregistered");
  }
  catalog_.Delete(kModelKind, name);
  cluster_.fits().Forget(name);
  turn_.Answer(request, std::monostate());
}

void Core::State::On(uint64_t request, const v1::DeleteDatasetRequest& content) {
  const std::string& name = content.name();
  if (absl::Status status = catalog_.CheckDelete(kDatasetKind, name, UserOf(kDatasetKind, name));
      !status.ok()) {
    return turn_.Fail(request, status);
  }
  const std::string sha256 = catalog_.Dataset(name).dataset().sha256();
  catalog_.Delete(kDatasetKind, name);
  rows_.Forget(sha256);
  turn_.Answer(request, std::monostate());
}

void Core::State::On(uint64_t request, const v1::DeleteAdapterRequest& content) {
  const std::string& name = content.name();
  if (absl::Status status = catalog_.CheckDelete(kAdapterKind, name, UserOf(kAdapterKind, name));
      !status.ok()) {
    return turn_.Fail(request, status);
  }
  EndGenerations([&](const GuestContent& of) { return of.adapter == name; },
                 absl::StrCat("adapter '", name, "' was deleted"));
  catalog_.Delete(kAdapterKind, name);
  turn_.Answer(request, std::monostate());
}

}  // namespace lorad::server
