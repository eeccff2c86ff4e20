// The files of a group's model on this host, which may be another than the coordinator's.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "storage/models/model_directory.h"
#include "worker/engine/group_engine.h"

namespace lorad::worker {

// What lies beneath `from` at the coordinator lies beneath `to` here.
struct PathMap {
  std::string from;
  std::string to;
  bool operator==(const PathMap&) const = default;
};

// "FROM=TO", both absolute. INVALID_ARGUMENT.
absl::StatusOr<PathMap> ParsePathMap(const std::string& text);

// Threads: one at a time.
class ModelFiles {
 public:
  // Of several maps the one with the longest `from` counts; without one a path is the same here.
  explicit ModelFiles(std::vector<PathMap> maps = {});
  virtual ~ModelFiles() = default;

  std::string PathHere(const std::string& path) const;

  // Opens the model that `order` names. Where its fingerprint, which has times of files, is not the
  // registered one, what the files hold is compared with the coordinator's, part by part, once a
  // process. NOT_FOUND (MODEL_NOT_FOUND) and others of ModelDirectory::Open; FAILED_PRECONDITION:
  // MODEL_DIFFERS, the files here hold something else, with the first part that does;
  // MODEL_CHANGED, those of the coordinator are not the registered ones.
  virtual absl::StatusOr<storage::ModelDirectory> Open(const v1::FormGroup& order,
                                                       const EngineContext& context);

 private:
  absl::Status Compare(const storage::ModelDirectory& here, const v1::FormGroup& order,
                       const EngineContext& context) const;

  const std::vector<PathMap> maps_;
  std::set<std::pair<std::string, std::string>> equal_;  // fingerprints: registered, here
};

}  // namespace lorad::worker
