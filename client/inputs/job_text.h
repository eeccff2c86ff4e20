#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lorad::client {

// What a job file is written in.
enum class JobFormat { kJson, kYaml, kToml };

// `format` is json, yaml or toml; "" goes by the end of the path: .yaml and .yml, .toml, all else
// is JSON. Errors: USAGE.
absl::StatusOr<JobFormat> JobFormatOf(absl::string_view path, const std::string& format);

// A job file as JSON, whatever it was written in. Fields are named by path ("training.max_steps").
struct JobText {
  nlohmann::json root;  // an object
  // Of every field that is in no list, where its name stands: "line 3" in JSON, "line 3, column 5"
  // elsewhere.
  std::map<std::string, std::string> places;
  // A field, and what is wrong with how it is written: given again, a value that no field can have.
  std::vector<std::pair<std::string, std::string>> mistakes;
};

// `text` holds one job. Values are nested at most kJobDepthMax deep. Errors: BAD_JOB_FILE, by line
// and column, for what is not the format, or is no job at all. Threads: safe from any.
//
// YAML is read by the core schema of YAML 1.2: 2e-4, 1e-3 and 0x10 are numbers, true and false are
// the only truths, so "no", "on" and "12:30" are text; a whole number that begins with 0 and a
// number that is not finite are mistakes. Aliases are values like others, as long as they add no
// more than kAliasBytesMax; merge keys and tags other than those of the core schema are refused.
// TOML's dates and times are mistakes.
absl::StatusOr<JobText> ReadJobText(JobFormat format, absl::string_view text,
                                    absl::string_view file_name);

// A job nests 3 deep. What reads the result walks it by recursion.
inline constexpr int kJobDepthMax = 16;
inline constexpr std::size_t kAliasBytesMax = 1 << 20;

}  // namespace lorad::client
