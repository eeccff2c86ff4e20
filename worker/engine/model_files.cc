#include "worker/engine/model_files.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::worker {
namespace {

// Hashing a model takes as long as its disk does, on both hosts.
constexpr int64_t kCompareMs = 60'000;
constexpr int64_t kCompareBytesPerMs = 50'000;

// Without slashes at its end, so that "/a" and "/a/" are one.
std::string Trimmed(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool LiesBeneath(const std::string& path, const std::string& folder) {
  return path == folder || folder == "/" || absl::StartsWith(path, folder + "/");
}

absl::Status Differs(const std::string& path, const std::string& part, const char* how) {
  return storage::WithReason(
      absl::StatusCode::kFailedPrecondition, "MODEL_DIFFERS",
      absl::StrCat("the model at ", path, " on this worker's host is not the coordinator's: ",
                   storage::Quoted(part), " ", how,
                   "; copy its files again (rsync -a --checksum), or name where they lie with "
                   "lorad-worker --model-map FROM=TO"));
}

}  // namespace

absl::StatusOr<PathMap> ParsePathMap(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || text.front() != '/' || text.size() == equals + 1 ||
      text[equals + 1] != '/') {
    return absl::InvalidArgumentError(absl::StrCat(
        "must be FROM=TO, two absolute paths like /srv/models=/data/models, got '", text, "'"));
  }
  return PathMap{Trimmed(text.substr(0, equals)), Trimmed(text.substr(equals + 1))};
}

ModelFiles::ModelFiles(std::vector<PathMap> maps) : maps_(std::move(maps)) {}

std::string ModelFiles::PathHere(const std::string& path) const {
  const PathMap* longest = nullptr;
  for (const PathMap& map : maps_) {
    if (LiesBeneath(path, map.from) &&
        (longest == nullptr || map.from.size() > longest->from.size())) {
      longest = &map;
    }
  }
  if (longest == nullptr) return path;
  const std::string rest = path.substr(longest->from == "/" ? 0 : longest->from.size());
  return longest->to == "/" ? (rest.empty() ? "/" : rest) : longest->to + rest;
}

absl::StatusOr<storage::ModelDirectory> ModelFiles::Open(const v1::FormGroup& order,
                                                         const EngineContext& context) {
  const std::string path = PathHere(order.model_path());
  absl::StatusOr<storage::ModelDirectory> here = storage::ModelDirectory::Open(path);
  if (absl::IsNotFound(here.status())) {
    return storage::WithReason(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                               absl::StrCat(std::string(here.status().message()),
                                            "; on this worker's host, where another "
                                            "path is named with lorad-worker --model-map FROM=TO"));
  }
  if (!here.ok()) return here.status();
  const std::string& registered = order.model_fingerprint();
  if (registered.empty() || registered == here->fingerprint()) return here;
  const std::pair<std::string, std::string> both = {registered, here->fingerprint()};
  if (equal_.contains(both)) return here;
  if (absl::Status status = Compare(*here, order, context); !status.ok()) return status;
  equal_.insert(both);
  return here;
}

absl::Status ModelFiles::Compare(const storage::ModelDirectory& here, const v1::FormGroup& order,
                                 const EngineContext& context) const {
  const std::vector<std::string> names = here.Parts();
  const std::set<std::string> known(names.begin(), names.end());
  size_t compared = 0;
  const auto sink = [&](const v1::ModelPart& part) {
    if (!known.contains(part.name())) return Differs(here.path(), part.name(), "is missing");
    const absl::StatusOr<std::string> sha256 = here.PartSha256(part.name());
    if (!sha256.ok()) return sha256.status();
    ++compared;
    return *sha256 == part.sha256() ? absl::OkStatus()
                                    : Differs(here.path(), part.name(), "differs");
  };
  v1::DescribeModelRequest request;
  request.set_epoch(order.epoch());
  const int64_t timeout_ms =
      kCompareMs + static_cast<int64_t>(here.weight_bytes()) / kCompareBytesPerMs;
  const absl::Status status = context.describe(request, timeout_ms, sink);
  if (!status.ok()) return status;
  return compared == names.size() ? absl::OkStatus()
                                  : Differs(here.path(), "config.json", "names more tensors");
}

}  // namespace lorad::worker
