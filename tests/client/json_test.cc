#include "client/text/json.h"

#include <catch2/catch.hpp>
#include <limits>

#include "lorad/v1/cluster.pb.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::client {
namespace {

TEST_CASE("64-bit integers are numbers, defaults are written") {
  v1::StepMetrics metrics;
  metrics.set_step(1);
  metrics.set_loss(6.120839834213257);
  CHECK(ToJson(metrics) ==
        R"({"step": 1, "loss": 6.120839834213257, "grad_norm": 0, "learning_rate": 0, )"
        R"("trained_tokens": 0, "tokens": 0, "step_time_ms": 0})");
}

TEST_CASE("timestamps, enums, lists, and what is not set") {
  v1::Event event;
  event.mutable_time()->set_seconds(5);
  event.mutable_time()->set_nanos(250000000);
  event.set_to_state(v1::Job::RUNNING);
  event.set_message("a \"b\"\n\x01é");
  CHECK(
      ToJson(event) ==
      R"({"revision": 0, "time": "1970-01-01T00:00:05.250Z", "job": "", "reason": "", )"
      R"("message": "a \"b\"\n\u0001é", "from_state": "STATE_UNSPECIFIED", "to_state": "RUNNING", "count": 0})");
  const std::string job = ToJson(v1::Job());
  CHECK(job.find(R"("loss": null)") != std::string::npos);
  CHECK(job.find(R"("error": null)") != std::string::npos);
  CHECK(job.find(R"("labels": {})") != std::string::npos);
  v1::AdapterConfig adapter;
  adapter.add_target_modules("q_proj");
  adapter.add_target_modules("v_proj");
  CHECK(ToJson(adapter).find(R"("target_modules": ["q_proj", "v_proj"])") != std::string::npos);
}

TEST_CASE("nothing within an object looks like the end of a line") {
  v1::Event event;
  event.set_message("a\u0085b\u2028c\u2029d\x7f\u009f");
  CHECK(ToJson(event).find(R"("message": "a\u0085b\u2028c\u2029d\u007f\u009f")") !=
        std::string::npos);
  event.set_message("\u00a0\u2027\u202a\xc2");
  CHECK(ToJson(event).find("\"message\": \"\u00a0\u2027\u202a\xc2\"") != std::string::npos);
}

TEST_CASE("maps are sorted by key") {
  v1::ClusterStatus cluster;
  for (const char* state : {"SUCCEEDED", "FAILED", "QUEUED"}) {
    (*cluster.mutable_jobs_by_state())[state] = 3;
  }
  CHECK(ToJson(cluster).find(R"({"FAILED": 3, "QUEUED": 3, "SUCCEEDED": 3})") != std::string::npos);
}

TEST_CASE("what is not finite is written as proto3 JSON writes it") {
  v1::StepMetrics metrics;
  metrics.set_loss(std::numeric_limits<double>::quiet_NaN());
  metrics.set_grad_norm(-std::numeric_limits<double>::infinity());
  CHECK(ToJson(metrics).find(R"("loss": "NaN", "grad_norm": "-Infinity")") != std::string::npos);
}

}  // namespace
}  // namespace lorad::client
