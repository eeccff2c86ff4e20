#pragma once

#include <string>

#include "lorad/v1/cluster.pb.h"

namespace lorad::client {

// The trace in Trace Event Format, for chrome://tracing and ui.perfetto.dev: a process for each
// stage with the tracks compute, send and receive, and behind them the same of the simulation. A
// tensor on its way is a bar on the receiving stage's track "receive" and on its sender's "send".
std::string ToChromeTrace(const v1::Trace& trace);

}  // namespace lorad::client
