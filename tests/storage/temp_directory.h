#pragma once

#include <cassert>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace lorad::storage {

// A directory of a test's own, gone with it.
class TempDirectory {
 public:
  TempDirectory() {
    const char* parent = getenv("TEST_TMPDIR");
    path_ = std::string(parent != nullptr ? parent : "/tmp") + "/storage.XXXXXX";
    [[maybe_unused]] const char* made = mkdtemp(path_.data());
    assert(made != nullptr);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

  // Writes a file and returns its path.
  std::string Write(std::string_view name, std::string_view bytes) const {
    const std::string path = *this / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string Read(std::string_view name) const {
    std::ostringstream bytes;
    bytes << std::ifstream(*this / name, std::ios::binary).rdbuf();
    return bytes.str();
  }

 private:
  std::string path_;
};

}  // namespace lorad::storage
