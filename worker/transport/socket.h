// TCP as the stages of a model use it: file descriptors that close themselves, and waits that end.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorad::worker {

using Deadline = std::chrono::steady_clock::time_point;

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int Release();

  int fd_ = -1;
};

// What ends a wait from another thread: an eventfd. Set stays set until Clear.
class WakeUp {
 public:
  WakeUp();
  void Set();
  void Clear();
  int fd() const { return fd_.get(); }

 private:
  FileDescriptor fd_;
};

// "HOST:PORT", an IPv6 address in brackets. INVALID_ARGUMENT with what is wrong.
struct Endpoint {
  std::string host;
  std::string port;
};
absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text);

// A socket that listens on a free port of `host`, and which one that is.
struct Listening {
  FileDescriptor socket;
  int port = 0;
};
absl::StatusOr<Listening> Listen(const std::string& host);

// Non-blocking, small packets at once; a peer whose host does not answer for `silence_ms` is gone.
absl::StatusOr<FileDescriptor> Accept(int listening, int64_t silence_ms);
// UNAVAILABLE where nobody listens or no way leads there, DEADLINE_EXCEEDED, CANCELLED by
// `wake_up`.
absl::StatusOr<FileDescriptor> Dial(const std::string& endpoint, int64_t silence_ms,
                                    Deadline deadline, const WakeUp& wake_up);

// Who is at the other end, "10.0.0.2:40000" or "[::1]:40000"; "?" where it has gone.
std::string PeerOf(int fd);

// The address of this machine from which `endpoint` is reached; nothing is sent. Errors as Dial's.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& endpoint);

// Until `fd` is ready for `events` (poll(2)). Errors as Dial's.
absl::Status Await(int fd, short events, Deadline deadline, const WakeUp& wake_up);

// What one call moves, without waiting; 0: nothing now. UNAVAILABLE: the peer is gone.
absl::StatusOr<int64_t> ReadSome(int fd, char* to, int64_t bytes);
absl::StatusOr<int64_t> WriteSome(int fd, const char* from, int64_t bytes);

}  // namespace lorad::worker
