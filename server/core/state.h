// The conductor of the core, private to server/core: it applies an event, and does what concerns
// several tables at once. The core keeps its state in tables, each with its invariants:
//
//   turn.h         the changes of one event, and the moment
//   answers.h      the answers to creates, by their request_id
//   catalog.h      models, datasets, adapters
//   row_checks.h   checks of rows, and who waits for them
//   group_table.h  groups, their members and epochs
//   quotas.h       what jobs of a label may have, and have
//   job_table.h    jobs, their queue and revisions
//   cluster.h      workers
//   generations.h  answers that are being made, and the guests of groups who make them
//
// An arrow is "knows": all know Turn; Catalog knows Answers; RowChecks knows Catalog; JobTable
// knows Quotas and RowChecks, and looks at GroupTable; State knows them all, and none knows State.
// It keeps what is under way: checkpoints and contents that are written and read, and stops.
//
//   state.cc        turns, and recovery at a start
//   invariants.cc   whether the tables agree
//   resources.cc    models, datasets and adapters that go
//   jobs.cc         jobs that clients create, cancel and delete
//   rows.cc         jobs when their rows are checked
//   estimates.cc    the estimate of a job's cost
//   forecasts.cc    when jobs will start and end
//   workers.cc      control streams and time-outs
//   cluster_view.cc the status of the cluster
//   measures.cc     what groups did, moment by moment
//   room.cc         a disk without room
//   passing.cc      jobs that wait because of a failure that passes
//   placing.cc      what the policy sees, and what becomes of its decisions
//   groups.cc       cutting, dissolving and losing groups
//   forming.cc      how groups come to be, lose stages, and come back after a restart
//   windows.cc      the next window of a group, and what a cut leaves of those at hand
//   reports.cc      the reports of workers
//   checkpoints.cc  shards and checkpoints
//   contents.cc     contents that slots start from, where a worker could not load it
//   generate.cc     answers that clients ask for, and their tokens
//   guests.cc       where the adapters that are asked have a place
//   rations.cc      quotas: requests for them, and what a scheduling turn may place
//   departures.cc   jobs that leave their group with what they have: paused, moved, cancelled, ...
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "planner/foresight/foresee.h"
#include "planner/schedule/schedule.h"
#include "server/core/catalog/answers.h"
#include "server/core/catalog/catalog.h"
#include "server/core/catalog/row_checks.h"
#include "server/core/cluster/cluster.h"
#include "server/core/cluster/group_records.h"
#include "server/core/cluster/group_table.h"
#include "server/core/cluster/patience.h"
#include "server/core/core.h"
#include "server/core/events/store_kinds.h"
#include "server/core/events/turn.h"
#include "server/core/generations/generations.h"
#include "server/core/jobs/job_table.h"
#include "server/core/jobs/pending.h"
#include "server/core/jobs/quotas.h"
#include "server/core/rules/job_states.h"
#include "server/core/rules/losses.h"

namespace lorad::server {

// The matrices of the adapter.
void SetModules(const v1::AdapterConfig& adapter, worker::v1::SlotSpec* slot);

class Core::State {
 public:
  explicit State(const CoreOptions& options);

  absl::Status Load(StoredState stored);
  std::vector<Effect> Recover(Moment now, int64_t starts_before);
  std::vector<Effect> Apply(const Event& event);
  std::optional<ReplyValue> Look(const Request& request, const absl::Status& unwritable);
  CoreSizes SizesNow() const;
  std::vector<std::string> PathsInUse() const;
  std::vector<std::string> SettledFolders() const;
  absl::Status CheckInvariants() const;  // invariants.cc

 private:
  // ---- turns (state.cc) ----
  std::vector<Effect> EndTurn(bool more_follow);

  // ---- invariants.cc ----
  absl::Status CheckGroups() const;
  absl::Status CheckJobs() const;

  // ---- requests that a table answers by itself ----
  template <class Content>
  requires requires(Catalog& table, const Content& content) { table.On(0, content); }
  void On(uint64_t request, const Content& content) { catalog_.On(request, content); }
  template <class Content>
  requires requires(JobTable& table, const Content& content) { table.On(0, content); }
  void On(uint64_t request, const Content& content) { jobs_.On(request, content); }
  void On(uint64_t request, const GiveUpRequest& content);

  // ---- resources.cc ----
  void On(uint64_t request, const v1::UnregisterModelRequest& content);
  void On(uint64_t request, const v1::DeleteDatasetRequest& content);
  void On(uint64_t request, const v1::DeleteAdapterRequest& content);
  // The live job that uses it; empty where none does.
  std::string UserOf(const std::string& kind, const std::string& name) const;

  // ---- jobs.cc ----
  void On(uint64_t request, const CreateJob& content);
  void On(uint64_t request, const v1::DeleteJobRequest& content);
  void On(uint64_t request, const v1::CancelJobRequest& content);
  void On(uint64_t request, const v1::PauseJobRequest& content);
  void On(uint64_t request, const v1::ResumeJobRequest& content);
  void On(uint64_t request, const v1::FinishJobRequest& content);
  void On(uint64_t request, const v1::UpdateJobRequest& content);
  bool AnsweredBefore(uint64_t request, const CreateJob& content);
  void StoreJob(uint64_t request, const CreateJob& content);
  absl::Status CheckReferences(const v1::Job& job) const;

  // ---- generate.cc ----
  void On(uint64_t request, const StartGeneration& content);
  void On(uint64_t request, const ReadGeneration& content) { generations_.On(request, content); }
  void On(uint64_t request, const EndGeneration& content) { generations_.On(request, content); }
  absl::StatusOr<GuestContent> ContentFor(const AskedAnswer& ask);
  absl::StatusOr<GuestContent> ContentOfJob(const AskedAnswer& ask);
  // Whether the guest fits none of these workers, nor several of them, alone; of none, false.
  bool FitsNowhere(const GuestContent& content, int64_t longest_tokens,
                   const std::vector<planner::WorkerView>& workers) const;
  static absl::Status NoWorkerFits(const GuestContent& content, int64_t tokens);
  // The tokens to have room for: so many that not each longer prompt has a group formed again.
  int64_t RoomyTokens(const GuestContent& content, const AnswerRoom& room,
                      const std::vector<planner::WorkerView>& workers) const;
  void OnGenerated(const worker::v1::Generated& generated);
  // Ends the generations that are made with such contents, as what they need has gone.
  void EndGenerations(absl::FunctionRef<bool(const GuestContent&)> of, const std::string& what);
  // The next tokens of its guests' answers, beside what `input` trains.
  void AddGenerations(const GroupState& group, PlanInput* input);
  LoadUnit LoadOf(const Guest& guest) const;

  // ---- guests.cc ----
  planner::QueuedJob Queued(const Guest& guest) const;
  static bool OnlyAnswers(const GroupState& group);  // nobody but guests is in it, or was
  // An ask that has waited for its place has it for a while, and makes no way meanwhile.
  bool IsInTurn(const GroupState& group) const;
  std::string WhoIsInTurn() const;  // behind a reason to wait; empty: nobody is
  // Guests that have waited for long stand in the view's queue like jobs, from then on.
  void AddClaims(planner::ClusterView* view);
  // Cuts groups that only answer for who could have their workers; these leave the view.
  void MakeWay(planner::ClusterView* view);
  // Decides for the queue, and for guests if no job waits that would not wait without them.
  std::vector<planner::Decision> Decide(planner::ClusterView view);
  // Returns the guests that may still have a place beside these decisions; the others say why not.
  std::vector<Guest*> WithoutPlace(const planner::ClusterView& view,
                                   const std::vector<planner::Decision>& of_queue);
  // Ends guests that wait and fit none of these, once no other worker is expected.
  void FailMisfits(const std::vector<planner::WorkerView>& workers);
  bool MayHavePlace(const Guest& guest, const planner::ClusterView& view,
                    const std::vector<planner::Decision>& of_queue) const;
  // Whether more may be asked of it: not on a worker that rests or empties, or it never leaves.
  bool TakesMore(const Guest& guest) const;
  // Puts the guest or the job of that name, as decisions name both, into the group.
  void JoinAny(GroupState& group, const std::string& name);
  void SayWhy(const std::string& name, const std::string& why);
  // What is next for a member that is a guest: its load, or the end of its slot.
  void PlanGuest(const std::string& name, Member& member, PlanInput* input);
  // Ends members that were guests, and have no slot to free.
  void EndGuests(GroupState& group);

  // ---- rows.cc; estimates.cc from Estimate() on, with On(EstimateJob) ----
  void On(uint64_t request, const EstimateJob& content);
  void OnRows(const RowsChecked& checked);
  // Has the rows of a queued job checked again, as their tokens are gone; it waits meanwhile.
  void ReadRowsAgain(JobState& job);
  void TakeRows(JobState& job, const absl::Status& status);
  void AskAgain(const std::string& key, const absl::Status& status);
  // Fills in what follows from the rows. Errors: they are not good, or the job can never fit.
  absl::Status AcceptRows(records::JobRecord& record, v1::JobError* error) const;
  // Whether no worker there is holds the job, by that error, and others may still be on their way.
  bool MayFitLater(const v1::JobError& error) const;
  int64_t JudgedFromUs() const;
  void SettleJob(JobState& job);
  // Lets a job that has read them again wait for its place.
  void GoOnWithRows(JobState& job);
  void FailRows(JobState& job, const v1::JobError& error);
  absl::StatusOr<v1::JobEstimate> Estimate(const v1::Job& job);
  // Fills in the job that the content names, if it names one. An error where it is not live.
  absl::Status FindLive(EstimateJob* content) const;
  // Adds what the job takes on each worker; `job`: its name, empty where it has none yet.
  void AddMemory(const std::string& job, const planner::QueuedJob& queued,
                 v1::JobEstimate* estimate) const;
  std::optional<planner::Placement> AddStages(const planner::QueuedJob& queued,
                                              v1::JobEstimate* estimate) const;
  // Answers estimates that waited for a worker: one has come, or they have waited long enough.
  void AnswerEstimates();

  // ---- forecasts.cc ----
  // Once a second while jobs wait, and after what changes where jobs are.
  void ForecastIfDue();
  void Forecast();
  void TakeForecast(JobState& job, const planner::Foreseen* foreseen);
  // Adds when the job starts and ends, as if it came now if it is new; or why that is unknown.
  void AddForecast(const JobState& job, v1::JobEstimate* estimate);
  JobForecast ForecastOf(const JobState& job, const planner::Foreseen& by_policy) const;
  // Holds against its first forecast that the job starts, or has succeeded, now.
  void NoteStart(JobState& job);
  void NoteEnd(const JobState& job);
  // What was foreseen of the job is void: its user has changed what it rests on.
  void VoidForecast(JobState& job);

  // ---- cluster_view.cc ----
  void On(uint64_t request, const v1::GetClusterRequest& content);
  void On(uint64_t request, const v1::ListWorkersRequest& content);
  std::optional<ReplyValue> LookNow(const Request& request);
  v1::ClusterStatus ViewCluster();
  void AddTimes(v1::ClusterStatus* status);
  v1::ListWorkersResponse ViewWorkers() const;
  v1::Worker ViewWorker(const WorkerState& worker) const;

  // ---- measures.cc ----
  void On(uint64_t request, const v1::GetTraceRequest& content);
  absl::StatusOr<MeasuredGroup> Measure(const v1::GetTraceRequest& content) const;
  // Of each stage the newest `count`.
  std::vector<planner::StageMoments> MomentsOf(const GroupState& group, size_t count) const;
  void AddStages(const GroupState& group, const planner::Shares& shares,
                 google::protobuf::RepeatedPtrField<v1::GroupStage>* views) const;

  // ---- workers.cc ----
  void On(uint64_t request, const StopRequested& content);
  void OnConnected(const WorkerConnected& connected);
  void OnSaid(const WorkerSaid& said);
  void OnGone(const WorkerGone& gone);
  // It was told to end: its group empties as on one that is drained, and then it may go.
  void OnLeaving(WorkerState& worker);
  void LetGo(WorkerState& worker, const std::string& why);
  void OnTimer(const TimerFired& fired);
  void Tick();
  // A coordinator that stood still cannot say who was silent meanwhile: all get their time back.
  void RenewLeases(int64_t late_us);
  // What the group's workers owe, and for how long; empty where that is nothing, or it returns.
  std::optional<Asked> AskedOf(const GroupState& group);
  std::string WhyStuck(const GroupState& group);  // why it counts as lost though it lives; or empty
  void LoseWorker(WorkerState& worker, const std::string& why, Loss loss);
  void CloseWorker(WorkerState& worker, const std::string& why, Loss loss = Loss::kAnybodys);
  // Closes a worker that said what does not fit, and lets whoever comes by its name rest.
  void CloseLiar(WorkerState& worker, const std::string& what);
  // Never forgotten before its group is gone.
  WorkerState& WorkerOf(const StageState& stage) { return cluster_.At(stage.worker); }
  const WorkerState& WorkerOf(const StageState& stage) const { return cluster_.At(stage.worker); }
  void LoseStuckGroups();  // those of several stages, and those that are broken
  void FinishStop();

  // ---- room.cc ----
  void OnRoom(const RoomChanged& room);
  void ForgetPace(GroupState& group);  // nobody knows how fast it and its jobs go on

  // ---- passing.cc ----
  // Postpones the job where a failure that we found ourselves passes, else fails it (failures.h).
  // A worker's word alone fails no job. REQUIRES, here and below: it is live and not CANCELLING.
  void TakeFailure(JobState& job, const std::string& reason, const std::string& message);
  // Takes a worker's word that the group, or the slot, needs more memory than was counted.
  void TakeTooLarge(JobState& job, const GroupState& group, const std::string& worker,
                    const std::string& message);
  // Whether another worker is to try the job, as no two say so of it yet.
  bool AsksAnother(JobState& job, const GroupState& group, const worker::v1::NotFinite& report);
  // Closes workers of the same numerics that said so of what the group has done.
  void Refute(JobState& job, const GroupState& group, int64_t step, bool evaluates);
  // Lets the job wait, queued or for its rows, until its back-off has passed: `first_ms` (0:
  // postpone_ms), twice as long each time until progress. The caller has it leave its group.
  void Postpone(JobState& job, const std::string& reason, const std::string& message,
                int64_t first_ms = 0);
  void PauseFor(JobState& job, const std::string& reason, const std::string& message, int64_t ms);
  // After a start: a queued job waits for what its record's back-off has left (losses.h).
  void WaitOn(JobState& job);
  void TryPostponed();

  // ---- placing.cc ----
  void Schedule();
  int64_t SecondsSince(int64_t us) const;
  // The view of a job that asks where it would be alone; `job` gives model and adapter.
  planner::QueuedJob Alone(const v1::Job& job, int64_t longest_tokens) const;
  static planner::QueuedJob Alone(const ModelState& model, const std::string& base_model,
                                  int64_t longest_tokens, planner::SharedAdapter adapter);
  // The stages that such a job would have, fitting these workers or lacking the least; or none.
  std::optional<planner::Placement> StagesAlone(
      const planner::QueuedJob& job, const std::vector<planner::WorkerView>& workers) const;
  planner::QueuedJob Queued(const JobState& job, const ModelState& model) const;
  planner::RunningJob RunningOf(const JobState& job) const;
  // Of the queue a decision looks at some (job_queue.h).
  enum class Waiting { kThoseLookedAt, kAll };
  planner::ClusterView ClusterOf(Waiting waiting, const JobState* newcomer = nullptr);
  // Adds the job to the group that it moves to: it has its room there already.
  void AddComing(const JobState& job, planner::ClusterView* view) const;
  // Of the base model on every connected worker's device.
  void AddTimes(const std::string& base_model, planner::ClusterView* view);
  double EvaluatedShare(const std::string& base_model, const WorkerState& worker);
  void Carry(const planner::Decision& decision);
  std::string WhyWait(const planner::Decision& decision, const JobState* job = nullptr);
  void Join(GroupState& group, JobState& job);

  // ---- groups.cc ----
  void BeginCut(GroupState& group, GroupState::Then then, const std::string& why);
  void SendCut(GroupState& group);
  void Advance(GroupState& group);
  void Resync(GroupState& group);
  void EndMember(GroupState& group, const std::string& job);
  void Dissolve(GroupState& group, std::string why);
  void LoseGroup(GroupState& group, const std::string& why, Loss loss);
  // Decides which of the jobs that have lost their worker come under suspicion, and fail at last.
  void Suspect(const std::vector<JobState*>& lost, const GroupState& gone, const std::string& why);
  GroupState RemoveGroup(GroupState& group);
  void SendTo(const StageState& stage, worker::v1::CoordinatorMessage message);
  void SendTo(const GroupState& group, const worker::v1::CoordinatorMessage& message);
  // None of its workers rests or empties.
  bool TakesJobs(const GroupState& group) const;
  // One of them does the latter.
  bool Empties(const GroupState& group) const;
  // Some stage is yet to say that the job's slot is loaded, or freed.
  static bool IsLoading(const GroupState& group, const std::string& job);
  static bool IsFreeing(const GroupState& group, const std::string& job);
  GroupState* GroupOf(const JobState& job) { return groups_.Find(job.job().group()); }

  // ---- forming.cc ----
  int32_t VocabularyOf(const std::string& base_model) const {
    return static_cast<int32_t>(catalog_.Model(base_model).shape->vocabulary);
  }
  // Forms a group, which has no members yet.
  GroupState& FormGroup(const planner::Decision& decision);
  worker::v1::FormGroup OrderToForm(const GroupState& group, size_t number) const;
  void OnGroupFormed(GroupState& group, StageState& stage, const worker::v1::GroupFormed& formed);
  void OnStageConnected(GroupState& group, StageState& stage,
                        const worker::v1::Connected& connected);
  void BeginToRun(GroupState& group);
  void OnGroupFailed(GroupState& group, StageState& stage, const worker::v1::GroupFailed& failed);
  void Break(GroupState& group, StageState& stage, const std::string& message);
  void EndBroken(GroupState& group);
  // Groups of before this start: docs/adr/0028-groups-are-found-again.md.
  // Makes the records of groups whose workers outlive us what these groups are.
  void StoreGroups();
  std::string RecordOf(const GroupState& group) const;
  // Takes stored groups up at a start: they wait for their workers.
  void TakeUpGroups();
  bool TakeUp(const records::GroupRecord& record);
  // The group that awaits this worker; null where none does, or the worker holds something else.
  GroupState* FindReturning(const WorkerState& worker, const worker::v1::Hello& hello);
  worker::v1::Welcome WelcomeBack(const GroupState& group, const StageState& stage) const;
  void SendWindowsAgain(const GroupState& group, const StageState& stage);
  // Notes that the stage's worker is back; cuts the group once all are.
  void OnReturned(GroupState& group, StageState& stage);
  // Has its workers let go of it; its jobs go on from their checkpoints.
  void GiveUpReturn(GroupState& group, const std::string& why);
  // Gives up all that still wait.
  void EndReturns(const std::string& why);

  // ---- rations.cc ----
  void On(uint64_t request, const v1::SetQuotaRequest& content);
  void On(uint64_t request, const v1::ListQuotasRequest& content);
  void On(uint64_t request, const v1::DeleteQuotaRequest& content);
  // Leaves in the view's queue what the quotas of running jobs have room for, in its order; the
  // others say which quota holds them.
  void Ration(planner::ClusterView* view);
  // The same, and no job says anything: why `newcomer`, which in the view has no name, is held.
  std::string Ration(planner::ClusterView* view, const JobState* newcomer);
  void Ration(
      planner::ClusterView* view,
      absl::FunctionRef<bool(const planner::QueuedJob& job, Quotas::Allowance& allowance)> take);

  // ---- windows.cc ----
  void PlanNext(GroupState& group);
  void PlanSaves(GroupState& group);
  // Asks for the save of its newest step, unless that is recorded or on its way.
  void PlanSave(JobState& job, Member& member, PlanInput* input) const;
  void AddUnit(Member& member, const JobState& job, PlanInput* input) const;
  // The content that its slot starts from, as LoadUnit::content; empty: from nothing.
  std::string ContentOf(const v1::Job& job) const;
  LoadUnit LoadOf(GroupState& group, JobState& job);
  void OnPlanned(const Planned& planned);
  // Sends each stage its own, and keeps what is awaited of it from then on.
  void SendWindow(GroupState& group, const StageWindows& windows);
  void LoseRows(GroupState& group, const UnitFailure& failure);
  // Drops what the answer says of the windows at hand, and awaits the rest.
  void OnCutAnswer(GroupState& group, const worker::v1::CutAnswer& answer);

  // ---- reports.cc ----
  void OnReport(GroupState& group, StageState& stage, const worker::v1::Report& report);
  void OnSlotLoaded(GroupState& group, StageState& stage, const worker::v1::SlotLoaded& loaded);
  void OnSlotFailed(GroupState& group, StageState& stage, const worker::v1::SlotFailed& failed);
  void FailGuest(const worker::v1::SlotFailed& failed, WorkerState& worker,
                 const std::string& message);
  void OnSlotFreed(GroupState& group, StageState& stage, const worker::v1::SlotFreed& freed);
  void CountUnit(const GroupState& group, JobState& job, int64_t trained, double evaluated);
  void OnStepDone(GroupState& group, const worker::v1::StepDone& done);
  void OnEvaluateDone(GroupState& group, const worker::v1::EvaluateDone& done);
  void OnMicrobatchDone(GroupState& group, StageState& stage,
                        const worker::v1::MicrobatchDone& done);
  void ObserveTimes(GroupState& group, const worker::v1::MicrobatchDone& done,
                    const planner::Workload& work);
  void OnWindowDone(GroupState& group, StageState& stage);
  void OnNotFinite(GroupState& group, const worker::v1::NotFinite& report);
  void OnSaveDelayed(const StageState& stage, const worker::v1::SaveDelayed& delayed);
  void KeepMetrics(JobState& job, const worker::v1::StepDone& done);
  // SUCCEEDED once the last checkpoint is committed, and what is due there evaluated.
  void MaybeFinish(JobState& job);

  // ---- checkpoints.cc ----
  void On(uint64_t request, const ShardUploaded& content);
  void On(uint64_t request, const v1::DeleteCheckpointRequest& content);
  void OnWritten(const CheckpointWritten& written);
  // Gives its newest checkpoint up, for the one before it. REQUIRES: it is QUEUED.
  void LoseCheckpoint(JobState& job, const std::string& reason, const std::string& why);
  // Takes, refuses or sends back what was kept back, as soon as it is clear which.
  void AnswerKeptShards(GroupState& group);
  void CommitIfWhole(GroupState& group, const std::string& job, int64_t step);
  bool IsPassedBy(const GroupState& group, const KeptShard& shard);
  void Commit(const std::vector<KeptShard>& shards, JobState& job, int64_t tokens);
  // Drops what the job's settings let go and nobody uses; what is used is looked at again.
  void DropCheckpoints(JobState& job);
  void DropAgain();
  void RemoveCheckpoint(JobState& job, int64_t step);
  bool IsInUse(const std::string& job, int64_t step) const;
  void On(uint64_t request, const HoldCheckpoint& content);
  bool StepMayCome(const GroupState& group, const ShardUploaded& shard);
  void RefuseShard(uint64_t request, const ShardUploaded& content);
  void SendAgain(uint64_t request, const ShardUploaded& content);

  // ---- departures.cc ----
  // Has the job leave its group at the next border: saved at its last step, its slot freed. It is
  // QUEUED then, or PAUSED. Its neighbours go on. REQUIRES: it is placed.
  void Depart(JobState& job, const std::string& why, bool resumes);
  // Whether it may leave its group alive: it has work to do elsewhere.
  static bool MayDepart(const JobState& job) {
    return job.state() == v1::Job::PREPARING || job.state() == v1::Job::RUNNING;
  }
  // Has it depart at once: its group is cut, and until `for_job` has its first unit no other job of
  // the group gets one.
  void Evict(JobState& job, const std::string& for_job);
  // Has it depart at a border, for another group, which is formed meanwhile (kReplace).
  void Move(JobState& job, const planner::Decision& decision);
  void EndUrgency(GroupState& group);
  // Lets it go on in its group, or elsewhere if it must leave that. REQUIRES: it is PAUSING.
  void StopPausing(JobState& job, const std::string& why);
  // A PAUSED job waits for its rows, or for a place, again.
  void Requeue(JobState& job, const std::string& why);
  // What is next for one that departs: its save, or the end of its slot.
  void PlanDeparture(const std::string& name, Member& member, PlanInput* input);
  // Ends members that depart, or have left, and whose slot was never asked for.
  void EndUnloaded(GroupState& group);
  // Lets it train what is at hand, and no more. REQUIRES: it has trained a step, and is not ending.
  void Finish(JobState& job);
  void EndFinished();  // those that wait, and are saved at their finish_step
  // Whether it is to be cancelled, and its last step can still be saved, and is not yet.
  bool SavesLast(const GroupState& group, const Member& member, const JobState& job) const;
  // Ends CANCELLING jobs that have been cut out of the group, and have nothing to save.
  void EndCancelled(const GroupState& group);
  void On(uint64_t request, const v1::DrainWorkerRequest& content);
  void On(uint64_t request, const v1::UndrainWorkerRequest& content);
  std::string WhyEmpties(const GroupState& group) const;
  // Has all depart that may leave the group, a worker of which empties.
  void Drain(GroupState& group);

  // ---- contents.cc ----
  // Lets the job wait until we have read what its slot starts from: a worker could not load it.
  void LookAtContent(JobState& job, const std::string& worker, const std::string& reason,
                     const std::string& message);
  void OnContentRead(const ContentRead& read);

  const CoreOptions options_;
  Turn turn_;
  Answers answers_;
  Catalog catalog_;
  RowChecks rows_;
  GroupTable groups_;
  Quotas quotas_;
  JobTable jobs_;
  Cluster cluster_;
  Generations generations_;

  std::map<uint64_t, PendingCommit> commits_;
  std::map<uint64_t, PendingLook> looks_;
  std::map<std::pair<std::string, int64_t>, int64_t> held_;  // (job, step) -> until, steady
  std::set<std::string> drop_again_;  // jobs with a checkpoint that goes once nobody uses it
  std::vector<uint64_t> stops_;
  bool stopping_ = false;
  std::vector<records::GroupRecord> stored_groups_;  // from Load to Recover,
  WindowRecords stored_windows_;                     // and so are these
  bool groups_changed_ = false;                      // their records may not be what they are
  struct {
    bool wanted = false;   // where jobs are has changed since the newest
    int64_t made_us = -1;  // the newest; -1: none yet
    int64_t timer_us = 0;  // when the next is due; 0 = no timer is set
  } forecasts_;
};

}  // namespace lorad::server
