#include "server/services/model_path.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/errors/errors.h"
#include "server/services/beneath.h"

namespace lorad::server {
namespace {

namespace fs = std::filesystem;

// Resolved as it would be anywhere; then the kernel must find that very place from a root.
bool LiesBeneath(const std::vector<fs::path>& roots, const fs::path& path, fs::path* resolved) {
  std::error_code error;
  *resolved = fs::canonical(path, error);
  if (error) return false;
  return std::any_of(roots.begin(), roots.end(), [&](const fs::path& root) {
    const bool begins =
        std::mismatch(root.begin(), root.end(), resolved->begin(), resolved->end()).first ==
        root.end();
    return begins && CheckBeneath(root.string(), resolved->string()).ok();
  });
}

}  // namespace

absl::StatusOr<std::string> ResolveModelPath(const std::string& path,
                                             const std::vector<std::string>& roots) {
  const absl::Status not_there =
      Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
            absl::StrCat(
                "no model directory that this daemon may read is at ", Quotable(path, 500),
                " on its machine: the directory, and what links in it lead to, must lie beneath ",
                absl::StrJoin(roots, " or "), " (--model-root)"));
  std::error_code error;
  std::vector<fs::path> resolved_roots;
  for (const std::string& root : roots) {
    fs::path resolved_root = fs::canonical(root, error);
    if (!error) resolved_roots.push_back(std::move(resolved_root));
  }
  fs::path resolved, target;
  if (!LiesBeneath(resolved_roots, path, &resolved)) return not_there;
  fs::directory_iterator entries(resolved, error);
  if (error) return not_there;
  for (; entries != fs::directory_iterator(); entries.increment(error)) {
    if (!LiesBeneath(resolved_roots, entries->path(), &target)) return not_there;
  }
  if (!IsUtf8(resolved.string())) {
    return InvalidFields("request",
                         {{"path", absl::StrCat("leads to '", Quotable(resolved.string(), 500),
                                                "', which is not valid UTF-8")}});
  }
  return resolved.string();
}

}  // namespace lorad::server
