#include "client/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"

namespace lorad::client {
namespace {

namespace fs = std::filesystem;

// What its links lead to, which need not be there. REQUIRES: they have an end.
fs::path Followed(fs::path file) {
  std::error_code error;
  while (fs::is_symlink(file, error)) {
    const fs::path target = fs::read_symlink(file, error);
    if (error) break;
    file = file.parent_path() / target;  // an absolute one alone
  }
  return file;
}

// 0, or errno.
int WriteAll(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t written = write(fd, text.data() + at, text.size() - at);
    if (written >= 0) {
      at += static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

// Into a file that was not there; 0, or errno.
int WriteNew(const fs::path& file, mode_t mode, const std::string& text) {
  const int fd = open(file.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, mode);
  if (fd < 0) return errno;
  int error = WriteAll(fd, text);
  if (close(fd) != 0 && error == 0) error = errno;
  return error;
}

// The file is replaced once its text is whole; 0, or errno.
int Replace(const fs::path& file, const std::string& text) {
  fs::path partial = file;
  partial += ".partial";
  unlink(partial.c_str());  // of one that was ended meanwhile
  struct stat before = {};
  const bool was_there = stat(file.c_str(), &before) == 0;
  const mode_t mode = was_there ? before.st_mode & 0777 : 0666;
  int error = WriteNew(partial, mode, text);
  if (error == EEXIST) return error;  // not ours
  if (error == 0 && was_there && chmod(partial.c_str(), mode) != 0) error = errno;
  if (error == 0 && rename(partial.c_str(), file.c_str()) != 0) error = errno;
  if (error != 0) unlink(partial.c_str());
  return error;
}

}  // namespace

WholeFile::~WholeFile() {
  if (stream_ >= 0) close(stream_);
}

// 0, or errno.
int WholeFile::WriteInto(const std::string& text) {
  if (path_ == "/dev/stdout") return WriteAll(STDOUT_FILENO, text);  // though it may be a file
  if (stream_ >= 0) return WriteAll(stream_, text);
  std::error_code unknown;
  const fs::file_status status = fs::status(path_, unknown);
  // A ring of links, or a folder that we may not look into.
  if (!fs::status_known(status)) return unknown.value();
  if (fs::is_directory(status)) return EISDIR;
  if (!fs::exists(status) || fs::is_regular_file(status)) return Replace(Followed(path_), text);
  stream_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  return stream_ < 0 ? errno : WriteAll(stream_, text);
}

absl::Status WholeFile::Write(const std::string& text) {
  const int error = WriteInto(text);
  if (error == 0) return absl::OkStatus();
  const char* what_to_do = error == EPIPE
                               ? "who read it has gone: start both again"
                               : "name a file in a folder that you may write to and that has room";
  return Error("FILE_UNWRITABLE",
               absl::StrCat(path_, " cannot be written: ", std::generic_category().message(error),
                            ": ", what_to_do));
}

std::string CheckFile(const std::string& file) {
  return file.empty() ? "the path is empty: name the file that is to be written" : "";
}

}  // namespace lorad::client
