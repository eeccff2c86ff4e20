#include "tests/worker/answers.h"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace lorad::worker {
namespace {

void Append(const v1::Generated& generated, Answer* answer) {
  const auto number = static_cast<int64_t>(answer->ids.size() - answer->prompt);
  if (generated.number() != number) throw std::runtime_error(generated.ShortDebugString());
  answer->ids.push_back(generated.token());
  answer->log_probability.push_back(generated.log_probability());
}

}  // namespace

Answer Ask(const std::string& job, std::vector<int32_t> prompt, double temperature, uint64_t seed,
           double top_p) {
  Answer answer{.job = job, .ids = std::move(prompt), .sampling = {}};
  answer.prompt = answer.ids.size();
  answer.sampling.set_base(job.empty());
  answer.sampling.set_temperature(temperature);
  answer.sampling.set_top_p(top_p);
  answer.sampling.set_seed(seed);
  return answer;
}

v1::Segment NextOf(const Answer& answer, const std::string& generation) {
  v1::Segment segment;
  segment.set_job(answer.job);
  segment.set_mode(v1::Segment::GENERATE);
  segment.mutable_input_ids()->Add(answer.ids.begin(), answer.ids.end());
  *segment.mutable_sampling() = answer.sampling;
  segment.mutable_sampling()->set_generation(generation);
  segment.mutable_sampling()->set_number(static_cast<int64_t>(answer.ids.size() - answer.prompt));
  return segment;
}

void Continue(Harness* harness, const std::vector<Answer*>& answers,
              const std::vector<TestJob*>& jobs, bool save, std::mt19937_64* random) {
  std::vector<v1::Segment> segments;
  std::map<std::string, Answer*> waiting;
  for (Answer* answer : answers) {
    const std::string generation = "answer-" + std::to_string(waiting.size());
    waiting[generation] = answer;
    segments.push_back(NextOf(*answer, generation));
  }
  if (random != nullptr) std::shuffle(segments.begin(), segments.end(), *random);
  const auto half = segments.begin() + static_cast<std::ptrdiff_t>(
                                           jobs.empty() ? segments.size() : segments.size() / 2);
  v1::Window window = harness->NewWindow();
  harness->AddGenerations({segments.begin(), half}, &window);
  if (!jobs.empty()) harness->AddSteps(jobs, save, random, &window);
  harness->AddGenerations({half, segments.end()}, &window);
  for (const v1::Report& report : harness->Run(std::move(window))) {
    if (!report.has_generated()) continue;
    const auto found = waiting.find(report.generated().generation());
    if (found == waiting.end()) throw std::runtime_error(report.ShortDebugString());
    Append(report.generated(), found->second);
    waiting.erase(found);
  }
  if (!waiting.empty()) throw std::runtime_error(waiting.begin()->first + " has no token");
}

}  // namespace lorad::worker
