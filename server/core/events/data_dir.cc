#include "server/core/events/data_dir.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::server {
namespace {

struct Scheme {
  SlotContent::Kind kind;
  std::string_view prefix;
};

constexpr std::array<Scheme, 3> kSchemes = {{
    {SlotContent::Kind::kCheckpoint, "checkpoint:"},
    {SlotContent::Kind::kCheckpointWeights, "weights:"},
    {SlotContent::Kind::kAdapter, "adapter:"},
}};

}  // namespace

DataDir::DataDir(std::string root) : root_(std::move(root)) {}

std::string DataDir::Full(std::string_view path) const {
  return absl::StrCat(root_, "/", storage::Absl(path));
}

std::string DataDir::NewUpload() const {
  return absl::StrCat(root_, "/uploads/", getpid(), "-", uploads_.fetch_add(1));
}

std::string ToText(const SlotContent& content) {
  for (const Scheme& scheme : kSchemes) {
    if (scheme.kind == content.kind) return std::string(scheme.prefix) + content.path;
  }
  return "";
}

absl::StatusOr<SlotContent> ParseSlotContent(std::string_view text) {
  for (const Scheme& scheme : kSchemes) {
    if (text.starts_with(scheme.prefix) && text.size() > scheme.prefix.size()) {
      return SlotContent{scheme.kind, std::string(text.substr(scheme.prefix.size()))};
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", std::string(text), "' is no slot content: expected checkpoint:, weights: or adapter:"));
}

}  // namespace lorad::server
