// What strikes a site.
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "tests/sim/happenings.h"
#include "tests/sim/worker/lies.h"

namespace lorad::sim {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

int NumberOf(const Stage& stage, const Happening& h) {
  return static_cast<int>(h.a % static_cast<uint64_t>(stage.site.workers()));
}

WorkerProcess& WorkerOf(Stage& stage, const Happening& h) {
  return stage.site.worker(NumberOf(stage, h));
}

Mischief& MischiefOf(Stage& stage, const Happening& h) { return WorkerOf(stage, h).mischief(); }

int Of(uint64_t drawn, int kinds) { return static_cast<int>(drawn % static_cast<uint64_t>(kinds)); }

template <Site::Death death>
void EndsAtStep(Stage& stage, const Happening& h) {
  stage.site.EndCoordinator(death, Of(h.a, 30));
}

template <Site::Death death>
void EndsAtEffect(Stage& stage, const Happening& h) {
  stage.site.EndCoordinatorAtEffect(death, Of(h.a, 60));
}

void IsStopped(Stage& stage, const Happening&) { stage.site.StopCoordinator(); }

void WorkerDies(Stage& stage, const Happening& h) { WorkerOf(stage, h).Kill(); }

void WorkerIsToldToEnd(Stage& stage, const Happening& h) { WorkerOf(stage, h).Terminate(); }

void StreamBreaks(Stage& stage, const Happening& h) {
  if (h.b % 2 == 0) return stage.site.CutStream(NumberOf(stage, h));
  MischiefOf(stage, h).cut_after = Of(h.b / 2, 40);
}

void IsSilent(Stage& stage, const Happening& h) { WorkerOf(stage, h).Silence(); }

void IsSlow(Stage& stage, const Happening& h) {
  MischiefOf(stage, h).slowness = 2 + Of(h.b, 200);
  stage.site.At(stage.site.now_us() + Of(h.b, 10) * kSecondUs,
                [&stage, h] { MischiefOf(stage, h).slowness = 1; });
}

void Hangs(Stage& stage, const Happening& h) {
  WorkerProcess& worker = WorkerOf(stage, h);
  worker.Hang(true);
  stage.site.At(stage.site.now_us() + (1 + Of(h.b, 60)) * kSecondUs,
                [&worker] { worker.Hang(false); });
}

void Lies(Stage& stage, const Happening& h) {
  Mischief& mischief = MischiefOf(stage, h);
  mischief.lie = Of(h.b, CountLies());
  mischief.lies = 1 + Of(h.b / 1000, 8);
  mischief.claims = Of(h.b / 100'000, 3);
}

void LiesOfShards(Stage& stage, const Happening& h) {
  Mischief& mischief = MischiefOf(stage, h);
  mischief.shard_lie = Of(h.b, CountShardLies());
  mischief.shard_lies = 1 + Of(h.b / 1000, 4);
}

void RepeatsMessages(Stage& stage, const Happening& h) {
  MischiefOf(stage, h).repeats = 1 + Of(h.b, 20);
}

// For minutes, or they are refused, for so many tries that the job has an event that says so.
void LosesUploads(Stage& stage, const Happening& h) {
  Mischief& mischief = MischiefOf(stage, h);
  mischief.lost_uploads = 1 + Of(h.b, 6);
  mischief.refused_uploads = Of(h.b / 1000, 12);
}

void RepeatsUploads(Stage& stage, const Happening& h) {
  MischiefOf(stage, h).repeated_uploads = 1 + Of(h.b, 5);
}

// By days, both ways; after a week that is really over request_ids are forgotten.
void ClockJumps(Stage& stage, const Happening& h) {
  constexpr int64_t kDayUs = 86'400 * kSecondUs;
  const int64_t days = static_cast<int64_t>(h.a % 6) - 3;
  stage.site.SetWallClock(Site::kWallAheadUs + days * kDayUs + static_cast<int64_t>(h.b % kDayUs));
}

void StandsStill(Stage& stage, const Happening& h) {
  stage.site.StandStill((1 + Of(h.a, 40)) * kSecondUs);
}

void CoordinatorPauses(Stage& stage, const Happening& h) {
  stage.site.PauseCoordinator((3 + Of(h.a, 18)) * kSecondUs);
}

// So late that its lease is about to end when it comes, to a coordinator that is busy for a moment:
// a tick that is this late still is in time.
void MailComesLate(Stage& stage, const Happening& h) {
  const int64_t late_us = 3'500'000 + static_cast<int64_t>(h.b % 1'500'000);
  WorkerOf(stage, h).HoldUp(late_us);
  stage.site.At(stage.site.now_us() + late_us - 200'000, [&stage, h] {
    stage.site.PauseCoordinator(400'000 + static_cast<int64_t>(h.b / 2'000'000 % 800'000));
  });
}

int64_t EndOf(const Stage& stage, const Happening& h, int64_t us_max) {
  return stage.site.now_us() + 10'000 + static_cast<int64_t>(h.b) % us_max;
}

void DiskFails(Stage& stage, const Happening& h) {
  const auto rate = [&](int bit) { return h.a >> bit & 1 ? 0.01 : 0; };
  stage.site.SetFaults(
      {.no_space = rate(0), .write_error = rate(1), .sync_error = rate(2), .read_error = rate(3)});
  stage.site.At(EndOf(stage, h, 3 * kSecondUs), [&stage] { stage.site.SetFaults({}); });
}

void DiskIsFull(Stage& stage, const Happening& h) {
  stage.site.SetRoom(h.a % 20'000);
  stage.site.At(EndOf(stage, h, 40 * kSecondUs),
                [&stage] { stage.site.SetRoom(SimDisk::kUnbounded); });
}

void DiskIsReadOnly(Stage& stage, const Happening& h) {
  stage.site.SetReadOnly(true);
  stage.site.At(EndOf(stage, h, 20 * kSecondUs), [&stage] { stage.site.SetReadOnly(false); });
}

void FilesMayNotGrow(Stage& stage, const Happening& h) {
  stage.site.SetFileLimit(2000 + h.a % 30'000);
  stage.site.At(EndOf(stage, h, 20 * kSecondUs),
                [&stage] { stage.site.SetFileLimit(SimDisk::kUnbounded); });
}

// As on a share whose server hangs; it may be the network that does, to a worker too.
void FilesHang(Stage& stage, const Happening& h) {
  const auto for_us = static_cast<int64_t>(h.b % (12 * kSecondUs));
  stage.site.HangFiles(for_us);
  if (h.b / (12 * kSecondUs) % 2 == 0) return;
  stage.site.At(stage.site.now_us() + for_us / 2,
                [&stage, h] { stage.site.CutStream(NumberOf(stage, h)); });
}

// A share that is not mounted for a while.
void FolderIsGone(Stage& stage, const Happening& h) {
  constexpr const char* kFolders[] = {"datasets", "checkpoints", "adapters", "uploads", "cache"};
  stage.site.Hide(kFolders[h.a % std::size(kFolders)]);
  stage.site.At(EndOf(stage, h, 20 * kSecondUs), [&stage] { stage.site.Unveil(); });
}

// A file that is being copied back.
void DatasetIsHalfThere(Stage& stage, const Happening& h) {
  const auto names = stage.site.files().List("/data/datasets");
  if (!names.ok() || names->empty()) return;
  stage.site.Halve("datasets/" + (*names)[h.a % names->size()]);
  stage.site.At(EndOf(stage, h, 10 * kSecondUs), [&stage] { stage.site.Unveil(); });
}

void ModelIsSpoilt(Stage& stage, const Happening& h) {
  using Fault = Site::ModelFault;
  constexpr Fault kFaults[] = {Fault::kGone, Fault::kHalf, Fault::kOther};
  stage.site.Unveil();
  stage.site.SpoilModel(kFaults[h.a % std::size(kFaults)]);
  stage.site.At(EndOf(stage, h, 20 * kSecondUs), [&stage] { stage.site.Unveil(); });
}

void CachesAreRemoved(Stage& stage, const Happening&) {
  storage::RemoveTree(stage.site.files(), "/data/cache").IgnoreError();
}

// ---- what strikes groups of several workers ----

// For up to four leases.
void WorkerIsStopped(Stage& stage, const Happening& h) {
  WorkerOf(stage, h).Stop(100'000 + static_cast<int64_t>(h.b % (20 * kSecondUs)));
}

void WorkerIsAway(Stage& stage, const Happening& h) {
  WorkerProcess& worker = WorkerOf(stage, h);
  worker.Kill(/*restart=*/false);
  stage.site.At(stage.site.now_us() + static_cast<int64_t>(h.b % (20 * kSecondUs)), [&worker] {
    if (!worker.running()) worker.Start();
  });
}

struct Ends {
  std::string worker, other;
};

Ends EndsOfLink(Stage& stage, const Happening& h) {
  const auto workers = static_cast<uint64_t>(stage.site.workers());
  const int other = static_cast<int>((h.a + 1 + h.a / workers % (workers - 1)) % workers);
  return {WorkerOf(stage, h).hello().worker(), stage.site.worker(other).hello().worker()};
}

// For longer than TCP has patience, or less.
int64_t HoleOf(const Happening& h) {
  const int64_t most_us = h.b % 2 == 0 ? 2 * kSecondUs : 25 * kSecondUs;
  return static_cast<int64_t>(h.b / 2) % most_us;
}

void LinkIsCut(Stage& stage, const Happening& h) {
  if (stage.site.workers() < 2) return;
  const Ends ends = EndsOfLink(stage, h);
  stage.site.net().Cut(ends.worker, ends.other, HoleOf(h));
}

void LinkIsSlow(Stage& stage, const Happening& h) {
  if (stage.site.workers() < 2) return;
  const Ends ends = EndsOfLink(stage, h);
  const int64_t by_us = std::vector<int64_t>{10'000, 200'000, 2 * kSecondUs}[h.b % 3];
  stage.site.net().Slow(ends.worker, ends.other, by_us, (1 + Of(h.b / 3, 10)) * kSecondUs);
}

// Likewise, but small messages pass.
void LinkIsNarrow(Stage& stage, const Happening& h) {
  if (stage.site.workers() < 2) return;
  const Ends ends = EndsOfLink(stage, h);
  stage.site.net().Narrow(ends.worker, ends.other, HoleOf(h));
}

void CancelsJob(Stage& stage, const Happening& h) {
  if (!stage.jobs.empty()) stage.jobs[h.a % stage.jobs.size()]->Cancel();
}

void PausesJob(Stage& stage, const Happening& h) {
  if (stage.jobs.empty()) return;
  stage.jobs[h.a % stage.jobs.size()]->Pause(static_cast<int64_t>(h.b % (4 * kSecondUs)));
}

void SetsPriority(Stage& stage, const Happening& h) {
  if (!stage.jobs.empty()) stage.jobs[h.a % stage.jobs.size()]->SetPriority(Of(h.b, 7) - 3);
}

// Asks until it is answered. An operator does one thing after the other: `then` comes after that,
// so no order that is still on its way overtakes the end of it.
void Insist(Stage& stage, const server::Request& request, const std::function<void()>& then) {
  stage.site.Ask(request, [&stage, request, then](const auto& reply) {
    if (reply.ok() || absl::IsNotFound(reply.status())) return then();
    stage.site.At(stage.site.now_us() + kSecondUs / 10,
                  [&stage, request, then] { Insist(stage, request, then); });
  });
}

// For up to six seconds.
void HoldsForAWhile(Stage& stage, const Happening& h, const server::Request& order,
                    const server::Request& end) {
  const auto for_us = static_cast<int64_t>(h.b % (6 * kSecondUs));
  Insist(stage, order, [&stage, end, for_us] {
    stage.site.At(stage.site.now_us() + for_us, [&stage, end] { Insist(stage, end, [] {}); });
  });
}

void IsDrained(Stage& stage, const Happening& h) {
  v1::DrainWorkerRequest drain;
  drain.set_name(WorkerOf(stage, h).hello().worker());
  drain.set_reason("a new driver");
  v1::UndrainWorkerRequest undrain;
  undrain.set_name(drain.name());
  HoldsForAWhile(stage, h, drain, undrain);
}

// Of one team, or of each; of running jobs, and at times of those that wait too.
void HasQuota(Stage& stage, const Happening& h) {
  constexpr const char* kLabels[] = {"team=a", "team=b", "team=*"};
  v1::SetQuotaRequest set;
  set.mutable_quota()->set_label(kLabels[h.a % std::size(kLabels)]);
  set.mutable_quota()->set_running_jobs(Of(h.a / 3, 3));
  if (h.a / 9 % 3 == 0) set.mutable_quota()->set_queued_jobs(1 + Of(h.a / 27, 3));
  v1::DeleteQuotaRequest end;
  end.set_label(set.quota().label());
  HoldsForAWhile(stage, h, set, end);
}

void ClientVanishes(Stage& stage, const Happening& h) {
  const bool of_job = h.b % 2 == 0;
  if (of_job && !stage.jobs.empty()) stage.jobs[h.a % stage.jobs.size()]->Vanish();
  if (!of_job && !stage.others.empty()) stage.others[h.a % stage.others.size()]->Vanish();
}

void WatchIsCut(Stage& stage, const Happening& h) {
  const int64_t away_us = h.b % 2 == 0 ? 0 : static_cast<int64_t>(h.b % 60'000'000);
  if (!stage.watchers.empty()) stage.watchers[h.a % stage.watchers.size()]->Cut(away_us);
}

constexpr Kind kCalamities[] = {
    {"the coordinator is killed", EndsAtStep<Site::Death::kKill>, true},
    {"the coordinator is killed at an effect on the disk", EndsAtEffect<Site::Death::kKill>, true},
    {"power is lost", EndsAtStep<Site::Death::kPowerLoss>, true},
    {"power is lost at an effect on the disk", EndsAtEffect<Site::Death::kPowerLoss>, true},
    {"the coordinator is stopped", IsStopped, true},
    {"a worker dies", WorkerDies},
    {"a worker's stream breaks", StreamBreaks},
    {"a worker is silent", IsSilent},
    {"a worker is slow", IsSlow, true},
    {"a worker hangs", Hangs},
    {"a worker lies", Lies},
    {"a worker lies of shards", LiesOfShards},
    {"a worker's messages come twice", RepeatsMessages, true},
    {"a worker's uploads are lost or refused", LosesUploads, true},
    {"a worker's uploads come twice", RepeatsUploads, true},
    {"the wall clock jumps", ClockJumps, true},
    {"all stands still", StandsStill},
    {"the coordinator is paused", CoordinatorPauses},
    {"a worker's messages come late, to a busy coordinator", MailComesLate},
    {"the disk fails now and then", DiskFails},
    {"the disk is full", DiskIsFull},
    {"the disk is read-only", DiskIsReadOnly},
    {"files may not grow", FilesMayNotGrow},
    {"files hang for a while", FilesHang},
    {"a folder is gone for a while", FolderIsGone},
    {"a dataset is half there for a while", DatasetIsHalfThere},
    {"the model is gone, half there or another for a while", ModelIsSpoilt},
    {"caches are removed", CachesAreRemoved},
    {"a job is cancelled", CancelsJob, true},
    {"a job is paused for a while", PausesJob, true},
    {"a job's priority changes", SetsPriority, true},
    {"a worker is drained for a while", IsDrained, true},
    {"a team has a quota for a while", HasQuota, true},
    {"a client vanishes", ClientVanishes, true},
    {"a watch is cut", WatchIsCut, true},
    {"a worker is stopped for a while", WorkerIsStopped, false, true},
    {"a worker is away for a while", WorkerIsAway, false, true},
    {"two workers are cut off from each other for a while", LinkIsCut, false, true},
    {"two workers reach each other slowly for a while", LinkIsSlow, false, true},
    {"two workers reach each other with small messages alone for a while", LinkIsNarrow, false,
     true, true},
    {"a worker is told to end", WorkerIsToldToEnd, true, false, true},
};

}  // namespace

std::span<const Kind> Calamities() { return kCalamities; }

void Calm(Stage& stage) {
  stage.site.SpareCoordinator();
  stage.site.SetFaults({});
  if (stage.site.disk_was_ill()) {
    stage.site.SetRoom(SimDisk::kUnbounded);
    stage.site.SetReadOnly(false);
    stage.site.SetFileLimit(SimDisk::kUnbounded);
    stage.site.Unveil();
  }
  for (int i = 0; i < stage.site.workers(); ++i) {
    stage.site.worker(i).mischief() = {};
    stage.site.worker(i).Hang(false);
  }
}

}  // namespace lorad::sim
