// lora generate and lora evaluate, against services that a script plays.
#include <catch2/catch.hpp>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "lorad/v1/adapters.grpc.pb.h"
#include "lorad/v1/datasets.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "lorad/v1/models.grpc.pb.h"
#include "tests/client/run_command.h"
#include "tests/client/terminal.h"

namespace lorad::client {
namespace {

using GrpcContext = grpc::ServerContext;
using Writer = grpc::ServerWriter<v1::GenerateResponse>;

grpc::Status Refused(grpc::StatusCode code, const std::string& reason,
                     const std::string& ask = "") {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  if (!ask.empty()) (*info.mutable_metadata())["ask"] = ask;
  google::rpc::Status status;
  status.set_code(code);
  status.add_details()->PackFrom(info);
  return {code, "as the script says", status.SerializeAsString()};
}

// One base model, "m".
struct FakeModels final : v1::Models::Service {
  grpc::Status GetModel(GrpcContext*, const v1::GetModelRequest* request,
                        v1::Model* response) override {
    if (request->name() != "m") return Refused(grpc::NOT_FOUND, "MODEL_NOT_FOUND");
    response->set_name("m");
    return grpc::Status::OK;
  }
};

// One job, "job-aaaaaaaa".
struct FakeJobs final : v1::Jobs::Service {
  grpc::Status GetJob(GrpcContext*, const v1::GetJobRequest* request, v1::Job* response) override {
    if (request->name() != "job-aaaaaaaa") return Refused(grpc::NOT_FOUND, "JOB_NOT_FOUND");
    response->set_name(request->name());
    return grpc::Status::OK;
  }
  // None has a display name.
  grpc::Status ListJobs(GrpcContext*, const v1::ListJobsRequest*, v1::ListJobsResponse*) override {
    return grpc::Status::OK;
  }
};

struct FakeDatasets final : v1::Datasets::Service {
  int rows = 5;
  grpc::Status GetDataset(GrpcContext*, const v1::GetDatasetRequest* request,
                          v1::Dataset* response) override {
    response->set_name(request->name());
    response->set_rows(rows);
    return grpc::Status::OK;
  }
};

// A row's answer is "#" and its number; that of the wrong ones is "?".
struct FakeAdapters final : v1::Adapters::Service {
  std::set<int64_t> bad, wrong;
  std::vector<v1::GenerateRequest> asked;
  std::string says;    // of one that is no row, before `ends`
  std::string longer;  // behind each row's answers
  grpc::Status ends;
  v1::GenerateResponse::FinishReason finish = v1::GenerateResponse::EOS;
  size_t whole_calls = 0;  // that end well before one ends so

  grpc::Status Generate(GrpcContext*, const v1::GenerateRequest* request, Writer* writer) override {
    asked.push_back(*request);
    const bool whole = ends.ok() || asked.size() <= whole_calls;
    for (int i = 0; i < request->asks_size(); ++i) {
      if (request->asks(i).has_row() && bad.contains(request->asks(i).row().row())) {
        return Refused(grpc::INVALID_ARGUMENT, "PROMPT_TOO_LONG", std::to_string(i));
      }
    }
    for (int i = 0; i < request->asks_size(); ++i) {
      v1::GenerateResponse message;
      message.set_index(i);
      const int64_t row = request->asks(i).row().row();
      message.set_text(!request->asks(i).has_row() ? says
                       : wrong.contains(row)       ? "?"
                                                   : "#" + std::to_string(row));
      message.add_token_ids(1);
      message.add_log_probabilities(-1);
      message.set_reference("#" + std::to_string(row) + longer);
      if (request->asks(i).has_row()) message.set_text(message.text() + longer);
      if (whole) message.set_finish_reason(finish);
      message.set_prompt_tokens(5);
      writer->Write(message);
    }
    return whole ? grpc::Status::OK : ends;
  }
};

struct AskFixture {
  FakeModels models;
  FakeJobs jobs;
  FakeDatasets datasets;
  FakeAdapters adapters;
  Served served{&models, &jobs, &datasets, &adapters};
};

constexpr char kEvaluate[] = "evaluate m --dataset d --exact-match '#(.*)'";

TEST_CASE_METHOD(AskFixture, "rows that cannot be asked are left out, and said") {
  adapters.bad = {1, 4};
  adapters.wrong = {2};
  const Ran table = served.Run(kEvaluate);
  CHECK(table.reason == "OK");
  CHECK_THAT(table.out,
             Catch::Contains("exact match: 2 of 3 right (66.7 %), 2 rows could not be asked\n"));
  CHECK_THAT(table.out, Catch::Contains("not asked: PROMPT_TOO_LONG: as the script says"));
  CHECK(adapters.asked.size() == 3);  // each bad row costs a call, and no answer
  const Ran lines = served.Run(kEvaluate, true);
  CHECK(lines.reason == "OK");
  std::istringstream in(lines.out);
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(nlohmann::json::parse(line));
  REQUIRE(rows.size() == 6);
  CHECK(rows[0] ==
        nlohmann::json{
            {"row", 1},
            {"error", {{"reason", "PROMPT_TOO_LONG"}, {"message", "as the script says"}}}});
  CHECK(rows[2].at("row") == 0);
  CHECK(rows[2].at("right") == true);
  CHECK(rows[5].at("rows") == 3);
  CHECK(rows[5].at("right") == 2);
  CHECK(rows[5].at("not_asked") == 2);
}

TEST_CASE_METHOD(AskFixture, "the table of wrong answers fits the terminal, with both answers") {
  adapters.wrong = {0, 3};
  adapters.longer = " and \xe6\x95\xb0\xe5\xad\xa6, and many more words than a line has room for";
  for (const unsigned short columns : {60, 80, 120}) {
    INFO(columns);
    const Terminal terminal(columns);
    const Ran ran = served.Run("evaluate m --dataset d --exact-match '(#.*|[?].*)'");
    CHECK(WiderThan(columns, ran.out).empty());
    CHECK_THAT(ran.out, Catch::StartsWith("ROW  EXPECTED"));
    CHECK_THAT(ran.out, Catch::Contains("  GOT\n"));
    CHECK_THAT(ran.out, Catch::Contains("#3 and \xe6\x95\xb0"));
    CHECK_THAT(ran.out, Catch::Contains("? and \xe6\x95\xb0"));
  }
}

TEST_CASE_METHOD(AskFixture, "an evaluation fails where no row can be asked, or the call fails") {
  adapters.bad = {0};
  const Ran none = served.Run(absl::StrCat(kEvaluate, " --limit 1"));
  CHECK(none.error == "error: PROMPT_TOO_LONG: none of 1 row could be asked; as the script says\n");
  adapters.bad = {};
  adapters.ends = Refused(grpc::FAILED_PRECONDITION, "NOT_FINITE");
  CHECK(served.Run(kEvaluate).reason == "NOT_FINITE");
}

TEST_CASE_METHOD(AskFixture, "an evaluation that breaks off says what it had counted") {
  datasets.rows = 100;
  adapters.wrong = {7};
  adapters.whole_calls = 1;
  adapters.ends = Refused(grpc::UNAVAILABLE, "SHUTTING_DOWN");
  const Ran table = served.Run(kEvaluate);
  CHECK(table.error == "error: SHUTTING_DOWN: as the script says\n");
  CHECK_THAT(table.out, Catch::Contains("- (EOS): ?\n"));
  CHECK_THAT(table.out, Catch::EndsWith("exact match so far: 63 of 64 right (98.4 %)\n"));
}

TEST_CASE_METHOD(AskFixture, "a call that breaks off says why, and keeps what has come") {
  adapters.says = "so far";
  struct Case {
    grpc::Status ends;
    const char* error;
  };
  const Case cases[] = {
      {{grpc::DEADLINE_EXCEEDED, "too late"},
       "error: DEADLINE_EXCEEDED: no answer within 9 s: give a larger --timeout\n"},
      {{grpc::CANCELLED, ""},
       "error: NOT_READ: the answers were not read for long, so the daemon gave them up: ask "
       "again\n"},
      {Refused(grpc::UNAVAILABLE, "SHUTTING_DOWN"), "error: SHUTTING_DOWN: as the script says\n"},
  };
  for (const Case& c : cases) {
    INFO(c.error);
    adapters.ends = c.ends;
    const Ran plain = served.Run("generate m hello --timeout 9");
    CHECK(plain.error == c.error);
    CHECK(plain.out == "so far\n");
    const Ran lines = served.Run("generate m hello --timeout 9", true);
    CHECK(lines.error == c.error);
    const auto line = nlohmann::json::parse(lines.out);
    CHECK(line.at("text") == "so far");
    CHECK(line.at("completion_tokens") == 1);
    CHECK(line.at("finish_reason") == "FINISH_REASON_UNSPECIFIED");
  }
}

TEST_CASE_METHOD(AskFixture, "an answer that ends at the model's last position says so") {
  constexpr char kSaid[] =
      "warning: the answer of m ended at the model's last position: behind the prompt's 5 tokens 1 "
      "have a place, not the 9 of --max-tokens\n";
  CHECK(served.Run("generate m hello --max-tokens 9").err.empty());
  adapters.finish = v1::GenerateResponse::LENGTH;
  CHECK(served.Run("generate m hello --max-tokens 9").err == kSaid);
  CHECK(served.Run("generate m hello --max-tokens 9", true).err == kSaid);
  CHECK(served.Run("generate m hello --max-tokens 1").err.empty());
}

TEST_CASE_METHOD(AskFixture, "a step is asked as it is shown") {
  CHECK(served.Run("generate job-aaaaaaaa/2 hello").reason == "OK");
  REQUIRE(adapters.asked.size() == 1);
  CHECK(adapters.asked[0].asks(0).step() == 2);
  for (const char* otherwise : {"02", "+2", "-0"}) {
    const Ran ran = served.Run(absl::StrCat("generate job-aaaaaaaa/", otherwise, " hello"));
    CHECK(ran.reason == "USAGE");
    CHECK_THAT(ran.error, Catch::Contains("ask 'job-aaaaaaaa/"));
  }
  CHECK(adapters.asked.size() == 1);
}

}  // namespace
}  // namespace lorad::client
