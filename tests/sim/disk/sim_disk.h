// A disk in memory that keeps its promises towards power loss, and no more: what was written to a
// file is durable once the file is synced, what was created, renamed or removed in a directory once
// the directory is. Everything else may survive or not, each part for itself: writes may be torn at
// any sector, entries of a directory may be there or not; only a rename is atomic. Much later the
// oldest becomes durable by itself, as a kernel's write-back does.
//
// The process that uses it may die at any effect (StopAfter): from then on every call fails and
// changes nothing, until Restart (what a SIGKILL leaves) or PowerLoss. One seed decides all.
//
// Calls return 0 or an errno, as the kernel's do. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace lorad::sim {

class SimDisk {
 public:
  enum class Call {
    kCreate,
    kOpen,
    kRead,
    kWrite,
    kSync,
    kSyncDirectory,
    kRename,
    kRemove,
    kMakeDirectory
  };

  static constexpr uint64_t kSectorBytes = 512;

  // The root directory "/" is there.
  explicit SimDisk(uint64_t seed = 1);
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;
  ~SimDisk();

  // ---- what a process does ----

  struct Node;
  // An open file; of no use once the process that opened it is dead.
  struct Handle {
    std::shared_ptr<Node> node;
    std::string path;
    uint64_t life = 0;
  };
  struct OpenMode {
    bool create = false;
    bool truncate = false;
  };
  struct Status {
    bool is_directory = false;
    uint64_t bytes = 0;
  };

  int Open(const std::string& path, OpenMode mode, Handle* handle);
  int Read(const Handle& handle, uint64_t offset, uint64_t length, std::string* bytes);
  int Write(const Handle& handle, uint64_t offset, std::string_view bytes);
  int Truncate(const Handle& handle, uint64_t bytes);
  int Sync(const Handle& handle);
  uint64_t SizeOf(const Handle& handle);
  int SyncDirectory(const std::string& path);
  int Rename(const std::string& from, const std::string& to);
  int Remove(const std::string& path);
  int MakeDirectory(const std::string& path);  // its parent must be there
  int List(const std::string& path, std::vector<std::string>* names);
  int Stat(const std::string& path, Status* status);

  // ---- calamity ----

  // After so many more effects (negative: never) the process is dead; a write that is cut may be
  // done in part.
  void StopAfter(int64_t effects);
  bool stopped() const { return stopped_; }
  int64_t effects() const { return effects_; }  // so far: whatever could change the disk
  int64_t syncs() const { return syncs_; }      // of them: syncs of files and directories
  // The process is dead and a new one begins. The disk is as the old one saw it last.
  void Restart();
  // The same, but of what was not synced any part may be gone.
  void PowerLoss();

  // What a call is to fail with (0: nothing). A write, or a sync, that fails is done in part. What
  // the failed sync of a file left out is never written, unless it is written again; of a
  // directory the next sync writes the rest (file systems that cannot keep their journal give up).
  using Fault = std::function<int(Call, const std::string& path)>;
  void set_fault(Fault fault) { fault_ = std::move(fault); }
  // Syncs (counted from 1) that report success and do nothing: a mutation of who calls them.
  using Skip = std::function<bool(int64_t sync, const std::string& path)>;
  void set_skip(Skip skip) { skip_ = std::move(skip); }
  static constexpr uint64_t kUnbounded = UINT64_MAX;
  void set_capacity_bytes(uint64_t bytes) { capacity_bytes_ = bytes; }
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  void set_read_only(bool read_only) { read_only_ = read_only; }
  bool read_only() const { return read_only_; }
  // No file grows beyond so much (EFBIG).
  void set_file_bytes_max(uint64_t bytes) { file_bytes_max_ = bytes; }
  uint64_t file_bytes_max() const { return file_bytes_max_; }
  // Until Unveil a path, and what is beneath it, is not there; or it is a file of those bytes.
  // Nothing is created in its place. What really lies there stays as it is.
  void Veil(const std::string& path, const std::optional<std::string>& bytes);
  void Unveil();
  // All that was done so far becomes durable.
  void SyncAll();
  uint64_t used_bytes() const { return used_bytes_; }

 private:
  // Entries that change together.
  struct EntryChange {
    std::shared_ptr<Node> directory;
    std::string name;
    std::shared_ptr<Node> node;  // null: removed
  };
  using Change = std::vector<EntryChange>;

  // Counts an effect. Not 0: it must not happen.
  int Begin(Call call, const std::string& path, const Handle* handle, bool changes);
  int Find(const std::string& path, std::shared_ptr<Node>* node) const;
  // Whether a veil lies over it or what it is beneath; what it is seen as then, null where as
  // nothing.
  bool FindVeil(const std::string& path, std::shared_ptr<Node>* node) const;
  // The directory that holds the last name of `path`.
  int FindParent(const std::string& path, std::shared_ptr<Node>* parent, std::string* name) const;
  bool SkipsSync(const std::string& path);
  int WriteFitting(const std::shared_ptr<Node>& node, uint64_t offset, std::string_view bytes);
  void SetDirty(const std::shared_ptr<Node>& node);
  void Make(Change change);
  void Commit(std::list<Change>::iterator change);
  void KeepSome(Node& file, double share);
  void KeepSomeEntries(const Node* directory, double share, bool forget);
  void ForgetUnsynced(Node& node);
  bool Chance(double share);
  double RandomShare();

  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  const std::shared_ptr<Node> root_;
  std::list<Change> changes_;  // not durable yet, oldest first
  // Files with writes that are not durable yet, by Node::number.
  std::map<uint64_t, std::shared_ptr<Node>> dirty_;
  uint64_t next_number_ = 1;
  Fault fault_;
  Skip skip_;
  uint64_t life_ = 1;
  bool stopped_ = false;
  bool read_only_ = false;
  int64_t effects_ = 0;
  int64_t stop_at_ = -1;
  int64_t syncs_ = 0;
  uint64_t capacity_bytes_ = kUnbounded;
  uint64_t used_bytes_ = 0;
  uint64_t file_bytes_max_ = kUnbounded;
  std::map<std::string, std::shared_ptr<Node>> veils_;  // by path
};

// Faults by chance, each call for itself.
struct FaultRates {
  double no_space = 0;     // a write, a creation: ENOSPC
  double write_error = 0;  // a write, a rename, a removal: EIO
  double sync_error = 0;   // EIO
  double read_error = 0;   // EIO
};
SimDisk::Fault RandomFaults(const FaultRates& rates, uint64_t seed);

}  // namespace lorad::sim
