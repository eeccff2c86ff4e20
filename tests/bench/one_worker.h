// The coordinator's core with one job that trains on one worker, and no clock, network or file
// around it: what a step costs the core and its store.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/core/core.h"
#include "server/store/revision_log.h"

namespace lorad::bench {

// A job as clients make them, every field filled in; it saves at its end alone.
v1::Job TypicalJob();

// A store with the model and the datasets that this job names.
server::StoredState HouseOf(const v1::Job& job);

class OneWorker {
 public:
  // What is to be made durable, turn by turn; may do nothing.
  using Persist = std::function<void(const std::vector<storage::Mutation>&)>;

  // TypicalJob with so many steps; it is running when this returns.
  OneWorker(int64_t steps, Persist persist, const server::CoreOptions& options = {});

  // The job as GetJob tells it.
  v1::Job Job();
  // Until so many steps are done, each event in a turn of its own.
  void RunUntil(int64_t step);
  // Somebody creates a job under a request_id of its own, and cancels and deletes it while its rows
  // are checked.
  void ComeAndGo();
  // The worker is lost and another comes: the job begins again, under losses that differ by so
  // much.
  void LoseWorker(double loss_offset);
  int64_t step() const { return step_; }
  int64_t events() const { return applied_; }
  int64_t now_us() const { return now_us_; }
  // What watchers have been told, the newest of it.
  server::RevisionLog& revisions() { return revisions_; }

 private:
  void Connect();
  void Next();
  void Apply(decltype(server::Event::content) content);
  void Do(const server::Effect& effect);
  void Plan(const server::Plan& plan);
  void Execute(const worker::v1::Window& window);
  void Report(worker::v1::Report report);

  const Persist persist_;
  std::unique_ptr<server::Core> core_;
  server::RevisionLog revisions_;
  int64_t now_us_ = 1'000'000'000;
  std::deque<decltype(server::Event::content)> events_;  // to be applied
  std::map<int64_t, server::PlanInput> plans_;           // by window
  std::string job_;
  int64_t step_ = 0;
  double loss_offset_ = 0;
  uint64_t connection_ = 0;
  int64_t epoch_ = 0;
  int64_t reports_ = 0;
  int64_t applied_ = 0;
  uint64_t guests_ = 0;  // jobs of ComeAndGo
  std::vector<server::ReplyValue> replies_;
};

}  // namespace lorad::bench
