#include "client/whole_file.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"

namespace lorad::client {

absl::Status WriteWhole(const std::string& file, const std::string& text) {
  const std::string partial = file + ".partial";
  std::ofstream out(partial, std::ios::binary);
  out << text;
  out.close();
  std::error_code error;
  if (out.good()) std::filesystem::rename(partial, file, error);
  if (out.good() && !error) return absl::OkStatus();
  return Error("FILE_UNWRITABLE", absl::StrCat(file,
                                               " cannot be written: name a file in a folder "
                                               "that you may write to"));
}

}  // namespace lorad::client
