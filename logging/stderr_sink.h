// Log lines on a descriptor that never keep their writer waiting: whoever should read them (a
// journal, a pager, a terminal with Ctrl-S) may be stopped, and then the log loses lines and the
// process goes on.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstdint>
#include <mutex>
#include <string_view>

namespace lorad::logging {

// Any thread. A line waits 10 ms at most for a reader that was there before, none for one that was
// not; then it is lost, and the next one that is written is preceded by how many were.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // `descriptor` stays open, and stays its owner's.
  explicit StderrSink(int descriptor = 2) : descriptor_(descriptor) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

  // Whether all of it was written.
  bool Write(std::string_view text);
  bool MayWrite() const;

  const int descriptor_;
  bool reader_is_there_ = true;
  bool in_a_line_ = false;  // the rest of it was lost
  int64_t lost_ = 0;        // lines
};

}  // namespace lorad::logging
