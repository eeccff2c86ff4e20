#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>

#include "server/validation/job.h"
#include "server/validation/job_filter.h"
#include "server/validation/limits.h"
#include "server/validation/names.h"
#include "server/validation/page_token.h"
#include "server/validation/utf8.h"

namespace lorad::server {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

JobReferences AllKnown() {
  JobReferences references;
  references.model_known = true;
  references.model = {"LlamaForCausalLM", {"q_proj", "k_proj", "v_proj"}, 2048};
  references.training_dataset_known = true;
  references.validation_dataset_known = true;
  references.source_known = true;
  references.source.set_rank(4);
  references.source.set_alpha(32);
  references.source.set_use_rslora(true);
  references.source.add_target_modules("k_proj");
  return references;
}

v1::Job SmallJob() {
  v1::Job job;
  job.set_base_model("m");
  job.set_training_dataset("d");
  return job;
}

TEST_CASE("unset fields take their defaults") {
  v1::Job job = SmallJob();
  job.set_step(7);  // what the service says is dropped
  job.set_state(v1::Job::RUNNING);
  CHECK(CompleteJob(job, AllKnown()).empty());
  CHECK(job.step() == 0);
  CHECK(job.state() == v1::Job::STATE_UNSPECIFIED);
  CHECK(job.adapter().rank() == 8);
  CHECK(job.adapter().alpha() == 8);
  CHECK(job.adapter().has_use_rslora());
  CHECK(job.adapter().target_modules_size() == 2);
  CHECK(job.training().epochs() == 1);
  CHECK(job.training().batch_size() == 8);
  CHECK(job.training().max_length() == 1024);
  CHECK(job.training().learning_rate() == 2e-4);
  CHECK(job.training().schedule() == v1::TrainingConfig::LINEAR);
  CHECK(job.training().overflow() == v1::TrainingConfig::TRUNCATE);
  CHECK(job.training().train_on() == v1::TrainingConfig::ASSISTANT);
  CHECK(job.training().shuffle());
  CHECK(job.training().max_grad_norm() == 1.0);
  CHECK(job.training().loraplus_lr_ratio() == 1.0);
  CHECK(job.training().checkpoint_every_steps() == 50);
}

TEST_CASE("completing twice changes nothing") {
  v1::Job once = SmallJob();
  CHECK(CompleteJob(once, AllKnown()).empty());
  v1::Job twice = once;
  CHECK(CompleteJob(twice, AllKnown()).empty());
  CHECK(once.SerializeAsString() == twice.SerializeAsString());
}

TEST_CASE("max_length defaults to what a small model allows") {
  JobReferences references = AllKnown();
  references.model.max_positions = 256;
  v1::Job job = SmallJob();
  CHECK(CompleteJob(job, references).empty());
  CHECK(job.training().max_length() == 256);
}

TEST_CASE("init_from gives what the job leaves out") {
  v1::Job job = SmallJob();
  job.mutable_adapter()->set_init_from("a");
  CHECK(CompleteJob(job, AllKnown()).empty());
  CHECK(job.adapter().rank() == 4);
  CHECK(job.adapter().alpha() == 32);
  CHECK(job.adapter().use_rslora());
  REQUIRE(job.adapter().target_modules_size() == 1);
  CHECK(job.adapter().target_modules(0) == "k_proj");
}

TEST_CASE("each field that is out of range is named") {
  struct Case {
    std::function<void(v1::Job&)> change;
    std::string field;
    std::string description;
  };
  const auto adapter = [](auto set) { return [set](v1::Job& j) { set(*j.mutable_adapter()); }; };
  const auto training = [](auto set) { return [set](v1::Job& j) { set(*j.mutable_training()); }; };
  const Case cases[] = {
      {[](v1::Job& j) { j.set_name("x"); }, "name",
       "is chosen by the service: leave it out, and use display_name for yours"},
      {[](v1::Job& j) { j.set_display_name("a\nb"); }, "display_name",
       "must not hold control characters"},
      {[](v1::Job& j) { j.set_display_name("gpj.\u202eexe"); }, "display_name",
       "must not hold characters that are not seen or turn the direction of text, got U+202E"},
      {[](v1::Job& j) { (*j.mutable_labels())["team"] = "ma\u200bth"; }, "labels.team",
       "must not hold characters that are not seen or turn the direction of text, got U+200B"},
      {[](v1::Job& j) { j.set_display_name(std::string(129, 'x')); }, "display_name",
       "must have at most 128 bytes, got 129"},
      {[](v1::Job& j) { j.clear_base_model(); }, "base_model", "must name a model"},
      {[](v1::Job& j) { j.clear_training_dataset(); }, "training_dataset", "must name a dataset"},
      {adapter([](auto& a) { a.set_rank(0); }), "adapter.rank", "must be between 1 and 512, got 0"},
      {adapter([](auto& a) { a.set_rank(513); }), "adapter.rank",
       "must be between 1 and 512, got 513"},
      {adapter([](auto& a) { a.set_alpha(0); }), "adapter.alpha",
       "must be at least 1e-09 and at most 1e+09, got 0"},
      {adapter([](auto& a) { a.set_alpha(1e-320); }), "adapter.alpha",
       "must be at least 1e-09 and at most 1e+09, got 1e-320"},
      {adapter([](auto& a) { a.set_alpha(kNaN); }), "adapter.alpha",
       "must be at least 1e-09 and at most 1e+09, got nan"},
      {adapter([](auto& a) { a.set_dropout(1); }), "adapter.dropout",
       "must be at least 0 and at most 0.999999, got 1"},
      {adapter([](auto& a) { a.set_dropout(0.9999995); }), "adapter.dropout",
       "must be at least 0 and at most 0.999999, got 0.9999995"},
      {adapter([](auto& a) { a.set_dropout(-0.1); }), "adapter.dropout",
       "must be at least 0 and at most 0.999999, got -0.1"},
      {adapter([](auto& a) { a.add_target_modules("o_proj"); }), "adapter.target_modules",
       "must be among the model's q_proj, k_proj, v_proj, got 'o_proj'; did you mean q_proj?"},
      {adapter([](auto& a) {
         a.add_target_modules("q_proj");
         a.add_target_modules("q_proj");
       }),
       "adapter.target_modules", "names 'q_proj' twice"},
      {adapter([](auto& a) {
         a.set_init_from("a");
         a.set_rank(16);
       }),
       "adapter.rank", "must be 4 as in 'a', got 16"},
      {adapter([](auto& a) {
         a.set_init_from("a");
         a.add_target_modules("q_proj");
       }),
       "adapter.target_modules", "must be k_proj as in 'a', got q_proj"},
      {training([](auto& t) { t.set_epochs(0); }), "training.epochs",
       "must be between 1 and 10000, got 0"},
      {training([](auto& t) { t.set_max_steps(-1); }), "training.max_steps",
       "must be between 1 and 100000000, or 0 (or left out) for epochs to decide, got -1"},
      {training([](auto& t) { t.set_batch_size(0); }), "training.batch_size",
       "must be between 1 and 4096, got 0"},
      {training([](auto& t) {
         t.set_batch_size(4096);
         t.set_max_length(2048);
       }),
       "training.batch_size",
       "batch_size * max_length must be at most 4194304 tokens, got 8388608"},
      {training([](auto& t) { t.set_max_length(1); }), "training.max_length",
       "must be between 2 and 1048576, got 1"},
      {training([](auto& t) { t.set_max_length(2049); }), "training.max_length",
       "must be at most the model's 2048 positions, got 2049"},
      {training([](auto& t) { t.set_overflow(static_cast<v1::TrainingConfig::Overflow>(9)); }),
       "training.overflow", "must be TRUNCATE, ERROR or SKIP, got 9"},
      {training([](auto& t) { t.set_train_on(static_cast<v1::TrainingConfig::TrainOn>(9)); }),
       "training.train_on", "must be ASSISTANT or ALL, got 9"},
      {training([](auto& t) { t.set_learning_rate(0); }), "training.learning_rate",
       "must be greater than 0 and at most 100, got 0"},
      {training([](auto& t) { t.set_learning_rate(kInfinity); }), "training.learning_rate",
       "must be greater than 0 and at most 100, got inf"},
      {training([](auto& t) { t.set_schedule(static_cast<v1::TrainingConfig::Schedule>(9)); }),
       "training.schedule", "must be CONSTANT, LINEAR or COSINE, got 9"},
      {training([](auto& t) { t.set_warmup_steps(-1); }), "training.warmup_steps",
       "must be between 0 and 100000000, got -1"},
      {training([](auto& t) { t.set_warmup_ratio(-0.1); }), "training.warmup_ratio",
       "must be at least 0 and at most 1, got -0.1"},
      {training([](auto& t) { t.set_warmup_ratio(1.5); }), "training.warmup_ratio",
       "must be at least 0 and at most 1, got 1.5"},
      {training([](auto& t) {
         t.set_warmup_ratio(0.1);
         t.set_warmup_steps(3);
       }),
       "training.warmup_ratio", "stands in the place of warmup_steps; leave one out"},
      {training([](auto& t) { t.set_weight_decay(-1); }), "training.weight_decay",
       "must be at least 0 and at most 1000, got -1"},
      {training([](auto& t) { t.set_beta1(1); }), "training.beta1",
       "must be at least 0 and less than 1, got 1"},
      {training([](auto& t) { t.set_beta2(-1); }), "training.beta2",
       "must be at least 0 and less than 1, got -1"},
      {training([](auto& t) { t.set_eps(0); }), "training.eps",
       "must be at least 1e-30 and at most 1, got 0"},
      {training([](auto& t) { t.set_loraplus_lr_ratio(0); }), "training.loraplus_lr_ratio",
       "must be greater than 0 and at most 10000, got 0"},
      {training([](auto& t) { t.set_max_grad_norm(-1); }), "training.max_grad_norm",
       "must be at least 0 and at most 1e+09, got -1"},
      {training([](auto& t) { t.set_checkpoint_every_steps(-1); }),
       "training.checkpoint_every_steps", "must be between 0 and 100000000, got -1"},
      {training([](auto& t) { t.set_eval_every_steps(5); }), "training.eval_every_steps",
       "needs a validation_dataset"},
      {training([](auto& t) { t.set_checkpoint_keep_last(-1); }), "training.checkpoint_keep_last",
       "must be between 0 and 100000000, got -1"},
      {training([](auto& t) { t.set_checkpoint_keep_best(1); }), "training.checkpoint_keep_best",
       "needs a validation_dataset: the best are those of the lowest validation loss"},
      {[](v1::Job& j) {
         j.set_validation_dataset("valid");
         j.mutable_training()->set_checkpoint_keep_best(1);
       },
       "training.checkpoint_keep_best",
       "needs eval_every_steps at steps that are saved, such as checkpoint_every_steps: a "
       "checkpoint's loss is known where it is evaluated"},
      {[](v1::Job& j) { j.set_priority(101); }, "priority",
       "must be between -100 and 100, got 101"},
      {[](v1::Job& j) { (*j.mutable_labels())["Team"] = "x"; }, "labels.Team",
       "keys must be lower-case letters, digits, '.', '_', '/' and '-'"},
      {[](v1::Job& j) { (*j.mutable_labels())["team"] = std::string(300, 'x'); }, "labels.team",
       "must have at most 256 bytes, got 300"},
      {[](v1::Job& j) {
         for (int i = 0; i < 65; ++i) (*j.mutable_labels())["k" + std::to_string(i)] = "";
       },
       "labels", "must be at most 64, got 65"},
  };
  for (const Case& c : cases) {
    v1::Job job = SmallJob();
    c.change(job);
    const std::vector<FieldViolation> violations = CompleteJob(job, AllKnown());
    INFO(c.field << ": " << c.description);
    REQUIRE(violations.size() == 1);
    CHECK(violations[0].field == c.field);
    CHECK(violations[0].description == c.description);
  }
}

TEST_CASE("all violations come at once, what is unknown among them") {
  v1::Job job = SmallJob();
  job.set_validation_dataset("v");
  job.mutable_adapter()->set_rank(0);
  job.mutable_adapter()->set_init_from("nobody");
  job.mutable_training()->set_epochs(-1);
  job.mutable_training()->set_max_length(1 << 21);
  job.set_priority(1000);
  std::vector<std::string> fields;
  for (const FieldViolation& violation : CompleteJob(job, {})) fields.push_back(violation.field);
  CHECK(fields == std::vector<std::string>{"base_model", "training_dataset", "validation_dataset",
                                           "adapter.rank", "adapter.init_from", "training.epochs",
                                           "training.max_length", "priority"});
}

TEST_CASE("names") {
  const std::pair<std::string, bool> cases[] = {
      {"a", true},         {"gsm8k-train", true},
      {"0-9", true},       {std::string(63, 'a'), true},
      {"", false},         {std::string(64, 'a'), false},
      {"-a", false},       {"a-", false},
      {"A", false},        {"a b", false},
      {"a/b", false},      {"..", false},
      {"\xc3\xa4", false},
  };
  for (const auto& [name, ok] : cases) {
    INFO(name);
    CHECK(CheckName(name).empty() == ok);
  }
  for (const char* good : {"w", "cpu-0", "Host.example_1-4711", "-"}) {
    INFO(good);
    CHECK(CheckWorkerName(good).empty());
  }
  for (const std::string& bad :
       {std::string(), std::string("two words"), std::string("a\nb"), std::string("\x1b[31m"),
        std::string("w\xff"), std::string(64, 'a')}) {
    INFO(bad);
    CHECK_FALSE(CheckWorkerName(bad).empty());
  }
  CHECK(CheckRequestId("").empty());
  CHECK(CheckRequestId("a b-1~").empty());
  CHECK(CheckRequestId(std::string(65, 'a')) == "must have at most 64 characters, got 65");
  CHECK(CheckRequestId("a\n") == "must be printable ASCII characters");
  CHECK(CheckPageSize(0, 10, 5).empty());
  CHECK(CheckPageSize(10, 10, 5).empty());
  CHECK(CheckPageSize(-1, 10, 5) == "must be between 1 and 10, or 0 for 5, got -1");
  CHECK(CheckPageSize(11, 10, 5) == "must be between 1 and 10, or 0 for 5, got 11");
}

TEST_CASE("filters match") {
  v1::Job job = SmallJob();
  job.set_state(v1::Job::RUNNING);
  job.set_display_name("my \"job\"");
  (*job.mutable_labels())["team"] = "math";
  const std::pair<std::string, bool> cases[] = {
      {"", true},
      {"  ", true},
      {"state = RUNNING", true},
      {"state=RUNNING", true},
      {"state != RUNNING", false},
      {"state = QUEUED", false},
      {"base_model = m AND training_dataset = d", true},
      {"base_model = m AND training_dataset != d", false},
      {"validation_dataset = \"\"", true},
      {"display_name = \"my \\\"job\\\"\"", true},
      {"labels.team = math", true},
      {"labels.team != math", false},
      {"labels.other = math", false},
      {"labels.other != math", true},
      {"labels.team = \"math\"  AND  state!=FAILED AND base_model=m", true},
  };
  for (const auto& [text, matches] : cases) {
    INFO(text);
    const absl::StatusOr<JobFilter> filter = JobFilter::Parse(text);
    REQUIRE(filter.ok());
    CHECK(filter->Matches(job) == matches);
  }
}

TEST_CASE("filters that are wrong say where") {
  const std::pair<std::string, std::string> cases[] = {
      {"colour = red",
       "column 1: a field must stand here: state, base_model, training_dataset, "
       "validation_dataset, display_name or labels.KEY"},
      {"state", "column 6: = or != must stand here"},
      {"state > RUNNING", "column 7: = or != must stand here"},
      {"labels.my team = x",
       "column 11: = or != must stand here, behind a key of lower-case "
       "letters, digits, '.', '_', '/' and '-'"},
      {"state = ", "column 9: a value must stand here: a word, or text in double quotes"},
      {"state = RUNNING base_model = m", "column 17: AND must stand between two terms"},
      {"state = RUNNING OR state = FAILED", "column 17: AND must stand between two terms"},
      {"display_name = \"x", "column 16: the double quotes that begin here must end"},
      {"state = WALKING",
       "column 9: a state must stand here: VALIDATING, QUEUED, PREPARING, RUNNING, FINALIZING, "
       "SUCCEEDED, CANCELLING, CANCELLED, FAILED, PAUSING or PAUSED"},
      {"state = RUNNING AND labels.Team = math",
       "column 21: keys must be lower-case letters, digits, '.', '_', '/' and '-'"},
      {std::string(3000, ' '), "must have at most 2048 bytes, got 3000"},
  };
  for (const auto& [text, description] : cases) {
    INFO(text.substr(0, 100));
    const absl::StatusOr<JobFilter> filter = JobFilter::Parse(text);
    REQUIRE(!filter.ok());
    CHECK(FieldViolations(filter.status()) == std::vector<FieldViolation>{{"filter", description}});
  }
  std::string many = "state = RUNNING";
  for (int i = 0; i < kFilterTermsMax; ++i) many += " AND state = RUNNING";
  CHECK(!JobFilter::Parse(many).ok());
  CHECK(!JobFilter::Parse("state = RUNNING AND").ok());
  CHECK(!JobFilter::Parse("labels. = x").ok());
}

TEST_CASE("page tokens belong to their list") {
  const std::string token = MakePageToken("jobs", "job-17");
  CHECK(ReadPageToken("jobs", token).value() == "job-17");
  CHECK(ReadPageToken("jobs", "").value() == "");
  CHECK(!ReadPageToken("datasets", token).ok());
  CHECK(!ReadPageToken("jobs", token.substr(1)).ok());
  CHECK(!ReadPageToken("jobs", "x").ok());
  CHECK(!ReadPageToken("jobs", std::string(2000, 'A')).ok());
  for (size_t at = 0; at < token.size(); ++at) {
    std::string mangled = token;
    mangled[at] = mangled[at] == 'A' ? 'B' : 'A';
    INFO(mangled);
    const absl::StatusOr<std::string> cursor = ReadPageToken("jobs", mangled);
    CHECK((!cursor.ok() || *cursor == "job-17"));  // the last character may have spare bits
  }
}

TEST_CASE("text that is not UTF-8 is found wherever it is in a message") {
  v1::Job job;
  job.set_display_name("gr\xc3\xbc\xc3\x9f e");
  job.mutable_adapter()->add_target_modules("q_proj");
  (*job.mutable_labels())["team"] = "math";
  CHECK(CheckUtf8("job", job).ok());
  job.mutable_adapter()->add_target_modules("q\xff");
  (*job.mutable_labels())["team"] = "\xed\xa0\x80";
  const absl::Status status = CheckUtf8("job", job);
  CHECK(Reason(status) == "INVALID_FIELDS");
  std::vector<std::string> fields;
  for (const FieldViolation& violation : FieldViolations(status)) fields.push_back(violation.field);
  std::sort(fields.begin(), fields.end());
  CHECK(fields == std::vector<std::string>{"adapter.target_modules[1]", "labels[0].value"});
}

}  // namespace
}  // namespace lorad::server
