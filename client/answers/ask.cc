#include "client/answers/ask.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/calls/error.h"
#include "client/calls/find_job.h"
#include "client/calls/rpc.h"
#include "lorad/v1/adapters.grpc.pb.h"
#include "lorad/v1/models.grpc.pb.h"

namespace lorad::client {
namespace {

constexpr char kJobBegins[] = "job-";
// The daemon ends a connection that answers no ping for 10 s, which it asks every 20 s, and a
// generation that nobody reads for 30 s. So long a pause is no hiccup of a machine.
constexpr double kStoodStillSeconds = 8;

// Whether FindJob has found one, or it was an id.
bool IsJob(const std::string& asked, const std::string& found) {
  return found != asked || asked.rfind(kJobBegins, 0) == 0;
}

absl::StatusOr<bool> HasModel(Session& session, const std::string& name) {
  v1::GetModelRequest request;
  request.set_name(name);
  v1::Model model;
  const absl::Status status = Call(session, &v1::Models::Stub::GetModel, request, model);
  if (status.ok()) return true;
  if (ReasonOf(status) == "MODEL_NOT_FOUND" || absl::IsInvalidArgument(status)) return false;
  return status;
}

// How long this process stood still at a stretch, as it does when it is stopped (SIGSTOP, Ctrl-Z).
class StandStill {
 public:
  StandStill() : watch_([this](const std::stop_token& stop) { Watch(stop); }) {}

  double seconds() {
    std::lock_guard lock(mutex_);
    Look();  // who was stopped may ask before the watch goes on
    return longest_s_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLook{500};

  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::chrono::duration<double> since = Clock::now() - seen_ - kLook;
    longest_s_ = std::max(longest_s_, since.count());
    seen_ = Clock::now();
  }
  void Watch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      ends_.wait_for(lock, stop, kLook, [] { return false; });
      Look();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any ends_;
  Clock::time_point seen_ ABSL_GUARDED_BY(mutex_) = Clock::now();
  double longest_s_ ABSL_GUARDED_BY(mutex_) = 0;
  std::jthread watch_;
};

// A call's own limit, and a reader that does not read, in the words of who has to mend it.
absl::Status WhyBroken(const absl::Status& status, int seconds, double stood_still_s) {
  if (ReasonOf(status) == "DEADLINE_EXCEEDED") {
    return Error("DEADLINE_EXCEEDED",
                 absl::StrCat("no answer within ", seconds, " s: give a larger --timeout"));
  }
  const std::string reason = ReasonOf(status);
  const bool stopped = stood_still_s >= kStoodStillSeconds;
  // The daemon ends a call that nobody reads, a connection that answers no ping, or its answers.
  if (reason == "CANCELLED" ||
      (stopped && (reason == "UNREACHABLE" || reason == "GENERATION_GONE"))) {
    const std::string what =
        stopped
            ? absl::StrFormat("this lora stood still for %.0f s, so the daemon gave its answers up",
                              stood_still_s)
            : "the answers were not read for long, so the daemon gave them up";
    return Error("NOT_READ", absl::StrCat(what, ": ask again"));
  }
  return status;
}

}  // namespace

absl::Status SetSource(Session& session, const std::string& source, v1::Ask* ask) {
  // No job that somebody gives a base model's name stands before it.
  const std::size_t plus = source.find('+');
  const absl::StatusOr<bool> is_model = HasModel(session, source.substr(0, plus));
  if (!is_model.ok()) return is_model.status();
  if (*is_model) {
    ask->set_base_model(source.substr(0, plus));
    if (plus == std::string::npos) return absl::OkStatus();
    if (plus + 1 == source.size()) {
      return Error("NO_NAME", absl::StrCat("'", source, "' names no adapter behind its +"));
    }
    ask->set_adapter(source.substr(plus + 1));
    return absl::OkStatus();
  }
  std::string job = source;
  if (absl::Status status = FindJob(session, job); !status.ok()) return status;
  const std::size_t slash = source.rfind('/');
  int64_t step = 0;
  const bool has_step =
      slash != std::string::npos && absl::SimpleAtoi(source.substr(slash + 1), &step);
  if (job == source && slash != std::string::npos) {
    job = source.substr(0, slash);
    const std::string name = job;
    if (absl::Status status = FindJob(session, job); !status.ok()) return status;
    if (IsJob(name, job)) {
      if (!has_step) {
        return Error("USAGE", absl::StrCat("'", source, "' names no step of job '", name,
                                           "': behind the / comes a whole number, as in ", name,
                                           "/100 (`lora checkpoint ls`)"));
      }
      const std::string as_shown = absl::StrCat(name, "/", step);
      if (as_shown != source) {
        return Error("USAGE", absl::StrCat("'", source, "' is no step as it is written: ask '",
                                           as_shown, "'"));
      }
      ask->set_job(job);
      ask->set_step(step);
      return absl::OkStatus();
    }
  } else if (IsJob(source, job)) {
    ask->set_job(job);
    return absl::OkStatus();
  }
  return Error("NOTHING_TO_ASK",
               absl::StrCat("there is no job and no base model '", source,
                            "' (`lora ls`, `lora model ls`); an imported adapter is asked as "
                            "MODEL+ADAPTER"));
}

absl::Status Generate(Session& session, const v1::GenerateRequest& request, int seconds,
                      const std::function<void(const v1::GenerateResponse&)>& told,
                      std::vector<Answered>* answers) {
  answers->assign(static_cast<std::size_t>(request.asks_size()), {});
  v1::Adapters::Stub stub(session.channel());
  grpc::ClientContext context;
  SetDeadline(context, seconds);
  StandStill stood;
  const auto stream = stub.Generate(&context, request);
  v1::GenerateResponse message;
  while (stream->Read(&message)) {
    if (message.index() < 0 || message.index() >= request.asks_size()) continue;
    if (message.waiting().empty()) {
      Answered& answer = (*answers)[static_cast<std::size_t>(message.index())];
      answer.text += message.text();
      answer.token_ids.insert(answer.token_ids.end(), message.token_ids().begin(),
                              message.token_ids().end());
      answer.log_probabilities.insert(answer.log_probabilities.end(),
                                      message.log_probabilities().begin(),
                                      message.log_probabilities().end());
      if (!message.reference().empty()) answer.reference = message.reference();
      answer.step = std::max<int64_t>(answer.step, message.step());
      answer.finish = message.finish_reason();
      answer.prompt_tokens = message.prompt_tokens();
      answer.completion_tokens = static_cast<int32_t>(answer.token_ids.size());
    }
    told(message);
  }
  const absl::Status status = session.FromRpc(stream->Finish());
  if (!status.ok()) return WhyBroken(status, seconds, stood.seconds());
  const bool whole = std::all_of(answers->begin(), answers->end(), [](const Answered& answer) {
    return answer.finish != v1::GenerateResponse::FINISH_REASON_UNSPECIFIED;
  });
  return whole ? absl::OkStatus()
               : Error("GENERATION_CUT_SHORT",
                       "the daemon ended the call before all answers were whole; ask again");
}

void SayWaiting(const v1::GenerateResponse& message) {
  if (!message.waiting().empty()) std::cerr << "waits: " << message.waiting() << "\n";
}

std::optional<int> AskOf(const absl::Status& status, int asks) {
  int ask = 0;
  if (status.ok() || !absl::SimpleAtoi(MetadataOf(status, "ask"), &ask)) return std::nullopt;
  return ask >= 0 && ask < asks ? std::optional(ask) : std::nullopt;
}

}  // namespace lorad::client
