#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"

namespace lorad::client {

// A file that gets a text, and may get others later. One thread.
class WholeFile {
 public:
  explicit WholeFile(std::string path) : path_(std::move(path)) {}
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;
  ~WholeFile();

  // The file holds `text`, or what it held before: it is written beside it as FILE.partial and put
  // in its place, with the same mode. A symbolic link stays, and what it leads to is written so.
  // What is no regular file, a device or a pipe, is written into as it stands, and waited for as it
  // wants; so is /dev/stdout, whatever it leads to. It gets one text behind the other, and stays
  // open between them, so that who reads a pipe meets its end with this object's. Where its reader
  // has gone, the process gets SIGPIPE, as it does for /dev/stdout.
  // Errors: FILE_UNWRITABLE, also where it is a folder, and where SIGPIPE is ignored.
  absl::Status Write(const std::string& text);

 private:
  int WriteInto(const std::string& text);

  std::string path_;
  int stream_ = -1;  // what is no regular file, since its first text
};

// Of a file that gets one text.
inline absl::Status WriteWhole(const std::string& file, const std::string& text) {
  return WholeFile(file).Write(text);
}

// Why no file can be at that path, for options that name one; "" where one may be.
std::string CheckFile(const std::string& file);

}  // namespace lorad::client
