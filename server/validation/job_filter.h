// The filter of ListJobs: terms joined by AND, each FIELD = VALUE or FIELD != VALUE.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::server {

// A parsed filter; matches every job when it has no terms.
class JobFilter {
 public:
  struct Term {
    std::string
        field;  // state, base_model, training_dataset, validation_dataset, display_name, labels.KEY
    bool equal = true;
    std::string value;

    bool operator==(const Term&) const = default;
  };

  JobFilter() = default;

  // Values are bare words or stand in double quotes (with \" and \\). INVALID_ARGUMENT
  // (INVALID_FIELDS, field "filter") says the column, and what may stand there.
  static absl::StatusOr<JobFilter> Parse(const std::string& text);

  // False where the terms about the state alone say that no job in this state matches.
  bool MayMatch(v1::Job::State state) const;

  // A job without the label KEY has the value "" for it.
  bool Matches(const v1::Job& job) const;

  const std::vector<Term>& terms() const { return terms_; }

 private:
  std::vector<Term> terms_;
};

}  // namespace lorad::server
