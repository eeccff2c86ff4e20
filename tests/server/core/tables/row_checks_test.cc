// Row checks by themselves: who waits, what is ordered, and when a check ends early.
#include "server/core/catalog/row_checks.h"

#include <catch2/catch.hpp>

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
