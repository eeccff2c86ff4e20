#include "logging/stderr_sink.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace lorad::logging {
namespace {

constexpr int kPatienceMs = 10;

}  // namespace

bool StderrSink::MayWrite() const {
  pollfd wait = {descriptor_, POLLOUT, 0};
  // An error (nobody has the pipe's other end) is for write() to tell: it does not wait.
  return poll(&wait, 1, reader_is_there_ ? kPatienceMs : 0) > 0;
}

bool StderrSink::Write(std::string_view text) {
  while (!text.empty()) {
    reader_is_there_ = MayWrite();
    if (!reader_is_there_) return false;
    // What poll() says is writable takes so much of a pipe without waiting.
    const ssize_t written =
        write(descriptor_, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) {
      in_a_line_ = text[static_cast<size_t>(written) - 1] != '\n';
      text.remove_prefix(static_cast<size_t>(written));
    }
  }
  return true;
}

void StderrSink::sink_it_(const spdlog::details::log_msg& message) {
  if (lost_ > 0) {
    const std::string note = (in_a_line_ ? "\n" : "") + std::to_string(lost_) +
                             " lines of the log were lost: nobody read it\n";
    if (!Write(note)) {
      ++lost_;
      return;
    }
    lost_ = 0;
  }
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  if (!Write({line.data(), line.size()})) ++lost_;
}

}  // namespace lorad::logging
