#include "storage/files/files.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cerrno>

#include "storage/files/sha256.h"
#include "tests/storage/temp_directory.h"

namespace lorad::storage {
namespace {

TEST_CASE("files are written, read, listed and removed", "[files]") {
  const TempDirectory directory;
  Files& files = RealFiles();
  REQUIRE(files.MakeDirectory(directory / "a/b/c").ok());
  REQUIRE(files.MakeDirectory(directory / "a/b/c").ok());
  const std::string path = directory / "a/b/c/file";
  {
    auto file = files.Create(path);
    REQUIRE(file.ok());
    REQUIRE((*file)->Append("hello ").ok());
    REQUIRE((*file)->Append("world").ok());
    REQUIRE((*file)->Sync().ok());
    REQUIRE((*file)->Close().ok());
  }
  {
    auto file = files.OpenAppend(path);
    REQUIRE(file.ok());
    REQUIRE((*file)->Append("!").ok());
    REQUIRE((*file)->Close().ok());
  }
  CHECK(files.ReadAll(path, 100).value() == "hello world!");
  CHECK(files.ReadAll(path, 12).value() == "hello world!");
  CHECK(absl::IsOutOfRange(files.ReadAll(path, 11).status()));
  CHECK(files.ReadRange(path, 6, 5).value() == "world");
  CHECK(files.ReadRange(path, 11, 5).value() == "!");
  CHECK(files.ReadRange(path, 50, 5).value().empty());
  CHECK(files.Size(path).value() == 12);
  REQUIRE(files.Rename(path, directory / "a/b/z").ok());
  REQUIRE(files.SyncDirectory(directory / "a/b").ok());
  CHECK(files.List(directory / "a/b").value() == std::vector<std::string>{"c", "z"});
  CHECK(files.IsDirectory(directory / "a/b/c"));
  CHECK_FALSE(files.IsDirectory(directory / "a/b/z"));
  REQUIRE(RemoveTree(files, directory / "a").ok());
  REQUIRE(RemoveTree(files, directory / "a").ok());
  CHECK_FALSE(files.Exists(directory / "a"));
}

TEST_CASE("an open file is read where one says, and stays what it is", "[files]") {
  const TempDirectory directory;
  Files& files = RealFiles();
  const std::string path = directory / "file";
  directory.Write("file", "hello world!");
  const auto file = files.OpenToRead(path);
  REQUIRE(file.ok());
  const auto read = [&](uint64_t offset, size_t bytes) {
    std::string to(bytes, '?');
    const absl::Status status = (*file)->ReadAt(offset, bytes, to.data());
    return status.ok() ? to : absl::StatusCodeToString(status.code());
  };
  CHECK((*file)->Size().value() == 12);
  CHECK(read(6, 5) == "world");
  CHECK(read(0, 12) == "hello world!");
  CHECK(read(12, 0).empty());
  CHECK(read(8, 5) == "OUT_OF_RANGE");
  REQUIRE(files.Remove(path).ok());
  directory.Write("file", "another");
  CHECK(read(6, 5) == "world");
  CHECK(absl::IsNotFound(files.OpenToRead(directory / "none").status()));
  CHECK(absl::IsInvalidArgument(files.OpenToRead(directory.path()).status()));
}

TEST_CASE("errors carry their kind and the path", "[files]") {
  const TempDirectory directory;
  Files& files = RealFiles();
  const absl::Status missing = files.ReadAll(directory / "no/file", 10).status();
  CHECK(absl::IsNotFound(missing));
  CHECK_THAT(std::string(missing.message()), Catch::Matchers::Contains(directory / "no/file"));
  CHECK(absl::IsNotFound(files.Create(directory / "no/file").status()));
  CHECK(absl::IsNotFound(files.Remove(directory / "no")));
  REQUIRE(files.MakeDirectory(directory / "full/x").ok());
  CHECK(absl::IsAlreadyExists(files.Remove(directory / "full")));
  // What is no file is not read as an empty one.
  REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);
  for (const std::string& path :
       {directory / "pipe", directory / "full", std::string("/dev/zero")}) {
    CHECK(absl::IsInvalidArgument(files.ReadAll(path, 10).status()));
  }
  // A device that is always full stands for a full disk.
  auto full = files.OpenAppend("/dev/full");
  REQUIRE(full.ok());
  CHECK(absl::IsResourceExhausted((*full)->Append("x")));
}

TEST_CASE("a link to a directory is removed without what it points to", "[files]") {
  const TempDirectory directory;
  directory.Write("kept/file", "x");
  std::filesystem::create_directories(directory / "tree");
  std::filesystem::create_symlink(directory / "kept", directory / "tree/link");
  REQUIRE(RemoveTree(RealFiles(), directory / "tree").ok());
  CHECK(directory.Read("kept/file") == "x");
}

TEST_CASE("what is made is for its user alone", "[files]") {
  const TempDirectory directory;
  const mode_t mask = umask(0);
  REQUIRE(RealFiles().MakeDirectory(directory / "a/b").ok());
  REQUIRE(WriteSynced(RealFiles(), directory / "a/b/f", "x").ok());
  umask(mask);
  using std::filesystem::perms;
  const auto mode = [&](const char* name) {
    return std::filesystem::status(directory / name).permissions();
  };
  CHECK(mode("a") == perms::owner_all);
  CHECK(mode("a/b") == perms::owner_all);
  CHECK(mode("a/b/f") == (perms::owner_read | perms::owner_write));
}

TEST_CASE("an error that may pass by itself is told apart", "[files]") {
  CHECK(absl::IsUnavailable(FileError("write", "/f", EROFS)));
  CHECK(absl::IsUnavailable(FileError("open", "/f", EMFILE)));
  CHECK(absl::IsResourceExhausted(FileError("write", "/f", ENOSPC)));
  CHECK(absl::IsInternal(FileError("write", "/f", EIO)));
  CHECK(FileError("write", "/f", EIO).message() == "/f: cannot write: Input/output error");
}

TEST_CASE("an atomic write replaces and leaves nothing beside it", "[files]") {
  const TempDirectory directory;
  REQUIRE(AtomicWrite(RealFiles(), directory / "f", "one").ok());
  REQUIRE(AtomicWrite(RealFiles(), directory / "f", "two").ok());
  CHECK(directory.Read("f") == "two");
  CHECK(RealFiles().List(directory.path()).value().size() == 1);
}

TEST_CASE("paths are joined and cut", "[files]") {
  CHECK(JoinPath("a", "b") == "a/b");
  CHECK(JoinPath("a/", "b") == "a/b");
  CHECK(JoinPath("/", "b") == "/b");
  CHECK(JoinPath("", "b") == "b");
  CHECK(ParentPath("a/b/c") == "a/b");
  CHECK(ParentPath("/a") == "/");
  CHECK(ParentPath("a") == ".");
  CHECK(ParentPath("a/b/") == "a");
}

TEST_CASE("sha256 in one piece and in many", "[files]") {
  const char* const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  CHECK(Sha256::Of("abc") == abc);
  Sha256 sha;
  sha.Update("a");
  sha.Update("");
  sha.Update("bc");
  CHECK(sha.HexDigest() == abc);
}

}  // namespace
}  // namespace lorad::storage
