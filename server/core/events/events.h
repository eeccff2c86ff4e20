// The events of the coordinator's core. The core learns of the world (and of the time) through
// these alone.
//
// A request is an event that ends in exactly one Reply (effects.h). Where the API's own message
// says all that is needed, it is the request; the structs here add what a service found out before
// it asked. Services have checked every field that can be checked without the core's state; the
// core checks names, uses and states.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "lorad/v1/adapters.pb.h"
#include "lorad/v1/checkpoints.pb.h"
#include "lorad/v1/cluster.pb.h"
#include "lorad/v1/datasets.pb.h"
#include "lorad/v1/jobs.pb.h"
#include "lorad/v1/models.pb.h"
#include "lorad/worker/v1/worker.pb.h"
#include "planner/stages/moments.h"
#include "server/core/events/moment.h"
#include "server/core/events/plan.h"
#include "server/core/events/records.pb.h"

namespace lorad::server {

// The id that makes a create idempotent. `content` is compared byte for byte with that of the
// request that came first under this id (e.g. the request serialized deterministically without its
// id). Empty id: not idempotent.
struct RequestId {
  std::string id;
  std::string content;
};

// ---- requests, and what their Reply holds ----

// -> v1::Model. `model` whole but for create_time; `config_json` the directory's config.json.
struct RegisterModel {
  v1::Model model;
  std::string config_json;
  RequestId request_id;
};

// -> v1::Dataset. `upload` is a synced file from DataDir::NewUpload(); the core's side owns it from
// here on (moved into place, or removed). `dataset` whole but for create_time.
struct CreateDataset {
  v1::Dataset dataset;
  std::string upload;
  RequestId request_id;
};

// -> v1::Adapter. `upload` is a directory from DataDir::NewUpload() holding adapter_config.json and
// adapter_model.safetensors, synced.
struct ImportAdapter {
  v1::Adapter adapter;
  std::string upload;
  RequestId request_id;
};

// -> v1::Job. Every default filled in, every field in range. With validate_only nothing is stored
// and the reply comes once the rows are checked.
struct CreateJob {
  v1::Job job;
  RequestId request_id;
  bool validate_only = false;
  uint64_t random = 0;  // the id is made of it; the driver fills it in
};

// -> v1::JobEstimate, once the rows are checked and a worker has connected, or the wait for one is
// over. Defaults filled in; of a live job the name says all.
struct EstimateJob {
  v1::Job job = {};
  std::string name = {};  // of a live job; empty: `job` is not created yet
  int64_t wait_us = 0;    // for a first worker: about to connect, right after the start
};

// -> JobSnapshot: where a watch begins. Pages: the jobs among `names` (empty = all) whose newest
// revision is after `after` and at most `up_to`, in the order of these. The watcher asks again with
// `after` = the last job's revision, until a page is not full. A job that has changed, or has gone,
// since `up_to` is left out: RevisionLog tells of it, and goes on from there. NOT_FOUND where a
// name is unknown as the first page is asked for.
struct SnapshotJobs {
  std::vector<std::string> names;
  int64_t after = 0;
  int64_t limit = 0;  // jobs; 0 = all
  int64_t up_to = std::numeric_limits<int64_t>::max();
  bool live_only = false;  // no jobs that have ended
};

struct JobSnapshot {
  std::vector<v1::Job> jobs;  // by ascending revision
  // Names of those that have changed since, of the last page: the log tells of each behind up_to.
  std::vector<std::string> changed;
};

// -> GetTrace: the trace without its bars, and the moments that they are made of.
struct MeasuredGroup {
  v1::Trace trace;
  std::vector<planner::StageMoments> stages;  // on one clock
};

// -> std::monostate once the checkpoint that the shard completes is committed (or was before).
// `upload` as above, its size and sha256 checked against the header.
struct ShardUploaded {
  worker::v1::UploadShardRequest::Header header;
  std::string upload;
};

// -> std::monostate once every job of every group is cut, saved and committed. Nothing is admitted
// from here on.
struct StopRequested {};

// An answer that is asked for: of a job as of a step (none: its newest checkpoint), or of a base
// model with an adapter or alone. All but the source is checked: prompt and max_tokens - 1 tokens
// have positions, and ids are of the vocabulary.
struct AskedAnswer {
  std::string job = {};
  std::optional<int64_t> step = {};
  std::string base_model = {};  // may be empty beside a job
  std::string adapter = {};
  std::vector<int32_t> prompt = {};
  int32_t max_tokens = 1;
  double temperature = 0, top_p = 0;
  uint64_t seed = 0;
  std::vector<int32_t> ends = {};  // tokens with which it ends (EOS)
};

// -> GenerationStarted. Nothing of it is kept over starts.
struct StartGeneration {
  std::vector<AskedAnswer> asks;
};

struct GenerationStarted {
  std::string name;
  std::vector<int64_t> steps;  // by answer: of the job's checkpoint; 0: it is of none
};

// -> GenerationNews, once there is something that the reader has not seen; an error ends it.
// Whoever asks for nothing for 30 s has gone. NOT_FOUND: it has ended, or this coordinator knows
// nothing of it.
struct ReadGeneration {
  std::string name;
  std::vector<int32_t> seen;   // tokens, of each answer
  std::vector<int32_t> ended;  // answers whose end is known; one that goes on is to end
};

struct GenerationNews {
  struct Piece {
    int32_t index = 0;
    std::vector<int32_t> tokens;
    std::vector<double> log_probabilities;
    v1::GenerateResponse::FinishReason finish = v1::GenerateResponse::FINISH_REASON_UNSPECIFIED;
  };
  std::vector<Piece> pieces;
  std::string waiting;  // why nothing comes; empty: nothing new about that
  bool over = false;    // it knows the end of all, and the generation is no more
};

// -> std::monostate, also where there is none.
struct EndGeneration {
  std::string name;
};

// -> v1::Job, whose last_checkpoint_step is meant where the step is 0. Somebody reads the
// checkpoint: for a minute it is not removed for the sake of newer ones (checkpoint_keep_last).
struct HoldCheckpoint {
  std::string job;
  int64_t step = 0;
};

// -> std::monostate. Nobody waits for the reply to that request any more: where it is kept for rows
// or for a worker, it is answered CANCELLED now, and checks that it alone waited for end.
struct GiveUpRequest {
  uint64_t request = 0;
};

using Request = std::variant<
    CreateJob, v1::GetJobRequest, v1::ListJobsRequest, v1::DeleteJobRequest, v1::CancelJobRequest,
    v1::PauseJobRequest, v1::ResumeJobRequest, v1::FinishJobRequest, HoldCheckpoint,
    v1::UpdateJobRequest, EstimateJob, SnapshotJobs, RegisterModel, v1::GetModelRequest,
    v1::ListModelsRequest, v1::UpdateModelRequest, v1::UnregisterModelRequest, CreateDataset,
    v1::GetDatasetRequest, v1::ListDatasetsRequest, v1::DeleteDatasetRequest, ImportAdapter,
    v1::GetAdapterRequest, v1::ListAdaptersRequest, v1::DeleteAdapterRequest,
    v1::DeleteCheckpointRequest, v1::GetClusterRequest, v1::ListWorkersRequest, v1::GetTraceRequest,
    v1::DrainWorkerRequest, v1::UndrainWorkerRequest, v1::SetQuotaRequest, v1::ListQuotasRequest,
    v1::DeleteQuotaRequest, ShardUploaded, StopRequested, GiveUpRequest, StartGeneration,
    ReadGeneration, EndGeneration>;

// The upload that a request brings along; null where it brings none.
inline const std::string* UploadOf(const Request& request) {
  if (const auto* dataset = std::get_if<CreateDataset>(&request)) return &dataset->upload;
  if (const auto* adapter = std::get_if<ImportAdapter>(&request)) return &adapter->upload;
  const auto* shard = std::get_if<ShardUploaded>(&request);
  return shard ? &shard->upload : nullptr;
}

// Get -> the resource; List -> its response; Delete and Unregister -> std::monostate; Cancel,
// Pause, Resume, Finish and Update -> v1::Job; Drain and Undrain -> v1::Worker; GetCluster ->
// v1::ClusterStatus; ListWorkers -> v1::ListWorkersResponse; GetTrace -> MeasuredGroup; SetQuota ->
// v1::Quota; ListQuotas -> v1::ListQuotasResponse; DeleteQuota -> std::monostate.
using ReplyValue =
    std::variant<std::monostate, v1::Job, v1::ListJobsResponse, v1::JobEstimate, JobSnapshot,
                 v1::Model, v1::ListModelsResponse, v1::Dataset, v1::ListDatasetsResponse,
                 v1::Adapter, v1::ListAdaptersResponse, v1::ClusterStatus, v1::ListWorkersResponse,
                 v1::Worker, v1::Quota, v1::ListQuotasResponse, MeasuredGroup, GenerationStarted,
                 GenerationNews>;

// ---- workers: `connection` names one control stream, never used again ----

struct WorkerConnected {
  uint64_t connection = 0;
  worker::v1::Hello hello;
};

// Heartbeat, Report, CutAnswer; a second Hello is refused.
struct WorkerSaid {
  uint64_t connection = 0;
  worker::v1::WorkerMessage message;
};

struct WorkerGone {
  uint64_t connection = 0;
  std::string reason;
};

// ---- the ends of effects ----

struct RowsChecked {
  std::string key;
  // An error: the check itself could not be made; CANCELLED after CancelRows.
  absl::StatusOr<records::RowsSummary> summary;
};

struct Planned {
  uint64_t number = 0;
  absl::StatusOr<StageWindows> window;  // of the units whose rows are there; may be empty
  PackingReport packing = {};
  std::vector<UnitFailure> failures = {};
  std::vector<BatchLines> lines = {};
};

// The result of MoveUpload.
struct UploadMoved {
  uint64_t number = 0;
  absl::Status status;
};

// The result of WriteCheckpoint; `checkpoint` whole but for create_time.
struct CheckpointWritten {
  uint64_t number = 0;
  absl::StatusOr<v1::Checkpoint> checkpoint;
};

// The result of ReadContent. OK: it is whole. DATA_LOSS: it is not what was committed. Else: it
// cannot be read.
struct ContentRead {
  uint64_t number = 0;
  absl::Status status;
};

// How much room is left on the disk of the data directory. While it is low, nothing new is begun.
struct RoomChanged {
  std::string path;
  int64_t free_bytes = 0;
  int64_t wanted_bytes = 0;
  int64_t free_files = 0;  // inodes
  int64_t wanted_files = 0;
  bool low() const { return free_bytes < wanted_bytes || free_files < wanted_files; }
};

struct TimerFired {
  uint64_t timer = 0;
};

struct Requested {
  uint64_t request = 0;  // what the Reply names
  Request content;
};

struct Event {
  Moment time;
  std::variant<Requested, WorkerConnected, WorkerSaid, WorkerGone, RowsChecked, Planned,
               UploadMoved, CheckpointWritten, ContentRead, RoomChanged, TimerFired>
      content;
  // Another follows before anything is made durable or carried out: who trains where is decided at
  // the last, once for all of them.
  bool more_follow = false;
};

}  // namespace lorad::server
