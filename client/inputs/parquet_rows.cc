#include "client/inputs/parquet_rows.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/calls/error.h"

namespace lorad::client {
namespace {

constexpr std::size_t kReadBytes = 256 << 10;
constexpr std::size_t kSaidBytesMax = 4 << 10;
constexpr int kCannotStart = 127;  // said by the loader, or by posix_spawn

absl::Status Missing(const std::string& why) {
  return Error("PARQUET_MISSING",
               absl::StrCat("Parquet is read by lorad-parquet, which is to lie beside lora, as "
                            "tools/install and the package lay it: ",
                            why));
}

absl::StatusOr<std::string> FindProgram(const std::string& folder) {
  for (const char* way : {"/lorad-parquet", "/parquet/lorad-parquet"}) {
    std::string path = folder + way;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return Missing(absl::StrCat("it is not in ", folder));
}

File Opened(int descriptor, const char* mode) {
  return File(descriptor < 0 ? nullptr : fdopen(descriptor, mode));
}

}  // namespace

absl::StatusOr<File> Spooled(const std::function<absl::StatusOr<std::string>()>& next,
                             const std::string& file_name, std::int64_t bytes_max) {
  const auto failed = [&](const std::string& why) {
    return Error("NO_ROOM_FOR_ROWS",
                 absl::StrCat(file_name,
                              ": Parquet is read from its end, so what is packed or comes "
                              "through a pipe is kept in a temporary file meanwhile, which "
                              "cannot be: ",
                              why, "; TMPDIR names another folder, or give the file itself"));
  };
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "lora-rows-XXXXXX").string();
  if (error) return failed(error.message());
  File file = Opened(mkostemp(path.data(), O_CLOEXEC), "w+");
  if (file == nullptr) return failed(std::strerror(errno));
  unlink(path.c_str());
  std::int64_t bytes = 0;
  while (true) {
    const absl::StatusOr<std::string> piece = next();
    if (!piece.ok()) return piece.status();
    if (piece->empty()) break;
    bytes += static_cast<std::int64_t>(piece->size());
    if (bytes > bytes_max) {
      return Error("BAD_ROWS_FILE",
                   absl::StrCat(file_name, ": is larger than ", bytes_max >> 20,
                                " MiB, unpacked or through a pipe; unpack it and give the file"));
    }
    if (std::fwrite(piece->data(), 1, piece->size(), file.get()) < piece->size()) {
      return failed(std::strerror(errno));
    }
  }
  if (std::fflush(file.get()) != 0) return failed(std::strerror(errno));
  return file;
}

absl::StatusOr<std::unique_ptr<ParquetRows>> ParquetRows::Start(File file, const Columns& columns,
                                                                const std::string& file_name,
                                                                const std::string& programs) {
  absl::StatusOr<std::string> program = FindProgram(programs);
  if (!program.ok()) return program.status();
  std::vector<std::string> words = {*program};
  for (const auto& [theirs, ours] : columns) words.insert(words.end(), {theirs, ours});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  std::array<int, 2> ends = {-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return Missing(std::strerror(errno));
  File rows = Opened(ends[0], "r");
  const File given = Opened(ends[1], "w");
  File said = Opened(memfd_create("lorad-parquet", MFD_CLOEXEC), "w+");
  if (said == nullptr) return Missing(std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(file.get()), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(given.get()), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(said.get()), STDERR_FILENO);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, program->c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Missing(absl::StrCat(*program, ": ", std::strerror(error)));
  return std::unique_ptr<ParquetRows>(
      new ParquetRows(file_name, std::move(rows), std::move(said), pid));
}

ParquetRows::~ParquetRows() {
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::string ParquetRows::Said() const {
  std::string said(kSaidBytesMax, '\0');
  const ssize_t bytes = pread(fileno(said_.get()), said.data(), said.size(), 0);
  said.resize(bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
  return std::string(absl::StripAsciiWhitespace(said));
}

absl::Status ParquetRows::End() {
  rows_.reset();  // it is not to wait for us where reading failed
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotStart) return Missing(Said());
  const std::string what =
      WIFSIGNALED(status)
          ? absl::StrCat("lorad-parquet, which reads it, was ended by signal ", WTERMSIG(status),
                         "; is the file damaged, or is memory short?")
          : Said();
  return Error("BAD_ROWS_FILE", absl::StrCat(file_name_, ": ", what));
}

absl::StatusOr<std::string> ParquetRows::Next() {
  if (pid_ == 0) return std::string();
  std::string bytes(kReadBytes, '\0');
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), rows_.get()));
  if (!bytes.empty()) return bytes;
  if (const absl::Status status = End(); !status.ok()) return status;
  return bytes;
}

}  // namespace lorad::client
