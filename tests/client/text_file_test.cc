// Texts that commands read whole.
#include "client/inputs/text_file.h"

#include <catch2/catch.hpp>
#include <iostream>
#include <sstream>

#include "client/calls/error.h"
#include "tests/storage/temp_directory.h"

namespace lorad::client {
namespace {

TEST_CASE("A text is the bytes of its file, or of standard input") {
  const storage::TempDirectory folder;
  const std::string whole(kTextBytesMax, '\n');
  const absl::StatusOr<std::string> text = ReadText(folder.Write("file", whole));
  REQUIRE(text.ok());
  CHECK(*text == whole);

  std::istringstream in("one\r\ntwo");
  std::streambuf* const real = std::cin.rdbuf(in.rdbuf());
  const absl::StatusOr<std::string> standard = ReadText("-");
  std::cin.rdbuf(real);
  std::cin.clear();
  REQUIRE(standard.ok());
  CHECK(*standard == "one\r\ntwo");
}

TEST_CASE("What has no end is read so far and no further") {
  CHECK(ReasonOf(ReadText("/dev/zero").status()) == "FILE_TOO_LONG");
}

TEST_CASE("What cannot be read is named") {
  const storage::TempDirectory folder;
  CHECK(ReasonOf(ReadText(folder / "absent").status()) == "FILE_UNREADABLE");
  CHECK(ReasonOf(ReadText(folder.path()).status()) == "FILE_UNREADABLE");
}

}  // namespace
}  // namespace lorad::client
