#include "client/inputs/job_text.h"

#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/inputs/job_formats.h"

namespace lorad::client {
namespace {

struct Ending {
  absl::string_view text;
  JobFormat format;
};
constexpr std::array<Ending, 3> kEndings = {{
    {".yaml", JobFormat::kYaml},
    {".yml", JobFormat::kYaml},
    {".toml", JobFormat::kToml},
}};

absl::StatusOr<JobText> Read(JobFormat format, absl::string_view text) {
  switch (format) {
    case JobFormat::kYaml:
      return ReadJobYaml(text);
    case JobFormat::kToml:
      return ReadJobToml(text);
    case JobFormat::kJson:
      break;
  }
  return ReadJobJson(text);
}

}  // namespace

absl::StatusOr<JobFormat> JobFormatOf(absl::string_view path, const std::string& format) {
  if (format == "json") return JobFormat::kJson;
  if (format == "yaml") return JobFormat::kYaml;
  if (format == "toml") return JobFormat::kToml;
  if (!format.empty()) {
    return Error("USAGE", absl::StrCat("--format must be json, yaml or toml, got ", format));
  }
  for (const Ending& ending : kEndings) {
    if (absl::EndsWithIgnoreCase(path, ending.text)) return ending.format;
  }
  return JobFormat::kJson;
}

std::string PlaceText(std::size_t line, std::size_t column) {
  return absl::StrCat("line ", line, ", column ", column);
}

std::string FieldPath(const std::string& section, absl::string_view name) {
  return section.empty() ? std::string(name) : absl::StrCat(section, ".", name);
}

std::string TooDeepText() { return absl::StrCat("nested deeper than ", kJobDepthMax, " levels"); }

absl::StatusOr<JobText> ReadJobText(JobFormat format, absl::string_view text,
                                    absl::string_view file_name) {
  absl::StatusOr<JobText> job = Read(format, text);
  if (job.ok()) return job;
  const bool guessed = format == JobFormat::kJson && !absl::EndsWithIgnoreCase(file_name, ".json");
  return Error("BAD_JOB_FILE",
               absl::StrCat(file_name, ": ", job.status().message(),
                            guessed ? "; --format yaml or toml says that it is no JSON" : ""));
}

}  // namespace lorad::client
