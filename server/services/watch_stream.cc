#include "server/services/watch_stream.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"
#include "server/errors/grpc_status.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

constexpr int64_t kPageJobs = 64;    // short enough that the core does other things in between
constexpr int64_t kReadAtOnce = 16;  // revisions that one watcher may hold on to

void Release(void* revision) {
  delete static_cast<std::shared_ptr<const RevisionLog::Revision>*>(revision);
}

// The log's own bytes, kept as long as gRPC needs them.
grpc::Slice Shared(std::shared_ptr<const RevisionLog::Revision> revision) {
  const std::string& bytes = revision->message;
  return grpc::Slice(const_cast<char*>(bytes.data()), bytes.size(), Release,
                     new std::shared_ptr<const RevisionLog::Revision>(std::move(revision)));
}

grpc::Slice Written(const v1::Job& job) {
  v1::WatchJobsResponse response;
  response.set_revision(job.revision());
  *response.mutable_job() = job;
  return grpc::Slice(response.SerializeAsString());
}

absl::Status CheckRequest(const v1::WatchJobsRequest& request) {
  if (request.names_size() > kWatchNamesMax) {
    return InvalidFields("request", {{"names", absl::StrCat("must be at most ", kWatchNamesMax,
                                                            ", got ", request.names_size())}});
  }
  if (request.resume_from_revision() < 0) {
    return InvalidFields("request", {{"resume_from_revision", "must not be negative"}});
  }
  return absl::OkStatus();
}

}  // namespace

WatchStream::WatchStream(Backend& backend, grpc::CallbackServerContext* context,
                         const grpc::ByteBuffer& request)
    : here_(backend.calls),
      backend_(backend),
      question_(backend.driver, backend.watch_hub.thread()) {
  if (absl::Status status = Enter(CallerOf(*context), request); !status.ok()) {
    End(status);
  } else {
    backend_.watch_hub.thread().Add([this] { Begin(); });
  }
}

absl::Status WatchStream::Enter(const Caller& caller, const grpc::ByteBuffer& request) {
  absl::StatusOr<Connections::Visit> visit =
      backend_.connections.Enter(caller, Connections::Who::kClient);
  if (!visit.ok()) return visit.status();
  visit_.emplace(*std::move(visit));
  grpc::ByteBuffer copy = request;  // shares the bytes
  const grpc::Status parsed =
      grpc::SerializationTraits<v1::WatchJobsRequest>::Deserialize(&copy, &request_);
  if (!parsed.ok()) return absl::InvalidArgumentError(parsed.error_message());
  if (absl::Status status = CheckRequest(request_); !status.ok()) return status;
  absl::StatusOr<Gate::Pass> pass = backend_.watches.Enter();
  if (!pass.ok()) return pass.status();
  pass_.emplace(*std::move(pass));
  names_ = {request_.names().begin(), request_.names().end()};
  if (request_.bookmarks()) {
    silence_.emplace(backend_.patience,
                     [this] { backend_.watch_hub.thread().Add([this] { OnSilence(); }); });
  }
  return absl::OkStatus();
}

void WatchStream::OnWriteDone(bool ok) {
  backend_.watch_hub.thread().Add([this, ok] {
    messages_.pop_front();
    if (!ok) return End(absl::CancelledError("the client ended the watch"));
    GoOn();
  });
}

void WatchStream::OnCancel() {
  question_.GiveUp();
  backend_.watch_hub.thread().Add([this] {
    if (backend_.watch_hub.Leave(this)) End(absl::CancelledError("the client ended the watch"));
  });
}

void WatchStream::OnDone() {
  if (silence_) silence_->Close();
  backend_.watch_hub.thread().Add([this] { delete this; });
}

void WatchStream::Begin() {
  const RevisionLog& log = backend_.watch_hub.log();
  v1::WatchJobsResponse identity;
  identity.set_store(log.store());
  store_ = grpc::Slice(identity.SerializeAsString());
  told_ = revision_ = request_.resume_from_revision();
  present_ = log.newest();
  if (revision_ == 0) return AskForPage();
  const absl::Status status = log.CheckStore(request_.resume_from_store());
  if (!status.ok()) return End(status);
  following_ = present_told_ = true;
  // The client knows that it is heard, also where nothing happens.
  StartSendInitialMetadata();
  GoOn();
}

void WatchStream::AskForPage() {
  const SnapshotJobs page{
      {names_.begin(), names_.end()}, revision_, kPageJobs, present_, request_.live_only()};
  question_.Ask(page, [this](Question::Answer answer) {
    if (!answer.ok()) return End(answer.status());
    TakePage(std::get<JobSnapshot>(*answer));
  });
}

void WatchStream::TakePage(const JobSnapshot& page) {
  if (revision_ == 0) StartSendInitialMetadata();  // the first page
  for (const v1::Job& job : page.jobs) {
    revision_ = job.revision();
    Add(Written(job), revision_);
  }
  if (static_cast<int64_t>(page.jobs.size()) < kPageJobs) {
    following_ = true;
    revision_ = present_;
    changed_ = {page.changed.begin(), page.changed.end()};
    if (changed_.empty()) EndPresent();
  }
  GoOn();
}

void WatchStream::ReadStored() {
  backend_.reads.Add([this, after = revision_] {
    auto found = backend_.watch_hub.log().ReadStored(after, kReadAtOnce);
    backend_.watch_hub.thread().Add([this, found = std::move(found)] {
      if (!found.ok()) return End(found.status());
      Take(*found);
      GoOn();
    });
  });
}

void WatchStream::Take(RevisionLog::Found found) {
  revision_ = found.up_to;
  for (auto& change : found.revisions) {
    if (!names_.empty() && !names_.contains(change->job)) continue;
    const int64_t revision = change->revision;
    changed_.erase(change->job);
    Add(Shared(std::move(change)), revision);
  }
  if (changed_.empty()) EndPresent();
}

// Every job was told as it is, or as it was when it went.
void WatchStream::EndPresent() {
  if (silence_ && !std::exchange(present_told_, true)) AddBookmark();
}

void WatchStream::Look() { GoOn(); }

void WatchStream::GoOn() {
  if (ended_) return;
  while (messages_.empty() && following_) {
    if (backend_.stopping) {
      return End(Unavailable("SHUTTING_DOWN", "the daemon stops: watch again in a while", 2000));
    }
    absl::StatusOr<RevisionLog::Found> found =
        backend_.watch_hub.log().Read(revision_, kReadAtOnce);
    if (!found.ok()) return End(found.status());
    if (found->in_store) return ReadStored();
    if (found->up_to == revision_) return Rest();
    Take(*std::move(found));
  }
  if (messages_.empty()) return AskForPage();
  StartWrite(&messages_.front());
}

void WatchStream::Rest() {
  if (silence_ && revision_ > told_ && !std::exchange(silence_runs_, true)) {
    silence_->Start(backend_.waits.bookmark);
  }
  backend_.watch_hub.Wait(this);
}

void WatchStream::AddBookmark() {
  v1::WatchJobsResponse bookmark;
  bookmark.set_revision(revision_);
  Add(grpc::Slice(bookmark.SerializeAsString()), revision_);
}

void WatchStream::OnSilence() {
  silence_runs_ = false;
  // Else it is told more already, or ends; or jobs that the present state left out are yet to come.
  if (revision_ <= told_ || !present_told_ || !backend_.watch_hub.Leave(this)) return;
  AddBookmark();
  GoOn();
}

void WatchStream::Add(const grpc::Slice& response, int64_t revision) {
  const grpc::Slice slices[] = {response, store_};
  messages_.emplace_back(slices, 2);
  told_ = revision;
}

void WatchStream::End(const absl::Status& status) {
  if (ended_) return;
  ended_ = true;
  Finish(ToGrpc(status));
}

}  // namespace lorad::server
