// A call's requests to the driver, without a thread that waits for the answer.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/driver/driver.h"
#include "server/driver/task_pool.h"

namespace lorad::server {

class Question {
 public:
  using Answer = absl::StatusOr<ReplyValue>;

  // Answers are given on `pool`, which, like the driver, must outlive what is waited for.
  Question(Driver& driver, TaskPool& pool);

  // `then` is called once, on the pool: with the answer, or with CANCELLED after GiveUp(). One
  // question at a time.
  void Ask(Request request, std::function<void(Answer)> then);
  // Several at once; the answers come in the order of the requests.
  void AskAll(std::vector<Request> requests, std::function<void(std::vector<Answer>)> then);

  // Answers now and from here on are CANCELLED: nobody waits for them any more. The requests may
  // still be carried out. Any thread.
  void GiveUp();

 private:
  struct State;

  Driver& driver_;
  const std::shared_ptr<State> state_;  // with the driver, which may answer long after
};

}  // namespace lorad::server
