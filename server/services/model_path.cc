#include "server/services/model_path.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

namespace fs = std::filesystem;

bool Beneath(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

absl::Status CannotRead(const std::string& path, const std::error_code& error) {
  return Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
               absl::StrCat(path, " cannot be read: ", error.message(),
                            " (a model's path is that of its directory on the daemon's machine)"));
}

}  // namespace

absl::StatusOr<std::string> ResolveModelPath(const std::string& path,
                                             const std::vector<std::string>& roots) {
  std::error_code error;
  const fs::path resolved = fs::canonical(path, error);
  if (error) return CannotRead(path, error);
  std::vector<fs::path> resolved_roots;
  for (const std::string& root : roots) {
    fs::path resolved_root = fs::canonical(root, error);
    if (!error) resolved_roots.push_back(std::move(resolved_root));
  }
  const auto allowed = [&](const fs::path& place) {
    return std::any_of(resolved_roots.begin(), resolved_roots.end(),
                       [&](const fs::path& root) { return Beneath(place, root); });
  };
  const auto outside = [&](const std::string& what) {
    return Error(absl::StatusCode::kPermissionDenied, "OUTSIDE_MODEL_ROOT",
                 absl::StrCat(what, " does not lie beneath ", absl::StrJoin(roots, " or "),
                              ": move the model there, or start the daemon with --model-root"));
  };
  if (!allowed(resolved)) return outside(path);

  fs::directory_iterator entries(resolved, error);
  if (error) return CannotRead(path, error);
  for (; entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path target = fs::canonical(entries->path(), error);
    if (error) return CannotRead(entries->path().string(), error);
    if (!allowed(target))
      return outside(absl::StrCat(entries->path().string(), " -> ", target.string()));
  }
  return resolved.string();
}

}  // namespace lorad::server
