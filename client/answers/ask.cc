#include "client/answers/ask.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/calls/find_job.h"
#include "client/calls/rpc.h"
#include "lorad/v1/adapters.grpc.pb.h"
#include "lorad/v1/models.grpc.pb.h"

namespace lorad::client {
namespace {

constexpr char kJobBegins[] = "job-";

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
  if (job == source && has_step) {
    job = source.substr(0, slash);
    const std::string name = job;
    if (absl::Status status = FindJob(session, job); !status.ok()) return status;
    if (IsJob(name, job)) {
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
      answer.completion_tokens = message.completion_tokens();
    }
    told(message);
  }
  if (const absl::Status status = session.FromRpc(stream->Finish()); !status.ok()) return status;
  const bool whole = std::all_of(answers->begin(), answers->end(), [](const Answered& answer) {
    return answer.finish != v1::GenerateResponse::FINISH_REASON_UNSPECIFIED;
  });
  return whole ? absl::OkStatus()
               : Error("GENERATION_CUT_SHORT",
                       "the daemon ended the call before all answers were whole; ask again");
}

}  // namespace lorad::client
