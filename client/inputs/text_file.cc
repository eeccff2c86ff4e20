#include "client/inputs/text_file.h"

#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/calls/upload.h"

namespace lorad::client {

absl::StatusOr<std::string> ReadText(const std::string& path) {
  const bool standard = path == "-";
  const std::string name = standard ? "stdin" : path;
  absl::StatusOr<std::ifstream> file = std::ifstream();
  if (!standard) file = OpenFile(path);
  if (!file.ok()) return file.status();
  std::istream& in = standard ? std::cin : *file;
  std::string text(kTextBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return Unreadable(name);
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kTextBytesMax) {
    return Error("FILE_TOO_LONG", absl::StrCat(name, " is longer than ", kTextBytesMax, " bytes"));
  }
  return text;
}

}  // namespace lorad::client
