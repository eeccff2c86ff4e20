// Checks of the text that clients send: each returns what is wrong ("" = nothing), fit for a
// FieldViolation.
#pragma once

#include <string>

namespace lorad::server {

// Names of datasets, models and adapters: 1 to 63 of a-z, 0-9 and '-', the first and the last no
// '-'.
std::string CheckName(const std::string& name);

// Names of workers, which may be those of machines: 1 to 63 letters, digits, '.', '_' and '-'.
std::string CheckWorkerName(const std::string& name);

// Up to 64 printable ASCII characters; empty = none.
std::string CheckRequestId(const std::string& request_id);

// Free text for people: at most `bytes_max`, no control characters.
std::string CheckText(const std::string& text, int bytes_max);

// Names and labels that people tell apart by looking: such text, without characters that are not
// seen or that turn the direction of what follows. (What joins letters and emoji is allowed.)
std::string CheckVisibleText(const std::string& text, int bytes_max);

// Keys of labels: 1 to 63 of a-z, 0-9, '.', '_', '/' and '-'.
std::string CheckLabelKey(const std::string& key);

// Page sizes: 0 (the default) to `max`.
std::string CheckPageSize(int page_size, int max, int default_size);

}  // namespace lorad::server
