#include "tests/sim/disk/sim_vfs.h"

#include <sqlite3.h>

#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "storage/files/files.h"

namespace lorad::sim {
namespace {

struct File : sqlite3_file {
  SimDisk* disk = nullptr;
  SimDisk::Handle handle;
  bool sync_directory = false;  // with the next sync: a log that was made just now
  int error = 0;                // the newest errno; a success leaves it

  int Keep(int result) {
    if (result != 0) error = result;
    return result;
  }
};

SimDisk& DiskOf(sqlite3_vfs* vfs) { return *static_cast<SimDisk*>(vfs->pAppData); }
File& FileOf(sqlite3_file* file) { return *static_cast<File*>(file); }

int Close(sqlite3_file* file) {
  FileOf(file).~File();
  return SQLITE_OK;
}

int Read(sqlite3_file* file, void* out, int length, sqlite3_int64 offset) {
  File& f = FileOf(file);
  std::string bytes;
  if (f.Keep(f.disk->Read(f.handle, offset, length, &bytes)) != 0) {
    return SQLITE_IOERR_READ;
  }
  memcpy(out, bytes.data(), bytes.size());
  if (static_cast<int>(bytes.size()) == length) return SQLITE_OK;
  memset(static_cast<char*>(out) + bytes.size(), 0, length - bytes.size());
  return SQLITE_IOERR_SHORT_READ;
}

int Write(sqlite3_file* file, const void* bytes, int length, sqlite3_int64 offset) {
  File& f = FileOf(file);
  const std::string_view view(static_cast<const char*>(bytes), length);
  const int error = f.Keep(f.disk->Write(f.handle, offset, view));
  if (error == 0) return SQLITE_OK;
  return error == ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE;
}

int Truncate(sqlite3_file* file, sqlite3_int64 bytes) {
  File& f = FileOf(file);
  const int error = f.Keep(f.disk->Truncate(f.handle, bytes));
  return error == 0 ? SQLITE_OK : SQLITE_IOERR_TRUNCATE;
}

int Sync(sqlite3_file* file, int) {
  File& f = FileOf(file);
  if (f.Keep(f.disk->Sync(f.handle)) != 0) return SQLITE_IOERR_FSYNC;
  // Whether this fails nobody is told.
  if (std::exchange(f.sync_directory, false)) {
    f.disk->SyncDirectory(storage::ParentPath(f.handle.path));
  }
  return SQLITE_OK;
}

int FileSize(sqlite3_file* file, sqlite3_int64* bytes) {
  *bytes = static_cast<sqlite3_int64>(FileOf(file).disk->SizeOf(FileOf(file).handle));
  return SQLITE_OK;
}

int Lock(sqlite3_file*, int) { return SQLITE_OK; }

int CheckReservedLock(sqlite3_file*, int* reserved) {
  *reserved = 0;
  return SQLITE_OK;
}

int FileControl(sqlite3_file* file, int operation, void* out) {
  if (operation != SQLITE_FCNTL_LAST_ERRNO) return SQLITE_NOTFOUND;
  *static_cast<int*>(out) = FileOf(file).error;
  return SQLITE_OK;
}

int SectorSize(sqlite3_file*) { return 4096; }
int DeviceCharacteristics(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

const sqlite3_io_methods kMethods = [] {
  sqlite3_io_methods methods = {};
  methods.iVersion = 1;  // without shared memory
  methods.xClose = Close;
  methods.xRead = Read;
  methods.xWrite = Write;
  methods.xTruncate = Truncate;
  methods.xSync = Sync;
  methods.xFileSize = FileSize;
  methods.xLock = Lock;
  methods.xUnlock = Lock;
  methods.xCheckReservedLock = CheckReservedLock;
  methods.xFileControl = FileControl;
  methods.xSectorSize = SectorSize;
  methods.xDeviceCharacteristics = DeviceCharacteristics;
  return methods;
}();

int Open(sqlite3_vfs* vfs, const char* path, sqlite3_file* out, int flags, int* out_flags) {
  SimDisk& disk = DiskOf(vfs);
  out->pMethods = nullptr;
  assert(path != nullptr);  // the store makes no temporary files
  SimDisk::Status status;
  const bool absent = disk.Stat(path, &status) != 0;
  SimDisk::Handle handle;
  const SimDisk::OpenMode mode{.create = (flags & SQLITE_OPEN_CREATE) != 0};
  if (disk.Open(path, mode, &handle) != 0) return SQLITE_CANTOPEN;
  File* file = new (out) File;
  file->pMethods = &kMethods;
  file->disk = &disk;
  file->handle = std::move(handle);
  file->sync_directory = absent && (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL)) != 0;
  if (disk.read_only() && (flags & SQLITE_OPEN_READWRITE) != 0) {
    flags = (flags & ~(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)) | SQLITE_OPEN_READONLY;
  }
  if (out_flags != nullptr) *out_flags = flags;
  return SQLITE_OK;
}

int Delete(sqlite3_vfs* vfs, const char* path, int sync_directory) {
  SimDisk& disk = DiskOf(vfs);
  const int error = disk.Remove(path);
  if (error == ENOENT) return SQLITE_IOERR_DELETE_NOENT;
  if (error != 0) return SQLITE_IOERR_DELETE;
  if (sync_directory == 0) return SQLITE_OK;
  const int synced = disk.SyncDirectory(storage::ParentPath(path));
  return synced == 0 ? SQLITE_OK : SQLITE_IOERR_DIR_FSYNC;
}

int Access(sqlite3_vfs* vfs, const char* path, int flags, int* result) {
  SimDisk::Status status;
  const bool exists = DiskOf(vfs).Stat(path, &status) == 0;
  // As the one for Unix: an empty file is as good as none.
  *result = exists && (flags != SQLITE_ACCESS_EXISTS || status.bytes > 0) ? 1 : 0;
  return SQLITE_OK;
}

int FullPathname(sqlite3_vfs*, const char* path, int bytes, char* out) {
  return snprintf(out, bytes, "%s", path) < bytes ? SQLITE_OK : SQLITE_CANTOPEN;
}

int Randomness(sqlite3_vfs*, int bytes, char* out) {
  memset(out, 7, bytes);
  return bytes;
}

int Sleep(sqlite3_vfs*, int us) { return us; }

int CurrentTime(sqlite3_vfs*, double* days) {
  *days = 0;
  return SQLITE_OK;
}

}  // namespace

SimVfs::SimVfs(SimDisk& disk) : vfs_(std::make_unique<sqlite3_vfs>()) {
  static std::atomic<int> made{0};
  name_ = "sim-" + std::to_string(++made);
  *vfs_ = {};
  vfs_->iVersion = 1;
  vfs_->szOsFile = sizeof(File);
  vfs_->mxPathname = 512;
  vfs_->zName = name_.c_str();
  vfs_->pAppData = &disk;
  vfs_->xOpen = Open;
  vfs_->xDelete = Delete;
  vfs_->xAccess = Access;
  vfs_->xFullPathname = FullPathname;
  vfs_->xRandomness = Randomness;
  vfs_->xSleep = Sleep;
  vfs_->xCurrentTime = CurrentTime;
  [[maybe_unused]] const int code = sqlite3_vfs_register(vfs_.get(), 0);
  assert(code == SQLITE_OK);
}

SimVfs::~SimVfs() { sqlite3_vfs_unregister(vfs_.get()); }

}  // namespace lorad::sim
