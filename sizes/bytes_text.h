// Bytes as people read them. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace lorad::sizes {

// "12 KiB" below 1 MiB, else "1234 MiB". Of two numbers that are not equal the larger one never
// shows as less: what is needed is rounded up, and what is there down.
std::string NeededText(int64_t bytes);
std::string ThereText(int64_t bytes);

// "2.9 GiB", to the nearest tenth; below 1 GiB as ThereText.
std::string MemoryText(int64_t bytes);

}  // namespace lorad::sizes
