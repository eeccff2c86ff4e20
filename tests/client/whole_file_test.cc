// Files that commands write.
#include "client/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "client/calls/error.h"
#include "tests/storage/temp_directory.h"

namespace lorad::client {
namespace {

namespace fs = std::filesystem;

std::string TextOf(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("A file is made, and replaced whole") {
  const storage::TempDirectory folder;
  const std::string file = folder / "file";
  REQUIRE(WriteWhole(file, "one").ok());
  CHECK(TextOf(file) == "one");
  const std::ifstream before(file);
  REQUIRE(WriteWhole(file, "another").ok());
  CHECK(TextOf(file) == "another");
  // Who has it open reads on in what it was: it was replaced, not written over.
  std::ostringstream read;
  read << before.rdbuf();
  CHECK(read.str() == "one");
  CHECK_FALSE(fs::exists(file + ".partial"));
}

TEST_CASE("A file keeps its mode") {
  const storage::TempDirectory folder;
  const std::string file = folder / "file";
  const auto mode = static_cast<fs::perms>(GENERATE(0600, 0664));
  std::ofstream(file) << "old";
  fs::permissions(file, mode);
  REQUIRE(WriteWhole(file, "new").ok());
  CHECK(fs::status(file).permissions() == mode);
}

TEST_CASE("Standard output is written to as it is open, also where it is a file") {
  const storage::TempDirectory folder;
  const std::string file = folder / "file";
  std::ofstream(file) << "old ";
  const int before = dup(STDOUT_FILENO);
  const int out = open(file.c_str(), O_WRONLY | O_APPEND);
  REQUIRE(dup2(out, STDOUT_FILENO) == STDOUT_FILENO);
  const absl::Status status = WriteWhole("/dev/stdout", "new");
  dup2(before, STDOUT_FILENO);
  close(before);
  close(out);
  CHECK(status.ok());
  CHECK(TextOf(file) == "old new");
}

TEST_CASE("A link stays, and what it leads to is written") {
  const storage::TempDirectory folder;
  fs::create_directories(folder / "there");
  const std::string target = folder / "there/target";
  const bool is_there = GENERATE(true, false);
  if (is_there) std::ofstream(target) << "old";
  fs::create_symlink("there/target", folder / "second");  // from its folder
  fs::create_symlink(folder / "second", folder / "first");
  REQUIRE(WriteWhole(folder / "first", "new").ok());
  CHECK(fs::is_symlink(folder / "first"));
  CHECK(fs::is_symlink(folder / "second"));
  CHECK_FALSE(fs::is_symlink(target));
  CHECK(TextOf(target) == "new");
}

TEST_CASE("What stands at FILE.partial is not written through") {
  const storage::TempDirectory folder;
  std::ofstream(folder / "precious") << "old";
  fs::create_symlink(folder / "precious", folder / "file.partial");
  REQUIRE(WriteWhole(folder / "file", "new").ok());
  CHECK(TextOf(folder / "file") == "new");
  CHECK(TextOf(folder / "precious") == "old");
}

TEST_CASE("A pipe is written into") {
  const storage::TempDirectory folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  REQUIRE(WriteWhole(pipe, "one").ok());
  std::array<char, 16> bytes{};
  CHECK(read(reader, bytes.data(), bytes.size()) == 3);
  CHECK(std::string(bytes.data()) == "one");
  close(reader);
  CHECK(fs::is_fifo(pipe));
}

// Who reads it would take the end of the first text for the end of all.
TEST_CASE("A pipe stays open between texts, until its reader goes") {
  const storage::TempDirectory folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  std::array<char, 16> bytes{};
  {
    WholeFile file(pipe);
    for (const char* text : {"one", "two"}) {
      REQUIRE(file.Write(text).ok());
      CHECK(read(reader, bytes.data(), bytes.size()) == 3);
      CHECK(std::string(bytes.data()) == text);
      CHECK(read(reader, bytes.data(), bytes.size()) == -1);  // none yet, and no end
      CHECK(errno == EAGAIN);
    }
  }
  CHECK(read(reader, bytes.data(), bytes.size()) == 0);
  {
    WholeFile file(pipe);
    REQUIRE(file.Write("three").ok());
    close(reader);
    signal(SIGPIPE, SIG_IGN);
    const absl::Status gone = file.Write("four");
    signal(SIGPIPE, SIG_DFL);
    CHECK(ReasonOf(gone) == "FILE_UNWRITABLE");
    CHECK(gone.message().find("Broken pipe: who read it has gone") != std::string::npos);
  }
  CHECK(fs::is_fifo(pipe));
}

// Through links, so that a fault replaces these and not the machine's devices.
TEST_CASE("A device is written into") {
  const storage::TempDirectory folder;
  for (const char* device : {"null", "full"}) {
    fs::create_symlink(std::string("/dev/") + device, folder / device);
  }
  CHECK(WriteWhole(folder / "null", "text").ok());
  const absl::Status full = WriteWhole(folder / "full", "text");
  CHECK(ReasonOf(full) == "FILE_UNWRITABLE");
  CHECK(full.message().find("No space left") != std::string::npos);
  for (const char* device : {"null", "full"}) {
    CHECK(fs::is_symlink(folder / device));
    CHECK(fs::is_character_file(folder / device));
  }
}

TEST_CASE("A folder, and a file that cannot be, are errors") {
  const storage::TempDirectory folder;
  fs::create_directories(folder / "is-there");
  const absl::Status taken = WriteWhole(folder / "is-there", "text");
  CHECK(ReasonOf(taken) == "FILE_UNWRITABLE");
  CHECK(taken.message().find("is-there cannot be written: Is a directory") != std::string::npos);
  CHECK(fs::is_empty(folder / "is-there"));
  fs::create_symlink("loop", folder / "loop");
  for (const std::string& nowhere : {folder / "not-there/file", folder / "loop", std::string()}) {
    INFO(nowhere);
    CHECK(ReasonOf(WriteWhole(nowhere, "text")) == "FILE_UNWRITABLE");
  }
  CHECK(fs::is_symlink(folder / "loop"));
}

}  // namespace
}  // namespace lorad::client
