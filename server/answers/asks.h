// What a call of Generate asks, as tokens. Pure but for the files that it reads: those of the base
// model, of datasets whose rows are asked, and of imported adapters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lorad/v1/adapters.pb.h"
#include "lorad/v1/models.pb.h"
#include "server/answers/asked_models.h"
#include "server/core/events/events.h"
#include "server/driver/driver.h"

namespace lorad::server {

inline constexpr int kAsksMax = 256;
inline constexpr int kMaxTokensDefault = 128;
inline constexpr int kStopsMax = 8;
inline constexpr int kStopBytesMax = 256;
inline constexpr double kTemperatureMax = 100;

// INVALID_ARGUMENT with every field that cannot be, whatever the names in it stand for.
absl::Status CheckAsks(const v1::GenerateRequest& request);

struct PreparedAsks {
  StartGeneration start;
  std::shared_ptr<const AskedModel> model;
  std::vector<std::string> references;  // by ask: a row's own answer
};

// All asks are of `model`, of which `asked` has the parts. INVALID_ARGUMENT: a prompt that cannot
// be rendered, has no token, leaves no position for an answer (PROMPT_TOO_LONG, and by how many
// tokens), or ids that the model does not have (each of one ask, which "ask" of the metadata
// counts); an adapter whose matrices do not fit. NOT_FOUND: a dataset, a row, an adapter. A row is
// looked for from the beginning of its file, once for all rows of a call. Takes time: for a thread
// that may read files.
absl::StatusOr<PreparedAsks> PrepareAsks(Driver& driver, const v1::GenerateRequest& request,
                                         const v1::Model& model,
                                         std::shared_ptr<const AskedModel> asked);

}  // namespace lorad::server
