#include "server/core/core.h"

#include <utility>

#include "server/core/state.h"

namespace lorad::server {

Core::Core(std::unique_ptr<State> state) : state_(std::move(state)) {}
Core::~Core() = default;

absl::StatusOr<std::unique_ptr<Core>> Core::Create(const CoreOptions& options, StoredState stored,
                                                   Moment now, std::vector<Effect>* effects) {
  auto state = std::make_unique<State>(options);
  const int64_t starts_before = stored.starts;
  if (absl::Status status = state->Load(std::move(stored)); !status.ok()) return status;
  *effects = state->Recover(now, starts_before);
  return std::unique_ptr<Core>(new Core(std::move(state)));
}

std::vector<Effect> Core::Apply(const Event& event) { return state_->Apply(event); }

std::optional<ReplyValue> Core::Look(const Request& request, const absl::Status& unwritable) {
  return state_->Look(request, unwritable);
}

CoreSizes Core::SizesNow() const { return state_->SizesNow(); }

absl::Status Core::CheckInvariants() const { return state_->CheckInvariants(); }

std::vector<std::string> Core::PathsInUse() const { return state_->PathsInUse(); }
std::vector<std::string> Core::SettledFolders() const { return state_->SettledFolders(); }

}  // namespace lorad::server
