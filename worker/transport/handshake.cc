#include "worker/transport/handshake.h"

#include <poll.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "storage/files/sha256.h"
#include "worker/transport/frame.h"

namespace lorad::worker {
namespace {

Deadline In(int64_t ms) { return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms); }

// As StageHello.proof has it.
std::string ProofOf(const StageIdentity& group, int from, int to, v1::StageHello::Purpose purpose) {
  return storage::Sha256::Of(
      absl::StrCat(group.secret, "/", group.epoch, "/", from, "/", to, "/", purpose));
}

// Without a proof.
v1::StageHello HelloOf(const StageIdentity& me, v1::StageHello::Purpose purpose) {
  v1::StageHello hello;
  hello.set_epoch(me.epoch);
  hello.set_stage(me.stage);
  hello.set_stages(me.stages);
  hello.set_numerics_id(me.numerics_id);
  hello.set_purpose(purpose);
  return hello;
}

v1::StageHello HelloTo(int stage, const StageIdentity& me, v1::StageHello::Purpose purpose) {
  v1::StageHello hello = HelloOf(me, purpose);
  hello.set_proof(ProofOf(me, me.stage, stage, purpose));
  return hello;
}

absl::Status Write(const FileDescriptor& socket, const v1::StageHello& hello, Deadline deadline,
                   const WakeUp& wake_up) {
  const std::string frame = BeginFrame(FrameKind::kHello, hello.SerializeAsString(), 0);
  for (size_t done = 0; done < frame.size();) {
    const auto put =
        WriteSome(socket.get(), frame.data() + done, static_cast<int64_t>(frame.size() - done));
    if (!put.ok()) return put.status();
    done += static_cast<size_t>(*put);
    if (*put > 0) continue;
    const absl::Status status = Await(socket.get(), POLLOUT, deadline, wake_up);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// A hello as its bytes come by.
class HelloReader {
 public:
  // True once it is whole; nothing behind it is read.
  absl::StatusOr<bool> Go(const FileDescriptor& socket) {
    while (bytes_.size() < wanted_) {
      char piece[4096];
      const size_t left = std::min(wanted_ - bytes_.size(), sizeof(piece));
      const auto got = ReadSome(socket.get(), piece, static_cast<int64_t>(left));
      if (!got.ok()) return got.status();
      if (*got == 0) return false;
      bytes_.append(piece, static_cast<size_t>(*got));
      if (bytes_.size() < static_cast<size_t>(kFrameHeaderBytes)) continue;
      const auto header = ParseFrameHeader(bytes_.substr(0, kFrameHeaderBytes));
      if (!header.ok()) return header.status();
      if (header->kind != FrameKind::kHello) return absl::InternalError("it says no hello");
      wanted_ = static_cast<size_t>(kFrameHeaderBytes + header->head_bytes);
    }
    if (!hello_.ParseFromString(bytes_.substr(kFrameHeaderBytes))) {
      return absl::InternalError("its hello cannot be read");
    }
    return true;
  }
  const v1::StageHello& hello() const { return hello_; }

 private:
  std::string bytes_;
  size_t wanted_ = static_cast<size_t>(kFrameHeaderBytes);
  v1::StageHello hello_;
};

// What keeps the two from being stages of one group, or nothing.
std::string Difference(const v1::StageHello& theirs, const StageIdentity& mine) {
  if (theirs.epoch() != mine.epoch) {
    return absl::StrCat("epoch ", theirs.epoch(), ", and this stage is of epoch ", mine.epoch);
  }
  if (theirs.stages() != mine.stages) {
    return absl::StrCat(theirs.stages(), " stages, and this group has ", mine.stages);
  }
  if (theirs.numerics_id() != mine.numerics_id) {
    return absl::StrCat("numerics ", theirs.numerics_id(), ", and this stage has ",
                        mine.numerics_id, ": the same worker version and device type is needed");
  }
  if (theirs.proof() != ProofOf(mine, theirs.stage(), mine.stage, theirs.purpose())) {
    return absl::StrCat("no proof that it is of the group of epoch ", mine.epoch);
  }
  return "";
}

absl::StatusOr<FileDescriptor> Introduce(int stage, v1::StageHello::Purpose purpose,
                                         const StageIdentity& me, const std::string& endpoint,
                                         const DialStage& dial, Deadline deadline,
                                         const WakeUp& wake_up) {
  const auto failed = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat("stage ", stage, " at ", endpoint, ": ", status.message()));
  };
  auto socket = dial(purpose, stage, deadline);
  if (!socket.ok()) return failed(socket.status());
  absl::Status status = Write(*socket, HelloTo(stage, me, purpose), deadline, wake_up);
  HelloReader answer;
  while (status.ok()) {
    const auto whole = answer.Go(*socket);
    if (!whole.ok()) return failed(whole.status());
    if (*whole) break;
    status = Await(socket->get(), POLLIN, deadline, wake_up);
  }
  if (!status.ok()) return failed(status);
  const v1::StageHello& hello = answer.hello();
  std::string refusal = hello.refusal();
  if (refusal.empty()) refusal = Difference(hello, me);
  if (refusal.empty() && hello.stage() != stage) {
    refusal = absl::StrCat("it is stage ", hello.stage());
  }
  if (!refusal.empty()) return failed(absl::FailedPreconditionError(refusal));
  return socket;
}

// The log's lines about connections that are refused: the first at once, then one a second at most,
// which counts those that had none. The last ones are told at the end.
class RefusalLog {
 public:
  explicit RefusalLog(int stage) : stage_(stage) {}
  RefusalLog(const RefusalLog&) = delete;
  RefusalLog& operator=(const RefusalLog&) = delete;
  ~RefusalLog() { Write(); }

  void Note(const std::string& peer, const std::string& why) {
    ++count_;
    latest_ = absl::StrCat(peer, ": ", why);
    Tell();
  }
  // What is due.
  void Tell() {
    if (std::chrono::steady_clock::now() >= next_) Write();
  }
  Deadline next() const { return count_ == 0 ? Deadline::max() : next_; }

 private:
  void Write() {
    if (count_ == 0) return;
    const std::string before =
        count_ == 1 ? "" : absl::StrCat(" (and ", count_ - 1, " more before it)");
    spdlog::warn("stage {} refuses a connection of {}{}", stage_, latest_, before);
    count_ = 0;
    next_ = In(kEveryMs);
  }

  static constexpr int64_t kEveryMs = 1'000;

  const int stage_;
  int64_t count_ = 0;  // that no line has told of
  std::string latest_ = {};
  Deadline next_ = Deadline::min();
};

// Takes the connections of the stages behind this one.
class Reception {
 public:
  Reception(const FileDescriptor& listening, const StageIdentity& me, const SocketsOptions& options,
            const WakeUp& wake_up, Connections* connections)
      : listening_(listening),
        me_(me),
        options_(options),
        wake_up_(wake_up),
        connections_(connections) {
    if (me.stage + 1 < me.stages) awaited_.push_back({v1::StageHello::TENSORS, me.stage + 1});
    for (int stage = 1; me.stage == 0 && stage < me.stages; ++stage) {
      awaited_.push_back({v1::StageHello::NOTES, stage});
    }
  }

  absl::Status Run(Deadline deadline) {
    const absl::Status status = TakeAll(deadline);
    if (!absl::IsCancelled(status)) TurnAway();
    return status;
  }

 private:
  // A connection that has not said who it is.
  struct Guest {
    FileDescriptor socket;
    std::string peer;
    HelloReader reader;
    Deadline until;
  };

  absl::Status TakeAll(Deadline deadline) {
    while (!awaited_.empty()) {
      refusals_.Tell();
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat(
            "stage ", awaited_.front().second, " has not connected in ", options_.join_ms, " ms"));
      }
      absl::Status status = Poll(deadline);
      if (!status.ok()) return status;
      for (size_t i = 0; i < guests_.size();) {
        if (Hear(guests_[i])) {
          guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
          ++i;
        }
      }
    }
    return absl::OkStatus();
  }

  // Nobody is awaited any more: who has not said who it is, here or in the kernel's backlog, was none
  // of the group. The listening socket does not wait.
  void TurnAway() {
    constexpr char kWhy[] = "it has not said who it is, and no stage is awaited any more";
    for (Guest& guest : guests_) Refuse(guest, kWhy, false);
    guests_.clear();
    for (size_t i = 0; i < kGuestsMax; ++i) {
      const auto accepted = Accept(listening_.get(), options_.silence_ms);
      if (!accepted.ok()) break;
      refusals_.Note(PeerOf(accepted->get()), kWhy);
    }
  }

  absl::Status Poll(Deadline deadline) {
    std::vector<pollfd> fds = {{wake_up_.fd(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
    for (const Guest& guest : guests_) {
      fds.push_back({guest.socket.get(), POLLIN, 0});
      deadline = std::min(deadline, guest.until);
    }
    deadline = std::min(deadline, refusals_.next());
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(left.count(), 0)) + 1);
    if (fds[0].revents != 0) return absl::CancelledError("interrupted");
    if (fds[1].revents == 0) return absl::OkStatus();
    auto accepted = Accept(listening_.get(), options_.silence_ms);
    if (!accepted.ok()) return absl::OkStatus();  // who hangs up at once does not matter
    // A stage says hello at once: who has been silent for longest is the least likely to be one.
    if (guests_.size() == kGuestsMax) {
      Refuse(guests_.front(), "it has not said who it is, and others wait", false);
      guests_.erase(guests_.begin());
    }
    std::string peer = PeerOf(accepted->get());
    guests_.push_back({*std::move(accepted), std::move(peer), {}, In(options_.hello_ms)});
    return absl::OkStatus();
  }

  // True: the guest is dealt with.
  bool Hear(Guest& guest) {
    const auto whole = guest.reader.Go(guest.socket);
    if (!whole.ok()) return Refuse(guest, std::string(whole.status().message()), false);
    if (!*whole) {
      if (std::chrono::steady_clock::now() < guest.until) return false;
      return Refuse(guest, "it has not said who it is in time", false);
    }
    const v1::StageHello& hello = guest.reader.hello();
    const std::string difference = Difference(hello, me_);
    if (!difference.empty()) return Refuse(guest, difference, true);
    const auto awaited = std::find(awaited_.begin(), awaited_.end(),
                                   std::pair(hello.purpose(), static_cast<int>(hello.stage())));
    if (awaited == awaited_.end()) {
      return Refuse(guest,
                    absl::StrCat("stage ", hello.stage(), " is not awaited by stage ", me_.stage,
                                 ", or is there already"),
                    true);
    }
    const v1::StageHello answer = HelloTo(hello.stage(), me_, hello.purpose());
    if (!Write(guest.socket, answer, In(options_.hello_ms), wake_up_).ok()) {
      return true;  // it has gone again
    }
    (*connections_)[*awaited] = std::move(guest.socket);
    awaited_.erase(awaited);
    return true;
  }

  bool Refuse(Guest& guest, const std::string& why, bool answers) {
    refusals_.Note(guest.peer, why);
    if (!answers) return true;
    v1::StageHello hello = HelloOf(me_, v1::StageHello::PURPOSE_UNSPECIFIED);
    hello.set_refusal(why);
    Write(guest.socket, hello, In(options_.hello_ms), wake_up_).IgnoreError();
    return true;
  }

  static constexpr size_t kGuestsMax = 64;

  const FileDescriptor& listening_;
  const StageIdentity& me_;
  const SocketsOptions& options_;
  const WakeUp& wake_up_;
  Connections* const connections_;
  std::vector<std::pair<v1::StageHello::Purpose, int>> awaited_;
  std::vector<Guest> guests_;  // the newest last
  RefusalLog refusals_{me_.stage};
};

}  // namespace

absl::StatusOr<Connections> Shake(const FileDescriptor& listening, const StageIdentity& me,
                                  const std::vector<std::string>& endpoints, const DialStage& dial,
                                  const SocketsOptions& options, const WakeUp& wake_up) {
  const Deadline deadline = In(options.join_ms);
  Connections connections;
  std::vector<std::pair<v1::StageHello::Purpose, int>> dialled;
  if (me.stage > 0) {
    dialled = {{v1::StageHello::TENSORS, me.stage - 1}, {v1::StageHello::NOTES, 0}};
  }
  for (const auto& [purpose, stage] : dialled) {
    auto socket = Introduce(stage, purpose, me, endpoints[static_cast<size_t>(stage)], dial,
                            deadline, wake_up);
    if (!socket.ok()) return socket.status();
    connections[{purpose, stage}] = *std::move(socket);
  }
  const absl::Status status =
      Reception(listening, me, options, wake_up, &connections).Run(deadline);
  if (!status.ok()) return status;
  return connections;
}

}  // namespace lorad::worker
