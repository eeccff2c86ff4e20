#include "worker/transport/in_process.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"

namespace lorad::worker {
namespace {

using Time = std::chrono::steady_clock::time_point;
using kernels::TensorView;

void CopyRows(const TensorView& from, int64_t rows, const TensorView& to) {
  const int64_t value_bytes = kernels::BytesOf(from.dtype);
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(static_cast<char*>(to.data) + row * to.row_stride * value_bytes,
                static_cast<const char*>(from.data) + row * from.row_stride * value_bytes,
                static_cast<size_t>(from.columns * value_bytes));
  }
}

// What all stages share. One lock and one condition: tests have few stages.
class Exchange {
 public:
  explicit Exchange(const InProcessOptions& options) : options_(options), random_(options.seed) {}

  absl::Status Send(int stage, Lane lane, const Passage& passage, const TensorView& memory) {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    Edge& edge = edges_[{stage, lane}];
    if (edge.sending.has_value()) return absl::InternalError("a tensor is on its way already");
    edge.sending.emplace(passage, memory);
    Meet(edge, false);
    changed_.notify_all();  // who waits may be the one to move it
    return absl::OkStatus();
  }

  absl::Status WaitSent(int stage, Lane lane) {
    std::unique_lock lock(mutex_);
    Edge& edge = edges_[{stage, lane}];
    return Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> std::optional<Time> {
      Meet(edge, true);
      return edge.sending.has_value() ? std::nullopt : std::optional<Time>(Time());
    });
  }

  // `name`: of an Offer.
  absl::Status PostReceive(int from, Lane lane, const TensorView& memory, std::string name) {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    Edge& edge = edges_[{from, lane}];
    if (edge.receiving.has_value()) return absl::InternalError("a tensor is awaited already");
    edge.receiving = memory;
    edge.name = std::move(name);
    edge.latest.reset();
    Meet(edge, false);
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> WaitRoom(int stage, Lane lane) {
    std::unique_lock lock(mutex_);
    const Edge& edge = edges_[{stage, lane}];
    const absl::Status status =
        Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> std::optional<Time> {
          if (edge.receiving.has_value() && !edge.landed.has_value()) return Time();
          return std::nullopt;
        });
    if (!status.ok()) return status;
    return edge.name;
  }

  absl::StatusOr<Passage> WaitComing(int from, Lane lane) {
    std::unique_lock lock(mutex_);
    Edge& edge = edges_[{from, lane}];
    changed_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      Meet(edge, true);
      return !broken_.ok() || edge.latest.has_value();
    });
    if (!broken_.ok()) return broken_;
    return *edge.latest;
  }

  absl::StatusOr<std::optional<Landing>> WaitReceived(int from, Lane lane) {
    std::unique_lock lock(mutex_);
    Edge& edge = edges_[{from, lane}];
    const absl::Status status =
        Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> std::optional<Time> {
          Meet(edge, true);
          if (edge.given_up) return Time();
          if (!edge.landed.has_value()) return std::nullopt;
          return edge.landed->end;
        });
    if (!status.ok()) return status;
    if (std::exchange(edge.given_up, false)) return std::nullopt;
    edge.receiving.reset();
    return std::exchange(edge.landed, std::nullopt);
  }

  void GiveUpReceive(int from, Lane lane) {
    std::lock_guard lock(mutex_);
    edges_[{from, lane}].given_up = true;
    changed_.notify_all();
  }

  absl::Status SendNote(int from, int to, std::string note) {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    notes_[{from, to}].emplace_back(std::move(note), Later());
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> WaitNote(int from, int to) {
    std::unique_lock lock(mutex_);
    std::deque<std::pair<std::string, Time>>& notes = notes_[{from, to}];
    const absl::Status status = Wait(lock, [&]() -> std::optional<Time> {
      if (notes.empty()) return std::nullopt;
      return notes.front().second;
    });
    if (!status.ok()) return status;
    std::string note = std::move(notes.front().first);
    notes.pop_front();
    return note;
  }

  void Break(absl::Status why) {
    std::lock_guard lock(mutex_);
    if (broken_.ok()) broken_ = std::move(why);
    changed_.notify_all();
  }
  absl::Status broken() {
    std::lock_guard lock(mutex_);
    return broken_;
  }

 private:
  // A lane from one stage to its neighbour.
  struct Edge {
    std::optional<std::pair<Passage, TensorView>> sending;
    std::optional<TensorView> receiving;
    std::string name;               // of what is offered
    std::optional<Landing> landed;  // in `receiving`, to be seen from its end on
    std::optional<Passage> latest;  // of what was posted last
    bool given_up = false;          // a wait for it has nothing to wait for
  };

  Time Later() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (options_.delay_us_max == 0) return {};
    const auto delay =
        static_cast<int64_t>(random_() % static_cast<uint64_t>(options_.delay_us_max + 1));
    return std::chrono::steady_clock::now() + std::chrono::microseconds(delay);
  }

  // Moves the tensor if both sides are there, and it is time.
  void Meet(Edge& edge, bool waits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!edge.sending.has_value() || !edge.receiving.has_value() || edge.landed.has_value()) return;
    using Moment = InProcessOptions::Moment;
    const bool last = options_.moment == Moment::kAtLast ||
                      (options_.moment == Moment::kShuffled && random_() % 2 == 0);
    if (last && !waits) return;
    const auto [passage, memory] = *std::exchange(edge.sending, std::nullopt);
    const TensorView& to = *edge.receiving;
    if (passage.rows > to.rows || memory.columns != to.columns || memory.dtype != to.dtype ||
        passage.in_place == edge.name.empty()) {
      broken_ = absl::InternalError(absl::StrCat(passage.rows, " rows of ", memory.columns,
                                                 " columns came where ", to.rows, " of ",
                                                 to.columns, " have memory"));
    } else {
      const Time begin =
          std::chrono::steady_clock::now() - std::chrono::microseconds(passage.took_us);
      if (!passage.in_place) CopyRows(memory, passage.rows, to);
      edge.latest = passage;
      edge.latest->took_us = 0;
      edge.landed = {*edge.latest, begin, std::max(Later(), std::chrono::steady_clock::now())};
    }
    changed_.notify_all();
  }

  // `ready` gives the moment from which the wait is over, once that is known.
  template <class Ready>
  absl::Status Wait(std::unique_lock<std::mutex>& lock, Ready ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Time limit =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(options_.timeout_ms);
    while (true) {
      const std::optional<Time> at = broken_.ok() ? ready() : std::nullopt;
      if (!broken_.ok()) return broken_;
      const Time now = std::chrono::steady_clock::now();
      if (at.has_value() && *at <= now) return absl::OkStatus();
      if (now >= limit) {
        broken_ = absl::DeadlineExceededError(absl::StrCat(
            "nothing came from the neighbouring stage in ", options_.timeout_ms, " ms"));
        changed_.notify_all();
        return broken_;
      }
      changed_.wait_until(lock, std::min(limit, at.value_or(limit)));
    }
  }

  const InProcessOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int, Lane>, Edge> edges_ ABSL_GUARDED_BY(mutex_);  // by the sender
  std::map<std::pair<int, int>, std::deque<std::pair<std::string, Time>>> notes_
      ABSL_GUARDED_BY(mutex_);  // by (from, to)
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Exchange> exchange, int stage)
      : exchange_(std::move(exchange)), stage_(stage) {}
  ~InProcessTransport() override {
    exchange_->Break(absl::UnavailableError(absl::StrCat("stage ", stage_, " is gone")));
  }

  absl::Status Send(Lane lane, const Passage& passage, const TensorView& memory) override {
    return exchange_->Send(stage_, lane, passage, memory);
  }
  absl::Status WaitSent(Lane lane) override { return exchange_->WaitSent(stage_, lane); }
  absl::Status PostReceive(Lane lane, const TensorView& memory) override {
    return exchange_->PostReceive(From(lane), lane, memory, "");
  }
  absl::Status Offer(Lane lane, const TensorView& memory, std::string name) override {
    return exchange_->PostReceive(From(lane), lane, memory, std::move(name));
  }
  absl::StatusOr<std::string> WaitRoom(Lane lane) override {
    return exchange_->WaitRoom(stage_, lane);
  }
  absl::StatusOr<std::optional<Landing>> WaitReceived(Lane lane) override {
    return exchange_->WaitReceived(From(lane), lane);
  }
  absl::StatusOr<Passage> WaitComing(Lane lane) override {
    return exchange_->WaitComing(From(lane), lane);
  }
  absl::Status broken() override { return exchange_->broken(); }
  void GiveUpReceive(Lane lane) override { exchange_->GiveUpReceive(From(lane), lane); }
  absl::Status SendNote(int stage, std::string note) override {
    return exchange_->SendNote(stage_, stage, std::move(note));
  }
  absl::StatusOr<std::string> WaitNote(int stage) override {
    return exchange_->WaitNote(stage, stage_);
  }
  void Interrupt(absl::Status why) override { exchange_->Break(std::move(why)); }

 private:
  int From(Lane lane) const { return lane == Lane::kActivations ? stage_ - 1 : stage_ + 1; }

  const std::shared_ptr<Exchange> exchange_;  // shared: whoever ends last ends it
  const int stage_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> JoinInProcess(int stages, const InProcessOptions& options) {
  auto exchange = std::make_shared<Exchange>(options);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int stage = 0; stage < stages; ++stage) {
    transports.push_back(std::make_unique<InProcessTransport>(exchange, stage));
  }
  return transports;
}

}  // namespace lorad::worker
