#include "worker/link/renewal.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "lorad/worker/v1/worker.grpc.pb.h"
#include "spdlog/spdlog.h"
#include "storage/credentials/certificate.h"
#include "worker/link/channel.h"
#include "worker/link/rpc_status.h"

namespace lorad::worker {
namespace {

constexpr std::chrono::seconds kCall(10);
// The wall clock may be set while this waits.
constexpr absl::Duration kLook = absl::Minutes(1);

absl::Duration PauseOf(const storage::Validity& validity) {
  return std::clamp(validity.length() / 60, absl::Seconds(1), absl::Minutes(10));
}

}  // namespace

Renewal::Renewal(std::string coordinator, Credentials* credentials,
                 std::function<absl::Time()> clock)
    : coordinator_(std::move(coordinator)), credentials_(credentials), clock_(std::move(clock)) {
  thread_ = std::thread([this] { Run(); });
}

Renewal::~Renewal() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  wake_.notify_all();
  thread_.join();
}

void Renewal::Run() {
  absl::Time again = absl::InfinitePast();
  while (true) {
    const storage::Validity validity = credentials_->bundle().validity;
    if (!WaitUntil(std::max(again, validity.from + validity.length() * 2 / 3))) return;
    const absl::Status status = Renew();
    if (status.ok()) continue;
    again = clock_() + PauseOf(validity);
    spdlog::warn("the certificate, which holds until {}, is not renewed yet: {}",
                 storage::TimeText(validity.until), std::string(status.message()));
  }
}

bool Renewal::WaitUntil(absl::Time due) {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const absl::Duration left = due - clock_();
    if (left <= absl::ZeroDuration()) return true;
    wake_.wait_for(lock, absl::ToChronoMilliseconds(std::min(left, kLook) + absl::Milliseconds(1)));
  }
  return false;
}

absl::Status Renewal::Renew() {
  const std::string key = storage::MakeKey();
  const absl::StatusOr<std::string> request = storage::MakeRequest(key);
  if (!request.ok()) return request.status();
  v1::RenewCertificateRequest message;
  message.set_request(*request);
  v1::RenewCertificateResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCall);
  const auto stub = v1::Coordinator::NewStub(MakeChannel(coordinator_, credentials_));
  {
    std::lock_guard lock(mutex_);
    if (ends_) return absl::CancelledError("the worker ends");
    call_ = &context;
  }
  const absl::Status called = FromRpc(stub->RenewCertificate(&context, message, &response));
  {
    std::lock_guard lock(mutex_);
    call_ = nullptr;
  }
  if (!called.ok()) return ExplainTls(called, credentials_);
  const int64_t renewals = credentials_->renewals();
  const absl::Status written = credentials_->Renew(key, response.certificate());
  if (credentials_->renewals() == renewals) return written;
  spdlog::info("the certificate is renewed until {}",
               storage::TimeText(credentials_->bundle().validity.until));
  if (!written.ok()) {
    spdlog::warn("the renewed certificate is lost when this worker ends: {}",
                 std::string(written.message()));
  }
  return absl::OkStatus();
}

}  // namespace lorad::worker
