#include "tests/sim/disk/sim_disk.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <utility>

namespace lorad::sim {
namespace {

// More than this that is not durable, and the oldest becomes so.
constexpr size_t kChangesMax = 1000;
constexpr size_t kDirtyMax = 200;

// What was done to a file and is not durable yet.
struct FileChange {
  bool truncate = false;
  uint64_t offset = 0;  // of the bytes; of a truncation: the new size
  std::string bytes;
};

void Put(std::string* file, uint64_t offset, std::string_view bytes) {
  if (file->size() < offset + bytes.size()) file->resize(offset + bytes.size());
  file->replace(offset, bytes.size(), bytes);
}

void Apply(const FileChange& change, std::string* file) {
  if (change.truncate) {
    file->resize(change.offset);
  } else {
    Put(file, change.offset, change.bytes);
  }
}

}  // namespace

struct SimDisk::Node {
  uint64_t number = 0;
  bool is_directory = false;
  bool linked = true;  // some directory names it
  // A file's: as processes see it, as it is durable, and what lies between the two.
  std::string bytes, durable_bytes;
  std::vector<FileChange> changes;
  // A directory's.
  std::map<std::string, std::shared_ptr<Node>> entries, durable_entries;
};

SimDisk::SimDisk(uint64_t seed) : random_(seed), root_(std::make_shared<Node>()) {
  root_->is_directory = true;
}

SimDisk::~SimDisk() = default;

bool SimDisk::Chance(double share) {
  return share > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < share;
}

double SimDisk::RandomShare() {
  constexpr double kShares[] = {0, 0.1, 0.5, 0.9, 1};
  return kShares[random_() % std::size(kShares)];
}

// ---- finding ----

bool SimDisk::FindVeil(const std::string& path, std::shared_ptr<Node>* node) const {
  for (const auto& [veiled, seen] : veils_) {
    if (path != veiled && !path.starts_with(veiled + "/")) continue;
    *node = path == veiled ? seen : nullptr;
    return true;
  }
  return false;
}

int SimDisk::Find(const std::string& path, std::shared_ptr<Node>* node) const {
  if (FindVeil(path, node)) return *node ? 0 : ENOENT;
  std::shared_ptr<Node> at = root_;
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty()) continue;
    if (!at->is_directory) return ENOTDIR;
    const auto found = at->entries.find(name);
    if (found == at->entries.end()) return ENOENT;
    at = found->second;
  }
  *node = std::move(at);
  return 0;
}

int SimDisk::FindParent(const std::string& path, std::shared_ptr<Node>* parent,
                        std::string* name) const {
  const size_t slash = path.rfind('/');
  assert(slash != std::string::npos && slash + 1 < path.size());
  *name = path.substr(slash + 1);
  if (int error = Find(path.substr(0, slash), parent); error != 0) return error;
  return (*parent)->is_directory ? 0 : ENOTDIR;
}

int SimDisk::Begin(Call call, const std::string& path, const Handle* handle, bool changes) {
  if (stopped_) return EIO;
  if (handle != nullptr && handle->life != life_) return EBADF;
  const bool sync = call == Call::kSync || call == Call::kSyncDirectory;
  if (changes) {
    if (effects_ == stop_at_) {
      stopped_ = true;
      return EIO;
    }
    effects_++;
    if (sync) syncs_++;
    if (read_only_ && !sync) return EROFS;
  }
  return fault_ ? fault_(call, path) : 0;
}

bool SimDisk::SkipsSync(const std::string& path) { return skip_ && skip_(syncs_, path); }

// ---- files ----

int SimDisk::Open(const std::string& path, OpenMode mode, Handle* handle) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Node> parent, node;
  std::string name;
  if (int error = FindParent(path, &parent, &name); error != 0) return error;
  const auto found = parent->entries.find(name);
  if (found != parent->entries.end()) node = found->second;
  if (FindVeil(path, &node) && (!node || mode.truncate)) return node ? EACCES : ENOENT;
  if (node && node->is_directory) return EISDIR;
  if (!node && !mode.create) return ENOENT;
  const bool cut = node && mode.truncate && !node->bytes.empty();
  const bool changes = !node || cut;
  if (int error = Begin(changes ? Call::kCreate : Call::kOpen, path, nullptr, changes);
      error != 0) {
    return error;
  }
  if (!node) {
    node = std::make_shared<Node>();
    node->number = next_number_++;
    Make({{parent, name, node}});
  }
  *handle = {node, path, life_};
  if (!cut) return 0;
  used_bytes_ -= node->bytes.size();
  node->bytes.clear();
  node->changes.push_back({true, 0, ""});
  SetDirty(node);
  return 0;
}

int SimDisk::Read(const Handle& handle, uint64_t offset, uint64_t length, std::string* bytes) {
  std::lock_guard lock(mutex_);
  if (int error = Begin(Call::kRead, handle.path, &handle, false); error != 0) return error;
  const std::string& all = handle.node->bytes;
  *bytes = offset < all.size() ? all.substr(offset, length) : "";
  return 0;
}

int SimDisk::Write(const Handle& handle, uint64_t offset, std::string_view bytes) {
  std::lock_guard lock(mutex_);
  const bool begun = !stopped_;
  const int error = Begin(Call::kWrite, handle.path, &handle, true);
  if (error == 0) return WriteFitting(handle.node, offset, bytes);
  if (begun && error != EROFS && error != EBADF) {
    WriteFitting(handle.node, offset, bytes.substr(0, random_() % (bytes.size() + 1)));
  }
  return error;
}

int SimDisk::WriteFitting(const std::shared_ptr<Node>& node, uint64_t offset,
                          std::string_view bytes) {
  const uint64_t room = capacity_bytes_ - std::min(capacity_bytes_, used_bytes_);
  const uint64_t size = node->bytes.size();
  if (offset + bytes.size() > file_bytes_max_) return EFBIG;
  const bool fits = !node->linked || offset + bytes.size() <= size + room;
  if (!fits) bytes = bytes.substr(0, size + room > offset ? size + room - offset : 0);
  if (!bytes.empty()) {
    Put(&node->bytes, offset, bytes);
    if (node->linked) used_bytes_ += node->bytes.size() - size;
    FileChange* last = node->changes.empty() ? nullptr : &node->changes.back();
    if (last && !last->truncate && last->offset + last->bytes.size() == offset) {
      last->bytes += bytes;
    } else {
      node->changes.push_back({false, offset, std::string(bytes)});
    }
    SetDirty(node);
  }
  return fits ? 0 : ENOSPC;
}

int SimDisk::Truncate(const Handle& handle, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (int error = Begin(Call::kWrite, handle.path, &handle, true); error != 0) return error;
  Node& node = *handle.node;
  if (node.linked) used_bytes_ += bytes - node.bytes.size();
  node.bytes.resize(bytes);
  node.changes.push_back({true, bytes, ""});
  SetDirty(handle.node);
  return 0;
}

void SimDisk::SetDirty(const std::shared_ptr<Node>& node) {
  dirty_[node->number] = node;
  if (dirty_.size() <= kDirtyMax) return;
  KeepSome(*dirty_.begin()->second, 1);
  dirty_.erase(dirty_.begin());
}

int SimDisk::Sync(const Handle& handle) {
  std::lock_guard lock(mutex_);
  const bool begun = !stopped_;
  const int error = Begin(Call::kSync, handle.path, &handle, true);
  if (error == 0 && SkipsSync(handle.path)) return 0;
  if (error != 0 && (!begun || stopped_ || error == EBADF)) return error;
  KeepSome(*handle.node, error == 0 ? 1 : RandomShare());
  dirty_.erase(handle.node->number);
  return error;
}

// Each sector of what is not durable becomes so with this chance; the rest never will.
void SimDisk::KeepSome(Node& file, double share) {
  for (const FileChange& change : std::exchange(file.changes, {})) {
    if (share == 1) {
      Apply(change, &file.durable_bytes);
    } else if (change.truncate) {
      if (Chance(share)) Apply(change, &file.durable_bytes);
    } else {
      for (uint64_t at = 0; at < change.bytes.size();) {
        const uint64_t in_sector = (change.offset + at) % kSectorBytes;
        const uint64_t most = change.bytes.size() - at;
        const uint64_t length = std::min(kSectorBytes - in_sector, most);
        if (Chance(share)) {
          Put(&file.durable_bytes, change.offset + at,
              std::string_view(change.bytes).substr(at, length));
        }
        at += length;
      }
    }
  }
  // A size may be written without the bytes.
  const size_t longest = std::max(file.bytes.size(), file.durable_bytes.size());
  if (share < 1 && Chance(0.2)) file.durable_bytes.resize(longest);
}

uint64_t SimDisk::SizeOf(const Handle& handle) {
  std::lock_guard lock(mutex_);
  return handle.node->bytes.size();
}

// ---- directories ----

void SimDisk::Make(Change change) {
  for (const EntryChange& each : change) {
    auto& entries = each.directory->entries;
    const auto old = entries.find(each.name);
    if (old != entries.end()) {
      used_bytes_ -= old->second->bytes.size();
      old->second->linked = false;
      entries.erase(old);
    }
  }
  for (const EntryChange& each : change) {
    if (!each.node) continue;
    each.directory->entries[each.name] = each.node;
    each.node->linked = true;
    used_bytes_ += each.node->bytes.size();
  }
  changes_.push_back(std::move(change));
  if (changes_.size() > kChangesMax) {
    Commit(changes_.begin());
    changes_.pop_front();
  }
}

// What is older and about the same names must not undo it later.
void SimDisk::Commit(std::list<Change>::iterator change) {
  for (const EntryChange& each : *change) {
    if (each.node) {
      each.directory->durable_entries[each.name] = each.node;
    } else {
      each.directory->durable_entries.erase(each.name);
    }
    for (auto older = changes_.begin(); older != change; ++older) {
      std::erase_if(*older, [&](const EntryChange& other) {
        return other.directory == each.directory && other.name == each.name;
      });
    }
  }
}

// Of this directory, or (null) of all. The rest is forgotten or stays to be
// synced.
void SimDisk::KeepSomeEntries(const Node* directory, double share, bool forget) {
  for (auto change = changes_.begin(); change != changes_.end();) {
    const bool is_of =
        directory == nullptr || std::ranges::any_of(*change, [directory](const EntryChange& each) {
          return each.directory.get() == directory;
        });
    if (!is_of) {
      ++change;
      continue;
    }
    const bool kept = share == 1 || Chance(share);
    if (kept) Commit(change);
    change = kept || forget ? changes_.erase(change) : std::next(change);
  }
}

int SimDisk::SyncDirectory(const std::string& path) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Node> node;
  if (int error = Find(path, &node); error != 0) return stopped_ ? EIO : error;
  if (!node->is_directory) return ENOTDIR;
  const bool begun = !stopped_;
  const int error = Begin(Call::kSyncDirectory, path, nullptr, true);
  if (error == 0 && SkipsSync(path)) return 0;
  if (error != 0 && (!begun || stopped_)) return error;
  KeepSomeEntries(node.get(), error == 0 ? 1 : RandomShare(), false);
  return error;
}

int SimDisk::Rename(const std::string& from, const std::string& to) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Node> from_parent, to_parent, node;
  std::string from_name, to_name;
  if (int error = FindParent(from, &from_parent, &from_name); error != 0) return error;
  if (int error = FindParent(to, &to_parent, &to_name); error != 0) return error;
  if (FindVeil(from, &node) || FindVeil(to, &node)) return ENOENT;
  if (int error = Find(from, &node); error != 0) return error;
  if (auto old = to_parent->entries.find(to_name); old != to_parent->entries.end()) {
    const Node& there = *old->second;
    if (&there == node.get()) return 0;
    if (there.is_directory != node->is_directory) return there.is_directory ? EISDIR : ENOTDIR;
    if (!there.entries.empty()) return ENOTEMPTY;
  }
  if (int error = Begin(Call::kRename, from, nullptr, true); error != 0) return error;
  Make({{from_parent, from_name, nullptr}, {to_parent, to_name, node}});
  return 0;
}

int SimDisk::Remove(const std::string& path) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Node> parent, node;
  std::string name;
  if (int error = FindParent(path, &parent, &name); error != 0) return error;
  if (int error = Find(path, &node); error != 0) return error;
  if (!node->entries.empty()) return ENOTEMPTY;
  if (int error = Begin(Call::kRemove, path, nullptr, true); error != 0) return error;
  Make({{parent, name, nullptr}});
  return 0;
}

int SimDisk::MakeDirectory(const std::string& path) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Node> parent;
  std::string name;
  if (int error = FindParent(path, &parent, &name); error != 0) return error;
  if (std::shared_ptr<Node> seen; FindVeil(path, &seen)) return seen ? EEXIST : ENOENT;
  if (parent->entries.contains(name)) return EEXIST;
  if (int error = Begin(Call::kMakeDirectory, path, nullptr, true); error != 0) return error;
  auto node = std::make_shared<Node>();
  node->number = next_number_++;
  node->is_directory = true;
  Make({{parent, name, std::move(node)}});
  return 0;
}

int SimDisk::List(const std::string& path, std::vector<std::string>* names) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Node> node;
  if (int error = Find(path, &node); error != 0) return error;
  if (!node->is_directory) return ENOTDIR;
  if (int error = Begin(Call::kRead, path, nullptr, false); error != 0) return error;
  for (const auto& [name, entry] : node->entries) names->push_back(name);
  return 0;
}

int SimDisk::Stat(const std::string& path, Status* status) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Node> node;
  if (int error = Find(path, &node); error != 0) return error;
  *status = {node->is_directory, node->bytes.size()};
  return 0;
}

// ---- calamity ----

void SimDisk::StopAfter(int64_t effects) {
  std::lock_guard lock(mutex_);
  stop_at_ = effects_ + effects;
}

void SimDisk::Restart() {
  std::lock_guard lock(mutex_);
  life_++;
  stopped_ = false;
  stop_at_ = -1;
}

void SimDisk::PowerLoss() {
  Restart();
  std::lock_guard lock(mutex_);
  const double of_bytes = RandomShare();
  for (auto& [number, node] : std::exchange(dirty_, {})) KeepSome(*node, of_bytes);
  KeepSomeEntries(nullptr, RandomShare(), true);
  used_bytes_ = 0;
  ForgetUnsynced(*root_);
}

void SimDisk::Veil(const std::string& path, const std::optional<std::string>& bytes) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Node>& seen = veils_[path];
  seen = bytes ? std::make_shared<Node>() : nullptr;
  if (seen) seen->bytes = *bytes;
}

void SimDisk::Unveil() {
  std::lock_guard lock(mutex_);
  veils_.clear();
}

void SimDisk::SyncAll() {
  std::lock_guard lock(mutex_);
  for (auto& [number, node] : std::exchange(dirty_, {})) KeepSome(*node, 1);
  KeepSomeEntries(nullptr, 1, true);
}

void SimDisk::ForgetUnsynced(Node& node) {
  node.bytes = node.durable_bytes;
  node.entries = node.durable_entries;
  node.linked = true;
  used_bytes_ += node.bytes.size();
  for (auto& [name, entry] : node.entries) ForgetUnsynced(*entry);
}

SimDisk::Fault RandomFaults(const FaultRates& rates, uint64_t seed) {
  const auto chance = [random = std::make_shared<std::mt19937_64>(seed)](double share) {
    return share > 0 && std::uniform_real_distribution<double>(0, 1)(*random) < share;
  };
  return [=](SimDisk::Call call, const std::string&) {
    using Call = SimDisk::Call;
    switch (call) {
      case Call::kOpen:
      case Call::kRead:
        return chance(rates.read_error) ? EIO : 0;
      case Call::kSync:
      case Call::kSyncDirectory:
        return chance(rates.sync_error) ? EIO : 0;
      case Call::kCreate:
      case Call::kWrite:
      case Call::kMakeDirectory:
        if (chance(rates.no_space)) return ENOSPC;
        return chance(rates.write_error) ? EIO : 0;
      case Call::kRename:
      case Call::kRemove:
        return chance(rates.write_error) ? EIO : 0;
    }
    return 0;
  };
}

}  // namespace lorad::sim
