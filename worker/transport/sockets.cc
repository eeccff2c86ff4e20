#include "worker/transport/sockets.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "worker/transport/frame.h"
#include "worker/transport/handshake.h"

namespace lorad::worker {
namespace {

using kernels::TensorView;

char* BytesAt(const TensorView& memory, int64_t offset) {
  return static_cast<char*>(memory.data) + offset;
}

int64_t BytesOf(const TensorView& memory, int64_t rows) {
  return rows * memory.columns * kernels::BytesOf(memory.dtype);
}

// A frame on its way out. The body is the caller's.
struct Outgoing {
  std::string head;
  const char* body = nullptr;
  int64_t body_bytes = 0;
  bool of_tensor = false;
  int64_t done = 0;

  int64_t bytes() const { return static_cast<int64_t>(head.size()) + body_bytes; }
};

// One connection, seen from its loop.
struct Connection {
  FileDescriptor socket;
  v1::StageHello::Purpose purpose = v1::StageHello::PURPOSE_UNSPECIFIED;
  int peer = 0;

  std::deque<Outgoing> out;
  std::optional<Outgoing> waiting;  // a tensor, until the other side has room for it
  std::optional<std::string> room;  // the other side has, by this name; the next tensor may go

  // The frame that comes: header and head, then the body.
  std::string in;
  std::optional<FrameHeader> header;
  bool head_is_here = false;
  int64_t body_done = 0;

  // Of tensors.
  std::optional<TensorView> posted;  // where the next one lands
  bool offered = false;              // it is the other side who writes the rows there
  v1::StagePassage coming;           // head_is_here
  std::chrono::steady_clock::time_point coming_since;
  std::optional<Landing> landed;
  std::optional<Passage> latest;  // of `posted`, given to a WaitReceived or not
  bool given_up = false;          // a wait for it has nothing to wait for

  std::deque<std::string> notes;

  // A tensor goes when the other side has room for it: then nothing that is sent waits in a socket,
  // and a peer whose kernel takes nothing any more is gone.
  void Go() {
    if (!waiting.has_value() || !room.has_value()) return;
    out.push_back(*std::exchange(waiting, std::nullopt));
    room.reset();
  }
  bool sends() const {
    return waiting.has_value() || std::any_of(out.begin(), out.end(), [](const Outgoing& frame) {
             return frame.of_tensor;
           });
  }
};

// One thread moves all bytes; calls leave and take them under the lock.
class SocketsTransport final : public Transport {
 public:
  SocketsTransport(Connections connections, const StageIdentity& me, const SocketsOptions& options,
                   std::function<void()> at_end)
      : stage_(me.stage), options_(options), at_end_(std::move(at_end)) {
    for (auto& [key, socket] : connections) {
      Connection& connection = connections_[key];
      connection.socket = std::move(socket);
      connection.purpose = key.first;
      connection.peer = key.second;
    }
    loop_ = std::thread([this] { Loop(); });
  }

  ~SocketsTransport() override {
    Interrupt(absl::CancelledError("the transport has ended"));
    loop_.join();
    if (at_end_) at_end_();
  }

  absl::Status Send(Lane lane, const Passage& passage, const TensorView& memory) override {
    assert(memory.row_stride == memory.columns && memory.device == kernels::Device::kCpu);
    v1::StagePassage head;
    head.set_microbatch(passage.microbatch);
    head.set_rows(passage.rows);
    head.set_columns(memory.columns);
    head.set_value_bytes(static_cast<int32_t>(kernels::BytesOf(memory.dtype)));
    head.set_took_us(passage.took_us);
    head.mutable_lost()->Add(passage.lost.begin(), passage.lost.end());
    const int64_t bytes = passage.in_place ? 0 : BytesOf(memory, passage.rows);
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    Connection& connection = Tensors(To(lane));
    connection.waiting = {.head = BeginFrame(FrameKind::kTensor, head.SerializeAsString(), bytes),
                          .body = BytesAt(memory, 0),
                          .body_bytes = bytes,
                          .of_tensor = true};
    connection.Go();
    wake_up_.Set();
    return absl::OkStatus();
  }

  absl::Status WaitSent(Lane lane) override {
    std::unique_lock lock(mutex_);
    const Connection& connection = Tensors(To(lane));
    return Wait(lock, To(lane), [&] { return !connection.sends(); });
  }

  absl::Status PostReceive(Lane lane, const TensorView& memory) override {
    assert(memory.row_stride == memory.columns && memory.device == kernels::Device::kCpu);
    return MakeRoom(lane, memory, "");
  }

  absl::Status Offer(Lane lane, const TensorView& memory, std::string name) override {
    return MakeRoom(lane, memory, std::move(name));
  }

  absl::StatusOr<std::string> WaitRoom(Lane lane) override {
    std::unique_lock lock(mutex_);
    const Connection& connection = Tensors(To(lane));
    const absl::Status status = Wait(lock, To(lane), [&] { return connection.room.has_value(); });
    if (!status.ok()) return status;
    return *connection.room;
  }

  absl::StatusOr<Passage> WaitComing(Lane lane) override {
    std::unique_lock lock(mutex_);
    const Connection& connection = Tensors(From(lane));
    changed_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !broken_.ok() || connection.latest.has_value();
    });
    if (!broken_.ok()) return broken_;
    return *connection.latest;
  }

  absl::Status broken() override {
    std::lock_guard lock(mutex_);
    return broken_;
  }

  absl::StatusOr<std::optional<Landing>> WaitReceived(Lane lane) override {
    std::unique_lock lock(mutex_);
    Connection& connection = Tensors(From(lane));
    const absl::Status status = Wait(
        lock, From(lane), [&] { return connection.landed.has_value() || connection.given_up; });
    if (!status.ok()) return status;
    if (std::exchange(connection.given_up, false)) return std::nullopt;
    return std::exchange(connection.landed, std::nullopt);
  }

  void GiveUpReceive(Lane lane) override {
    std::lock_guard lock(mutex_);
    Tensors(From(lane)).given_up = true;
    changed_.notify_all();
  }

  absl::Status SendNote(int stage, std::string note) override {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    Notes(stage).out.push_back({.head = BeginFrame(FrameKind::kNote, note, 0)});
    wake_up_.Set();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> WaitNote(int stage) override {
    std::unique_lock lock(mutex_);
    std::deque<std::string>& notes = Notes(stage).notes;
    const absl::Status status = Wait(lock, stage, [&] { return !notes.empty(); });
    if (!status.ok()) return status;
    std::string note = std::move(notes.front());
    notes.pop_front();
    return note;
  }

  void Interrupt(absl::Status why) override {
    std::lock_guard lock(mutex_);
    Break(std::move(why));
  }

 private:
  int To(Lane lane) const { return lane == Lane::kActivations ? stage_ + 1 : stage_ - 1; }
  int From(Lane lane) const { return lane == Lane::kActivations ? stage_ - 1 : stage_ + 1; }
  Connection& Tensors(int stage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return connections_.at({v1::StageHello::TENSORS, stage});
  }
  Connection& Notes(int stage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return connections_.at({v1::StageHello::NOTES, stage});
  }

  // `name`: of an Offer.
  absl::Status MakeRoom(Lane lane, const TensorView& memory, std::string name) {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    Connection& connection = Tensors(From(lane));
    connection.posted = memory;
    connection.latest.reset();
    connection.offered = !name.empty();
    connection.out.push_back({.head = BeginFrame(FrameKind::kRoom, name, 0)});
    wake_up_.Set();
    return absl::OkStatus();
  }

  template <class Ready>
  absl::Status Wait(std::unique_lock<std::mutex>& lock, int stage, Ready ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto limit =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.wait_ms);
    const bool in_time = changed_.wait_until(
        lock, limit,
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !broken_.ok() || ready(); });
    if (!in_time) {
      Break(absl::DeadlineExceededError(absl::StrCat(
          "stage ", stage, " lives, but has sent nothing for ", options_.wait_ms, " ms")));
    }
    return broken_;
  }

  // The others learn of it by their sockets.
  void Break(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (broken_.ok()) broken_ = std::move(why);
    for (auto& [key, connection] : connections_) shutdown(connection.socket.get(), SHUT_RDWR);
    changed_.notify_all();
    wake_up_.Set();
  }

  void Loop() {
    std::vector<pollfd> fds;
    std::unique_lock lock(mutex_);
    while (broken_.ok()) {
      fds = {{wake_up_.fd(), POLLIN, 0}};
      for (const auto& [key, connection] : connections_) {
        const int events = POLLIN | (connection.out.empty() ? 0 : POLLOUT) | POLLRDHUP;
        fds.push_back({connection.socket.get(), static_cast<short>(events), 0});
      }
      lock.unlock();
      poll(fds.data(), fds.size(), -1);
      lock.lock();
      wake_up_.Clear();
      size_t i = 1;
      for (auto& [key, connection] : connections_) {
        if (broken_.ok()) Move(connection, fds[i].revents);
        ++i;
      }
      changed_.notify_all();
    }
  }

  void Move(Connection& connection, int events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::Status status = Write(connection);
    if (status.ok()) status = Read(connection);
    const bool gone = (events & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    if (status.ok() && gone) status = absl::UnavailableError("it has closed the connection");
    if (status.ok()) return;
    Break(absl::Status(status.code(),
                       absl::StrCat("stage ", connection.peer, ": ", status.message())));
  }

  absl::Status Write(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!connection.out.empty()) {
      Outgoing& frame = connection.out.front();
      const auto head_bytes = static_cast<int64_t>(frame.head.size());
      const bool in_head = frame.done < head_bytes;
      const auto put = WriteSome(
          connection.socket.get(),
          in_head ? frame.head.data() + frame.done : frame.body + (frame.done - head_bytes),
          in_head ? head_bytes - frame.done : frame.bytes() - frame.done);
      if (!put.ok()) return put.status();
      frame.done += *put;
      if (frame.done == frame.bytes()) {
        connection.out.pop_front();
      } else if (*put == 0) {
        break;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Read(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (true) {
      const auto more = connection.head_is_here ? ReadBody(connection) : ReadHead(connection);
      if (!more.ok()) return more.status();
      if (!*more) return absl::OkStatus();
    }
  }

  // True: it may go on at once.
  absl::StatusOr<bool> ReadHead(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string& in = connection.in;
    const int64_t wanted =
        kFrameHeaderBytes + (connection.header.has_value() ? connection.header->head_bytes : 0);
    const auto had = static_cast<int64_t>(in.size());
    if (had < wanted) {
      in.resize(static_cast<size_t>(wanted));
      const auto got = ReadSome(connection.socket.get(), in.data() + had, wanted - had);
      in.resize(static_cast<size_t>(had + (got.ok() ? *got : 0)));
      if (!got.ok()) return got.status();
      if (*got == 0) return false;
      if (had + *got < wanted) return true;
    }
    if (!connection.header.has_value()) {
      const auto header = ParseFrameHeader(in);
      if (!header.ok()) return header.status();
      connection.header = *header;
      return true;
    }
    return TakeHead(connection, in.substr(kFrameHeaderBytes));
  }

  absl::StatusOr<bool> TakeHead(Connection& connection, std::string head)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const FrameKind kind = connection.header->kind;
    const bool of_notes = connection.purpose == v1::StageHello::NOTES;
    if (kind == FrameKind::kHello || (kind == FrameKind::kNote) != of_notes) {
      return absl::InternalError("it sends what does not belong on this connection");
    }
    if (kind == FrameKind::kTensor) return TakePassage(connection, head);
    if (of_notes) {
      connection.notes.push_back(std::move(head));
    } else {
      connection.room = std::move(head);
      connection.Go();
    }
    connection.in.clear();
    connection.header.reset();
    return true;
  }

  absl::StatusOr<bool> TakePassage(Connection& connection, const std::string& head)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!connection.coming.ParseFromString(head)) {
      return absl::InternalError("what it says of a tensor cannot be read");
    }
    if (!connection.posted.has_value()) {
      return absl::InternalError("it sends a tensor that there is no room for");
    }
    connection.head_is_here = true;
    connection.coming_since = std::chrono::steady_clock::now();
    connection.body_done = 0;
    return true;
  }

  absl::StatusOr<bool> ReadBody(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const TensorView& memory = *connection.posted;
    const v1::StagePassage& coming = connection.coming;
    const int64_t bytes = connection.header->body_bytes;
    if (coming.rows() < 0 || coming.rows() > memory.rows || coming.columns() != memory.columns ||
        coming.value_bytes() != kernels::BytesOf(memory.dtype) ||
        bytes != (connection.offered ? 0 : BytesOf(memory, coming.rows()))) {
      return absl::InternalError(
          absl::StrCat("it sends ", coming.rows(), " rows of ", coming.columns(), " values of ",
                       coming.value_bytes(), " bytes (", bytes,
                       " in all) where there is memory for ", memory.rows, " of ", memory.columns));
    }
    if (connection.body_done < bytes) {
      const auto got = ReadSome(connection.socket.get(), BytesAt(memory, connection.body_done),
                                bytes - connection.body_done);
      if (!got.ok()) return got.status();
      connection.body_done += *got;
      if (connection.body_done < bytes) return *got > 0;
    }
    connection.latest = {.microbatch = coming.microbatch(),
                         .rows = coming.rows(),
                         .lost = {coming.lost().begin(), coming.lost().end()},
                         .in_place = connection.offered};
    connection.landed = {
        .passage = *connection.latest,
        .begin = connection.coming_since - std::chrono::microseconds(coming.took_us()),
        .end = std::chrono::steady_clock::now()};
    connection.posted.reset();
    connection.head_is_here = false;
    connection.header.reset();
    connection.in.clear();
    return true;
  }

  const int stage_;
  const SocketsOptions options_;
  const std::function<void()> at_end_;
  WakeUp wake_up_;
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<v1::StageHello::Purpose, int>, Connection> connections_
      ABSL_GUARDED_BY(mutex_);
  std::thread loop_;
};

}  // namespace

std::unique_ptr<Transport> TransportOver(Connections connections, const StageIdentity& me,
                                         const SocketsOptions& options,
                                         std::function<void()> at_end) {
  return std::make_unique<SocketsTransport>(std::move(connections), me, options, std::move(at_end));
}

absl::Status CheckStage(const StageIdentity& me, const std::vector<std::string>& endpoints) {
  const bool inside = me.stage >= 0 && me.stage < me.stages;
  if (inside && endpoints.size() == static_cast<size_t>(me.stages)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("stage ", me.stage, " of ", me.stages, " with ",
                                                 endpoints.size(), " endpoints"));
}

SocketsListener::SocketsListener(Listening listening, std::string endpoint,
                                 const SocketsOptions& options)
    : socket_(std::move(listening.socket)), endpoint_(std::move(endpoint)), options_(options) {}

absl::StatusOr<std::unique_ptr<SocketsListener>> SocketsListener::Open(
    const std::string& host, const SocketsOptions& options) {
  auto listening = Listen(host);
  if (!listening.ok()) return listening.status();
  const bool v6 = host.find(':') != std::string::npos;
  std::string endpoint = absl::StrCat(v6 ? "[" : "", host, v6 ? "]" : "", ":", listening->port);
  return std::unique_ptr<SocketsListener>(
      new SocketsListener(*std::move(listening), std::move(endpoint), options));
}

absl::StatusOr<std::unique_ptr<Transport>> SocketsListener::Join(
    const StageIdentity& me, const std::vector<std::string>& endpoints) {
  const absl::Status fits = CheckStage(me, endpoints);
  if (!fits.ok()) return fits;
  SocketsOptions options = options_;
  options.join_ms = std::min(options.join_ms, me.lease_ms);
  options.silence_ms = std::min(options.silence_ms, me.lease_ms);
  const auto dial = [&](v1::StageHello::Purpose, int stage, Deadline deadline) {
    return Dial(endpoints[static_cast<size_t>(stage)], options.silence_ms, deadline, wake_up_);
  };
  auto connections = Shake(socket_, me, endpoints, dial, options, wake_up_);
  if (!connections.ok()) return connections.status();
  return TransportOver(*std::move(connections), me, options);
}

}  // namespace lorad::worker
