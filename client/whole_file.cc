#include "client/whole_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"

namespace lorad::client {

absl::Status WriteWhole(const std::string& file, const std::string& text) {
  const std::string partial = file + ".partial";
  errno = 0;
  std::ofstream out(partial, std::ios::binary);
  const bool opened = out.good();
  out << text;
  out.close();
  std::error_code error(out.good() ? 0 : errno, std::generic_category());
  if (out.good()) std::filesystem::rename(partial, file, error);
  if (out.good() && !error) return absl::OkStatus();
  const std::string why = error ? absl::StrCat(": ", error.message()) : "";
  if (opened) std::filesystem::remove(partial, error);
  return Error("FILE_UNWRITABLE",
               absl::StrCat(file, " cannot be written", why,
                            ": name a file in a folder that you may write to and that has room"));
}

}  // namespace lorad::client
