#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "client/text/width.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::client {

// Succeeded, failed or cancelled: nothing follows.
bool IsDone(lorad::v1::Job::State state);

// A job's progress as one line of text, without colours: "job-a1  RUNNING  step 12/100  loss 1.4018
// 212 tokens/s  1m 05s left".
std::string ProgressLine(const lorad::v1::Job& job);

// The same as a bar in fewer than `columns` characters (0: any number). What does not fit goes
// whole: first the bar, then parts of the title, figures and the time left; state, steps and speed
// stay longest.
std::string ProgressBar(const lorad::v1::Job& job, int columns);

// Shows jobs while they change. On a terminal every job has a line that is drawn again, ten times a
// second at most; where it has fewer rows, those that are done go first, and "and N more" says so.
// Elsewhere a line is printed when a job's state changes, or whether it is stalled or not saved,
// and otherwise at most one a second of a job, so that a log stays readable. Time and the
// terminal's size come in from outside. Threads: one at a time.
class ProgressView {
 public:
  // `said`: where what Say is given goes, perhaps to the same terminal.
  ProgressView(std::ostream& out, std::ostream& said, bool terminal,
               std::function<TerminalSize()> size)
      : out_(out), said_(said), terminal_(terminal), size_of_(std::move(size)) {}

  void Update(const lorad::v1::Job& job, std::int64_t now_ms);
  // It is gone.
  void Delete(const lorad::v1::Job& job);
  // A line that stays, above those that are drawn again.
  void Say(const std::string& line);
  // Draws what has come since it drew last, or all where the terminal has another size by now.
  void Look(std::int64_t now_ms);
  // Nothing comes any more: a line of every job, however few rows there are.
  void End();

 private:
  struct Shown {
    lorad::v1::Job::State state = lorad::v1::Job::STATE_UNSPECIFIED;
    bool stalled = false;
    bool unsaved = false;
    std::int64_t time_ms = 0;
  };

  void PrintLine(const lorad::v1::Job& job, std::int64_t now_ms);
  // To where the first line stands that it drew last; what is drawn is forgotten, and goes from the
  // terminal if `erase`, or if that has another size by now.
  void GoUp(bool erase);
  void Redraw();
  void DrawLine(const std::string& line);

  std::ostream& out_;
  std::ostream& said_;
  const bool terminal_;
  const std::function<TerminalSize()> size_of_;
  TerminalSize size_;  // when it drew last
  std::int64_t drawn_ms_ = 0;
  bool changed_ = false;  // since then
  std::vector<std::string> order_;
  std::map<std::string, lorad::v1::Job> jobs_;
  std::map<std::string, Shown> shown_;
  std::vector<std::size_t> drawn_;  // how wide each line is that it drew last
};

}  // namespace lorad::client
