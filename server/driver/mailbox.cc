#include "server/driver/mailbox.h"

#include <cassert>
#include <iterator>
#include <limits>
#include <utility>

namespace lorad::server {
namespace {

const WorkerSaid* HeartbeatIn(const Mailbox::Content& content) {
  const auto* said = std::get_if<WorkerSaid>(&content);
  return said && said->message.has_heartbeat() ? said : nullptr;
}

}  // namespace

bool IsOfClient(const Mailbox::Content& content) {
  const auto* requested = std::get_if<Requested>(&content);
  return requested && !std::holds_alternative<ShardUploaded>(requested->content);
}

int64_t* Mailbox::CountOf(const Content& content) {
  if (std::holds_alternative<Requested>(content)) {
    return IsOfClient(content) ? &requests_ : &shards_;
  }
  const auto* said = std::get_if<WorkerSaid>(&content);
  return said ? &messages_[said->connection] : nullptr;
}

int64_t Mailbox::LimitOf(const Content& content) const {
  if (IsOfClient(content)) return options_.requests_max;
  return std::holds_alternative<Requested>(content) ? options_.shards_max : options_.messages_max;
}

bool Mailbox::Post(Content&& content) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return true;
    const WorkerSaid* heartbeat = HeartbeatIn(content);
    if (heartbeat) {
      const auto before = heartbeats_.find(heartbeat->connection);
      if (before != heartbeats_.end()) {
        // In its place: timers that wait for what lay there must not miss it.
        before->second->posted = clock_.Now();
        before->second->content = std::move(content);
        return true;
      }
    }
    if (int64_t* count = CountOf(content)) {
      if (*count >= LimitOf(content)) return false;
      ++*count;
    }
    const uint64_t connection = heartbeat ? heartbeat->connection : 0;
    queue_.push_back({++newest_, clock_.Now(), std::move(content)});
    if (heartbeat) heartbeats_[connection] = std::prev(queue_.end());
  }
  on_mail_();
  return true;
}

Mailbox::Queue::iterator Mailbox::Unlink(Queue::iterator mail, std::vector<Mail>* taken) {
  if (const WorkerSaid* heartbeat = HeartbeatIn(mail->content)) {
    heartbeats_.erase(heartbeat->connection);
  }
  if (int64_t* count = CountOf(mail->content)) {
    assert(*count > 0);
    const auto* said = std::get_if<WorkerSaid>(&mail->content);
    if (--*count == 0 && said) messages_.erase(said->connection);
  }
  if (taken) taken->push_back(std::move(*mail));
  return queue_.erase(mail);
}

std::vector<Mailbox::Mail> Mailbox::Take(size_t max) {
  std::lock_guard lock(mutex_);
  std::vector<Mail> taken;
  while (!queue_.empty() && taken.size() < max) Unlink(queue_.begin(), &taken);
  return taken;
}

std::vector<Mailbox::Mail> Mailbox::TakeRequests() {
  std::lock_guard lock(mutex_);
  std::vector<Mail> taken;
  if (requests_ == 0) return taken;
  for (auto mail = queue_.begin(); mail != queue_.end();) {
    mail = IsOfClient(mail->content) ? Unlink(mail, &taken) : std::next(mail);
  }
  return taken;
}

uint64_t Mailbox::newest() const {
  std::lock_guard lock(mutex_);
  return newest_;
}

bool Mailbox::HasUpTo(uint64_t number) const {
  std::lock_guard lock(mutex_);
  return !queue_.empty() && queue_.front().number <= number;
}

void Mailbox::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  queue_.clear();
  heartbeats_.clear();
  messages_.clear();
  requests_ = shards_ = 0;
}

}  // namespace lorad::server
