#include "server/services/watch_stream.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <limits>
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
grpc::ByteBuffer Shared(std::shared_ptr<const RevisionLog::Revision> revision) {
  const std::string& bytes = revision->message;
  const grpc::Slice slice(const_cast<char*>(bytes.data()), bytes.size(), Release,
                          new std::shared_ptr<const RevisionLog::Revision>(std::move(revision)));
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer Written(v1::Job job) {
  v1::WatchJobsResponse response;
  response.set_revision(job.revision());
  *response.mutable_job() = std::move(job);
  const grpc::Slice slice(response.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
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
  if (absl::Status status = Enter(context->peer(), request); !status.ok()) {
    End(status);
  } else {
    backend_.watch_hub.thread().Add([this] { Begin(); });
  }
}

absl::Status WatchStream::Enter(const std::string& peer, const grpc::ByteBuffer& request) {
  absl::StatusOr<Connections::Visit> visit =
      backend_.connections.Enter(peer, Connections::Who::kClient);
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
  backend_.watch_hub.thread().Add([this] { delete this; });
}

void WatchStream::Begin() {
  revision_ = request_.resume_from_revision();
  if (revision_ == 0) return AskForPage(0, kPageJobs);
  following_ = true;
  if (names_.empty()) return TakePage({});
  AskForPage(std::numeric_limits<int64_t>::max(), 1);  // whether the names are known
}

void WatchStream::AskForPage(int64_t after, int64_t limit) {
  question_.Ask(SnapshotJobs{{names_.begin(), names_.end()}, after, limit},
                [this](Question::Answer answer) {
                  if (!answer.ok()) return End(answer.status());
                  TakePage(std::get<JobSnapshot>(*answer));
                });
}

void WatchStream::TakePage(const JobSnapshot& page) {
  // The client knows that it is heard, also where nothing happens.
  if (!std::exchange(heard_, true)) StartSendInitialMetadata();
  for (const v1::Job& job : page.jobs) {
    messages_.push_back(Written(job));
    revision_ = job.revision();
  }
  if (!following_ && static_cast<int64_t>(page.jobs.size()) < kPageJobs) {
    // Everything up to here is sent.
    following_ = true;
    revision_ = page.revision;
  }
  GoOn();
}

void WatchStream::Look() { GoOn(); }

void WatchStream::GoOn() {
  if (ended_) return;
  while (messages_.empty() && following_) {
    if (backend_.stopping) {
      return End(Unavailable("SHUTTING_DOWN", "the daemon stops: watch again in a while", 2000));
    }
    absl::StatusOr<RevisionLog::Revisions> changes =
        backend_.watch_hub.log().Read(revision_, kReadAtOnce);
    if (!changes.ok()) return End(changes.status());
    if (changes->empty()) return backend_.watch_hub.Wait(this);
    for (auto& change : *changes) {
      revision_ = change->revision;
      if (names_.empty() || names_.contains(change->job)) {
        messages_.push_back(Shared(std::move(change)));
      }
    }
  }
  if (messages_.empty()) return AskForPage(revision_, kPageJobs);
  StartWrite(&messages_.front());
}

void WatchStream::End(const absl::Status& status) {
  if (ended_) return;
  ended_ = true;
  Finish(ToGrpc(status));
}

}  // namespace lorad::server
