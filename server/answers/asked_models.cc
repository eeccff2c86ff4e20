#include "server/answers/asked_models.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/datasets/prompt.h"

namespace lorad::server {

absl::StatusOr<std::shared_ptr<const AskedModel>> AskedModels::Get(const v1::Model& model) {
  const std::string key =
      absl::StrCat(model.path(), "\n", model.fingerprint(), "\n", model.chat_template());
  std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, key, &Kept::first);
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front().second;
  }
  absl::StatusOr<storage::ModelDirectory> directory =
      storage::ModelDirectory::OpenRegistered(model.path(), model.fingerprint());
  if (!directory.ok()) return directory.status();
  absl::StatusOr<storage::TextModel> text =
      storage::LoadTextModel(*directory, model.chat_template());
  if (!text.ok()) return text.status();
  std::vector<int32_t> ends = storage::EndTokens(*directory, *text);
  if (absl::Status same = directory->CheckUnchanged(); !same.ok()) return same;
  kept_.emplace_front(key, std::make_shared<const AskedModel>(AskedModel{
                               *std::move(directory), *std::move(text), std::move(ends)}));
  if (kept_.size() > kAskedModelsKept) kept_.pop_back();
  return kept_.front().second;
}

}  // namespace lorad::server
