#include "server/core/job_progress.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace lorad::server {
namespace {

// Without the etag, which is the revision as text.
const std::vector<const google::protobuf::FieldDescriptor*>& ProgressFields() {
  static const auto* const fields = [] {
    auto* found = new std::vector<const google::protobuf::FieldDescriptor*>;
    for (const int number :
         {v1::Job::kRevisionFieldNumber, v1::Job::kStepFieldNumber, v1::Job::kEpochFieldNumber,
          v1::Job::kTokensFieldNumber, v1::Job::kTokensPerSecondFieldNumber,
          v1::Job::kLossFieldNumber, v1::Job::kLearningRateFieldNumber,
          v1::Job::kGradNormFieldNumber, v1::Job::kSecondsLeftFieldNumber,
          v1::Job::kPackedWithFieldNumber, v1::Job::kAdaptersPerMicrobatchFieldNumber}) {
      found->push_back(v1::Job::descriptor()->FindFieldByNumber(number));
    }
    return found;
  }();
  return *fields;
}

}  // namespace

v1::Job ProgressOf(const v1::Job& job) {
  v1::Job whole = job;
  v1::Job progress;
  progress.set_name(job.name());
  progress.GetReflection()->SwapFields(&whole, &progress, ProgressFields());
  return progress;
}

void SetProgress(v1::Job progress, v1::Job* job) {
  job->GetReflection()->SwapFields(&progress, job, ProgressFields());
  job->set_etag(absl::StrCat(job->revision()));
}

}  // namespace lorad::server
