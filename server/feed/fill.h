// A planned window, filled: the tokens of its rows, and the planner's words in those of the worker.
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lorad/worker/v1/worker.pb.h"
#include "planner/window/window.h"
#include "server/core/events/plan.h"
#include "server/feed/token_cache.h"

namespace lorad::server::feed {

// The rows of one unit, as the planner packs them and with their tokens.
struct UnitRows {
  planner::Unit unit;
  std::map<int64_t, CachedRow> rows;  // by sequence
};

// Its sequences bring their tokens with them.
planner::Unit UnitOf(const GenerateUnit& generate);

// The lines of the dataset's file that a batch is of, by sequence.
BatchLines LinesOf(const UnitRows& rows);

// What a stage gets: ids the first one, labels the last one, lengths all where there are several.
// `rows`: by job, of all units but those that generate.
worker::v1::Window FillWindow(const PlanInput& input, const planner::Window& planned, size_t stage,
                              const std::map<std::string, UnitRows>& rows);

// The number behind those of the window's microbatches and Noops.
int64_t NextMicrobatch(const PlanInput& input, const planner::Window& planned);

}  // namespace lorad::server::feed
