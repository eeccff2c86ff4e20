// What tests of job files say of one.
#pragma once

#include <catch2/catch.hpp>
#include <sstream>
#include <string>

#include "absl/types/span.h"
#include "client/calls/error.h"
#include "client/job_file.h"

namespace lorad::client {

inline std::string ErrorOf(const std::string& text) {
  const auto job = ParseJob(text, "job.json");
  if (job.ok()) return "";
  std::ostringstream out;
  PrintError(job.status(), out);
  return out.str();
}

inline bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A job with one field that is wrong, and the line that says so.
struct Mistake {
  const char* text;
  const char* line;
};

inline void CheckMistakes(absl::Span<const Mistake> mistakes) {
  for (const Mistake& mistake : mistakes) {
    INFO(mistake.text);
    CHECK(ErrorOf(mistake.text) ==
          std::string("error: BAD_JOB_FILE: job.json: 1 field is wrong\n") + mistake.line);
  }
}

}  // namespace lorad::client
