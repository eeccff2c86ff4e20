// Generate: the prompts are made on a thread for files; then the core is asked for what is new, again
// and again, whenever the client has taken what there was.
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lorad/v1/adapters.pb.h"
#include "server/answers/asks.h"
#include "server/answers/pieces.h"
#include "server/calls/backend.h"
#include "server/calls/question.h"
#include "server/calls/strand.h"
#include "server/errors/errors.h"
#include "server/errors/grpc_status.h"
#include "server/services/services.h"

namespace lorad::server {
namespace {

// Belongs to itself.
class GenerateStream final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  GenerateStream(Backend& backend, AskedModels& models, grpc::CallbackServerContext* context,
                 v1::GenerateRequest request)
      : here_(backend.calls),
        backend_(backend),
        models_(models),
        context_(context),
        strand_(backend.files),
        question_(backend.driver, backend.answers),
        timer_(backend.patience, [this] { strand_.Post([this] { OnLate(); }); }),
        request_(std::move(request)) {
    absl::StatusOr<Connections::Visit> visit =
        backend.connections.Enter(CallerOf(*context), Connections::Who::kClient);
    absl::Status status = visit.ok() ? CheckAsks(request_) : visit.status();
    if (!status.ok()) {
      End(status);
      return;
    }
    visit_.emplace(*std::move(visit));
    strand_.Post([this] { FindJobs(); });
  }

  void OnWriteDone(bool ok) override {
    timer_.Stop();
    strand_.Post([this, ok] {
      messages_.pop_front();
      ok ? GoOn() : End(absl::CancelledError("the client left, or did not read"));
    });
  }
  void OnCancel() override { question_.GiveUp(); }
  void OnDone() override {
    timer_.Close();
    strand_.Post([this] { delete this; });
  }

 private:
  // All of this on the strand.

  // A question whose answer goes on here.
  void Ask(std::vector<Request> requests, std::function<void(std::vector<Question::Answer>)> then) {
    question_.AskAll(std::move(requests), [this, then = std::move(then)](auto answers) {
      strand_.Post([this, then, answers = std::move(answers)]() mutable {
        for (const Question::Answer& answer : answers) {
          if (!answer.ok()) return End(answer.status());
        }
        then(std::move(answers));
      });
    });
  }

  // The base model is that of the jobs, where no ask says another.
  void FindJobs() {
    std::vector<Request> requests;
    std::set<std::string> jobs;
    for (const v1::Ask& ask : request_.asks()) {
      if (!ask.base_model().empty()) base_models_.insert(ask.base_model());
      if (!ask.job().empty() && jobs.insert(ask.job()).second) {
        v1::GetJobRequest get;
        get.set_name(ask.job());
        requests.emplace_back(get);
      }
    }
    if (requests.empty()) return FindModel();
    Ask(std::move(requests), [this](std::vector<Question::Answer> answers) {
      for (const Question::Answer& answer : answers) {
        base_models_.insert(std::get<v1::Job>(*answer).base_model());
      }
      FindModel();
    });
  }

  void FindModel() {
    if (base_models_.size() > 1) {
      return End(InvalidFields(
          "request",
          {{"asks", absl::StrCat("all must be of one base model; these are of '",
                                 *base_models_.begin(), "' and '", *base_models_.rbegin(), "'")}}));
    }
    v1::GetModelRequest get;
    get.set_name(*base_models_.begin());
    Ask({get}, [this](std::vector<Question::Answer> answers) {
      Prepare(std::get<v1::Model>(*answers.front()));
    });
  }

  void Prepare(const v1::Model& model) {
    if (context_->IsCancelled()) return End(absl::CancelledError("the client left"));
    absl::StatusOr<std::shared_ptr<const AskedModel>> asked = models_.Get(model);
    if (!asked.ok()) return End(asked.status());
    absl::StatusOr<PreparedAsks> prepared =
        PrepareAsks(backend_.driver, request_, model, *std::move(asked));
    if (!prepared.ok()) return End(prepared.status());
    prepared_.emplace(*std::move(prepared));
    Ask({prepared_->start}, [this](std::vector<Question::Answer> answers) {
      pieces_.emplace(request_, *prepared_, std::get<GenerationStarted>(*answers.front()));
      GoOn();
    });
  }

  // Writes what waits; where nothing does, asks for more.
  void GoOn() {
    if (ended_) return;
    if (!messages_.empty()) {
      timer_.Start(backend_.waits.idle);
      return StartWrite(&messages_.front());
    }
    if (over_) return End(absl::OkStatus());
    Ask({pieces_->Next()}, [this](std::vector<Question::Answer> answers) {
      const auto& news = std::get<GenerationNews>(*answers.front());
      for (v1::GenerateResponse& message : pieces_->Take(news)) {
        messages_.push_back(std::move(message));
      }
      over_ = news.over;
      GoOn();
    });
  }

  // The client reads nothing, so an answer would not reach it either.
  void OnLate() {
    if (!ended_ && timer_.due()) context_->TryCancel();
  }

  void End(const absl::Status& status) {
    if (std::exchange(ended_, true)) return;
    timer_.Stop();
    if (pieces_ && !over_) {
      backend_.driver.Call(EndGeneration{pieces_->generation()},
                           [](const absl::StatusOr<ReplyValue>&) {});
    }
    Finish(ToGrpc(status));
  }

  const Attendance::Token here_;
  Backend& backend_;
  AskedModels& models_;
  grpc::CallbackServerContext* const context_;
  Strand strand_;
  Question question_;
  std::optional<Connections::Visit> visit_;
  Patience::Timer timer_;
  const v1::GenerateRequest request_;
  std::set<std::string> base_models_;
  std::optional<PreparedAsks> prepared_;
  std::optional<Pieces> pieces_;
  std::deque<v1::GenerateResponse> messages_;  // that wait; the first may be being written
  bool over_ = false;                          // nothing more comes
  bool ended_ = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* NewGenerateStream(
    Backend& backend, AskedModels& models, grpc::CallbackServerContext* context,
    const v1::GenerateRequest& request) {
  return new GenerateStream(backend, models, context, request);
}

}  // namespace lorad::server
