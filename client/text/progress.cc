#include "client/text/progress.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/text/table.h"
#include "client/text/width.h"

namespace lorad::client {
namespace {

using lorad::v1::Job;

constexpr std::int64_t kLineEveryMs = 1000;
constexpr std::int64_t kDrawEveryMs = 100;

void AppendFigures(const Job& job, bool loss, bool validation, bool left, std::string& line) {
  if (loss && job.has_loss()) absl::StrAppend(&line, "  loss ", LossText(job.loss()));
  if (validation && job.has_validation_loss()) {
    absl::StrAppend(&line, "  validation ", LossText(job.validation_loss()));
  }
  // One that is PAUSED is done for now: what was measured before tells nothing about it.
  if (IsDone(job.state()) || job.state() == Job::PAUSED) return;
  if (job.tokens_per_second() > 0) {
    absl::StrAppendFormat(&line, "  %.0f tokens/s", job.tokens_per_second());
  }
  if (left && job.has_seconds_left()) {
    absl::StrAppend(&line, "  ", DurationText(job.seconds_left()), " left");
  }
}

// The way on for a job that does not go on by itself, or does nothing until something passes.
void AppendPause(const Job& job, std::string& line) {
  if (!job.unsaved().empty()) absl::StrAppend(&line, "  not saved: ", job.unsaved());
  if (!job.stalled().empty()) {
    absl::StrAppend(&line, "  stalled: ", job.stalled());
  } else if (job.state() == Job::PAUSING) {
    absl::StrAppend(&line, "  its last step is being saved");
  }
  if (job.state() == Job::PAUSED) {
    absl::StrAppend(&line, "  waits for `lora resume ", job.name(), "`");
  }
}

std::string Title(const Job& job) {
  return job.display_name().empty() ? job.name()
                                    : absl::StrCat(job.name(), " (", job.display_name(), ")");
}

// What a bar shows. Titles are filled up, or cut, to so many columns; 0: as they are.
struct Shape {
  std::size_t title = 0;
  bool bar = false, validation = false, loss = false, share = false, left = false, state = true,
       speed = true;
};

constexpr std::size_t kTitleWidth = 24;
constexpr int kBarWidth = 24;

// The richest first.
constexpr std::array<Shape, 11> kShapes = {{
    {kTitleWidth, true, true, true, true, true},
    {0, true, true, true, true, true},
    {0, false, true, true, true, true},
    {16, false, true, true, true, true},
    {16, false, false, true, true, true},
    {16, false, false, true, false, true},
    {16, false, false, false, false, true},
    {16},
    {8},
    {.title = 4, .state = false},
    {.title = 4, .state = false, .speed = false},
}};

std::string TitleIn(const Job& job, std::size_t columns) {
  const std::string title = Title(job);
  if (columns == 0) return title;
  const std::size_t width = WidthOf(title);
  if (columns == kTitleWidth) {  // a longer one stands as it is
    return title + std::string(columns > width ? columns - width : 0, ' ');
  }
  return CutToWidth(title, columns);
}

std::string Compose(const Job& job, const Shape& shape) {
  const double share = job.total_steps() > 0 ? static_cast<double>(job.step()) /
                                                   static_cast<double>(job.total_steps())
                                             : 0;
  std::string line = TitleIn(job, shape.title);
  if (shape.bar) {
    const int full = std::clamp(static_cast<int>(share * kBarWidth), 0, kBarWidth);
    absl::StrAppend(&line, " [", std::string(full, '#'), std::string(kBarWidth - full, ' '), "]");
  }
  if (shape.share) absl::StrAppendFormat(&line, " %3.0f%%", 100 * share);
  absl::StrAppend(&line, shape.share ? " " : "  ", job.step(), "/", job.total_steps());
  if (shape.state && job.state() != Job::RUNNING) {
    absl::StrAppend(&line, "  ", Job::State_Name(job.state()));
  }
  if (shape.state && !job.stalled().empty()) absl::StrAppend(&line, "  stalled");
  if (shape.state && !job.unsaved().empty()) absl::StrAppend(&line, "  not saved");
  if (shape.speed) AppendFigures(job, shape.loss, shape.validation, shape.left, line);
  if (shape.state && job.has_error()) absl::StrAppend(&line, "  ", job.error().reason());
  return line;
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
  AppendFigures(job, true, true, true, line);
  if (job.has_error())
    absl::StrAppend(&line, "  ", job.error().reason(), ": ", job.error().message());
  return line;
}

std::string ProgressBar(const Job& job, int columns) {
  if (columns <= 0) return Compose(job, kShapes[0]);
  const auto room =
      static_cast<std::size_t>(columns) - 1;  // a line that wraps would break the redrawing
  for (const Shape& shape : kShapes) {
    std::string line = Compose(job, shape);
    if (WidthOf(line) <= room) return line;
  }
  return CutToWidth(Title(job), room);
}

void ProgressView::Update(const Job& job, std::int64_t now_ms) {
  if (jobs_.find(job.name()) == jobs_.end()) order_.push_back(job.name());
  jobs_[job.name()] = job;
  if (!terminal_) return PrintLine(job, now_ms);
  changed_ = true;
  Look(now_ms);
}

void ProgressView::Delete(const Job& job) {
  if (terminal_) return;  // its line stays as it was last
  out_ << Title(job) << "  DELETED" << std::endl;
  shown_.erase(job.name());
}

void ProgressView::PrintLine(const Job& job, std::int64_t now_ms) {
  Shown& shown = shown_[job.name()];
  // Their texts may change every second, as the room on a disk does.
  const bool stalled = !job.stalled().empty(), unsaved = !job.unsaved().empty();
  const bool same =
      shown.state == job.state() && shown.stalled == stalled && shown.unsaved == unsaved;
  if (same && now_ms - shown.time_ms < kLineEveryMs) return;
  shown = {job.state(), stalled, unsaved, now_ms};
  out_ << ProgressLine(job) << std::endl;
}

void ProgressView::Say(const std::string& line) {
  if (terminal_) GoUp(/*erase=*/true);
  out_.flush();
  said_ << line << std::endl;
  if (terminal_) Redraw();
}

void ProgressView::Look(std::int64_t now_ms) {
  if (!terminal_ || order_.empty()) return;
  const bool due = changed_ && (drawn_.empty() || now_ms - drawn_ms_ >= kDrawEveryMs);
  if (!due && (drawn_.empty() || size_of_() == size_)) return;
  drawn_ms_ = now_ms;
  Redraw();
}

void ProgressView::End() {
  if (!terminal_) return;
  GoUp(/*erase=*/true);
  for (const std::string& name : order_) DrawLine(ProgressBar(jobs_[name], size_.columns));
  out_.flush();
}

// A terminal that has become narrower has wrapped what was drawn.
void ProgressView::GoUp(bool erase) {
  const TerminalSize before = std::exchange(size_, size_of_());
  std::size_t lines = 0;
  for (const std::size_t width : drawn_) {
    const auto room = static_cast<std::size_t>(std::max(size_.columns, 1));
    lines += size_.columns > 0 && width > room ? (width + room - 1) / room : 1;
  }
  if (lines > 0) out_ << "\x1b[" << lines << "A";
  if (lines > 0 && (erase || before != size_)) out_ << "\r\x1b[J";
  drawn_.clear();
}

void ProgressView::Redraw() {
  GoUp(/*erase=*/false);
  changed_ = false;
  std::vector<std::string> shown = order_;
  const int rows = size_.rows - 1;  // the cursor stands in the last one
  if (size_.rows > 0 && std::ssize(order_) > rows) {
    std::ranges::stable_partition(
        shown, [&](const std::string& name) { return !IsDone(jobs_[name].state()); });
    shown.resize(static_cast<std::size_t>(std::max(rows - 1, 1)));
  }
  for (const std::string& name : shown) DrawLine(ProgressBar(jobs_[name], size_.columns));
  if (const std::size_t more = order_.size() - shown.size(); more > 0) {
    DrawLine(absl::StrCat("and ", more, " more"));
  }
  out_.flush();
}

void ProgressView::DrawLine(const std::string& line) {
  out_ << "\r\x1b[2K" << line << "\n";
  drawn_.push_back(WidthOf(line));
}

}  // namespace lorad::client
