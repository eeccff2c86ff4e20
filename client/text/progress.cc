#include "client/text/progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/text/table.h"

namespace lorad::client {
namespace {

using lorad::v1::Job;

constexpr std::int64_t kLineEveryMs = 1000;

void AppendFigures(const Job& job, std::string& line) {
  if (job.has_loss()) absl::StrAppend(&line, "  loss ", LossText(job.loss()));
  if (job.has_validation_loss()) {
    absl::StrAppend(&line, "  validation ", LossText(job.validation_loss()));
  }
  // One that is PAUSED is done for now: what was measured before tells nothing about it.
  if (IsDone(job.state()) || job.state() == Job::PAUSED) return;
  if (job.tokens_per_second() > 0) {
    absl::StrAppendFormat(&line, "  %.0f tokens/s", job.tokens_per_second());
  }
  if (job.has_seconds_left()) {
    absl::StrAppend(&line, "  ", DurationText(job.seconds_left()), " left");
  }
}

// The way on for a job that does not go on by itself.
void AppendPause(const Job& job, std::string& line) {
  if (job.state() == Job::PAUSING) absl::StrAppend(&line, "  its last step is being saved");
  if (job.state() == Job::PAUSED) {
    absl::StrAppend(&line, "  waits for `lora resume ", job.name(), "`");
  }
}

std::string Title(const Job& job) {
  return job.display_name().empty() ? job.name()
                                    : absl::StrCat(job.name(), " (", job.display_name(), ")");
}

}  // namespace

bool IsDone(Job::State state) {
  return state == Job::SUCCEEDED || state == Job::FAILED || state == Job::CANCELLED;
}

std::string ProgressLine(const Job& job) {
  std::string line = absl::StrCat(Title(job), "  ", Job::State_Name(job.state()));
  if (job.has_queue()) {
    absl::StrAppend(&line, "  place ", job.queue().place(), ": ", job.queue().why());
  }
  AppendPause(job, line);
  if (job.total_steps() > 0) absl::StrAppend(&line, "  step ", job.step(), "/", job.total_steps());
  AppendFigures(job, line);
  if (job.has_error())
    absl::StrAppend(&line, "  ", job.error().reason(), ": ", job.error().message());
  return line;
}

std::string ProgressBar(const Job& job, int columns) {
  constexpr int kBarWidth = 24;
  const double share = job.total_steps() > 0 ? static_cast<double>(job.step()) /
                                                   static_cast<double>(job.total_steps())
                                             : 0;
  const int full = std::clamp(static_cast<int>(share * kBarWidth), 0, kBarWidth);
  std::string line = absl::StrFormat("%-24s [%s%s] %3.0f%% ", Title(job), std::string(full, '#'),
                                     std::string(kBarWidth - full, ' '), 100 * share);
  absl::StrAppend(&line, job.step(), "/", job.total_steps());
  if (job.state() != Job::RUNNING) absl::StrAppend(&line, "  ", Job::State_Name(job.state()));
  AppendFigures(job, line);
  if (job.has_error()) absl::StrAppend(&line, "  ", job.error().reason());
  // A line that wraps would break the redrawing.
  if (columns > 0 && line.size() >= static_cast<std::size_t>(columns)) line.resize(columns - 1);
  return line;
}

void ProgressView::Update(const Job& job, std::int64_t now_ms) {
  if (jobs_.find(job.name()) == jobs_.end()) order_.push_back(job.name());
  jobs_[job.name()] = job;
  if (terminal_) {
    Redraw(now_ms);
  } else {
    PrintLine(job, now_ms);
  }
}

void ProgressView::Delete(const Job& job) {
  if (terminal_) return;  // its line stays as it was last
  out_ << Title(job) << "  DELETED" << std::endl;
  shown_.erase(job.name());
}

void ProgressView::PrintLine(const Job& job, std::int64_t now_ms) {
  Shown& shown = shown_[job.name()];
  if (shown.state == job.state() && now_ms - shown.time_ms < kLineEveryMs) return;
  shown = {job.state(), now_ms};
  out_ << ProgressLine(job) << std::endl;
}

void ProgressView::Redraw(std::int64_t) {
  if (drawn_lines_ > 0) out_ << "\x1b[" << drawn_lines_ << "A";
  for (const std::string& name : order_) {
    out_ << "\r\x1b[2K" << ProgressBar(jobs_[name], columns_) << "\n";
  }
  drawn_lines_ = order_.size();
  out_.flush();
}

}  // namespace lorad::client
