#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "lorad/v1/jobs.pb.h"

namespace lorad::client {

// Succeeded, failed or cancelled: nothing follows.
bool IsDone(lorad::v1::Job::State state);

// A job's progress as one line of text, without colours: "job-a1  RUNNING  step 12/100  loss 1.4018
// 212 tokens/s  1m 05s left".
std::string ProgressLine(const lorad::v1::Job& job);

// The same as a bar that fits in `columns` characters.
std::string ProgressBar(const lorad::v1::Job& job, int columns);

// Shows jobs while they change. On a terminal every job has a line that is drawn again; elsewhere a
// line is printed when a job's state changes, and otherwise at most one a second of a job, so that
// a log stays readable. Time comes in from outside.
class ProgressView {
 public:
  ProgressView(std::ostream& out, bool terminal, int columns)
      : out_(out), terminal_(terminal), columns_(columns) {}

  void Update(const lorad::v1::Job& job, std::int64_t now_ms);
  // It is gone.
  void Delete(const lorad::v1::Job& job);

 private:
  struct Shown {
    lorad::v1::Job::State state = lorad::v1::Job::STATE_UNSPECIFIED;
    std::int64_t time_ms = 0;
  };

  void PrintLine(const lorad::v1::Job& job, std::int64_t now_ms);
  void Redraw(std::int64_t now_ms);

  std::ostream& out_;
  const bool terminal_;
  const int columns_;
  std::vector<std::string> order_;
  std::map<std::string, lorad::v1::Job> jobs_;
  std::map<std::string, Shown> shown_;
  std::size_t drawn_lines_ = 0;
};

}  // namespace lorad::client
