// Catalog: the base models, datasets and adapters that jobs refer to by name; the uploads that
// become datasets and adapters, and the names that these will have.
//
// Invariants: a record is found by its own name; a name that is being made is that of one upload
// under way and of nothing that is there; every upload under way has somebody who waits for it. A
// path is never used twice, also where the wall's clock goes back, so a removal that is still under
// way cannot hit what came after it.
//
// It knows the Turn and the kept Answers, and nothing of jobs: the caller says whether one uses a
// name. Threads: the core's one. Errors: those of the API, as Status; a name that REQUIRES to be
// known and is not is our own bug.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/memory.h"
#include "server/core/catalog/answers.h"
#include "server/core/events/options.h"
#include "server/core/events/stored_state.h"
#include "server/core/events/turn.h"

namespace lorad::server {

struct ModelState {
  records::ModelRecord record;
  std::shared_ptr<const planner::ModelShape> shape;
  // The template that it was registered with, shared with all that reads its rows; null: none.
  std::shared_ptr<const std::string> chat_template;
};

class Catalog {
 public:
  Catalog(Turn& turn, Answers& answers) : turn_(turn), answers_(answers) {}
  absl::Status Load(const StoredState& stored);

  // ---- what is there ----
  bool HasModel(const std::string& name) const { return models_.contains(name); }
  bool HasDataset(const std::string& name) const { return datasets_.contains(name); }
  bool HasAdapter(const std::string& name) const { return adapters_.contains(name); }
  // REQUIRES: it is there.
  const ModelState& Model(const std::string& name) const { return models_.at(name); }
  const std::map<std::string, ModelState>& models() const { return models_; }
  const records::DatasetRecord& Dataset(const std::string& name) const {
    return datasets_.at(name);
  }
  const records::AdapterRecord& Adapter(const std::string& name) const {
    return adapters_.at(name);
  }
  // As Get answers it, by the kind of the record (store_kinds.h).
  absl::StatusOr<ReplyValue> Find(const std::string& kind, const std::string& name) const;
  // The places of datasets and adapters, below the data directory.
  std::vector<std::string> Paths() const;

  // ---- requests; each ends in its answer, those with an upload once it is moved ----
  void On(uint64_t request, const RegisterModel& content);
  void On(uint64_t request, const v1::GetModelRequest& content);
  void On(uint64_t request, const v1::ListModelsRequest& content);
  void On(uint64_t request, const v1::UpdateModelRequest& content);
  void On(uint64_t request, const CreateDataset& content);
  void On(uint64_t request, const v1::GetDatasetRequest& content);
  void On(uint64_t request, const v1::ListDatasetsRequest& content);
  void On(uint64_t request, const ImportAdapter& content);
  void On(uint64_t request, const v1::GetAdapterRequest& content);
  void On(uint64_t request, const v1::ListAdaptersRequest& content);
  void OnMoved(const UploadMoved& moved);

  // Whether it may be deleted, where the job `user` uses it (empty: none does). NOT_FOUND, or
  // FAILED_PRECONDITION (IN_USE).
  absl::Status CheckDelete(const std::string& kind, const std::string& name,
                           const std::string& user) const;
  // REQUIRES: CheckDelete is OK.
  void Delete(const std::string& kind, const std::string& name);

  // OK where the invariants hold, else INTERNAL and which does not.
  absl::Status CheckInvariants() const;

 private:
  struct Move {
    std::vector<uint64_t> requests;
    std::string path;
    std::variant<CreateDataset, ImportAdapter> content;
  };

  bool Has(const std::string& kind, const std::string& name) const;
  void Get(uint64_t request, const char* kind, const std::string& name);
  template <class Content>
  bool AnsweredBefore(uint64_t request, const char* kind, const Content& content);
  template <class Content>
  void MoveIntoPlace(uint64_t request, const char* kind, const std::string& name,
                     const Content& content, const char* ending);

  Turn& turn_;
  Answers& answers_;
  std::map<std::string, ModelState> models_;
  std::map<std::string, records::DatasetRecord> datasets_;
  std::map<std::string, records::AdapterRecord> adapters_;
  std::map<uint64_t, Move> moves_;                               // under way, by number
  std::set<std::pair<std::string, std::string>> names_pending_;  // (kind, name) being made
};

}  // namespace lorad::server
