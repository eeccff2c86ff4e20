// The rows of datasets, as jobs would train on them: what checks have found, the checks that are
// under way, and who waits for them (jobs by name, and requests).
//
// A check is of one key: dataset, base model, chat template, length, what becomes of rows that are
// longer, what is trained on. Its result serves every job of that key.
//
// Invariants: a request waits in one place; while one waits for rows, a check is under way (each
// that ends asks all of them again). Names of jobs that wait are those of jobs that are VALIDATING
// or read their rows again; it is Core::State that holds this.
//
// It knows the Turn and the Catalog, and jobs as the messages that they are made of. Threads: the
// core's one. REQUIRES everywhere but at Concerns: the catalog has what the job names.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/core/catalog/catalog.h"
#include "server/core/events/options.h"
#include "server/core/events/turn.h"

namespace lorad::server {

class RowChecks {
 public:
  // Requests that wait until rows are checked, in the order in which they came.
  struct Waiting {
    std::vector<std::pair<uint64_t, CreateJob>> validations;
    std::vector<std::pair<uint64_t, EstimateJob>> estimates;
  };
  // An estimate that waits for a first worker.
  struct HeldEstimate {
    uint64_t request = 0;
    EstimateJob content;
    int64_t until_us = 0;
  };

  RowChecks(const CoreOptions& options, Turn& turn, const Catalog& catalog)
      : options_(options), turn_(turn), catalog_(catalog) {}
  absl::Status Load(const std::vector<std::pair<std::string, std::string>>& stored);

  // ---- what is known ----
  RowSource SourceOf(const v1::Job& job, const std::string& dataset) const;
  std::string KeyOf(const v1::Job& job, const std::string& dataset) const;
  // The keys of the rows of its datasets.
  std::vector<std::string> KeysOf(const v1::Job& job) const;
  // Whether the job would train on, or be evaluated by, rows of that key.
  bool Concerns(const v1::Job& job, const std::string& key) const;
  // Null where the rows are not checked.
  const records::RowsSummary* Find(const std::string& key) const;
  // Whether a check of its rows is under way.
  bool IsUnderWay(const v1::Job& job) const;
  // Fills in what follows from the rows. INVALID_ARGUMENT, and what a job that has failed shows of
  // it, where a row is bad. REQUIRES: all are known.
  absl::Status SumUp(records::JobRecord& record, v1::JobError* error) const;

  // ---- checks ----
  // Orders the checks that are not made yet; true where all are there.
  bool Ensure(const v1::Job& job);
  // Orders them all: the tokens of a job whose rows are known may be gone.
  void CheckAgain(const v1::Job& job);
  // The check of that key has ended: keeps what it found. Returns the jobs that waited for it.
  std::set<std::string> End(const RowsChecked& checked);
  // The job waits for no rows any more; checks that nobody waits for end.
  void Leave(const v1::Job& job);
  // Ends the checks of its rows that nobody waits for any more: whoever did has been answered.
  void EndUnwaited(const v1::Job& job);

  // Once there are too many summaries, keeps those that are waited for, by `jobs` or requests;
  // others are summed up again when asked.
  bool AreTooMany() const { return static_cast<int64_t>(rows_.size()) > options_.rows_max; }
  void Prune(const std::vector<const v1::Job*>& jobs);
  // The dataset of that content is deleted. Checks of it end, unless another one has it too.
  void Forget(const std::string& dataset_sha256);

  // ---- requests ----
  void Wait(uint64_t request, const CreateJob& content) {
    waiting_.validations.emplace_back(request, content);
  }
  void Wait(uint64_t request, const EstimateJob& content) {
    waiting_.estimates.emplace_back(request, content);
  }
  // All that wait; they are to be asked again.
  Waiting TakeWaiting() { return std::exchange(waiting_, {}); }
  // Until its wait_us is over, or a worker is there.
  void Hold(uint64_t request, const EstimateJob& content);
  // The estimates that are held no longer; all, where what they wait for is known.
  std::vector<HeldEstimate> TakeHeld(bool known);
  void On(uint64_t request, const GiveUpRequest& content);

  // OK where the invariants hold, else INTERNAL and which does not.
  absl::Status CheckInvariants() const;
  // Names of the jobs that wait for a check.
  std::set<std::string> WaitingJobs() const;

 private:
  struct UnderWay {
    std::set<std::string> jobs;  // that wait for it
    bool cancelled = false;
  };

  void Check(const std::string& key, const v1::Job& job, const std::string& dataset);
  std::string ShareOf(const v1::Job& job, const std::string& dataset) const;
  void CancelUnwaited(const std::string& key);

  const CoreOptions& options_;
  Turn& turn_;
  const Catalog& catalog_;
  std::map<std::string, records::RowsSummary> rows_;  // by key
  std::map<std::string, UnderWay> checks_;            // by key
  Waiting waiting_;
  std::vector<HeldEstimate> held_;
};

}  // namespace lorad::server
