#include "server/answers/asks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"
#include "storage/adapters/peft.h"
#include "storage/datasets/dataset.h"
#include "storage/datasets/prompt.h"
#include "storage/files/files.h"
#include "storage/files/sha256.h"
#include "storage/models/model_directory.h"

namespace lorad::server {
namespace {

constexpr uint64_t kReadBytes = 1 << 20;
constexpr char kAskPayload[] = "lorad/metadata/ask";  // errors.h
using Rows = std::map<int64_t, storage::DatasetRow>;

std::string Field(int index, const char* name) { return absl::StrCat("asks[", index, "].", name); }

void CheckAsk(const v1::Ask& ask, int index, std::vector<FieldViolation>* wrong) {
  const auto add = [&](const char* field, const std::string& what) {
    wrong->push_back({Field(index, field), what});
  };
  if (ask.job().empty() && ask.base_model().empty()) {
    add("job", "say whom: a job, or a base_model, alone or with an adapter");
  }
  if (!ask.job().empty() && !ask.adapter().empty()) {
    add("adapter", "is asked with its base_model; leave the job out");
  }
  if (ask.has_step() && (ask.job().empty() || ask.step() < 1)) {
    add("step", "must be at least 1, of a job");
  }
  if (ask.prompt_case() == v1::Ask::PROMPT_NOT_SET) {
    add("prompt", "must be one of text, messages_json, token_ids, row");
  }
  if (ask.has_row() && (ask.row().dataset().empty() || ask.row().row() < 0)) {
    add("row", "must name a dataset and a row of it, counted from 0");
  }
  if (ask.has_max_tokens() && (ask.max_tokens() < 1 || ask.max_tokens() > kSequenceTokensMax)) {
    add("max_tokens", absl::StrCat("must be between 1 and ", kSequenceTokensMax));
  }
  if (!(ask.temperature() >= 0 && ask.temperature() <= kTemperatureMax)) {
    add("temperature", absl::StrCat("must be between 0 and ", kTemperatureMax));
  }
  if (!(ask.top_p() >= 0 && ask.top_p() <= 1)) add("top_p", "must be between 0 and 1");
  if (ask.stop_size() > kStopsMax) add("stop", absl::StrCat("must be at most ", kStopsMax));
  for (const std::string& stop : ask.stop()) {
    if (stop.empty() || stop.size() > kStopBytesMax) {
      add("stop", absl::StrCat("must each have 1 to ", kStopBytesMax, " bytes"));
    }
  }
}

// The rows of a dataset that are asked. All of its bytes are read, and are those that were uploaded.
absl::StatusOr<Rows> ReadRows(Driver& driver, const std::string& dataset,
                              const std::vector<int64_t>& wanted) {
  std::string sha256;
  const absl::StatusOr<std::string> path = driver.DatasetPath(dataset, &sha256);
  if (!path.ok()) return path.status();
  const int64_t last = *std::ranges::max_element(wanted);
  Rows rows;
  int64_t seen = 0;
  storage::DatasetScanner scanner({},
                                  [&](int64_t row, int64_t, const storage::DatasetRow& content) {
                                    seen = row + 1;
                                    if (std::ranges::count(wanted, row) > 0)
                                      rows.emplace(row, content);
                                    return absl::OkStatus();
                                  });
  storage::Sha256 hash;
  absl::Status scanned;
  for (uint64_t offset = 0;;) {
    const absl::StatusOr<std::string> bytes = driver.files().ReadRange(*path, offset, kReadBytes);
    if (!bytes.ok()) return bytes.status();
    if (bytes->empty()) break;
    offset += bytes->size();
    hash.Update(*bytes);
    if (seen <= last && scanned.ok()) scanned = scanner.Add(*bytes);
  }
  if (absl::Status same = storage::CheckDataset(*path, hash.HexDigest(), sha256); !same.ok()) {
    return same;
  }
  if (!scanned.ok()) return scanned;
  if (seen <= last) scanner.Finish();
  if (rows.contains(last)) return rows;
  return Error(absl::StatusCode::kNotFound, "ROW_NOT_FOUND",
               absl::StrCat("dataset '", dataset, "' has ", seen, seen == 1 ? " row" : " rows",
                            ", counted from 0: there is no row ", last));
}

absl::StatusOr<storage::Prompt> PromptOf(const v1::Ask& ask, const AskedModel& model,
                                         const std::map<std::string, Rows>& rows) {
  switch (ask.prompt_case()) {
    case v1::Ask::kText:
      return storage::TextPrompt(ask.text(), model.text);
    case v1::Ask::kMessagesJson:
      return storage::ChatPrompt(ask.messages_json(), model.text);
    case v1::Ask::kRow:
      return storage::RowPrompt(rows.at(ask.row().dataset()).at(ask.row().row()), model.text,
                                model.ends);
    default:
      return storage::Prompt{.ids = {ask.token_ids().ids().begin(), ask.token_ids().ids().end()},
                             .reference = {}};
  }
}

absl::Status CheckPrompt(const std::vector<int32_t>& ids, const v1::Model& model,
                         int64_t vocabulary) {
  const int64_t positions = model.max_position_embeddings();
  const auto invalid = [](const std::string& what) {
    return Error(absl::StatusCode::kInvalidArgument, "PROMPT_INVALID", what);
  };
  if (ids.empty()) return invalid("the prompt is empty: it has no token that could be run");
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocabulary) continue;
    return invalid(absl::StrCat("the prompt's token ", id, " is none of the model's ", vocabulary));
  }
  if (std::ssize(ids) <= positions) return absl::OkStatus();
  return Error(
      absl::StatusCode::kInvalidArgument, "PROMPT_TOO_LONG",
      absl::StrCat("the prompt has ", ids.size(), " tokens, ", std::ssize(ids) - positions,
                   " more than the ", positions, " positions of model '", model.name(), "'"));
}

// The error with the row, or the ask, that has it before its message, and the ask in its metadata:
// who asks many can leave it out.
absl::Status OfAsk(const v1::Ask& ask, int index, int asks, absl::Status status) {
  status.SetPayload(kAskPayload, absl::Cord(absl::StrCat(index)));
  if (asks == 1 && !ask.has_row()) return status;
  const std::string what = ask.has_row() ? absl::StrCat("row ", ask.row().row(), " of dataset '",
                                                        ask.row().dataset(), "'")
                                         : absl::StrCat("ask ", index);
  absl::Status out(status.code(), absl::StrCat(what, ": ", status.message()));
  status.ForEachPayload(
      [&out](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

absl::Status CheckAdapter(Driver& driver, const std::string& name,
                          const storage::ModelDirectory& directory) {
  const absl::StatusOr<std::string> path = driver.AdapterPath(name);
  if (!path.ok()) return path.status();
  const absl::StatusOr<storage::PeftAdapter> adapter =
      storage::PeftAdapter::Open(*path, driver.files());
  if (!adapter.ok()) return adapter.status();
  const absl::Status fits = adapter->CheckFits(directory.description());
  if (fits.ok()) return fits;
  return Error(absl::StatusCode::kFailedPrecondition, "ADAPTER_DOES_NOT_FIT",
               absl::StrCat("adapter '", name, "' is of another base model: ", fits.message()));
}

}  // namespace

absl::Status CheckAsks(const v1::GenerateRequest& request) {
  std::vector<FieldViolation> wrong;
  if (request.asks().empty() || request.asks_size() > kAsksMax) {
    wrong.push_back(
        {"asks", absl::StrCat("must be 1 to ", kAsksMax, ", got ", request.asks_size())});
  }
  for (int i = 0; i < std::min(request.asks_size(), kAsksMax); ++i) {
    CheckAsk(request.asks(i), i, &wrong);
  }
  return wrong.empty() ? absl::OkStatus() : InvalidFields("request", wrong);
}

absl::StatusOr<PreparedAsks> PrepareAsks(Driver& driver, const v1::GenerateRequest& request,
                                         const v1::Model& model,
                                         std::shared_ptr<const AskedModel> asked_model) {
  std::map<std::string, std::vector<int64_t>> wanted;
  std::vector<std::string> adapters;
  for (const v1::Ask& ask : request.asks()) {
    if (ask.has_row()) wanted[ask.row().dataset()].push_back(ask.row().row());
    if (!ask.adapter().empty() && std::ranges::count(adapters, ask.adapter()) == 0) {
      adapters.push_back(ask.adapter());
    }
  }
  for (const std::string& adapter : adapters) {
    if (absl::Status status = CheckAdapter(driver, adapter, asked_model->directory); !status.ok()) {
      return status;
    }
  }
  std::map<std::string, Rows> rows;
  for (const auto& [dataset, numbers] : wanted) {
    absl::StatusOr<Rows> read = ReadRows(driver, dataset, numbers);
    if (!read.ok()) return read.status();
    rows[dataset] = *std::move(read);
  }
  PreparedAsks prepared;
  for (int i = 0; i < request.asks_size(); ++i) {
    const v1::Ask& ask = request.asks(i);
    absl::StatusOr<storage::Prompt> prompt = PromptOf(ask, *asked_model, rows);
    absl::Status status = prompt.status();
    if (status.ok()) status = CheckPrompt(prompt->ids, model, asked_model->text.vocabulary);
    if (!status.ok()) return OfAsk(ask, i, request.asks_size(), status);
    AskedAnswer& asked = prepared.start.asks.emplace_back();
    asked.job = ask.job();
    if (ask.has_step()) asked.step = ask.step();
    asked.base_model = model.name();
    asked.adapter = ask.adapter();
    // The last token is not run again, so it needs no position.
    const int64_t most = model.max_position_embeddings() - std::ssize(prompt->ids) + 1;
    const int64_t wanted_tokens = ask.has_max_tokens() ? ask.max_tokens() : kMaxTokensDefault;
    asked.max_tokens = static_cast<int32_t>(std::min<int64_t>(most, wanted_tokens));
    asked.prompt = std::move(prompt->ids);
    asked.temperature = ask.temperature();
    asked.top_p = ask.top_p();
    asked.seed = ask.seed();
    if (!ask.ignore_eos()) asked.ends = asked_model->ends;
    prepared.references.push_back(std::move(prompt->reference));
  }
  prepared.model = std::move(asked_model);
  return prepared;
}

}  // namespace lorad::server
