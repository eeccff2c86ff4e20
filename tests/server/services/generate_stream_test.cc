// Generate over a real channel, against a driver that answers by script.
#include <catch2/catch.hpp>
#include <deque>
#include <filesystem>

#include "lorad/v1/adapters.grpc.pb.h"
#include "server/errors/errors.h"
#include "storage/models/model_directory.h"
#include "tests/server/services/api_fixture.h"

namespace lorad::server {
namespace {

using Finish = v1::GenerateResponse;

GenerationNews::Piece PieceOf(
    int32_t index, std::vector<int32_t> tokens,
    v1::GenerateResponse::FinishReason finish = v1::GenerateResponse::FINISH_REASON_UNSPECIFIED) {
  const std::vector<double> log_probabilities(tokens.size(), -0.5);
  return {index, std::move(tokens), log_probabilities, finish};
}

GenerationNews News(std::vector<GenerationNews::Piece> pieces) {
  GenerationNews news;
  news.pieces = std::move(pieces);
  return news;
}

GenerationNews Waiting(const std::string& why) {
  GenerationNews news;
  news.waiting = why;
  return news;
}

GenerationNews Over() {
  GenerationNews news;
  news.over = true;
  return news;
}

// A model "m" without a tokenizer, and jobs whose names begin with "job-" of it; "job-other" is of
// another model.
struct GenerateFixture : ApiFixture {
  explicit GenerateFixture(ApiServerOptions options = {})
      : ApiFixture(storage::RealFiles(), std::move(options)), stub(v1::Adapters::NewStub(channel)) {
    driver.answer = [this](const Request& request) { return Answer(request); };
  }

  absl::StatusOr<ReplyValue> Answer(const Request& request) {
    using Reply = absl::StatusOr<ReplyValue>;
    if (const auto* get = std::get_if<v1::GetJobRequest>(&request)) {
      if (!get->name().starts_with("job-")) return NotFound("job", get->name());
      v1::Job job;
      job.set_name(get->name());
      job.set_base_model(get->name() == "job-other" ? "other" : "m");
      return Reply(job);
    }
    if (std::holds_alternative<v1::GetModelRequest>(request)) {
      v1::Model model;
      model.set_name("m");
      model.set_path(std::filesystem::canonical("tests/golden/llama_gqa_untied/model").string());
      model.set_fingerprint(storage::ModelDirectory::Open(model.path()).value().fingerprint());
      model.set_max_position_embeddings(32);
      return Reply(model);
    }
    if (const auto* start = std::get_if<StartGeneration>(&request)) {
      return Reply(GenerationStarted{"generation-1", std::vector<int64_t>(start->asks.size(), 7)});
    }
    if (std::holds_alternative<ReadGeneration>(request)) {
      if (news.empty()) return Reply(endless);
      absl::StatusOr<GenerationNews> next = news.front();
      news.pop_front();
      if (!next.ok()) return next.status();
      return Reply(*std::move(next));
    }
    return Reply(std::monostate());
  }

  v1::Ask& AskOf(const std::string& job, std::vector<int32_t> tokens = {3, 1, 4}) {
    v1::Ask& ask = *request.add_asks();
    ask.set_job(job);
    ask.mutable_token_ids()->mutable_ids()->Add(tokens.begin(), tokens.end());
    return ask;
  }

  grpc::Status Read(std::vector<v1::GenerateResponse>* messages) {
    Context context;
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) messages->push_back(message);
    return reader->Finish();
  }
  grpc::Status Refusal() {
    std::vector<v1::GenerateResponse> messages;
    const grpc::Status status = Read(&messages);
    CHECK(messages.empty());
    return status;
  }

  std::deque<absl::StatusOr<GenerationNews>> news;
  GenerationNews endless;  // once there is nothing else
  v1::GenerateRequest request;
  std::unique_ptr<v1::Adapters::Stub> stub;
};

TEST_CASE_METHOD(GenerateFixture, "answers come in pieces, and what was seen is not asked again") {
  AskOf("job-a").set_max_tokens(5);
  AskOf("job-b").set_temperature(0.5);
  news = {Waiting("no worker is connected"), News({PieceOf(1, {9}), PieceOf(0, {5, 6})}),
          News({PieceOf(0, {8}, Finish::EOS)}), News({PieceOf(1, {}, Finish::LENGTH)}), Over()};
  std::vector<v1::GenerateResponse> messages;
  REQUIRE(Read(&messages).ok());
  REQUIRE(messages.size() == 5);
  CHECK(messages[0].waiting() == "no worker is connected");
  CHECK(messages[1].index() == 1);
  CHECK(messages[1].step() == 7);
  CHECK(messages[2].index() == 0);
  REQUIRE(messages[2].token_ids_size() == 2);
  CHECK(messages[2].token_ids(1) == 6);
  CHECK(messages[2].log_probabilities(1) == -0.5);
  CHECK(messages[3].finish_reason() == Finish::EOS);
  CHECK(messages[3].prompt_tokens() == 3);
  CHECK(messages[3].completion_tokens() == 3);
  CHECK(messages[3].step() == 0);  // told with the first piece alone
  CHECK(messages[4].finish_reason() == Finish::LENGTH);

  const auto starts = driver.Requests<StartGeneration>();
  REQUIRE(starts.size() == 1);
  REQUIRE(starts[0].asks.size() == 2);
  CHECK(starts[0].asks[0].job == "job-a");
  CHECK(starts[0].asks[0].base_model == "m");
  CHECK(starts[0].asks[0].prompt == std::vector<int32_t>{3, 1, 4});
  CHECK(starts[0].asks[0].max_tokens == 5);
  CHECK(starts[0].asks[1].max_tokens == 32 - 3 + 1);  // of 128: as many as have positions
  CHECK(starts[0].asks[1].temperature == 0.5);
  const auto reads = driver.Requests<ReadGeneration>();
  REQUIRE(reads.size() == 5);
  CHECK(reads[0].seen == std::vector<int32_t>{0, 0});
  CHECK(reads[2].seen == std::vector<int32_t>{2, 1});
  CHECK(reads[3].ended == std::vector<int32_t>{0});
  CHECK(reads[4].ended == std::vector<int32_t>{0, 1});
  CHECK(driver.Requests<EndGeneration>().empty());  // it is over by itself
}

TEST_CASE_METHOD(GenerateFixture, "what cannot be asked is refused before anything is started") {
  SECTION("nothing is asked") { CHECK(ErrorInfoOf(Refusal()).reason() == "INVALID_FIELDS"); }
  SECTION("a job that is not there") {
    AskOf("none");
    CHECK(ErrorInfoOf(Refusal()).reason() == "JOB_NOT_FOUND");
  }
  SECTION("jobs of two base models") {
    AskOf("job-a");
    AskOf("job-other");
    CHECK_THAT(Summary(Refusal()), Catch::Contains("these are of 'm' and 'other'"));
  }
  SECTION("a token that the model does not have, and which ask has it") {
    AskOf("job-a");
    AskOf("job-b", {1, 1 << 30});
    const grpc::Status status = Refusal();
    CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(ErrorInfoOf(status).metadata().at("ask") == "1");
    CHECK(ErrorInfoOf(status).reason() == "PROMPT_INVALID");
    CHECK_THAT(status.error_message(), Catch::Contains("ask 1: the prompt's token 1073741824 is"));
  }
  SECTION("a prompt that is empty") {
    AskOf("job-a", {});
    const grpc::Status status = Refusal();
    CHECK(ErrorInfoOf(status).reason() == "PROMPT_INVALID");
    CHECK_THAT(status.error_message(), Catch::Contains("the prompt is empty"));
  }
  SECTION("a prompt that is too long") {
    AskOf("job-a", std::vector<int32_t>(33, 1));
    const grpc::Status status = Refusal();
    CHECK(ErrorInfoOf(status).reason() == "PROMPT_TOO_LONG");
    CHECK(ErrorInfoOf(status).metadata().at("ask") == "0");
  }
  CHECK(driver.Requests<StartGeneration>().empty());
}

TEST_CASE_METHOD(GenerateFixture, "an error while answers are made is the call's, and ends them") {
  AskOf("job-a");
  news = {News({PieceOf(0, {5})}),
          Error(absl::StatusCode::kNotFound, "ASKED_IS_GONE", "job 'job-a' was deleted")};
  std::vector<v1::GenerateResponse> messages;
  const grpc::Status status = Read(&messages);
  CHECK(messages.size() == 1);
  CHECK(status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(ErrorInfoOf(status).reason() == "ASKED_IS_GONE");
  CHECK(Eventually([&] { return driver.Requests<EndGeneration>().size() == 1; }));
  CHECK(driver.Requests<EndGeneration>()[0].name == "generation-1");
}

TEST_CASE_METHOD(GenerateFixture, "a client that leaves while nothing comes ends its answers") {
  AskOf("job-a");
  news = {News({PieceOf(0, {5})})};
  driver.answer = [this](const Request& asked) {
    if (std::holds_alternative<ReadGeneration>(asked)) driver.hold = true;  // all that follow
    return Answer(asked);
  };
  Context context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse message;
  REQUIRE(reader->Read(&message));
  REQUIRE(Eventually([&] { return driver.held() == 1; }));
  driver.hold = false;
  context.TryCancel();
  CHECK_FALSE(reader->Read(&message));
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  CHECK(Eventually([&] { return driver.Requests<EndGeneration>().size() == 1; }));
  driver.AnswerHeld(absl::CancelledError("nobody waits"));  // comes too late, and does no harm
}

struct ImpatientFixture : GenerateFixture {
  static ApiServerOptions Options() {
    ApiServerOptions options;
    options.idle_wait = absl::Milliseconds(200);
    return options;
  }
  ImpatientFixture() : GenerateFixture(Options()) {}
};

TEST_CASE_METHOD(ImpatientFixture, "a client that reads nothing is given up, and its answers end") {
  AskOf("job-a").set_max_tokens(29);
  endless.pieces = {PieceOf(0, std::vector<int32_t>(20'000, 5))};  // more than lies on the way
  Context context;
  const auto reader = stub->Generate(&context, request);
  REQUIRE(Eventually([&] { return driver.Requests<EndGeneration>().size() == 1; }));
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace lorad::server
