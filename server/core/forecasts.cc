// When jobs will start and end, as far as is foreseen; and how true that was.

#include <algorithm>

#include "server/core/state.h"

namespace lorad::server {
namespace {

constexpr int64_t kEveryUs = 1'000'000;
// So many are told in one turn; the others are news still a second later.
constexpr int kToldMax = 256;

double Seconds(int64_t us) { return static_cast<double>(us) / 1e6; }

bool IsInside(const planner::ForecastInterval& interval, double seconds) {
  return interval.earliest_s <= seconds && seconds <= interval.latest_s;
}

// Nobody counts the places of a long queue.
bool IsNews(int told_place, int place) {
  return place != told_place && (place <= 10 || 10 * std::abs(place - told_place) >= told_place);
}

// Who is tried again later starts no sooner; that others may go before it until then is not counted.
planner::Foreseen NotBeforeItsRetry(const JobState& job, planner::Foreseen foreseen,
                                    int64_t now_us) {
  if (!job.passing || job.state() != v1::Job::QUEUED) return foreseen;
  const double late_s = Seconds(job.passing->until_us - now_us) - foreseen.start_s;
  if (late_s <= 0) return foreseen;
  return {.start_s = foreseen.start_s + late_s, .end_s = foreseen.end_s + late_s};
}

}  // namespace

void Core::State::ForecastIfDue() {
  if (stopping_ || !turn_.room().ok()) return;
  // Where nobody could train them nothing changes by itself.
  const auto waits = [&] { return !jobs_.queue().empty() && !cluster_.Connected().empty(); };
  const int64_t due_us = forecasts_.made_us < 0 ? 0 : forecasts_.made_us + kEveryUs;
  if ((forecasts_.wanted || waits()) && turn_.now_us() >= due_us) Forecast();
  if ((!forecasts_.wanted && !waits()) || forecasts_.timer_us != 0) return;
  forecasts_.timer_us = forecasts_.made_us + kEveryUs;
  turn_.Do(SetTimer{kForecastDue, forecasts_.timer_us});
}

void Core::State::Forecast() {
  forecasts_.made_us = turn_.now_us();
  forecasts_.wanted = false;
  planner::ClusterView view = ClusterOf(Waiting::kAll);
  const std::vector<JobState*> waiting = jobs_.queue().All();  // as the view has them
  jobs_.Arrange(planner::QueueOrder(view));
  Ration(&view, nullptr);
  const bool are_held = view.queue.size() < waiting.size();  // some of them, by quotas
  const planner::Foresight foresight = planner::Foresee(view);
  int told = 0;
  size_t seen = 0;
  for (size_t i = 0; i < waiting.size(); ++i) {
    JobQueue::PrefetchToldAfter(waiting, i);
    JobState* job = waiting[i];
    // By the view's names, which lie side by side.
    const bool is_seen =
        seen < view.queue.size() && (!are_held || view.queue[seen].job == job->name());
    TakeForecast(*job, is_seen ? &foresight.waiting[seen] : nullptr);
    seen += is_seen;
    const int place = jobs_.queue().PlaceOf(*job);
    if (told == kToldMax || (!IsNews(job->told.place, place) && job->told.why == job->why &&
                             !IsNews(job->told.forecast, job->forecast))) {
      continue;
    }
    job->told = {place, job->why, job->forecast};
    jobs_.TouchProgress(*job);
    ++told;
  }
  if (!jobs_.LogWaits(waiting)) forecasts_.wanted = true;
  for (const auto& [name, group] : groups_.all()) {
    for (const auto& [member, slot] : group.members) {
      JobState* job = jobs_.Find(member);
      if (!job || !IsPlaced(job->state())) continue;
      const auto running = foresight.running.find(member);
      TakeForecast(*job, running != foresight.running.end() ? &running->second : nullptr);
      job->forecast.paced = group.pace.IsKnown();
    }
  }
}

JobForecast Core::State::ForecastOf(const JobState& job, const planner::Foreseen& by_policy) const {
  const planner::Foreseen foreseen = NotBeforeItsRetry(job, by_policy, turn_.now_us());
  const Fits& fits = cluster_.fits();
  const bool waits = job.stand >= 0;  // of thousands the rest of the record is not near
  JobForecast forecast = {
      .made_us = turn_.now_us(),
      .made_wall_us = turn_.wall_us(),
      .started = !waits && (job.state() == v1::Job::RUNNING || job.state() == v1::Job::FINALIZING),
      .start_s = foreseen.start_s,
      .start = fits.starts().IntervalOf(foreseen.start_s),
      .end_s = foreseen.end_s,
      .end = fits.ends().IntervalOf(foreseen.end_s)};
  if (!forecast.started) {  // the two are learned apart, and no end comes before its start
    forecast.end.earliest_s = std::max(forecast.end.earliest_s, forecast.start.earliest_s);
    forecast.end.latest_s = std::max(forecast.end.latest_s, forecast.start.latest_s);
  }
  return forecast;
}

void Core::State::TakeForecast(JobState& job, const planner::Foreseen* foreseen) {
  const bool is_known = foreseen && foreseen->end_s < planner::kNever;
  job.forecast = is_known ? ForecastOf(job, *foreseen) : JobForecast();
  if (!job.forecast || job.first_forecast || job.job().has_first_forecast()) return;
  job.first_forecast = job.forecast;
  *job.job().mutable_first_forecast() = ToProto(job.forecast);
  jobs_.TouchProgress(job);
}

void Core::State::AddForecast(const JobState& job, v1::JobEstimate* estimate) {
  if (stopping_) return estimate->set_no_forecast("the coordinator is being stopped");
  if (!turn_.room().ok()) {
    return estimate->set_no_forecast(std::string(turn_.room().message()));
  }
  // `job` may be a copy of a live one, without what has happened to it.
  const JobState* live = job.name().empty() ? nullptr : jobs_.Find(job.name());
  const JobState* newcomer = live ? nullptr : &job;
  if (newcomer) {
    const absl::Status refused = quotas_.CheckCreate(job.job().labels());
    if (!refused.ok()) return estimate->set_no_forecast(std::string(refused.message()));
  }
  planner::ClusterView view = ClusterOf(Waiting::kAll, newcomer);
  std::string why = Ration(&view, newcomer);
  const planner::Foresight foresight = planner::Foresee(view);
  if (const planner::Foreseen* const foreseen = foresight.Find(view, job.name())) {
    *estimate->mutable_forecast() = ToProto(ForecastOf(live ? *live : job, *foreseen));
    return;
  }
  if (live) return estimate->set_no_forecast(jobs_.WhyNoForecast(*live));
  if (why.empty()) {  // as the policy says it of a job that waits
    view = ClusterOf(Waiting::kThoseLookedAt, newcomer);
    Ration(&view, newcomer);
    why = "nobody can say when a worker takes it";
    for (const planner::Decision& decision : planner::Schedule(view)) {
      const bool waits = decision.kind == planner::Decision::Kind::kWait;
      if (waits && std::ranges::count(decision.jobs, "") > 0) why = WhyWait(decision);
    }
  }
  estimate->set_no_forecast(why);
}

// ---- what came of them ----

void Core::State::NoteStart(JobState& job) {
  if (job.job().first_forecast().has_start_time() && !job.job().has_foretold_start_time()) {
    turn_.Stamp(job.job().mutable_foretold_start_time());
    jobs_.TouchProgress(job);
  }
  JobForecast& first = job.first_forecast;
  if (!first || first.started) return;
  first.started = true;
  const double actual_s = Seconds(turn_.now_us() - first.made_us);
  cluster_.fits().ObserveStart(first.start_s, actual_s, IsInside(first.start, actual_s));
}

void Core::State::NoteEnd(const JobState& job) {
  const JobForecast& first = job.first_forecast;
  if (!first) return;
  const double actual_s = Seconds(turn_.now_us() - first.made_us);
  cluster_.fits().ObserveEnd(first.end_s, actual_s, IsInside(first.end, actual_s));
}

void Core::State::VoidForecast(JobState& job) {
  job.forecast = job.first_forecast = {};
  job.job().clear_first_forecast();
  job.job().clear_foretold_start_time();
  jobs_.Touch(job);
}

}  // namespace lorad::server
