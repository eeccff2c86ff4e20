// Row checks by themselves: who waits, what is ordered, and when a check ends early.
#include "server/core/catalog/row_checks.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <random>

#include "server/core/catalog/row_sums.h"

namespace lorad::server {
namespace {

constexpr char kKey[] = "sha/print/64/TRUNCATE/ASSISTANT";

struct Fixture {
  CoreOptions options;
  Turn turn;
  Answers answers{options, turn};
  Catalog catalog{turn, answers};
  RowChecks rows{options, turn, catalog};

  Fixture() {
    options.rows_max = 1;
    StoredState stored;
    records::DatasetRecord dataset;
    dataset.mutable_dataset()->set_name("d");
    dataset.mutable_dataset()->set_sha256("sha");
    stored.datasets = {{"d", dataset.SerializeAsString()}};
    records::ModelRecord model;
    model.mutable_model()->set_name("m");
    model.mutable_model()->set_fingerprint("print");
    model.set_config_json(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "vocab_size": 256, "torch_dtype": "float32"})");
    stored.models = {{"m", model.SerializeAsString()}};
    REQUIRE(catalog.Load(stored).ok());
  }

  static v1::Job JobOf(const std::string& name) {
    v1::Job job;
    job.set_name(name);
    job.set_base_model("m");
    job.set_training_dataset("d");
    job.mutable_training()->set_max_length(64);
    job.mutable_training()->set_batch_size(4);
    job.mutable_training()->set_epochs(2);
    return job;
  }

  std::set<std::string> End(int64_t count) {
    records::RowsSummary summary;
    summary.set_rows(count);
    summary.set_tokens(10 * count);
    summary.set_squared_lengths(100.0 * static_cast<double>(count));
    return rows.End({kKey, summary});
  }
};

TEST_CASE("one check serves all who wait for it") {
  Fixture house;
  CHECK_FALSE(house.rows.Ensure(Fixture::JobOf("a")));
  const auto first = house.turn.End();
  REQUIRE(first.size() == 1);
  CHECK(std::get<CheckRows>(first[0]).key == kKey);
  CHECK_FALSE(house.rows.Ensure(Fixture::JobOf("b")));
  CHECK(house.turn.End().empty());
  CHECK(house.rows.WaitingJobs() == std::set<std::string>{"a", "b"});
  CHECK(house.rows.IsUnderWay(Fixture::JobOf("c")));

  CHECK(house.End(6) == std::set<std::string>{"a", "b"});
  CHECK(house.rows.Ensure(Fixture::JobOf("c")));
  records::JobRecord record;
  *record.mutable_job() = Fixture::JobOf("a");
  v1::JobError error;
  REQUIRE(house.rows.SumUp(record, &error).ok());
  CHECK(record.job().total_steps() == 4);  // 4 rows and 2 rows, twice
  CHECK(record.job().total_tokens() == 120);
  CHECK(record.job().total_squared_lengths() == 1200);
}

// The job as it is once its rows are known: `count` of them, `cut` and `skipped` as said.
v1::Job Settled(v1::Job job, int64_t count, int64_t cut = 0, int64_t skipped = 0) {
  Fixture house;
  if (job.training().overflow() == v1::TrainingConfig::OVERFLOW_UNSPECIFIED) {
    job.mutable_training()->set_overflow(v1::TrainingConfig::TRUNCATE);
  }
  const std::string key = house.rows.KeyOf(job, "d");
  house.rows.Ensure(job);
  records::RowsSummary summary;
  summary.set_rows(count);
  summary.set_tokens(10 * count);
  summary.set_truncated_rows(cut);
  summary.set_skipped_rows(skipped);
  house.rows.End({key, summary});
  records::JobRecord record;
  *record.mutable_job() = job;
  v1::JobError error;
  REQUIRE(house.rows.SumUp(record, &error).ok());
  // Again, as after a restart: nothing is said twice, nothing changes.
  const std::string once = record.job().SerializeAsString();
  REQUIRE(house.rows.SumUp(record, &error).ok());
  CHECK(record.job().SerializeAsString() == once);
  return record.job();
}

TEST_CASE("what is trained never exceeds the total, and is it at the end") {
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const auto below = [&](uint32_t most) { return static_cast<int32_t>(random() % most); };
    std::vector<int64_t> lengths(1 + below(30));
    for (int64_t& length : lengths) length = 1 + below(2) * below(900);
    const auto rows = static_cast<int64_t>(lengths.size());
    const int64_t of_all = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    records::JobRecord record;
    record.set_training_rows(rows);
    record.set_training_row_tokens(of_all);
    v1::TrainingConfig& training = *record.mutable_job()->mutable_training();
    training.set_batch_size(1 + below(7));
    training.set_max_steps(1 + below(40));
    const int64_t first = TotalTokens(record);
    int64_t tokens = 0;
    for (int64_t step = 1; step <= training.max_steps(); ++step) {
      const int64_t place = (step - 1) % StepsOfEpoch(record);
      if (place == 0) std::ranges::shuffle(lengths, random);
      const int64_t end = std::min(rows, (place + 1) * training.batch_size());
      for (int64_t row = place * training.batch_size(); row < end; ++row) tokens += lengths[row];
      record.mutable_job()->set_step(step);
      record.mutable_job()->set_tokens(tokens);
      REQUIRE(TotalTokens(record) >= tokens);
      const bool is_exact = training.max_steps() % StepsOfEpoch(record) == 0;
      if (is_exact) REQUIRE(TotalTokens(record) == first);
    }
    REQUIRE(TotalTokens(record) == tokens);
    record.set_training_row_squared_lengths(3 * static_cast<double>(of_all));
    SetTotals(record);
    REQUIRE(record.job().total_tokens() == tokens);
    REQUIRE(record.job().total_squared_lengths() == Approx(3 * static_cast<double>(tokens)));
  }
  // A record of an older version says what it said.
  records::JobRecord old;
  old.mutable_job()->set_total_tokens(99);
  CHECK(TotalTokens(old) == 99);
}

TEST_CASE("a warm-up that is a share becomes steps once the steps are known") {
  struct Case {
    double ratio;
    int32_t warmup_steps;  // given
    int32_t max_steps;
    int32_t wanted;
  };
  // 25 rows, batches of 4, 2 epochs: 14 steps.
  const Case cases[] = {
      {0, 0, 0, 0},    {0, 3, 0, 3},  {0.1, 0, 0, 2},    {0.5, 0, 0, 7},
      {1e-9, 0, 0, 1}, {1, 0, 0, 14}, {0.03, 0, 110, 4}, {0.1, 0, 10, 1},
  };
  for (const Case& c : cases) {
    INFO(c.ratio << " of " << c.max_steps);
    v1::Job job = Fixture::JobOf("a");
    job.mutable_training()->set_warmup_ratio(c.ratio);
    job.mutable_training()->set_warmup_steps(c.warmup_steps);
    job.mutable_training()->set_max_steps(c.max_steps);
    const v1::Job settled = Settled(job, 25);
    CHECK(settled.training().warmup_steps() == c.wanted);
    CHECK(settled.training().warmup_ratio() == 0);
  }
  v1::Job endless = Fixture::JobOf("a");
  endless.mutable_training()->set_warmup_ratio(1);
  endless.mutable_training()->set_batch_size(1);
  endless.mutable_training()->set_epochs(10'000);
  CHECK(Settled(endless, 1'000'000).training().warmup_steps() ==
        std::numeric_limits<int32_t>::max());
}

TEST_CASE("what is allowed and likely not meant is a warning") {
  const auto warnings = [](const v1::Job& job) {
    return std::vector<std::string>(job.warnings().begin(), job.warnings().end());
  };
  using Lines = std::vector<std::string>;
  const v1::Job job = Fixture::JobOf("a");
  CHECK(warnings(Settled(job, 4)).empty());
  CHECK(warnings(Settled(job, 3)) ==
        Lines{"training.batch_size: is 4, and training_dataset makes 3 sequences: each step trains "
              "on all of them"});
  CHECK(warnings(Settled(job, 1)) ==
        Lines{"training.batch_size: is 4, and training_dataset makes 1 sequence: each step trains "
              "on all of them"});
  CHECK(warnings(Settled(job, 100, 50)).empty());
  CHECK(warnings(Settled(job, 100, 51)) ==
        Lines{"training_dataset: 51 of 100 sequences are cut at training.max_length 64"});
  v1::Job skips = job;
  skips.mutable_training()->set_overflow(v1::TrainingConfig::SKIP);
  CHECK(warnings(Settled(skips, 50, 0, 50)).empty());
  CHECK(warnings(Settled(skips, 50, 0, 51)) ==
        Lines{"training_dataset: 51 rows are left out and 50 sequences are trained on: "
              "training.overflow is SKIP, and training.max_length 64"});
  v1::Job warms_up = job;  // 14 steps
  warms_up.mutable_training()->set_warmup_steps(13);
  CHECK(warnings(Settled(warms_up, 25)).empty());
  warms_up.mutable_training()->set_warmup_steps(14);
  CHECK(warnings(Settled(warms_up, 25)) ==
        Lines{"training.warmup_steps: is 14, and the job has 14 steps: training.learning_rate is "
              "never reached"});
  v1::Job keeps = job;  // 14 steps
  keeps.mutable_training()->set_checkpoint_every_steps(4);
  keeps.mutable_training()->set_eval_every_steps(6);
  keeps.mutable_training()->set_checkpoint_keep_best(1);
  CHECK(warnings(Settled(keeps, 25)).empty());  // step 12
  keeps.mutable_training()->set_eval_every_steps(7);
  CHECK(warnings(Settled(keeps, 25)) ==
        Lines{"training.checkpoint_keep_best: no step before the last one, 14, is both saved "
              "(checkpoint_every_steps is 4) and evaluated (eval_every_steps is 7): the best "
              "checkpoint is the last one"});
  v1::Job validates = job;
  validates.set_validation_dataset("d");
  CHECK(warnings(Settled(validates, 10, 6)) ==
        Lines{"training_dataset: 6 of 10 sequences are cut at training.max_length 64",
              "validation_dataset: 6 of 10 sequences are cut at training.max_length 64"});
}

TEST_CASE("a check that nobody waits for any more is cancelled") {
  Fixture house;
  house.rows.Ensure(Fixture::JobOf("a"));
  house.rows.Wait(7, EstimateJob{.job = Fixture::JobOf("")});
  house.turn.End();
  CHECK(house.rows.CheckInvariants().ok());
  house.rows.Leave(Fixture::JobOf("a"));
  CHECK(house.turn.End().empty());  // the estimate waits
  house.rows.On(8, GiveUpRequest{7});
  const auto effects = house.turn.End();
  REQUIRE(effects.size() == 3);
  CHECK(absl::IsCancelled(std::get<Reply>(effects[0]).status));
  CHECK(std::get<CancelRows>(effects[1]).key == kKey);
  CHECK(std::get<Reply>(effects[2]).request == 8);
}

TEST_CASE("a check is cancelled once, and not while one waits who came after") {
  Fixture house;
  house.rows.Ensure(Fixture::JobOf("a"));
  house.turn.End();
  house.rows.Leave(Fixture::JobOf("a"));
  CHECK(house.turn.End().size() == 1);
  house.rows.EndUnwaited(Fixture::JobOf("a"));
  house.rows.Forget("sha");
  CHECK(house.turn.End().empty());
  // It is over; the next one is another.
  house.rows.End({kKey, absl::CancelledError("nobody waits for it")});
  house.rows.Ensure(Fixture::JobOf("b"));
  house.turn.End();
  house.rows.EndUnwaited(Fixture::JobOf("a"));
  house.rows.Forget("sha");
  CHECK(house.turn.End().empty());
  house.rows.Leave(Fixture::JobOf("b"));
  const auto effects = house.turn.End();
  REQUIRE(effects.size() == 1);
  CHECK(std::get<CancelRows>(effects[0]).key == kKey);
}

TEST_CASE("checks are shared by users, and where nobody says who they are by datasets") {
  struct Case {
    const char* share_label;
    const char* label;
    const char* value;
    const char* expected;
  };
  const Case cases[] = {
      {"", "team", "math", "dataset d"},
      {"team", "team", "math", "user math"},
      {"team", "run", "math", "dataset d"},
  };
  for (const Case& c : cases) {
    Fixture house;
    house.options.share_label = c.share_label;
    v1::Job job = Fixture::JobOf("a");
    (*job.mutable_labels())[c.label] = c.value;
    house.rows.Ensure(job);
    CHECK(std::get<CheckRows>(house.turn.End().front()).share == c.expected);
  }
}

TEST_CASE("estimates are held until their time is over, or what they wait for is known") {
  Fixture house;
  house.rows.Hold(1, EstimateJob{.job = Fixture::JobOf(""), .wait_us = 50});
  house.rows.Hold(2, EstimateJob{.job = Fixture::JobOf(""), .wait_us = 90});
  house.turn.Begin({60, 0});
  const auto ripe = house.rows.TakeHeld(false);
  REQUIRE(ripe.size() == 1);
  CHECK(ripe[0].request == 1);
  CHECK(house.rows.TakeHeld(true).size() == 1);
  CHECK(house.rows.TakeHeld(true).empty());
}

TEST_CASE("of too many summaries those are kept that somebody waits for") {
  Fixture house;
  REQUIRE(house.rows
              .Load({{"other/print/64/TRUNCATE/ASSISTANT", ""},
                     {"sha/print/32/TRUNCATE/ASSISTANT", ""}})
              .ok());
  house.rows.Ensure(Fixture::JobOf("a"));
  house.End(6);
  REQUIRE(house.rows.AreTooMany());
  const v1::Job waits = Fixture::JobOf("a");
  house.rows.Prune({&waits});
  CHECK_FALSE(house.rows.AreTooMany());
  CHECK(house.rows.Find(kKey));
  house.rows.Forget("sha");
  CHECK_FALSE(house.rows.Find(kKey));
}

TEST_CASE("requests that no check will answer, and one that waits twice, are noticed") {
  Fixture house;
  house.rows.Wait(7, EstimateJob{.job = Fixture::JobOf("")});
  CHECK_FALSE(house.rows.CheckInvariants().ok());
  house.rows.Ensure(Fixture::JobOf(""));
  CHECK(house.rows.CheckInvariants().ok());
  CreateJob validation;
  validation.job = Fixture::JobOf("");
  house.rows.Wait(7, validation);
  CHECK_FALSE(house.rows.CheckInvariants().ok());
}

}  // namespace
}  // namespace lorad::server
